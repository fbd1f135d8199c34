"""Handing down: one site's part in spreading results from the roots of a plan's trees. Pure.

A site sends a chunk on as soon as it is there, before it uses it. A subtree without receivers gets
nothing; a lone receiver's chunks come from the roots directly, relayed by the sites in between.

What comes before the exchange has begun here, or before its chunk is dealt, is kept until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.exchange.actions import Action, Held, Receipt, Send, Stray, Total
from anabranch.exchange.arithmetic import Buffer, Payload, arithmetic
from anabranch.exchange.reduction import Room, other_chunk, other_size, other_terms
from anabranch.exchange.terms import op_of, wire_of
from anabranch.net.errors import DuplicateMessage, OutOfPlaceMessage
from anabranch.net.messages import Result
from anabranch.plan import Chunk, Place, Plan, places_down


@dataclass(frozen=True, slots=True)
class _Early:
    """Where a result goes that comes before its chunk is dealt."""

    payload: memoryview


class _Landing:
    """A result that goes into the buffer as it comes, from left to right."""

    __slots__ = ("_is_open", "landed_bytes", "memory")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.landed_bytes = 0
        self._is_open = True

    def take(self, offset_bytes: int, piece: memoryview) -> None:
        """Put a piece where it belongs; none, once this is closed."""
        if self._is_open:
            self.landed_bytes = offset_bytes + len(piece)
            self.memory[offset_bytes : self.landed_bytes] = piece

    def close(self) -> None:
        """Let what still comes be thrown away."""
        self._is_open = False


class Spread:
    """One site's part in one epoch of one exchange.

    Args:
        site: this site.
        exchange: the exchange's number, which its messages carry.
        terms: their code, see :class:`anabranch.exchange.terms.Terms`.
        room: for what comes before its chunk is dealt.
        epoch: how often the set of receivers had changed.
        lands_in_order: whether every element of the buffer must have, at any moment, either the
            result or what this site contributes, and it is known which.
        by_nodes: see :func:`anabranch.plan.places_down`; true where receivers may be lost.

    Attributes:
        is_complete: whether all that is to pass here has.
        held: how many chunks have passed here, or are in this site's buffer.
        held_by_tree: the same by tree.
        latest: the tree of the chunk that was last to get here, and the neighbour that sent it;
            None before the first, and where none did.
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
        self._landing: dict[int, _Landing] = {}  # by chunk, what comes just now
        self.epoch = epoch
        self.terms = terms
        self._site = site
        self._room = room
        self._arithmetic = arithmetic(op_of(terms), wire_of(terms))
        self._plan: Plan | None = None
        self._places: tuple[Place, ...] = ()
        self._buffer: Buffer | None = None
        self._receives = False
        self._memory: memoryview | None = None  # all of the buffer, if it is in the wire's format
        self._own_sums: Mapping[int, Send | None] | None = None
        self._chunks: list[Chunk] = []
        self._total = 0
        self._due = 0  # chunks dealt that pass here, or end here
        self._started: set[int] = set()  # chunks that have begun to come, or began here
        self._early: list[tuple[Result, memoryview]] = []
        self._early_elements = 0  # of room taken: of those, and of what comes just now
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
        """Take in under which plan the exchange runs, and who receives.

        Args:
            plan: the one plan that every site runs this exchange under.
            total: how many chunks the buffer has.
            buffer: this site's; None where it only passes results on.
            receivers: whose buffers results go to; None for every member of the plan.
            own_sums: those of this site's that must have begun to leave before a chunk's result
                comes, since that overwrites them; None where there are none.
        """
        self._plan, self._total, self._buffer = plan, total, buffer
        self._own_sums = own_sums
        if buffer is not None and (receivers is None or self._site in receivers):
            self._receives = True
            self._memory = buffer.memory(0, buffer.elements, self._arithmetic.wire)
        self._places = places_down(plan, self._site, receivers, self._by_nodes)
        self.held_by_tree = [0] * len(self._places)

    def passes_on(self, chunk: Chunk) -> bool:
        """Return whether a chunk is for this site, or goes on from here."""
        return self._receives or bool(self._places[chunk.tree].paths_down)

    def reach(self, epoch: int, receivers: frozenset[int]) -> None:
        """Hand on to these receivers from now on."""
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
        """Hand down a chunk from its root.

        Args:
            chunk: whose result is in this site's buffer, if it receives.
            payload: the result as it travels.
            sender: the neighbour whose part of the sum came last, for the record.
        """
        self._started.add(chunk.index)
        return self._pass_on(chunk, payload, sender)

    def take(self, total: Total) -> list[Action]:
        """Turn a whole sum round: make the result of it, and hand that down."""
        assert self._buffer is not None
        payload = self._arithmetic.finish(
            total.chunk,
            total.values,
            total.divisor,
            self._buffer,
            self._room.scratch if total.is_scratch else None,
        )
        return self.start(total.chunk, payload, total.sender)

    def receive(self, message: Result, payload_bytes: int) -> Receipt:
        """Return where a result goes.

        Raises:
            OutOfPlaceMessage: other terms, another plan, chunk, size or source than the exchange
                has; it comes before this site's own sum has left; or there is no room for what
                comes early.
            DuplicateMessage: it has come before.
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
            elements = payload_bytes // self._arithmetic.item_bytes
            self._room.take(elements, f"chunk {message.chunk} of exchange {self.exchange}")
            self._early_elements += elements
            early = _Early(memoryview(bytearray(payload_bytes)))
            return Receipt(message, target=early.payload, into=early, owner=self)
        chunk = self._chunks[message.chunk]
        if payload_bytes != chunk.elements * self._arithmetic.item_bytes:
            raise other_size(chunk, payload_bytes, self._arithmetic.item_bytes)
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
        item_bytes = self._arithmetic.item_bytes
        memory = None
        if self._memory is not None:
            memory = self._memory[chunk.start * item_bytes : chunk.stop * item_bytes]
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
        """Take in a result all of which is there."""
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
        """Put what came apart into the buffer; return what is to be passed on."""
        assert isinstance(receipt.into, np.ndarray)
        assert receipt.target is not None
        if self._receives:
            assert self._buffer is not None
            self._buffer.write(chunk.start, self._arithmetic.values(receipt.target))
            if self._memory is not None:
                item_bytes = self._arithmetic.item_bytes
                self._room.scratch.give(receipt.into)
                return self._memory[chunk.start * item_bytes : chunk.stop * item_bytes]
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
        actions.append(Held(chunk, sender))
        return actions

    def _note_progress(self) -> None:
        self.is_complete = len(self._chunks) == self._total and self.held >= self._due

    def drop_early(self, why: str) -> list[Action]:
        """Throw away what has come before its chunk was dealt."""
        strays: list[Action] = [Stray(message.path[0], why) for message, _ in self._early]
        for _, payload in self._early:
            self._give_room(payload)
        self._early = []
        return strays

    def _give_room(self, payload: memoryview) -> None:
        elements = len(payload) // self._arithmetic.item_bytes
        self._room.left += elements
        self._early_elements -= elements

    def stop(self) -> list[tuple[int, int]]:
        """Put no more into the buffer; return the elements whose result is there, as they came."""
        item_bytes = self._arithmetic.item_bytes
        held = [*self._held_ranges]
        for index, landing in self._landing.items():
            landing.close()
            if landed := landing.landed_bytes // item_bytes:
                start = self._chunks[index].start
                held.append((start, start + landed))
        self._landing = {}
        return held

    def release(self) -> None:
        """Give back the room that early data takes; nothing more comes of this exchange."""
        self._room.left += self._early_elements
        self._early_elements = 0
        self._early = []
