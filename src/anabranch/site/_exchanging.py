"""The exchanges that a site takes part in, over its lanes: one kind of what moves there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from anabranch.exchange.actions import Action, ChunkFinished, Receipt, Send, Stray, Unsent
from anabranch.exchange.arithmetic import Buffer
from anabranch.exchange.exchange import Exchange, Exchanges
from anabranch.exchange.terms import EXCHANGED, Terms
from anabranch.net.errors import OutOfPlaceMessage, PeerError
from anabranch.net.frames import Sink
from anabranch.net.messages import ChunkMessage, PartialSum
from anabranch.plan import Chunk, Plan, cut, deal
from anabranch.site._dataplane import DataPlane, Fate


class Interrupted(Exception):
    """An exchange was stopped before its end, to be repaired."""


@dataclass(slots=True)
class _Running:
    """An exchange that this site takes part in, until its result is here."""

    exchange: Exchange
    cuts: tuple[tuple[int, int], ...]  # of an exchange whose dispatch goes on
    is_watched: bool  # the owner wants to know how far it is
    ended: asyncio.Future[None]
    is_spare: bool  # it uses what others leave of the lanes
    unsent: Unsent  # chunks of this site's making that refer to the buffer


class Exchanging:
    """Runs exchanges over a data plane; see :class:`anabranch.site._dataplane.Plug`.

    Args:
        plane: moves the chunks; this is in charge of its lanes until another plug is.
        advanced: told of an exchange each time that one more chunk of it is finished here.

    Attributes:
        site: this site's index.
        plane: see above.
    """

    def __init__(self, plane: DataPlane, advanced: Callable[[Exchange], None]) -> None:
        config = plane.config
        self.site = config.site
        self.fate = Fate.LOSE if config.repairs else Fate.FAIL
        self.plane = plane
        self._routes = plane.lanes.routes
        self._advanced = advanced
        self._loop = asyncio.get_running_loop()
        self._exchanges = Exchanges(config.site, config.room_elements, config.repairs)
        self._active = self._exchanges.active
        self._running: dict[int, _Running] = {}
        plane.put_in_charge(self, *EXCHANGED)

    async def exchange(
        self,
        number: int,
        terms: Terms,
        plan: Plan,
        buffer: Buffer,
        weight: float,
        chunk_elements: int,
        trees: tuple[int, ...] | None = None,
        is_watched: bool = True,
        receivers: frozenset[int] | None = None,
        followers: frozenset[int] = frozenset(),
        is_spare: bool = False,
    ) -> tuple[int, int | None] | None:
        """Take part in an exchange, to its end.

        Args:
            number: the exchange's.
            terms: the same at every member.
            plan: the one plan every member runs this exchange under.
            buffer: what is contributed; holds the result afterwards.
            weight: of this site's contribution, > 0.
            chunk_elements: the most elements of a chunk.
            trees: of the first chunks, where they are dispatched during the exchange
                (``dispatched``); None where all chunks are dealt by share.
            is_watched: whether to tell the owner of every chunk that is finished here.
            receivers: who gets the result; None for every member but a source.
            followers: members that contribute nothing, where there is no source.
            is_spare: whether it uses what other exchanges leave of the lanes.

        Returns:
            The tree of the chunk that was finished last here, and the neighbour that sent it.

        Raises:
            LinkError, PeerError: the exchange cannot be completed.
            Interrupted: it was stopped.
        """
        self.plane.check()
        for target in plan.next_hops[self.site]:
            self.plane.lanes.lane(target)
        cuts: tuple[tuple[int, int], ...] = ()
        chunks: Sequence[Chunk]
        if trees is None:
            chunks = deal(plan, buffer.elements, chunk_elements)
            total = len(chunks)
        else:
            cuts = cut(plan, buffer.elements, chunk_elements)
            chunks, total = _next_chunks(cuts, 0, trees), len(cuts)
        try:
            exchange = self._exchanges.open(number, terms)
            ended = self._loop.create_future()
            unsent = Unsent(partial(_end_if_complete, exchange, ended))
            running = _Running(exchange, cuts, is_watched, ended, is_spare, unsent)
            self._running[number] = running
            ends = terms.source, receivers, followers
            self._act(exchange.begin(plan, chunks, total, buffer, weight, *ends), running)
        except PeerError as error:
            self.plane.fail(error)
            raise
        try:
            await self.plane.unless_failed(running.ended)
        except BaseException:
            self._exchanges.stop(number)  # neighbours that have not heard of it may still send
            raise
        finally:
            del self._running[number]
            self._exchanges.end(number)
        return exchange.spread.latest

    def give_up(self, number: int, error: Exception) -> None:
        """End an exchange with an error, as it ends everywhere; what still comes is thrown away."""
        self._exchanges.stop(number)
        running = self._running.get(number)
        if running is not None and not running.ended.done():
            running.ended.set_exception(error)

    def stop(self, number: int) -> list[tuple[int, int]]:
        """Stop an exchange, begun here or not; whatever comes of it from now on is thrown away.

        Returns:
            The elements whose result is here.
        """
        running = self._running.get(number)
        held: list[tuple[int, int]] = []
        if running is not None:
            held = running.exchange.spread.stop()
            if not running.ended.done():
                running.ended.set_exception(Interrupted())
            self.plane.lanes.withdraw(number)
        self._exchanges.stop(number)
        return held

    def dispatched(self, number: int, trees: tuple[int, ...]) -> None:
        """Take the trees of the next chunks of an exchange, in order.

        Raises:
            OutOfPlaceMessage: it is dealt beforehand.
        """
        running = self._running.get(number)
        if running is None:
            return  # its buffer was shorter than the largest that the scheduler deals for
        if not running.cuts:
            raise OutOfPlaceMessage(f"chunks of exchange {number}, which was dealt beforehand")
        exchange = running.exchange
        chunks = _next_chunks(running.cuts, exchange.dealt, trees)
        try:
            self._act(exchange.deal(chunks), running)
        except PeerError as error:
            self.plane.fail(error)

    def _act(self, actions: Sequence[Action], running: _Running | None) -> None:
        """Do what follows from a call or a message; of which exchange, if it goes on here."""
        for action in actions:
            if type(action) is Send:
                if running is not None:
                    running.unsent.count += 1
                    action.counted = running.unsent
                    action.is_spare = running.is_spare
                self._routes[action.message.path](action)
            elif type(action) is ChunkFinished:
                if running is not None and running.is_watched:
                    self._advanced(running.exchange)
            else:
                assert isinstance(action, Stray)
                number = 0 if running is None else running.exchange.number
                error = OutOfPlaceMessage(f"early data of exchange {number}: {action.why}")
                self.plane.owner.refused(action.sender, error)
        if running is not None and not running.unsent.count:
            _end_if_complete(running.exchange, running.ended)

    # --- as a plug

    def receive(self, message: ChunkMessage, payload_bytes: int) -> Sink:
        """See :class:`anabranch.site._dataplane.Plug`."""
        exchange = self._active.get(message.exchange)
        if exchange is not None and message.terms == exchange.terms:  # so it is nearly always
            half = exchange.reduction if type(message) is PartialSum else exchange.spread
            receipt = half.receive(message, payload_bytes)  # type: ignore[arg-type]
        else:
            receipt = self._exchanges.receive(message, payload_bytes)
        return Sink(receipt.target, receipt.piece, partial(self._received, receipt))

    def _received(self, receipt: Receipt) -> None:
        number = receipt.message.exchange
        if number in self._active:  # else it has ended with an error
            assert receipt.owner is not None
            self._act(receipt.owner.received(receipt), self._running.get(number))

    def repeated(self, message: ChunkMessage) -> bool:
        """See :class:`anabranch.site._dataplane.Plug`; in an all-reduce each is sent once.

        One of the two is not what its sender meant, and it may be the one that counted.
        """
        return message.exchange in self._active

    def lane_ended(self, neighbour: int) -> None:
        """See :class:`anabranch.site._dataplane.Plug`; the scheduler repairs what is lost."""


def _end_if_complete(exchange: Exchange, ended: asyncio.Future[None]) -> None:
    if exchange.is_complete and not ended.done():
        ended.set_result(None)


def _next_chunks(
    cuts: tuple[tuple[int, int], ...], first: int, trees: tuple[int, ...]
) -> tuple[Chunk, ...]:
    """Return the next chunks; trees beyond the buffer's last chunk are for longer buffers."""
    bounds = cuts[first : first + len(trees)]
    return tuple(
        Chunk(index, tree, start, stop)
        for index, (tree, (start, stop)) in enumerate(zip(trees, bounds, strict=False), first)
    )
