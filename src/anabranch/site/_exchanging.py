"""Exchanges over a data plane: the plug that connects `exchange.exchange` to lanes and callers.

The pure part decides; this part executes its actions, and wakes the caller::

    caller: await exchange() --begin--> Exchange --actions--> _act: Send -> lane
    lane: receive -> Receipt -> payload complete -> received -----^        Stray -> owner.refused
                                                                           ChunkFinished -> advanced

**An exchange in progress** is a :class:`_Running`; its future ``ended`` wakes the caller. Exactly
one event sets it, or the data plane fails first:

- the exchange is complete *and* no message refers to the buffer any more (``_end_if_complete``,
  asked after each list of actions and each time ``unsent`` reaches zero);
- ``stop``: a repair begins; the caller gets :class:`Interrupted`;
- ``give_up``: the exchange fails at every site, with one error.

Chunks that arrive before the caller does are kept in an early exchange, without a ``_Running``.

**What must never happen.**

- The caller gets its buffer back while a message still refers to it (``Unsent``): the program would
  change bytes that are not sent yet.
- Late data of a cancelled or failed exchange is refused. Neighbours may not know of the end yet; a
  refusal would fail them. So these exchanges are stopped, which discards such data.
- A refused chunk leaves an exchange waiting: data that does not fit fails the data plane by name.
"""

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
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.messages import ChunkMessage, PartialSum
from anabranch.plan import Chunk, Plan, cut, deal, deal_tensors
from anabranch.site._dataplane import DataPlane, Fate


class Interrupted(Exception):
    """An exchange was stopped before its end, so that it can be repaired."""


@dataclass(slots=True)
class _Running:
    """An exchange that has begun here, until its caller wakes."""

    exchange: Exchange
    cuts: tuple[tuple[int, int], ...]  # bounds of all chunks, if dispatched during the exchange
    is_watched: bool  # whether to report each finished chunk to the owner
    ended: asyncio.Future[None]
    is_spare: bool  # whether its messages yield to all others
    unsent: Unsent  # messages of this site that may refer to the buffer


class Exchanging:
    """Runs exchanges over a data plane; see :class:`anabranch.site._dataplane.Plug`.

    Args:
        plane: moves the chunks. This plug is in charge of it, until another one takes over.
        advanced: called with an exchange each time one more of its chunks is finished here.
        may_disagree: whether sites may begin an exchange before the scheduler has compared their
            terms. Data of other terms is then discarded, as the exchange will fail at all.

    Attributes:
        site: this site's index.
        fate: see :class:`anabranch.site._dataplane.Plug`; a lane's end is a loss if exchanges can
            be repaired, and otherwise a failure.
        plane: see above.
    """

    def __init__(
        self, plane: DataPlane, advanced: Callable[[Exchange], None], may_disagree: bool = False
    ) -> None:
        config = plane.config
        self.site = config.site
        self.fate = Fate.LOSE if config.repairs else Fate.FAIL
        self.plane = plane
        self._routes = plane.lanes.routes
        self._advanced = advanced
        self._loop = asyncio.get_running_loop()
        self._exchanges = Exchanges(config.site, config.room_elements, config.repairs)
        self._may_disagree = may_disagree
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
        """Run an exchange to its end.

        Args:
            number: the exchange's number.
            terms: its terms, the same at every member.
            plan: the one plan under which every member runs this exchange.
            buffer: this site's contribution; holds the result afterwards.
            weight: the contribution's weight, > 0.
            chunk_elements: the most elements of a chunk.
            trees: the trees of the first chunks, where chunks are dispatched during the exchange
                (see ``dispatched``); None where all chunks are dealt by share.
            is_watched: whether to call ``advanced`` for this exchange.
            receivers: the sites that get the result; None for all members, without the source if
                there is one.
            followers: members that contribute nothing; only where there is no source.
            is_spare: whether its messages yield to those of other exchanges.

        Returns:
            The tree of the chunk that was finished last here, and the neighbour that sent it.

        Raises:
            LinkError, PeerError: the exchange cannot be completed.
            Interrupted: ``stop`` was called.
        """
        self.plane.check()
        assert terms.elements % terms.unit == 0, "elements beyond the last block are in no chunk"
        for target in plan.next_hops[self.site]:
            self.plane.lanes.lane(target)  # connects now, while the first chunks are summed
        cuts: tuple[tuple[int, int], ...] = ()
        chunks: Sequence[Chunk]
        if trees is None:
            chunks = _dealt(plan, terms, chunk_elements)
            total = len(chunks)
        else:
            cuts = _cut(plan, terms, chunk_elements)
            chunks, total = _next_chunks(cuts, 0, trees), len(cuts)
        if self._may_disagree and not self.may_begin(number, terms):
            early = self._active.pop(number)
            early.reduction.release()
            early.spread.release()
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
            self._exchanges.stop(number)  # neighbours may still send; that must not be refused
            raise
        finally:
            del self._running[number]
            self._exchanges.end(number)
        return exchange.spread.latest

    def may_begin(self, number: int, terms: Terms) -> bool:
        """Return whether no neighbour has sent data of other terms for an exchange."""
        early = self._active.get(number)
        return early is None or early.terms == terms.code

    def give_up(self, number: int, error: Exception) -> None:
        """End an exchange with an error, as at every site; discard its later messages."""
        self._exchanges.stop(number)
        running = self._running.get(number)
        if running is not None and not running.ended.done():
            running.ended.set_exception(error)

    def stop(self, number: int) -> list[tuple[int, int]]:
        """Stop an exchange, early or begun; discard its later messages.

        Returns:
            The element ranges of the buffer that hold the result.
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
            OutOfPlaceMessage: all chunks of the exchange were dealt at its beginning.
        """
        running = self._running.get(number)
        if running is None:
            # The exchange has ended here. The scheduler deals for the largest buffer that a call
            # may have, so trees may be left over.
            return
        if not running.cuts:
            raise OutOfPlaceMessage(
                f"trees for chunks of exchange {number}, all of whose chunks have trees already"
            )
        exchange = running.exchange
        chunks = _next_chunks(running.cuts, exchange.dealt, trees)
        try:
            self._act(exchange.deal(chunks), running)
        except PeerError as error:
            self.plane.fail(error)

    def _act(self, actions: Sequence[Action], running: _Running | None) -> None:
        """Execute actions.

        Args:
            actions: in order.
            running: their exchange; None before it has begun here.
        """
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
        if exchange is not None and message.terms == exchange.terms:
            # The usual case, without the detour over `Exchanges`: this runs for every chunk.
            half = exchange.reduction if type(message) is PartialSum else exchange.spread
            receipt = half.receive(message, payload_bytes)  # type: ignore[arg-type]
        elif exchange is not None and self._may_disagree:
            return DISCARD
        else:
            receipt = self._exchanges.receive(message, payload_bytes)
        return Sink(receipt.target, receipt.piece, partial(self._received, receipt))

    def _received(self, receipt: Receipt) -> None:
        number = receipt.message.exchange
        if number in self._active:  # else it was stopped while the payload was arriving
            assert receipt.owner is not None
            self._act(receipt.owner.received(receipt), self._running.get(number))

    def repeated(self, message: ChunkMessage) -> bool:
        """See :class:`anabranch.site._dataplane.Plug`; in an exchange each chunk is sent once.

        So one of the two is wrong, and it may be the one that was added.
        """
        return message.exchange in self._active

    def lane_ended(self, neighbour: int) -> None:
        """See :class:`anabranch.site._dataplane.Plug`; the scheduler repairs what is lost."""


def _dealt(plan: Plan, terms: Terms, chunk_elements: int) -> Sequence[Chunk]:
    if terms.tensors:
        return deal_tensors(plan, terms.tensors, chunk_elements)
    dealt = deal(plan, terms.planned_elements, chunk_elements)
    if terms.unit == 1:
        return dealt
    bounds = ((each.tree, terms.place_of(each.start), terms.place_of(each.stop)) for each in dealt)
    filled = [each for each in bounds if each[1] < each[2]]
    return [Chunk(index, *each) for index, each in enumerate(filled)]


def _cut(plan: Plan, terms: Terms, chunk_elements: int) -> tuple[tuple[int, int], ...]:
    cuts = cut(plan, terms.planned_elements, chunk_elements)
    if terms.unit == 1:
        return cuts
    bounds = ((terms.place_of(start), terms.place_of(stop)) for start, stop in cuts)
    return tuple((start, stop) for start, stop in bounds if start < stop)


def _end_if_complete(exchange: Exchange, ended: asyncio.Future[None]) -> None:
    if exchange.is_complete and not ended.done():
        ended.set_result(None)


def _next_chunks(
    cuts: tuple[tuple[int, int], ...], first: int, trees: tuple[int, ...]
) -> tuple[Chunk, ...]:
    """Return the next chunks; ignore trees beyond the last chunk, which are for longer buffers."""
    bounds = cuts[first : first + len(trees)]
    return tuple(
        Chunk(index, tree, start, stop)
        for index, (tree, (start, stop)) in enumerate(zip(trees, bounds, strict=False), first)
    )
