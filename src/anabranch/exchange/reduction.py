"""Reduction: one site's part in adding up a buffer on its way up the trees of a plan. Pure.

A site passes a chunk's sum on once it holds its own contribution and every child's sum. At the
root the sum is complete. A subtree without contributors sends nothing, and its parent does not wait
for it. A lone contributor's chunks go to the roots; the sites between only relay them.

**A chunk at one site.** Its state is its place in one of two tables::

                receive (a child's sum begins)            all children in, own elements in
    (no entry) -------------------------------> _partials ---------------------------------> sums
        |          a _Partial: sum so far, children started and counted                       ^
        `--- no children, own elements in ----------------------------------------------------'

``sums`` has the ``Send`` to the parent, or None at the root, where ``Root.take`` gets a ``Total``.
Four calls move chunks: ``receive`` and ``received`` (a child's sum), ``deal`` (the chunk's tree),
and ``contribute`` (this site's elements). Their order is free, except that ``begin`` (the plan and
the contributors) precedes ``deal`` and ``contribute``.

**Early data.** A child may be ahead: its sum arrives before ``begin``, or before ``deal`` has named
the chunk's tree. Adding needs no child count, so the site adds it to a sum under the plan version
that the message names. It asks whether the chunk is complete only once the tree is known. Until
then the sum takes ``Room``. If the version or size proves wrong, ``deal`` drops it as a ``Stray``.

**Epochs.** A lost contributor's part cannot be subtracted from a sum. So a reduction belongs to one
epoch; the epoch counts how often the set of contributors has changed. For the next epoch the owner
makes a new reduction, and all sums of this one are void.

**What must never happen.**

- A child's sum is added twice. ``started`` refuses the second one before its first byte.
- Sums of different versions or sizes mix. Both are part of the key of ``_partials``.
- A chunk leaves without this site's contribution (``_awaits_own``).
- Chunks of one child in one tree carry different weights: one result would then be a mean by
  different weights from chunk to chunk.
- A root adds up in the memory of its own contribution while a repair may still need it
  (``overwrites``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from numbers import Real
from typing import Protocol, cast

from anabranch.exchange.actions import Action, Receipt, Send, Stray, Total
from anabranch.exchange.arithmetic import (
    Accumulator,
    Buffer,
    Payload,
    Piece,
    Scratch,
    SizedSum,
    arithmetic,
)
from anabranch.exchange.terms import Op, Wire, op_of, wire_of
from anabranch.net.errors import DuplicateMessage, MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import ChunkMessage, PartialSum
from anabranch.plan import NO_PARENT, Chunk, Place, Plan, places_up

# Weights multiply and divide float32 sums. Beyond these bounds products would vanish or overflow.
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-20, 1e20
# Relative. Weights of children are added in order of arrival, so those of different chunks may
# differ in their last bits.
_SAME_WEIGHT = 1e-9


class Room:
    """Bounds early data, over all exchanges of a site.

    Args:
        elements: the most elements that early data may take.

    Attributes:
        elements: see above.
        left: how many of them are free.
        scratch: recycled memory for sums, shared by all exchanges of the site.
    """

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.left = elements
        self.scratch = Scratch()

    def take(self, elements: int, what: str) -> None:
        """Reserve room for data that error messages call ``what``.

        Raises:
            OutOfPlaceMessage: less is left.
        """
        if elements > self.left:
            raise OutOfPlaceMessage(
                f"{what} comes before its exchange has begun here, where {self.left} of "
                f"{self.elements} elements of room for such data are left"
            )
        self.left -= elements


class Root(Protocol):
    """Takes the complete sums at a root: to spread a mean, or to take a step of a model."""

    def take(self, total: Total) -> list[Action]:
        """Take the complete sum of one chunk."""


class _Partial:
    """The sum of one chunk so far, and the children whose sums it contains."""

    __slots__ = ("counted", "early", "gathering", "started", "weight")

    def __init__(self, gathering: Accumulator | SizedSum, early: int) -> None:
        self.gathering = gathering
        self.early = early  # elements of room reserved for it
        self.started: set[int] = set()  # children whose sum has begun to arrive
        self.counted = 0  # children whose sum has arrived completely
        self.weight = 0.0  # the sum of the counted children's weights


class Reduction:
    """One site's part in one epoch of one exchange.

    Args:
        site: this site's index.
        exchange: the exchange's number, which its messages carry.
        terms: the code of its :class:`anabranch.exchange.terms.Terms`.
        room: bounds data that arrives before its chunk is dealt.
        epoch: how often the set of contributors had changed.
        overwrites: whether a root may add up in the memory of its own contribution. It does so
            after its first complete sum, which shows that all members agree on the exchange. False
            where a later epoch may need the contribution again.

    Attributes:
        exchange, epoch, terms: see above.
        sums: by chunk, the messages of sums that are complete here; None at their root.
        is_complete: whether this site has passed on every sum that it must.
    """

    def __init__(
        self,
        site: int,
        exchange: int,
        terms: int,
        room: Room,
        epoch: int = 0,
        overwrites: bool = False,
    ) -> None:
        self.exchange = exchange
        self.epoch = epoch
        self.terms = terms
        self.sums: dict[int, Send | None] = {}
        self.is_complete = False
        self._site = site
        self._room = room
        self._overwrites = overwrites
        self._may_overwrite = False  # once a complete sum has shown that the members agree
        self._arithmetic = arithmetic(op_of(terms), wire_of(terms))
        # By (plan version, chunk, elements). An early sum may name a wrong version or size; it must
        # not mix with the right one.
        self._partials: dict[tuple[int, int, int], _Partial] = {}
        self._is_float32 = self._arithmetic.has_numbers and self._arithmetic.is_float32
        self._plan: Plan | None = None
        self._root: Root
        self._places: tuple[Place, ...] = ()
        self._chunks: list[Chunk] = []  # dealt so far
        self._total = 0  # chunks in the buffer
        self._due = 0  # chunks dealt so far whose sum passes through this site
        self._contributes = False
        self._is_lone = False  # one contributor, whose elements are the result, unchanged
        self._awaits_own = False  # this site contributes, and has not yet
        self._own: tuple[Buffer, float] | None = None  # its elements and their weight
        self._own_bytes: memoryview | None = None  # the buffer's memory, if it is in wire format
        self._weights: dict[tuple[int, int], float] = {}  # of a child's sums, by (tree, child)

    def begin(
        self, plan: Plan, total: int, root: Root, contributors: frozenset[int] | None = None
    ) -> None:
        """Set the plan of the exchange and its contributors.

        Args:
            plan: the one plan under which every site runs this exchange.
            total: the number of chunks in the buffer.
            root: takes the complete sums of trees whose root is this site.
            contributors: the sites that contribute; None for every member of the plan.
        """
        self._plan, self._total, self._root = plan, total, root
        self._places = places_up(plan, self._site, contributors)
        self._contributes = self._site in (plan.members if contributors is None else contributors)
        self._awaits_own = self._contributes
        is_lone = contributors is not None and len(contributors) == 1
        # Even a lone contribution is scaled by a SUM, which adds weighted elements, and by a MEAN
        # in 16 bits or in blocks, which travels divided by its weight.
        op, act = self._arithmetic.op, self._arithmetic
        self._is_lone = is_lone and op != Op.SUM and not (op == Op.MEAN and act.rounds)

    def deal(self, chunks: Sequence[Chunk]) -> list[Action]:
        """Take in the next chunks and the trees that carry them.

        Raises:
            OutOfPlaceMessage: the plan does not have such a tree; or an early sum of this chunk
                mixes data of a child in its tree with data of a site that is none.
        """
        assert self._plan is not None
        if any(not 0 <= chunk.tree < len(self._places) for chunk in chunks):
            raise OutOfPlaceMessage(
                f"exchange {self.exchange} is dealt to trees that its plan does not have"
            )
        self._chunks += chunks
        actions = self._drop_strays()
        for chunk in chunks:
            self._due += self._contributes or bool(self._places[chunk.tree].children)
            early = self._partials.get(self._key(chunk))
            if early is not None:
                self._room.left += early.early
                early.early = 0
            actions += self._join_own(chunk, early)
        self._note_progress()
        return actions

    def contribute(self, buffer: Buffer, weight: float) -> list[Action]:
        """Add this site's own elements to every chunk's sum.

        Args:
            buffer: the elements; must not change before its chunks' sums have left.
            weight: their weight, > 0.
        """
        self._own, self._awaits_own = (buffer, weight), False
        payload = self._arithmetic.own_payload(buffer, 0, buffer.elements, self._factor(weight))
        self._own_bytes = payload if isinstance(payload, memoryview) else None
        actions: list[Action] = []
        for chunk in self._chunks:
            actions += self._join_own(chunk, self._partials.get(self._key(chunk)))
        self._note_progress()
        return actions

    def _key(self, chunk: Chunk) -> tuple[int, int, int]:
        assert self._plan is not None
        return self._plan.version, chunk.index, chunk.elements

    def _join_own(self, chunk: Chunk, partial: _Partial | None) -> list[Action]:
        """Add this site's elements to a chunk's sum, if known; pass the sum on if complete."""
        if partial is None:
            # With children, the first child's sum makes the partial, and adds these elements then.
            alone = self._own is not None and not self._places[chunk.tree].children
            return self._send_own(chunk) if alone else []
        if self._own is not None:
            self._arithmetic.add_own(partial.gathering, self._own, chunk.start)
        return self._pass_on_if_complete(chunk, partial, None)

    def _drop_strays(self) -> list[Action]:
        assert self._plan is not None
        strays: list[Action] = []
        for (version, index, elements), early in list(self._partials.items()):
            wrong = ""
            if version != self._plan.version:
                wrong = f"plan version {version}, the exchange runs under {self._plan.version}"
            elif index >= self._total:
                wrong = f"chunk {index} of {self._total}"
            elif index >= len(self._chunks):
                continue  # not dealt yet
            elif elements != self._chunks[index].elements:
                wrong = f"chunk {index} with {elements} elements"
            else:
                children = set(self._places[self._chunks[index].tree].children)
                if others := sorted(early.started - children):
                    wrong = f"chunk {index} from {others}, which send nothing to this site"
                    if early.started & children:
                        # A true child's data is in the same sum, and cannot be taken out of it.
                        raise OutOfPlaceMessage(f"early data of {self._name}: {wrong}")
            if wrong:
                strays += [Stray(child, wrong) for child in sorted(early.started)]
                self._room.left += early.early
                del self._partials[version, index, elements]
        return strays

    @property
    def _name(self) -> str:
        return f"exchange {self.exchange}"

    # --- children's sums

    def receive(self, message: PartialSum, payload_bytes: int) -> Receipt:
        """Return where a child's sum goes.

        Raises:
            MalformedMessage: an impossible weight or size. Or a weight unlike that of the child's
                other sums, if the chunk is dealt already.
            DuplicateMessage: this child's sum of this chunk has arrived, or begun to.
            OutOfPlaceMessage: the terms, plan, chunk, size or child are not this exchange's.
        """
        child, index = message.path[0], message.chunk
        wire = self._arithmetic.wire
        if not _LEAST_WEIGHT <= message.weight <= _MOST_WEIGHT:
            raise MalformedMessage(f"chunk {index} has weight {message.weight:g}, out of range")
        if index < 0 or payload_bytes == 0 or payload_bytes % wire.block_bytes:
            raise MalformedMessage(
                f"chunk {index} has {payload_bytes} bytes, no multiple of {wire.block_bytes}"
            )
        if message.terms != self.terms:
            raise other_terms(message)
        if self._plan is not None:
            self._check(self._plan, message, payload_bytes, child)
        key = message.version, index, wire.elements_of(payload_bytes)
        partial = self._partials.get(key)
        if index in self.sums or (partial is not None and child in partial.started):
            raise DuplicateMessage(f"chunk {index} of {self._name} from site {child}")
        if partial is None:
            partial = self._open(key)
        partial.started.add(child)
        gathering = partial.gathering
        if self._is_float32:
            piece: Piece | None = cast("Accumulator", gathering).take
        else:
            piece = self._arithmetic.intake(gathering, message.weight)
        return Receipt(message, piece=piece, into=(key, partial), owner=self)

    def _check(self, plan: Plan, message: PartialSum, payload_bytes: int, child: int) -> None:
        if message.version != plan.version or not 0 <= message.chunk < self._total:
            raise other_chunk(message, plan, self._total)
        if message.chunk >= len(self._chunks):
            return  # not dealt yet
        chunk = self._chunks[message.chunk]
        if payload_bytes != self._arithmetic.wire.bytes_of(chunk.elements):
            raise other_size(chunk, payload_bytes, self._arithmetic.wire)
        if child not in self._places[chunk.tree].children:
            raise OutOfPlaceMessage(
                f"site {child} sends nothing to this site for chunk {chunk.index} of {self._name}"
            )
        weight = self._weights.setdefault((chunk.tree, child), message.weight)
        if not math.isclose(weight, message.weight, rel_tol=_SAME_WEIGHT):
            raise MalformedMessage(
                f"chunk {chunk.index} of {self._name} from site {child} has weight "
                f"{message.weight:g}, another {weight:g}"
            )

    def _open(self, key: tuple[int, int, int]) -> _Partial:
        _, index, elements = key
        early = elements if index >= len(self._chunks) else 0
        if early:
            self._room.take(early, f"chunk {index} of {self._name}")
        own, start = (None, 0) if early else (self._own, self._chunks[index].start)
        overwrites = self._may_overwrite and not early and self._is_root(self._chunks[index])
        gathering = self._arithmetic.gather(elements, self._room.scratch, own, start, overwrites)
        opened = self._partials[key] = _Partial(gathering, early)
        return opened

    def _is_root(self, chunk: Chunk) -> bool:
        return self._places[chunk.tree].parent == NO_PARENT

    def received(self, receipt: Receipt) -> list[Action]:
        """Count a child's complete sum."""
        message = receipt.message
        assert isinstance(message, PartialSum)
        key, partial = cast("tuple[tuple[int, int, int], _Partial]", receipt.into)
        partial.counted += 1
        partial.weight += message.weight
        if message.chunk >= len(self._chunks) or self._partials.get(key) is not partial:
            return []  # not dealt yet, or dropped as stray while its payload was arriving
        return self._pass_on_if_complete(self._chunks[message.chunk], partial, message.path[0])

    def _pass_on_if_complete(
        self, chunk: Chunk, complete: _Partial, sender: int | None
    ) -> list[Action]:
        if self._awaits_own or complete.counted < len(self._places[chunk.tree].children):
            return []
        del self._partials[self._key(chunk)]
        weight = complete.weight + (0.0 if self._own is None else self._own[1])
        total = complete.gathering.sum
        place = self._places[chunk.tree]
        if place.parent == NO_PARENT:
            self._settle(chunk, None)
            self._may_overwrite = self._overwrites
            divisor = 1.0 if self._is_lone else weight
            is_scratch = complete.gathering.is_scratch
            return self._root.take(Total(chunk, total, weight, divisor, sender, is_scratch))
        own = None if self._own is None else self._own[0]
        payload = self._arithmetic.payload_up(total, weight, chunk.start, own)
        send = self._send(chunk, place, payload, weight)
        if complete.gathering.is_scratch:
            send.free = functools.partial(self._room.scratch.give, total)
        return [send]

    def _send_own(self, chunk: Chunk) -> list[Action]:
        """Pass on this site's elements of a chunk without children; a lone site's, unscaled."""
        assert self._own is not None
        buffer, weight = self._own
        place, act = self._places[chunk.tree], self._arithmetic
        if place.parent == NO_PARENT:
            self._settle(chunk, None)
            own = buffer.read(chunk.start, chunk.stop)
            if act.op == Op.SUM and weight != 1.0:
                own = own * own.dtype.type(weight)
            return self._root.take(Total(chunk, own, weight, 1.0, None))
        payload: Payload
        if self._own_bytes is not None:
            payload = act.part_of(self._own_bytes, chunk)
        else:
            payload = act.own_payload(buffer, chunk.start, chunk.stop, self._factor(weight))
        return [self._send(chunk, place, payload, weight)]

    def _factor(self, weight: float) -> float:
        return 1.0 if self._is_lone else weight

    def _send(self, chunk: Chunk, place: Place, payload: Payload, weight: float) -> Send:
        assert self._plan is not None
        message = PartialSum(
            self.exchange,
            self._plan.version,
            chunk.index,
            place.path,
            self.terms,
            self.epoch,
            weight,
        )
        send = Send(message, payload)
        self._settle(chunk, send)
        return send

    def _settle(self, chunk: Chunk, send: Send | None) -> None:
        self.sums[chunk.index] = send
        if len(self.sums) >= self._due:
            self._note_progress()

    def _note_progress(self) -> None:
        self.is_complete = (
            not self._awaits_own
            and len(self._chunks) == self._total
            and len(self.sums) == self._due
        )

    # --- the end

    def release(self) -> None:
        """Free the room that early data takes, at the end of this reduction."""
        for partial in self._partials.values():
            self._room.left += partial.early
            partial.early = 0


def other_terms(message: ChunkMessage) -> OutOfPlaceMessage:
    """Return the error for a chunk with other terms than its exchange."""
    return OutOfPlaceMessage(
        f"exchange {message.exchange} is another one at site {message.path[0]}: the sizes, types "
        "or operations differ"
    )


def other_chunk(message: ChunkMessage, plan: Plan, total: int) -> OutOfPlaceMessage:
    """Return the error for a chunk of another plan than ``plan``, or beyond ``total`` chunks."""
    if message.version != plan.version:
        return OutOfPlaceMessage(
            f"exchange {message.exchange} runs under plan version {plan.version}, "
            f"not {message.version}"
        )
    return OutOfPlaceMessage(f"chunk {message.chunk} of {total}")


def other_size(chunk: Chunk, payload_bytes: int, wire: Wire) -> OutOfPlaceMessage:
    """Return the error for a payload that does not have its chunk's size."""
    dealt = wire.bytes_of(chunk.elements)
    return OutOfPlaceMessage(
        f"chunk {chunk.index} has {payload_bytes} bytes where the plan deals {dealt}"
    )


def weight_of(given: Real | float) -> float:
    """Return a contribution's weight as a float.

    Raises:
        TypeError: it is not a number.
        ValueError: it is out of range.
    """
    if not isinstance(given, Real):
        raise TypeError(f"weight is {given!r}, must be a number")
    try:
        weight = float(given)
    except OverflowError:  # an int such as 10**400
        weight = math.inf
    if not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise ValueError(
            f"weight is {weight:g}, must be in {_LEAST_WEIGHT:g}..{_MOST_WEIGHT:g}; "
            "scale all weights"
        )
    return weight
