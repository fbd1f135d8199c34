"""Small values that members gather: kept until every member has given its own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import ChannelSnapshot
from anabranch.scheduler.calls._answer import Abandoned, AllGathered


class Gatherings:
    """The gatherings of one channel, numbered from 1.

    Args:
        members: whose values are awaited.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self._members = tuple(members)
        self._latest = dict.fromkeys(self._members, 0)  # by site
        # By site, the latest gathering up to which it has heard all values. Sites keep the values
        # that others may lack, to tell a restarted scheduler, until every member has heard them.
        self._heard = dict.fromkeys(self._members, 0)
        self._values: dict[int, dict[int, bytes]] = {}  # by gathering under way, then by site
        self._admissions: set[int] = set()  # the gatherings that admit newcomers

    def latest(self, site: int) -> int:
        """Return a member's latest gathering; 0 before the first."""
        return self._latest[site]

    @property
    def lowest(self) -> int:
        """The latest gathering that all members have called for."""
        return min(self._latest.values(), default=0)

    @property
    def is_level(self) -> bool:
        """Whether all members have called for the same gatherings."""
        return len({*self._latest.values()}) == 1

    def check_follows(self, site: int, number: int) -> None:
        """Check that a member calls for the gathering after its last.

        Raises:
            OutOfPlaceMessage: it does not.
        """
        if number != self._latest[site] + 1:
            raise OutOfPlaceMessage(f"site {site} gathers {number} after {self._latest[site]}")

    def note(self, site: int, number: int, admits: bool, heard: int) -> None:
        """Note a member's call for a gathering, and the one up to which it has heard all values."""
        self._latest[site] = number
        self._heard[site] = min(heard, number - 1)
        if admits:
            self._admissions.add(number)

    def take(self, site: int, number: int, value: bytes) -> bool:
        """Take a member's value; return whether it was the last one."""
        values = self._values.setdefault(number, {})
        values[site] = value
        return len(values) == len(self._members)

    def end(self, number: int) -> AllGathered:
        """Return the values of a gathering to which all members have given theirs; forget it."""
        values, admits = self._values.pop(number), number in self._admissions
        self._admissions.discard(number)
        of_all = tuple(values[member] for member in self._members)
        return AllGathered(number, of_all, admits, min(self._heard.values()))

    def give_up_after(self, last: int, reason: str) -> list[Abandoned]:
        """Fail all gatherings after one; return the calls that this ends."""
        given_up = []
        for number in [number for number in self._values if number > last]:
            sites = self._values.pop(number)
            given_up += [Abandoned(site, number, 0, True, reason) for site in sites]
        return given_up

    # --- members are lost and admitted

    def lose(self, sites: Collection[int], members: tuple[int, ...]) -> list[AllGathered]:
        """Remove lost members; return the gatherings that all remaining members have joined."""
        self._members = members
        for site in sites:
            del self._latest[site], self._heard[site]
        whole = []
        for number, values in list(self._values.items()):
            for site in sites:
                values.pop(site, None)
            if not values:
                del self._values[number]
            elif len(values) == len(members):
                whole.append(self.end(number))
        return whole

    def admit(self, sites: Collection[int], members: tuple[int, ...]) -> None:
        """Add members, as if they had heard all values so far."""
        for counts in (self._latest, self._heard):
            counts |= dict.fromkeys(sites, max(counts.values()))
        self._members = members

    def restore(
        self, snapshots: Mapping[int, ChannelSnapshot], ended: Collection[int]
    ) -> list[AllGathered]:
        """Restore the gatherings from members' reports; return those that all have joined.

        Args:
            snapshots: each member's report; see the book's ``restore`` on silent members.
            ended: gatherings that have ended at some member, and so end at all.
        """
        for site, each in snapshots.items():
            self._latest[site] = each.gathered
            lacking = (gathering.number for gathering in each.gatherings if gathering.number)
            self._heard[site] = min(lacking, default=each.gathered + 1) - 1
            for gathering in each.gatherings:
                if gathering.number and gathering.number not in ended:
                    self._values.setdefault(gathering.number, {})[site] = gathering.value
                    if gathering.admits:
                        self._admissions.add(gathering.number)
        silent = {*self._members} - snapshots.keys()
        least = min((self._heard[site] for site in snapshots), default=0)
        for counts in (self._latest, self._heard):
            counts |= dict.fromkeys(silent, least)
        joined = [each for each, said in self._values.items() if said.keys() >= {*self._members}]
        return [self.end(number) for number in sorted(joined)]
