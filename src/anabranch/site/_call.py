"""One call of an exchange at a site, from its grant to its result, through all repairs.

Where results are settled, an exchange that loses a site or a link is interrupted, and completed by
exchanges of the missing elements (docs/mechanisms/repair.md)::

    running --all parts done--> Holding(all) --Settled--> done: every member holds the result
                                (tells the end of the call, too, if its caller gets the result now)
       ^  `--Interrupt: generation + 1, stop, Holding(elements here)
       `-----------Repair(parts) of this generation-----------'

The *generation* counts the interruptions. Parts and repairs of an earlier generation are void.

**The caller need not wait for `Settled`** (:meth:`Call.copy_result`). An exchange that was never
interrupted has all contributions wherever its result is. A repair copies elements that a member
holds, and reduces none of them again. So the bits that are here are the bits that will be settled.
The call keeps a copy of them for repairs, since the caller may change its buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from anabranch import plan as plans
from anabranch.exchange import ranges
from anabranch.exchange.arithmetic import Buffer, Flat, Floats
from anabranch.exchange.ranges import Bits, PartOf, Ranges
from anabranch.exchange.terms import Op, Terms, Wire, signature_of
from anabranch.net.messages import (
    Grant,
    Holding,
    Interrupt,
    Message,
    OpenExchange,
    Repair,
    RepairPart,
    Settled,
)
from anabranch.plan import Plan
from anabranch.site._exchanging import Exchanging, Interrupted

_COPIED_BPS = 8 * 2e9  # least rate at which a machine copies memory
_COPIED_AT_ONCE = 1 << 18  # elements; a piece takes half a millisecond, then others have a turn


def is_worth_a_copy(size_bytes: int, round_trip_s: float) -> bool:
    """Return whether copying a result takes less time than hearing that it is settled.

    Args:
        size_bytes: of the buffer, as float32.
        round_trip_s: to the scheduler and back.

    >>> is_worth_a_copy(25_000_000, round_trip_s=0.060), is_worth_a_copy(25_000_000, 0.0002)
    (True, False)
    """
    return 8 * size_bytes < round_trip_s * _COPIED_BPS


class Call:
    """One site's side of a granted exchange.

    Args:
        exchanging: runs its exchanges of chunks.
        say: sends a message to the scheduler; raises the error that ended the run early.
        grant: the scheduler's grant.
        place: the call's place among the channel's calls.
        buffer: this site's contribution; holds the result afterwards.
        terms: the terms, the same at every member.
        weight: the contribution's weight, > 0.
        is_watched: whether to report every chunk that is finished here.
        keeps_own: whether to keep a copy of the contribution, so that a repair may reduce all
            elements again.
        interrupted: the generation, if it was interrupted before it began here; else 0.
        repair: the repair and its plan, if they have arrived already; else None.

    Attributes:
        latest: the tree of the chunk that was finished last here, and the neighbour that sent it.
    """

    def __init__(
        self,
        exchanging: Exchanging,
        say: Callable[[Message], None],
        grant: Grant,
        place: int,
        buffer: Buffer,
        terms: Terms,
        weight: float,
        is_watched: bool,
        keeps_own: bool,
        interrupted: int = 0,
        repair: tuple[Repair, Plan] | None = None,
    ) -> None:
        self._exchanging = exchanging
        self._say = say
        self._grant = grant
        self._place = place
        self._buffer = buffer
        self._terms = terms
        self._weight = weight
        self._is_watched = is_watched
        self._whole = RepairPart(grant.exchange, terms.source, (), ((0, buffer.elements),))
        self._own: Floats | None = None
        if keeps_own:
            self._own = buffer.read(0, buffer.elements).copy()
        self._loop = asyncio.get_running_loop()
        # The scheduler's next message in this generation.
        self._next: asyncio.Future[Settled | tuple[Repair, Plan]] = self._loop.create_future()
        if repair is not None:
            self._next.set_result(repair)
        self._generation = interrupted
        self._held: Ranges = ()  # the elements whose result is here
        self._running: dict[int, Ranges] = {}  # the elements of each exchange in progress
        self.latest: tuple[int, int | None] | None = None

    async def until_held(self, plan: Plan) -> bool:
        """Run it until the result is here, and tell the scheduler if results are settled.

        Returns:
            Whether the result is here; False if a loss has interrupted it.
        """
        if self._grant.is_interrupted or self._generation:
            return False
        return await self._run_parts(0, plan, (self._whole,))

    async def until_settled(self) -> Settled | None:
        """Run its repairs until every member holds the result; ``until_held`` comes first.

        Returns:
            What is settled; None where results are not.
        """
        if not self._grant.settles:
            return None
        while True:
            awaited = self._next
            follows = await self._exchanging.plane.unless_failed(awaited)
            if self._next is awaited:
                self._next = self._loop.create_future()
            if isinstance(follows, Settled):
                return follows
            repair, plan = follows
            await self._run_parts(repair.generation, plan, repair.parts)

    async def copy_result(self) -> bool:
        """Copy the result, so that the caller gets its buffer back before the settlement.

        Returns:
            False where the call is settled, interrupted or failed meanwhile.
        """
        elements = self._buffer.elements
        kept = np.empty(elements, np.float32)
        for start in range(0, elements, _COPIED_AT_ONCE):
            stop = min(start + _COPIED_AT_ONCE, elements)
            kept[start:stop] = self._buffer.read(start, stop)
            if stop < elements:
                await asyncio.sleep(0)
        if self._next.done() or self._generation:  # parts of a repair may refer to the buffer
            return False
        self._buffer = Flat(kept)
        return True

    async def _run_parts(self, generation: int, plan: Plan, parts: Sequence[RepairPart]) -> bool:
        """Run the exchange, or a repair; then tell the scheduler, if results are settled.

        Returns:
            Whether all elements are here; False if it was interrupted, perhaps before it began.
        """
        if generation == self._generation:
            running = [self._run_part(generation, plan, part) for part in parts]
            found: Sequence[tuple[int, int | None] | BaseException | None]
            if len(running) == 1:  # as usual: it needs no task of its own
                try:
                    found = [await running[0]]
                except Interrupted as interrupted:
                    found = [interrupted]
            else:
                found = await asyncio.gather(*running, return_exceptions=True)
            for each in found:
                if isinstance(each, Interrupted) and self._grant.settles:
                    continue
                if isinstance(each, BaseException):
                    raise each
                self.latest = each or self.latest
        if generation != self._generation:
            return False
        self._held = ((0, self._buffer.elements),)
        if self._grant.settles:
            self._say(self._holding())
        return True

    async def _run_part(
        self, generation: int, plan: Plan, part: RepairPart
    ) -> tuple[int, int | None] | None:
        """Run the exchange, or one part of its repair.

        Raises:
            Interrupted: it was stopped, perhaps before it began.
        """
        if generation != self._generation:
            raise Interrupted
        if part.plan_json:  # a plan whose members are only the part's source and receivers
            if self._exchanging.site not in (part.source, *part.receivers):
                return None
            plan = plans.loads(part.plan_json)
        elements = ranges.length(part.ranges)
        buffer = self._buffer
        if elements < buffer.elements:
            buffer = PartOf(buffer, part.ranges)
        is_first = part.exchange == self._grant.exchange
        terms = self._terms
        if not is_first:
            op, wire = self._terms.op if part.source is None else Op.COPY, self._terms.wire
            is_copied = op == Op.COPY != self._terms.op
            if is_copied and wire.has_blocks:
                wire = Wire.FLOAT32  # blocks made of a result might round it again
            # A copy has whole blocks, too, since a second loss may leave a part of it.
            terms = Terms(op, wire, elements, part.source, unit=self._terms.unit)
            if is_copied and wire in (Wire.FLOAT16, Wire.BFLOAT16):
                buffer = Bits(buffer, wire)
        self._running[part.exchange] = part.ranges
        latest = await self._exchanging.exchange(
            part.exchange,
            terms,
            plan,
            buffer,
            self._weight,
            self._grant.chunk_elements,
            self._grant.trees if is_first else None,
            is_watched=is_first and self._is_watched,
            receivers=frozenset(part.receivers) or None,
            followers=frozenset(self._grant.followers),
            is_spare=bool(self._terms.receivers),
        )
        self._running.pop(part.exchange, None)
        self._held = ranges.union(self._held, part.ranges)
        return latest

    @property
    def was_interrupted(self) -> bool:
        """Whether a loss has interrupted it, or it has failed."""
        return self._generation > 0

    # --- messages of the scheduler

    def interrupt(self, message: Interrupt) -> Holding:
        """Stop it, because of a loss; return which elements of its result are here."""
        self._stop()
        for exchange in message.exchanges:
            self._exchanging.stop(exchange)
        self._generation = message.generation
        if self._next.done():  # a repair that has not begun, and will not
            self._next = self._loop.create_future()
        return self._holding()

    def repair(self, repair: Repair, plan: Plan) -> None:
        """Begin a repair, unless the exchange was interrupted again."""
        if self._generation == repair.generation:
            self._follow((repair, plan))

    def settle(self, settled: Settled) -> None:
        """End: every member holds the result."""
        self._follow(settled)

    def fail(self, error: Exception) -> None:
        """End with an error, as at every member."""
        self._stop()
        self._generation += 1
        if self._next.done():  # a repair that has not begun, and will not
            if not self._next.cancelled() and isinstance(follows := self._next.result(), tuple):
                void(self._exchanging, follows[0])
            self._next = self._loop.create_future()
        self._next.set_exception(error)
        self._next.exception()  # it may never be waited for

    def snapshot(self) -> OpenExchange | None:
        """Return its state for a restarted scheduler; None if it has ended."""
        if self._next.done() and (
            self._next.cancelled()
            or self._next.exception() is not None
            or isinstance(self._next.result(), Settled)
        ):
            return None
        grant = self._grant
        return OpenExchange(
            grant.number,
            signature_of(self._terms),
            self._place,
            grant.exchange,
            grant.chunk_elements,
            self._generation,
            (grant.exchange, *self._running),
            grant.followers,
        )

    def _follow(self, follows: Settled | tuple[Repair, Plan]) -> None:
        if not self._next.done():  # done already if this site's data plane has failed
            self._next.set_result(follows)

    def _stop(self) -> None:
        """Stop all its exchanges, and record which elements of the result are here."""
        for exchange, elements in self._running.items():
            here = ranges.places(elements, ranges.union(self._exchanging.stop(exchange)))
            self._held = ranges.union(self._held, here)
        self._running = {}
        if self._own is not None:
            # All elements are reduced again, so that the result has one set of contributors.
            self._buffer.write(0, self._own)
            self._held = ()

    def _holding(self) -> Holding:
        grant = self._grant
        return Holding(grant.channel, grant.number, self._generation, self._held)


def void(exchanging: Exchanging, repair: Repair) -> None:
    """Discard all data of a repair that will not begin here."""
    for part in repair.parts:
        exchanging.stop(part.exchange)
