"""How an exchange is completed that lost a site or a link: who holds what, and what follows. Pure.

An exchange is settled, and its result given to who called for it, when all members hold it. Until
then each member has, of every element, either the result or its own contribution, untouched. So
when something is lost, all members stop and say what they hold. What any of them holds is spread
from there; what none does is reduced again, from the contributions of those that are left. Both
are exchanges like any other, on some of the elements.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from anabranch.exchange import ranges
from anabranch.exchange.ranges import Ranges
from anabranch.net.messages import Contribution, RepairPart


class Unsettled:
    """An exchange from its first grant until all its members hold the result.

    Args:
        exchange: the number that its chunks carry.
        elements: of its buffers.
        members: who takes part.
        sources: those that have all of the result from the first, alike: of a broadcast, or of a
            transfer; None where all contribute.
        followers: members that contribute nothing, where all others do.
        earlier: the generation of an earlier exchange of this number that was taken back: answers
            to its interruptions may be on their way.

    Attributes:
        generation: 0 until it is interrupted, and higher with each interruption.
        exchanges: the numbers of the exchanges that would complete it now.
        contributions: whose contributions are in which elements of the result.
        repaired: how many elements were reduced again, and how many spread from a holder.
    """

    def __init__(
        self,
        exchange: int,
        elements: int,
        members: Collection[int],
        sources: Collection[int] | None,
        followers: Collection[int] = (),
        earlier: int = 0,
    ) -> None:
        self.exchanges: tuple[int, ...] = (exchange,)
        self.generation = 0
        self._earlier = earlier
        self.repaired = 0, 0
        self.sources = None if sources is None else frozenset(sources)
        self.followers = frozenset(followers)
        self._all: Ranges = ((0, elements),)
        self._members = set(members)
        self._held: dict[int, Ranges] = {}  # by site, as it said in this generation
        self._is_mending = False  # whether answers are awaited
        whose = self._members - self.followers if self.sources is None else self.sources
        self.contributions: tuple[Contribution, ...] = (
            Contribution(0, elements, tuple(sorted(whose))),
        )

    @property
    def is_whole(self) -> bool:
        """Whether all that are members now, and no others, have contributed to all of it."""
        return self.sources is not None or all(
            self._members == set(each.sites) for each in self.contributions
        )

    @property
    def is_settled(self) -> bool:
        """Whether all members hold all of the result."""
        return not self._is_mending and all(
            self._held.get(site) == self._all for site in self._members
        )

    @property
    def latest_generation(self) -> int:
        """The latest of this exchange, or of earlier ones of its number."""
        return max(self.generation, self._earlier)

    def restore(self, generation: int, contributions: Collection[Contribution]) -> None:
        """Go on where it was interrupted so often, with these contributions; none if not known."""
        self.generation = generation
        if contributions:
            self.contributions = tuple(contributions)

    def interrupt(self, members: Collection[int]) -> None:
        """Ask these members, all that are left, what they hold."""
        self._members = set(members)
        self.generation = self.latest_generation + 1
        self._is_mending = True
        self._held = {}

    def hear(self, site: int, generation: int, held: Ranges) -> bool:
        """Take what a member says it holds; return whether that was the last answer awaited."""
        if generation != self.generation or site not in self._members:
            return False  # said before it heard of the interruption
        self._held[site] = held
        return self._is_mending and len(self._held) == len(self._members)

    def mend(self, next_exchange: Callable[[], int]) -> tuple[RepairPart, ...] | None:
        """Return what completes it, once all have answered.

        Args:
            next_exchange: numbers exchanges.

        Returns:
            None where no member has what is missing, as the source of a broadcast is lost, or all
            that contributed.
        """
        self._is_mending = False
        held, self._held = self._held, {}
        for source in self._members & (self.sources or frozenset()):
            held[source] = self._all  # its own elements are the result
        missing = ranges.minus(self._all, ranges.union(*held.values()))
        everyone = tuple(sorted(self._members))
        contributors = tuple(site for site in everyone if site not in self.followers)
        if missing and (self.sources is not None or not contributors):
            return None
        parts = []
        spread = 0
        if missing:
            parts.append(RepairPart(next_exchange(), None, everyone, missing))
            self._contribute(missing, contributors)
        # Those who hold the most first: the fewer sources, the fewer exchanges.
        done = missing
        for source in sorted(held, key=lambda site: (-ranges.length(held[site]), site)):
            own = ranges.minus(held[source], done)
            done = ranges.union(done, own)
            lacks = {site: ranges.minus(own, held[site]) for site in everyone}
            run = ranges.union(*lacks.values())
            if run:  # who holds some of it already gets the same bits again
                receivers = tuple(site for site in everyone if lacks[site])
                parts.append(RepairPart(next_exchange(), source, receivers, run))
                spread += ranges.length(run)
        self.exchanges = tuple(part.exchange for part in parts)
        again, before = self.repaired
        self.repaired = again + ranges.length(missing), before + spread
        return tuple(parts)

    def hand_on(
        self, parts_for: Callable[[int, Ranges], Collection[RepairPart]]
    ) -> tuple[RepairPart, ...]:
        """Return what completes a transfer, at first or once all have answered.

        Args:
            parts_for: makes what hands to a site, over ways of its own, what it lacks.
        """
        assert self.sources is not None
        self._is_mending = False
        held, self._held = self._held, {}
        parts: list[RepairPart] = []
        for site in sorted(self._members - self.sources):
            if lacks := ranges.minus(self._all, held.get(site, ())):
                parts += parts_for(site, lacks)
        self.exchanges = tuple(part.exchange for part in parts)
        if self.generation:
            again, before = self.repaired
            spread = sum(ranges.length(part.ranges) for part in parts)
            self.repaired = again, before + spread
        return tuple(parts)

    def _contribute(self, again: Ranges, sites: tuple[int, ...]) -> None:
        kept = [
            Contribution(start, stop, each.sites)
            for each in self.contributions
            for start, stop in ranges.minus(((each.start, each.stop),), again)
        ]
        new = [Contribution(start, stop, sites) for start, stop in again]
        joined: list[Contribution] = []
        for each in sorted([*kept, *new], key=lambda one: one.start):
            if joined and joined[-1].sites == each.sites and joined[-1].stop == each.start:
                joined[-1] = Contribution(joined[-1].start, each.stop, each.sites)
            else:
                joined.append(each)
        self.contributions = tuple(joined)
