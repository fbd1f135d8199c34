"""Whether members make the same calls in the same order, and which calls can still end. Pure.

A call has a *place* among all calls of its members, from 1, whether it is an exchange or a
gathering. Members may be any number of calls apart. Of each place that some members have reached
and others have not, the first call there is kept, and each later one is compared with it.

Where a call cannot end, none after it can: the members would wait for each other. So there is a
*limit* from then on, which can only fall.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from anabranch.net.messages import ChannelStanding
from anabranch.scheduler.calls._answer import Call, Kind, MixedKinds


@dataclass(frozen=True, slots=True)
class Limit:
    """The calls that can still end, where not all can: so many of each kind."""

    exchanges: int
    gatherings: int
    reason: str


class Order:
    """The calls of one channel's members, by their places.

    Args:
        members: that make them.

    Attributes:
        limit: the calls that can still end; None where all can.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self._made = dict.fromkeys(members, 0)  # by site, how many calls
        self._firsts: dict[int, Call] = {}  # the call that was made first, by its place
        self._last: float = math.inf  # whatever is called after this place fails
        self.limit: Limit | None = None

    def made(self, site: int) -> int:
        """Return how many calls a member has made."""
        return self._made[site]

    @property
    def latest(self) -> int:
        """The place of the latest call any member made; 0 before the first."""
        return max(self._made.values(), default=0)

    @property
    def lowest(self) -> int:
        """The place of the latest call that all members have made."""
        return min(self._made.values(), default=0)

    @property
    def is_level(self) -> bool:
        """Whether all members have made as many calls."""
        return len({*self._made.values()}) == 1

    @property
    def begun(self) -> dict[int, Kind]:
        """Calls that some members have made and others have not: by place, the kind."""
        return {place: made.kind for place, made in self._firsts.items()}

    def awaits(self, site: int) -> bool:
        """Return whether another member has made a call that this one has not."""
        return site in self._made and self.latest > self._made[site]

    def count(self, made: Call, before: tuple[int, int]) -> MixedKinds | None:
        """Count a site's call; return what is wrong with its kind.

        Args:
            made: the call.
            before: how many exchanges and gatherings its site has called for earlier.
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
        """Compare a call with the first one in its place; return what is wrong with its kind."""
        first = self._firsts.setdefault(place, made)
        if made.kind == first.kind:
            return None
        both = (first, made) if first.kind < made.kind else (made, first)
        return MixedKinds(place, both, *before)

    def lower(self, limit: Limit, last: int) -> Limit:
        """Let no call end beyond a limit, nor beyond the one before; return which that is.

        Args:
            limit: the calls that can still end.
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
        self._firsts = {call: who for call, who in self._firsts.items() if call <= self._last}
        return limit

    # --- members that go, and come

    def lose(self, sites: Collection[int]) -> None:
        """Go on without some members."""
        for site in sites:
            del self._made[site]
        for call, made in list(self._firsts.items()):
            others = sorted(site for site, calls in self._made.items() if calls >= call)
            if len(others) == len(self._made):  # all have made this call
                del self._firsts[call]
            elif made.site in sites and others:  # which have made the same call
                self._firsts[call] = replace(made, site=others[0])
            elif made.site in sites:
                del self._firsts[call]

    def admit(self, sites: Iterable[int]) -> None:
        """Let sites be members that have made all calls which others have made."""
        self._made |= dict.fromkeys(sites, self.latest)

    def restore(self, standings: Mapping[int, ChannelStanding]) -> tuple[MixedKinds, ...]:
        """Take up the calls that members say they have made.

        Args:
            standings: what each member says; see the book's ``restore`` on those that say nothing.

        Returns:
            The first calls that are of two kinds, if there are any.
        """
        made = {site: each.asked + each.gathered for site, each in standings.items()}
        ended = [*made.values()]
        for each in standings.values():
            ended += [said.place - 1 for said in each.exchanges]
            ended += [said.place - 1 for said in each.gatherings if said.number]
        self._made |= dict.fromkeys(self._made, min(ended, default=0))
        self._made |= made
        mixed = None
        for site, each in standings.items():
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
        lowest = self.lowest  # what all have made needs no comparison
        self._firsts = {place: who for place, who in self._firsts.items() if place > lowest}
        return () if mixed is None else (mixed,)
