"""Spread: one site's part in handing results down from the roots of a plan's trees. Pure.

A site passes a chunk's result on before it reports the chunk as finished, since the sites below
wait for it. A subtree without receivers gets nothing. A lone receiver's chunks come from the roots;
the sites between only relay them.

**A chunk at one site**::

               begin, deal            receive               received
    not dealt -------------> dealt --------------> started ----------> held
        |                      `----- start, at the root ---------------^
        `--receive--> early, a copy; received again at ``deal``

*Started* is a member of ``_started``; *held* counts in ``held``, and returns the ``Send`` actions
to the sites below, then ``ChunkFinished``. An early result that proves wrong becomes a ``Stray``.

**Where a payload goes.** ``receive`` chooses the first that applies:

1. an early result: a copy, within ``Room``;
2. a repairable exchange, the buffer in wire format: into the buffer, from left to right. The length
   of what has landed is recorded, so that ``stop`` can say which elements hold the result;
3. the buffer in wire format: into the buffer, directly;
4. otherwise (another format, or a site that only passes results on): scratch memory. ``received``
   converts it into the buffer.

Messages to the sites below refer to that memory. So the buffer must stay unchanged until they have
been sent; ``Unsent`` counts them.

**What must never happen.**

- A result overwrites own elements whose sum has not begun to leave (``_own_has_left``).
- A result of one chunk is taken twice, or from a site that is not the parent in the chunk's tree.
- Bytes are written into the buffer after ``stop``, while a repair reads it. A closed landing
  discards them instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.exchange.actions import Action, ChunkFinished, Receipt, Send, Stray, Total
from anabranch.exchange.arithmetic import Buffer, Payload, arithmetic
from anabranch.exchange.reduction import Room, other_chunk, other_size, other_terms
from anabranch.exchange.terms import op_of, wire_of
from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.messages import Result
from anabranch.plan import Chunk, Place, Plan, places_down


@dataclass(frozen=True, slots=True)
class _Early:
    """The copy of a result that arrives before its chunk is dealt."""

    payload: memoryview


class _Landing:
    """A result that is being written into the buffer, from left to right."""

    __slots__ = ("_is_open", "landed_bytes", "memory")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.landed_bytes = 0
        self._is_open = True

    def take(self, offset_bytes: int, piece: memoryview) -> None:
        """Write a piece to its place; discard it once this is closed."""
        if self._is_open:
            self.landed_bytes = offset_bytes + len(piece)
            self.memory[offset_bytes : self.landed_bytes] = piece

    def close(self) -> None:
        """Discard all later pieces."""
        self._is_open = False


class Spread:
    """One site's part in one epoch of one exchange.

    Args:
        site: this site's index.
        exchange: the exchange's number, which its messages carry.
        terms: the code of its :class:`anabranch.exchange.terms.Terms`.
        room: bounds data that arrives before its chunk is dealt.
        epoch: how often the set of receivers had changed.
        lands_in_order: whether results are written from left to right, so that it is known at any
            moment which elements of the buffer hold the result. All others then hold this site's
            contribution.
        by_nodes: see :func:`anabranch.plan.places_down`; true where receivers may be lost.

    Attributes:
        exchange, epoch, terms: see above.
        is_complete: whether every result that ends at, or passes through, this site has arrived.
        held: the number of chunks whose result has passed, or is in this site's buffer.
        held_by_tree: the same by tree.
        latest: the tree of the chunk held last, and the neighbour that sent it (None at its root).
            None before the first chunk.
    """

    def __init__(
        self,
        site: int,
        exchange: int,
        terms: int,
        room: Room,
        epoch: int = 0,
        lands_in_order: bool = False,
        by_nodes: bool = False,
    ) -> None:
        self.exchange = exchange
        self._by_nodes = by_nodes
        self._lands_in_order = lands_in_order
        self._landing: dict[int, _Landing] = {}  # results being written now, by chunk
        self.epoch = epoch
        self.terms = terms
        self._site = site
        self._room = room
        self._wire = wire_of(terms)
        self._arithmetic = arithmetic(op_of(terms), self._wire)
        self._plan: Plan | None = None
        self._places: tuple[Place, ...] = ()
        self._buffer: Buffer | None = None
        self._receives = False
        self._memory: memoryview | None = None  # the whole buffer's, if it is in wire format
        self._own_sums: Mapping[int, Send | None] | None = None
        self._chunks: list[Chunk] = []
        self._total = 0
        self._due = 0  # chunks dealt so far whose result passes, or ends, at this site
        self._started: set[int] = set()  # chunks whose result has begun to arrive, or began here
        self._early: list[tuple[Result, memoryview]] = []  # complete, but not dealt
        self._early_elements = 0  # of room taken, by those and by early results in arrival
        self.is_complete = False
        self.held = 0
        self._held_ranges: list[tuple[int, int]] = []
        self.held_by_tree: list[int] = []
        self.latest: tuple[int, int | None] | None = None

    def begin(
        self,
        plan: Plan,
        total: int,
        buffer: Buffer | None,
        receivers: frozenset[int] | None = None,
        own_sums: Mapping[int, Send | None] | None = None,
    ) -> None:
        """Set the plan of the exchange and its receivers.

        Args:
            plan: the one plan under which every site runs this exchange.
            total: the number of chunks in the buffer.
            buffer: this site's buffer; None where it only passes results on.
            receivers: the sites whose buffers get results; None for every member of the plan.
            own_sums: this site's sums by chunk, see :class:`Reduction`. Each must have begun to
                leave before its chunk's result arrives, which overwrites the elements. None where
                this site does not contribute.
        """
        self._plan, self._total, self._buffer = plan, total, buffer
        self._own_sums = own_sums
        if buffer is not None and (receivers is None or self._site in receivers):
            self._receives = True
            self._memory = buffer.memory(0, buffer.elements, self._arithmetic.wire)
        self._places = places_down(plan, self._site, receivers, self._by_nodes)
        self.held_by_tree = [0] * len(self._places)

    def passes_on(self, chunk: Chunk) -> bool:
        """Return whether a chunk's result is for this site, or for a site below it."""
        return self._receives or bool(self._places[chunk.tree].paths_down)

    def reach(self, epoch: int, receivers: frozenset[int]) -> None:
        """Pass later chunks on to these receivers, in this epoch."""
        assert self._plan is not None
        self.epoch = epoch
        self._places = places_down(self._plan, self._site, receivers, self._by_nodes)

    def deal(self, chunks: Sequence[Chunk]) -> list[Action]:
        """Take in the next chunks and the trees that carry them."""
        self._chunks += chunks
        for chunk in chunks:
            self._due += self.passes_on(chunk)
        self._note_progress()
        early, self._early = self._early, []
        actions: list[Action] = []
        for message, payload in early:
            self._give_room(payload)
            actions += self._receive_early(message, payload)
        return actions

    def start(self, chunk: Chunk, payload: Payload, sender: int | None) -> list[Action]:
        """Hand down a chunk's result from its root, this site.

        Args:
            chunk: the chunk; its result is in this site's buffer already, if the site receives.
            payload: the result in wire format.
            sender: the child whose sum arrived last, for ``latest``; None if there is none.
        """
        self._started.add(chunk.index)
        return self._pass_on(chunk, payload, sender)

    def take(self, total: Total) -> list[Action]:
        """Make the result of a complete sum, and hand it down."""
        assert self._buffer is not None
        payload = self._arithmetic.finish(
            total.chunk,
            total.values,
            total.divisor,
            self._buffer,
            self._room.scratch if total.is_scratch else None,
            total.weight,
        )
        return self.start(total.chunk, payload, total.sender)

    def receive(self, message: Result, payload_bytes: int) -> Receipt:
        """Return where a result goes.

        Raises:
            OutOfPlaceMessage: the terms, plan, chunk, size or source are not this exchange's; this
                site's own sum has not left; or there is no room for an early result.
            DuplicateMessage: the result has arrived, or begun to.
        """
        if message.terms != self.terms:
            raise other_terms(message)
        plan = self._plan
        if plan is not None and (
            message.version != plan.version or not 0 <= message.chunk < self._total
        ):
            raise other_chunk(message, plan, self._total)
        if not self._own_has_left(message.chunk):
            raise OutOfPlaceMessage(
                f"the result of chunk {message.chunk} of exchange {self.exchange} comes before "
                "this site's sum has left"
            )
        if self._plan is None or message.chunk >= len(self._chunks):
            elements = self._wire.elements_of(payload_bytes)
            self._room.take(elements, f"chunk {message.chunk} of exchange {self.exchange}")
            self._early_elements += elements
            early = _Early(memoryview(bytearray(payload_bytes)))
            return Receipt(message, target=early.payload, into=early, owner=self)
        chunk = self._chunks[message.chunk]
        if payload_bytes != self._wire.bytes_of(chunk.elements):
            raise other_size(chunk, payload_bytes, self._wire)
        if self._places[chunk.tree].parent != message.path[0]:
            raise OutOfPlaceMessage(
                f"the result of chunk {chunk.index} comes from site {message.path[0]}, which is "
                "not its source"
            )
        if chunk.index in self._started:
            raise DuplicateMessage(
                f"the result of chunk {chunk.index} of exchange {self.exchange} has come before"
            )
        self._started.add(chunk.index)
        if not self._arithmetic.has_numbers:
            return Receipt(message, owner=self)
        memory = None
        if self._memory is not None:
            memory = self._arithmetic.part_of(self._memory, chunk)
        elif self._receives:
            assert self._buffer is not None
            memory = self._buffer.memory(chunk.start, chunk.stop, self._arithmetic.wire)
        if memory is not None and self._lands_in_order:
            landing = self._landing[chunk.index] = _Landing(memory)
            return Receipt(message, piece=landing.take, into=landing, owner=self)
        if memory is None:
            apart = self._room.scratch.take(-(-payload_bytes // 4))
            memory = apart.data.cast("B")[:payload_bytes]
            return Receipt(message, target=memory, into=apart, owner=self)
        return Receipt(message, target=memory, owner=self)

    def _own_has_left(self, chunk: int) -> bool:
        if self._own_sums is None:
            return True
        if chunk not in self._own_sums:
            return False
        send = self._own_sums[chunk]
        return send is None or send.has_left

    def received(self, receipt: Receipt) -> list[Action]:
        """Take in a complete result."""
        message = receipt.message
        assert isinstance(message, Result)
        if isinstance(receipt.into, _Early):
            payload = receipt.into.payload
            if self._plan is None or message.chunk >= len(self._chunks):
                self._early.append((message, payload))
                return []
            self._give_room(payload)
            return self._receive_early(message, payload)
        chunk = self._chunks[message.chunk]
        if not self._arithmetic.has_numbers:
            payload = self._arithmetic.encode(self._arithmetic.gather(chunk.elements).sum)
        elif isinstance(receipt.into, _Landing):
            del self._landing[chunk.index]
            payload = receipt.into.memory
        elif receipt.into is None:
            assert receipt.target is not None
            payload = receipt.target
        else:
            return self._pass_on(chunk, self._land(chunk, receipt), message.path[0])
        return self._pass_on(chunk, payload, message.path[0])

    def _land(self, chunk: Chunk, receipt: Receipt) -> Payload:
        """Copy a result from scratch memory into the buffer; return the payload to pass on."""
        assert isinstance(receipt.into, np.ndarray)
        assert receipt.target is not None
        if self._receives:
            assert self._buffer is not None
            self._buffer.write(chunk.start, self._arithmetic.values(receipt.target))
            if self._memory is not None:
                self._room.scratch.give(receipt.into)
                return self._arithmetic.part_of(self._memory, chunk)
        return receipt.target

    def _receive_early(self, message: Result, payload: memoryview) -> list[Action]:
        try:
            receipt = self.receive(message, len(payload))
        except (OutOfPlaceMessage, DuplicateMessage) as error:
            return [Stray(message.path[0], str(error))]
        if receipt.target is not None:
            receipt.target[:] = payload
        elif receipt.piece is not None:
            receipt.piece(0, payload)
        return self.received(receipt)

    def _pass_on(self, chunk: Chunk, payload: Payload, sender: int | None) -> list[Action]:
        assert self._plan is not None
        actions: list[Action] = []
        place = self._places[chunk.tree]
        for path in place.paths_down:
            message = Result(
                self.exchange, self._plan.version, chunk.index, path, self.terms, self.epoch
            )
            actions.append(Send(message, payload))
        self.held += 1
        self._held_ranges.append((chunk.start, chunk.stop))
        self.held_by_tree[chunk.tree] += 1
        self.latest = chunk.tree, sender
        if self.held >= self._due:
            self._note_progress()
        actions.append(ChunkFinished(chunk, sender))
        return actions

    def _note_progress(self) -> None:
        self.is_complete = len(self._chunks) == self._total and self.held >= self._due

    def drop_early(self, why: str) -> list[Action]:
        """Drop all early results, for the reason ``why``."""
        strays: list[Action] = [Stray(message.path[0], why) for message, _ in self._early]
        for _, payload in self._early:
            self._give_room(payload)
        self._early = []
        return strays

    def _give_room(self, payload: memoryview) -> None:
        elements = self._wire.elements_of(len(payload))
        self._room.left += elements
        self._early_elements -= elements

    def stop(self) -> list[tuple[int, int]]:
        """Write no more into the buffer; return the element ranges that hold the result.

        The ranges are in order of arrival.
        """
        held = [*self._held_ranges]
        for index, landing in self._landing.items():
            landing.close()
            if landed := self._wire.elements_of(landing.landed_bytes):
                start = self._chunks[index].start
                held.append((start, start + landed))
        self._landing = {}
        return held

    def release(self) -> None:
        """Free the room that early data takes, at the end of this exchange."""
        self._room.left += self._early_elements
        self._early_elements = 0
        self._early = []
