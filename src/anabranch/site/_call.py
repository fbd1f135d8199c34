"""One exchange at a site, from its grant until its result is here or every member holds it.

Where results are to be settled, an exchange that loses something is interrupted, and completed by
exchanges of what is missing (docs/mechanisms/repair.md). Its generation counts the interruptions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from anabranch import plan as plans
from anabranch.exchange import ranges
from anabranch.exchange.arithmetic import Buffer, Floats
from anabranch.exchange.ranges import Bits, PartOf, Ranges
from anabranch.exchange.terms import Op, Terms
from anabranch.net.messages import (
    Grant,
    Holding,
    Interrupt,
    Message,
    OpenExchange,
    Repair,
    RepairPart,
    Settled,
    Signature,
)
from anabranch.plan import Plan
from anabranch.site._exchanging import Exchanging, Interrupted


class Call:
    """One site's part in an exchange that was granted.

    Args:
        exchanging: moves its chunks.
        say: tells the scheduler something; raises what ended the run early.
        grant: see there.
        place: among the channel's calls.
        buffer: what is contributed; holds the result afterwards.
        terms: the same at every member.
        weight: of this site's contribution, > 0.
        is_watched: whether the plane's owner is told of every chunk that is finished here.
        keeps_own: whether all of it may be reduced again, from what this site contributes now.
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
        # What follows, in this generation.
        self._next: asyncio.Future[Settled | tuple[Repair, Plan]] = self._loop.create_future()
        self._generation = 0
        self._held: Ranges = ()  # the elements whose result is here
        self._running: dict[int, Ranges] = {}  # what each exchange is to complete

    async def until_here(self, plan: Plan) -> tuple[int, int | None] | None:
        """Take part until the result is here; return what :meth:`Exchanging.exchange` does."""
        return await self._take_part(self._generation, plan, self._whole)

    async def until_settled(
        self, plan: Plan, interrupted: int | None, repair: tuple[Repair, Plan] | None
    ) -> tuple[tuple[int, int | None] | None, Settled]:
        """Take part in it, and in its repairs, until every member holds the result.

        Args:
            plan: that it runs under.
            interrupted: the generation, if it was interrupted before it began here.
            repair: what completes it, and under which plan, if that is known already.
        """
        self._generation = interrupted or 0
        if repair is not None:
            self._next.set_result(repair)
        latest = None
        is_asked = not self._grant.is_interrupted and interrupted is None
        parts: Sequence[RepairPart] = (self._whole,) if is_asked else ()
        while True:
            generation = self._generation
            if is_asked:
                found = await asyncio.gather(
                    *(self._take_part(generation, plan, part) for part in parts),
                    return_exceptions=True,
                )
                for each in found:
                    if isinstance(each, BaseException) and not isinstance(each, Interrupted):
                        raise each
                    latest = latest if isinstance(each, BaseException) else each or latest
                if generation == self._generation:
                    self._held = ((0, self._buffer.elements),)
                    self._say(self._holding())
            awaited = self._next
            follows = await self._exchanging.plane.unless_failed(awaited)
            if self._next is awaited:
                self._next = self._loop.create_future()
            if isinstance(follows, Settled):
                return latest, follows
            next_repair, plan = follows
            # It may have been interrupted again before this went on.
            parts, is_asked = next_repair.parts, next_repair.generation == self._generation

    async def _take_part(
        self, generation: int, plan: Plan, part: RepairPart
    ) -> tuple[int, int | None] | None:
        """Take part in the exchange, or in one of what is missing of it.

        Raises:
            Interrupted: it is stopped, or was before it began.
        """
        if generation != self._generation:
            raise Interrupted
        if part.plan_json:  # of those alone that it is for
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
            op = self._terms.op if part.source is None else Op.COPY
            terms = Terms(op, self._terms.wire, elements, part.source)
            if op == Op.COPY != self._terms.op and terms.wire.item_bytes == 2:
                buffer = Bits(buffer, terms.wire)
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

    # --- what the scheduler says of it

    def interrupt(self, message: Interrupt) -> Holding:
        """Stop it, since something was lost; return what is here of its result."""
        self._stop()
        for exchange in message.exchanges:
            self._exchanging.stop(exchange)
        self._generation = message.generation
        if self._next.done():  # a repair that has not begun, and will not
            self._next = self._loop.create_future()
        return self._holding()

    def repair(self, repair: Repair, plan: Plan) -> None:
        """Go on with what is missing, unless it was interrupted again."""
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

    def standing(self) -> OpenExchange | None:
        """Return how far it is; None where it has ended, and has not gone on here yet."""
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
        if not self._next.done():  # this site's data plane may have failed
            self._next.set_result(follows)

    def _stop(self) -> None:
        """Stop what goes on, and take note of what is here."""
        for exchange, elements in self._running.items():
            here = ranges.places(elements, ranges.union(self._exchanging.stop(exchange)))
            self._held = ranges.union(self._held, here)
        self._running = {}
        if self._own is not None:
            self._buffer.write(0, self._own)
            self._held = ()

    def _holding(self) -> Holding:
        grant = self._grant
        return Holding(grant.channel, grant.number, self._generation, self._held)


def signature_of(terms: Terms) -> Signature:
    """Return what a request says of an exchange."""
    return Signature(terms.op, terms.wire, terms.elements, terms.source, terms.receivers)


def void(exchanging: Exchanging, repair: Repair) -> None:
    """Throw away what has come of a repair that will not begin here, and what comes."""
    for part in repair.parts:
        exchanging.stop(part.exchange)
