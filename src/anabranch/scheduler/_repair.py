"""Makes the parts that repair an interrupted exchange, from the elements that members hold. Pure.

Until an exchange is settled, each member has for every element either the result or its own
contribution, unchanged. After a loss, all members stop and report which elements of the result they
hold. Elements that a member holds are *spread* from it. Elements that none holds are *reduced*
again, from the contributions of the remaining members. Each part is an exchange of some elements::

    elements        0         20        40                       100
    site 0 holds    [===================]
    site 1 holds    [=========]
    site 2 is lost
    spread 0 to 1             [=========]
    reduce 0 and 1                      [========================]
    contributions   [ 0, 1 and 2        ][ 0 and 1               ]

`calls/_settling` describes the states of an exchange, and the messages that change them. A
broadcast has one *source*, and a transfer of the state several; their elements are never reduced.
If the sources are lost and the others together lack some of the result, the exchange fails.

What must never happen:

- two members end with different bits of one element (each element is spread from one source, and a
  member that holds it already gets the same bits again);
- a member contributes twice to an element;
- an answer of an earlier generation counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from anabranch.exchange import ranges
from anabranch.exchange.ranges import Ranges
from anabranch.net.messages import Contribution, ExchangeEnded, RepairPart


class Unsettled:
    """An exchange from its first grant until all its members hold the result.

    Args:
        exchange: the number that its chunks carry.
        elements: of its buffers.
        members: of its channel.
        sources: of a broadcast or a transfer, the members with all of the result, in the same bits;
            None if all contribute.
        followers: members that contribute nothing, while all others do.
        earlier: the last generation of a withdrawn exchange of this number. Answers to its
            interruptions may still arrive.

    Attributes:
        generation: 0 until the first interruption, and higher with each one.
        exchanges: the numbers of the exchanges under way that complete it.
        contributions: the sites whose contributions are in the result, by range of elements.
        repaired: two counts of elements: reduced again, and spread from a holder.
        ended: the ends that members have told with what they hold; void after an interruption.
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
        self._held: dict[int, Ranges] = {}  # by site, as reported in this generation
        self.ended: dict[int, ExchangeEnded] = {}  # by site
        self._awaits_answers = False  # to the latest interruption
        whose = self._members - self.followers if self.sources is None else self.sources
        self.contributions: tuple[Contribution, ...] = (
            Contribution(0, elements, tuple(sorted(whose))),
        )

    @property
    def is_whole(self) -> bool:
        """Whether the present members, and no others, contributed to every element.

        Always true of a broadcast or a transfer.
        """
        return self.sources is not None or all(
            self._members == set(each.sites) for each in self.contributions
        )

    @property
    def is_settled(self) -> bool:
        """Whether all members hold all of the result."""
        return not self._awaits_answers and all(
            self._held.get(site) == self._all for site in self._members
        )

    @property
    def latest_generation(self) -> int:
        """The latest generation of this exchange, or of an earlier one of its number."""
        return max(self.generation, self._earlier)

    def restore(self, generation: int, contributions: Collection[Contribution]) -> None:
        """Restore the generation and the contributions; empty if these are not known."""
        self.generation = generation
        if contributions:
            self.contributions = tuple(contributions)

    def interrupt(self, members: Collection[int]) -> None:
        """Begin a new generation, in which the remaining members report the elements they hold."""
        self._members = set(members)
        self.generation = self.latest_generation + 1
        self._awaits_answers = True
        self._held, self.ended = {}, {}

    def hear(self, site: int, generation: int, held: Ranges) -> bool:
        """Take a member's report of what it holds; return whether it is the last answer."""
        if generation != self.generation or site not in self._members:
            return False  # sent before the member heard of the interruption
        self._held[site] = held
        return self._awaits_answers and len(self._held) == len(self._members)

    def mend(self, next_exchange: Callable[[], int]) -> tuple[RepairPart, ...] | None:
        """Return the parts that complete the exchange, once all members have answered.

        Args:
            next_exchange: returns the number for a further exchange.

        Returns:
            None if no member has or can make the missing elements: the source of a broadcast is
            lost, or every contributor is.
        """
        self._awaits_answers = False
        held, self._held = self._held, {}
        for source in self._members & (self.sources or frozenset()):
            held[source] = self._all  # a source's own elements are the result
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
        # Holders of the most elements come first: fewer sources make fewer exchanges.
        done = missing
        for source in sorted(held, key=lambda site: (-ranges.length(held[site]), site)):
            own = ranges.minus(held[source], done)
            done = ranges.union(done, own)
            lacks = {site: ranges.minus(own, held[site]) for site in everyone}
            run = ranges.union(*lacks.values())
            if run:  # a receiver that holds a part of the run gets the same bits of it again
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
        """Return the parts that complete a transfer, at its start or after an interruption.

        Args:
            parts_for: returns the parts that bring a site the elements it lacks.
        """
        assert self.sources is not None
        self._awaits_answers = False
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
