"""Checks that members make the same calls in the same order; knows which can still end. Pure.

A call, either an exchange or a gathering, has a *place* among all calls of its members, from 1.
Members may be any number of calls apart. For each place that some members have reached and others
have not, the first call is kept, and each later one is compared with it::

    place        1         2         3         4
    site 0    exchange  exchange   gather   exchange
    site 1    exchange  exchange  exchange                  mixed kinds: place 3 cannot end
    site 2    exchange                                      the first call at 2 is kept for it

If a call cannot end, none after it can: members that wait in it make no later call. So a channel
has a *limit* from then on, which can only fall.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from anabranch.net.messages import ChannelSnapshot
from anabranch.scheduler.calls._answer import Call, Kind, MixedKinds


@dataclass(frozen=True, slots=True)
class Limit:
    """The last exchange and the last gathering that can end, and why later ones cannot."""

    exchanges: int
    gatherings: int
    reason: str


class Order:
    """The calls of one channel's members, by their places.

    Args:
        members: of the channel.

    Attributes:
        limit: the last calls that can end; None if all can.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self._made = dict.fromkeys(members, 0)  # by site, its number of calls
        self._firsts: dict[int, Call] = {}  # by place, the first call there
        self._last: float = math.inf  # every call after this place fails
        self.limit: Limit | None = None

    def made(self, site: int) -> int:
        """Return how many calls a member has made."""
        return self._made[site]

    @property
    def latest(self) -> int:
        """The place of the latest call that any member made; 0 before the first."""
        return max(self._made.values(), default=0)

    @property
    def lowest(self) -> int:
        """The place of the latest call that all members have made."""
        return min(self._made.values(), default=0)

    @property
    def is_level(self) -> bool:
        """Whether all members have made equally many calls."""
        return len({*self._made.values()}) == 1

    @property
    def begun(self) -> dict[int, Kind]:
        """The kinds of the calls that some members have made and others have not, by place."""
        return {place: made.kind for place, made in self._firsts.items()}

    def awaits(self, site: int) -> bool:
        """Return whether another member has made a call that this site has not."""
        return site in self._made and self.latest > self._made[site]

    def count(self, made: Call, before: tuple[int, int]) -> MixedKinds | None:
        """Count a site's call; return how its kind differs from the first call in its place.

        Args:
            made: the call.
            before: the numbers of exchanges and gatherings that its site called for earlier.
        """
        self._made[made.site] += 1
        place = self._made[made.site]
        if place > self._last:
            return None
        mixed = self.compare(made, place, before)
        if place <= self.lowest:
            del self._firsts[place]
        return mixed

    def compare(self, made: Call, place: int, before: tuple[int, int]) -> MixedKinds | None:
        """Compare a call with the first one in its place; return how the kinds differ, or None."""
        first = self._firsts.setdefault(place, made)
        if made.kind == first.kind:
            return None
        both = (first, made) if first.kind < made.kind else (made, first)
        return MixedKinds(place, both, *before)

    def lower(self, limit: Limit, last: int) -> Limit:
        """Lower the limit; return the lower of the new limit and the one before.

        Args:
            limit: the last calls that can end.
            last: the place after which every call fails.
        """
        before = self.limit
        if before is not None:
            lowest = (
                min(limit.exchanges, before.exchanges),
                min(limit.gatherings, before.gatherings),
            )
            is_lower = lowest != (before.exchanges, before.gatherings)
            limit = Limit(*lowest, limit.reason if is_lower else before.reason)
        self.limit, self._last = limit, min(self._last, last)
        self._firsts = {place: made for place, made in self._firsts.items() if place <= self._last}
        return limit

    # --- members are lost and admitted

    def lose(self, sites: Collection[int]) -> None:
        """Remove lost members; errors about kinds then name a remaining member."""
        for site in sites:
            del self._made[site]
        for call, made in list(self._firsts.items()):
            others = sorted(site for site, calls in self._made.items() if calls >= call)
            if len(others) == len(self._made):  # all have made this call
                del self._firsts[call]
            elif made.site in sites and others:  # another member has made the same call
                self._firsts[call] = replace(made, site=others[0])
            elif made.site in sites:
                del self._firsts[call]

    def admit(self, sites: Iterable[int]) -> None:
        """Add members, as if they had made all calls so far."""
        self._made |= dict.fromkeys(sites, self.latest)

    def restore(self, snapshots: Mapping[int, ChannelSnapshot]) -> tuple[MixedKinds, ...]:
        """Restore the calls that members report.

        Args:
            snapshots: each member's report; see the book's ``restore`` on silent members.

        Returns:
            The first calls of two kinds in one place, if there are any.
        """
        made = {site: each.asked + each.gathered for site, each in snapshots.items()}
        ended = [*made.values()]
        for each in snapshots.values():
            ended += [said.place - 1 for said in each.exchanges]
            ended += [said.place - 1 for said in each.gatherings if said.number]
        self._made |= dict.fromkeys(self._made, min(ended, default=0))
        self._made |= made
        mixed = None
        for site, each in snapshots.items():
            for said in each.exchanges:
                before = said.number - 1, said.place - said.number
                call = Call(site, Kind.EXCHANGE, said.signature)
                mixed = mixed or self.compare(call, said.place, before)
            for gathering in each.gatherings:
                if number := gathering.number:
                    before = gathering.place - number, number - 1
                    kind = Kind.ADMIT if gathering.admits else Kind.GATHER
                    call = Call(site, kind, gathering.what)
                    mixed = mixed or self.compare(call, gathering.place, before)
        lowest = self.lowest  # calls that all members have made need no comparison
        self._firsts = {place: made for place, made in self._firsts.items() if place > lowest}
        return () if mixed is None else (mixed,)
