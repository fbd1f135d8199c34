"""One round at one site: who has been counted, and what must be sent next. No I/O, no clock.

Up a tree, a site sends a chunk's sum on as soon as its own contribution and every child's are in;
the root divides and turns around. Down a tree, a site sends the mean on as soon as it is there.

Data may arrive before the round has begun here: a neighbour is ahead, or this site does not know
the round's plan yet. It is summed all the same, under the version it was sent under, because a sum
needs no child count; whether the chunk is complete is asked only once the plan is known.

The deal of chunks to trees may go on while the round does: chunks whose tree is not known yet wait
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from anabranch.net.errors import DuplicateMessage, MalformedMessage, OutOfPlaceMessage
from anabranch.net.frames import Sink
from anabranch.net.messages import ChunkMessage, Mean, PartialSum
from anabranch.plan import NO_PARENT, Chunk, Plan
from anabranch.site.accumulator import Floats
from anabranch.site.arithmetic import Arithmetic, Gathering

_ELEMENT_BYTES = 4
# Weights multiply and divide float32 sums: beyond this they would vanish or overflow.
LEAST_WEIGHT, MOST_WEIGHT = 1e-20, 1e20


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Send:
    """An instruction: send this; call ``leaving`` just before, and ``sent`` just after."""

    message: ChunkMessage
    payload: memoryview
    leaving: Callable[[], None] = _nothing
    sent: Callable[[], None] = _nothing


class _Partial:
    """A chunk on its way up: its sum, and whose contributions it holds."""

    __slots__ = ("counted", "gathering", "started", "weight")

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self.started: set[int] = set()  # children whose sum has begun to arrive
        self.counted = 0  # children whose sum is all there
        self.weight = 0.0


class Aggregation:
    """One site's part in one round.

    Args:
        site: this site.
        round: the round's number, from 1.
        buffer_elements: the largest buffer a round may have; bounds what is kept before it begins.
        arithmetic: what is done to elements.
        emit: called with each :class:`Send`, in the order in which they become possible.
        finished: called once, when every chunk's mean is in the buffer.
        advanced: called whenever one more chunk's mean is.

    Attributes:
        finished_by_tree: how many chunks of each tree are in the buffer.
        latest: the tree of the chunk that was last to get there, and the neighbour that sent it
            here; None before the first, and where none did.
    """

    def __init__(
        self,
        site: int,
        round: int,
        buffer_elements: int,
        arithmetic: Arithmetic,
        emit: Callable[[Send], None],
        finished: Callable[[], None],
        advanced: Callable[[], None] = _nothing,
    ) -> None:
        self.site = site
        self.round = round
        self._room = buffer_elements  # elements that early data may still take
        self._arithmetic = arithmetic
        self._emit = emit
        self._on_finished = finished
        self._advanced = advanced
        self.finished_by_tree: list[int] = []
        self.latest: tuple[int, int | None] | None = None
        # By version, chunk and its elements: what does not fit must not mix with what does.
        self._partials: dict[tuple[int, int, int], _Partial] = {}
        self._plan: Plan | None = None
        self._chunks: list[Chunk] = []  # those that are dealt
        self._total = 0  # those that the round has
        self._up_children: list[tuple[int, ...]] = []  # of this site, by tree
        self._down_children: list[tuple[int, ...]] = []
        self._buffer: Floats
        self._weight = 1.0
        self._summed: set[int] = set()  # chunks whose sum is complete here
        self._sum_sent: set[int] = set()  # of those, the ones that have begun to leave this site
        self._mean_started: set[int] = set()
        self._means = 0  # chunks whose mean is in the buffer

    def begin(
        self,
        plan: Plan,
        chunks: Sequence[Chunk],
        buffer: Floats,
        weight: float,
        total: int | None = None,
    ) -> list[tuple[int, str]]:
        """Take part with this site's contribution; the buffer will hold the mean.

        Args:
            plan: the one plan this round runs under.
            chunks: its deal of this buffer, or the beginning of it.
            buffer: shape (elements,), contiguous; overwritten chunk by chunk.
            weight: of this site in the mean, > 0.
            total: how many chunks the round has; None where all are dealt.

        Returns:
            Early data that turned out not to belong to this round and was thrown away: (site,
            what was wrong with it).

        Raises:
            OutOfPlaceMessage: such data was added to a sum that this round needs.
        """
        self._plan, self._buffer, self._weight = plan, buffer, weight
        self._total = len(chunks) if total is None else total
        self._up_children = [children[self.site] for children in plan.up_children]
        self._down_children = [children[self.site] for children in plan.down_children]
        self.finished_by_tree = [0] * len(plan.trees)
        misfits = self.go_on(chunks)
        if not self._total:
            self._on_finished()
        return misfits

    def go_on(self, chunks: Sequence[Chunk]) -> list[tuple[int, str]]:
        """Take in the next chunks of the deal; see ``begin``.

        Raises:
            OutOfPlaceMessage: also for a tree that the plan has not got.
        """
        assert self._plan is not None
        if any(not 0 <= chunk.tree < len(self._plan.trees) for chunk in chunks):
            raise OutOfPlaceMessage(f"round {self.round} is dealt to trees that its plan has not")
        self._chunks += chunks
        misfits = self._discard_misfits()
        for chunk in chunks:
            early = self._partials.get((self._plan.version, chunk.index, chunk.elements))
            if early is not None:
                early.gathering.add_own(self._own(chunk), self._weight)
                self._send_up_if_complete(chunk, early)
            elif not self._up_children[chunk.tree]:
                self._send_own(chunk)
        return misfits

    def _discard_misfits(self) -> list[tuple[int, str]]:
        assert self._plan is not None
        misfits = []
        for (version, index, elements), early in list(self._partials.items()):
            wrong = ""
            if version != self._plan.version:
                wrong = f"plan version {version}, the round runs under {self._plan.version}"
            elif index >= self._total:
                wrong = f"chunk {index} of {self._total}"
            elif index >= len(self._chunks):
                continue  # its tree is not known yet
            elif elements != self._chunks[index].elements:
                wrong = f"chunk {index} with {elements} elements"
            else:
                children = set(self._up_children[self._chunks[index].tree])
                if others := sorted(early.started - children):
                    wrong = f"chunk {index} from {others}, not children of this site"
                    if early.started & children:
                        raise OutOfPlaceMessage(f"early data of round {self.round}: {wrong}")
            if wrong:
                misfits += [(child, wrong) for child in sorted(early.started)]
                del self._partials[version, index, elements]
        return misfits

    def _own(self, chunk: Chunk) -> Floats:
        return self._buffer[chunk.start : chunk.stop]

    # --- up

    def on_partial_sum(self, message: PartialSum, payload_bytes: int) -> Sink:
        """Return where a child's sum goes.

        Raises:
            MalformedMessage: a weight or size that cannot be.
            DuplicateMessage: this child's sum of this chunk was already counted.
            OutOfPlaceMessage: another plan, chunk, size or child than this round has.
        """
        child, index = message.path[0], message.chunk
        if not LEAST_WEIGHT <= message.weight <= MOST_WEIGHT:
            raise MalformedMessage(f"chunk {index} has weight {message.weight:g}, out of range")
        if index < 0 or payload_bytes == 0 or payload_bytes % _ELEMENT_BYTES:
            raise MalformedMessage(f"chunk {index} has {payload_bytes} bytes, not float32 elements")
        if self._plan is not None:
            self._check(message, payload_bytes)
            if self._is_dealt(index) and child not in self._up_children[self._chunks[index].tree]:
                raise OutOfPlaceMessage(f"site {child} is no child of this site for chunk {index}")
        key = message.version, index, payload_bytes // _ELEMENT_BYTES
        partial_sum = self._partials.get(key)
        if index in self._summed or (partial_sum is not None and child in partial_sum.started):
            raise DuplicateMessage(f"chunk {index} of round {self.round} from site {child}")
        if partial_sum is None:
            partial_sum = self._open(key)
        partial_sum.started.add(child)
        return Sink(
            piece=partial_sum.gathering.take,
            done=partial(self._count, key, partial_sum, message),
        )

    def _is_dealt(self, index: int) -> bool:
        return index < len(self._chunks)

    def _open(self, key: tuple[int, int, int]) -> _Partial:
        _, index, elements = key
        if not self._is_dealt(index):
            if elements > self._room:
                raise OutOfPlaceMessage(
                    f"more than a whole buffer has come that round {self.round} has not dealt yet"
                )
            self._room -= elements
        opened = self._partials[key] = _Partial(self._arithmetic.gather(elements))
        if self._is_dealt(index):
            opened.gathering.add_own(self._own(self._chunks[index]), self._weight)
        return opened

    def _count(self, key: tuple[int, int, int], partial_sum: _Partial, message: PartialSum) -> None:
        partial_sum.counted += 1
        partial_sum.weight += message.weight
        if self._is_dealt(key[1]) and self._partials.get(key) is partial_sum:
            chunk = self._chunks[key[1]]
            self._send_up_if_complete(chunk, partial_sum, message.path[0])

    def _send_up_if_complete(
        self, chunk: Chunk, complete: _Partial, sender: int | None = None
    ) -> None:
        assert self._plan is not None
        if complete.counted < len(self._up_children[chunk.tree]):
            return
        del self._partials[self._plan.version, chunk.index, chunk.elements]
        self._summed.add(chunk.index)
        total, weight = complete.gathering.sum, complete.weight + self._weight
        parent = self._plan.trees[chunk.tree].up[self.site]
        if parent == NO_PARENT:
            self._arithmetic.divide(total, weight, self._own(chunk))
            self._sum_sent.add(chunk.index)
            self._send_down(chunk, sender)
        else:
            self._send_up(chunk, parent, total, weight)

    def _send_own(self, chunk: Chunk) -> None:
        """A site without children has nothing to wait for."""
        assert self._plan is not None
        parent = self._plan.trees[chunk.tree].up[self.site]
        if parent == NO_PARENT:
            self._sum_sent.add(chunk.index)
            self._send_down(chunk, None)
        else:
            weighted = self._arithmetic.weighted(self._own(chunk), self._weight)
            self._send_up(chunk, parent, weighted, self._weight)

    def _send_up(self, chunk: Chunk, parent: int, total: Floats, weight: float) -> None:
        assert self._plan is not None
        path = self._plan.path(self.site, parent)
        message = PartialSum(self.round, self._plan.version, chunk.index, path, weight)
        # Noted before it leaves: the mean can be back before the sender hears that all has left.
        leaving = partial(self._sum_sent.add, chunk.index)
        self._emit(Send(message, self._arithmetic.payload(total), leaving))

    # --- down

    def on_mean(self, message: Mean, payload_bytes: int) -> Sink:
        """Return where a finished chunk goes: straight into the buffer.

        Raises:
            OutOfPlaceMessage: it comes before this site's own sum has left, from another site than
                the tree says, or does not fit the chunk.
            DuplicateMessage: this mean was already received.
        """
        if self._plan is None:
            raise OutOfPlaceMessage(f"a mean of round {self.round}, which has not begun here")
        self._check(message, payload_bytes)
        if not self._is_dealt(message.chunk):
            raise OutOfPlaceMessage(f"a mean of chunk {message.chunk}, which is not dealt yet")
        chunk = self._chunks[message.chunk]
        if self._plan.trees[chunk.tree].down[self.site] != message.path[0]:
            raise OutOfPlaceMessage(
                f"the mean of chunk {chunk.index} comes from site {message.path[0]}, "
                f"which is not its source"
            )
        if chunk.index not in self._sum_sent:
            raise OutOfPlaceMessage(
                f"the mean of chunk {chunk.index} comes before this site's sum has left"
            )
        if chunk.index in self._mean_started:
            raise DuplicateMessage(f"the mean of chunk {chunk.index} of round {self.round}")
        self._mean_started.add(chunk.index)
        memory = self._arithmetic.memory(self._own(chunk))
        return Sink(target=memory, done=partial(self._send_down, chunk, message.path[0]))

    def _send_down(self, chunk: Chunk, sender: int | None) -> None:
        assert self._plan is not None
        self._mean_started.add(chunk.index)
        if children := self._down_children[chunk.tree]:
            payload = self._arithmetic.payload(self._own(chunk))
            for child in children:
                path = self._plan.path(self.site, child)
                message = Mean(self.round, self._plan.version, chunk.index, path)
                self._emit(Send(message, payload))
        self._means += 1
        self.finished_by_tree[chunk.tree] += 1
        self.latest = chunk.tree, sender
        self._advanced()
        if self._means == self._total:
            self._on_finished()

    @property
    def dealt(self) -> int:
        """How many of the round's chunks have a tree."""
        return len(self._chunks)

    @property
    def all_dealt(self) -> bool:
        """Whether all of them have."""
        return len(self._chunks) == self._total

    @property
    def done_share(self) -> float:
        """The part of the round's chunks whose mean is in the buffer, in [0, 1]."""
        return self._means / self._total if self._total else 0.0

    # --- both

    def _check(self, message: ChunkMessage, payload_bytes: int) -> None:
        assert self._plan is not None
        if message.version != self._plan.version:
            raise OutOfPlaceMessage(
                f"round {self.round} runs under plan version {self._plan.version}, "
                f"not {message.version}"
            )
        if not 0 <= message.chunk < self._total:
            raise OutOfPlaceMessage(f"chunk {message.chunk} of {self._total}")
        if not self._is_dealt(message.chunk):
            return
        expected = self._chunks[message.chunk].elements * _ELEMENT_BYTES
        if payload_bytes != expected:
            raise OutOfPlaceMessage(
                f"chunk {message.chunk} has {payload_bytes} bytes where the plan deals {expected}"
            )


def check_buffer(buffer: Floats, weight: float, most: int) -> None:
    """Check what a site would contribute, and its weight.

    Raises:
        ValueError: no flat, contiguous, writable float32 array of 1 to ``most`` elements, or a
            weight out of range.
    """
    if (
        not isinstance(buffer, np.ndarray)
        or buffer.dtype != np.float32
        or buffer.ndim != 1
        or not buffer.flags.c_contiguous
        or not buffer.flags.writeable
    ):
        raise ValueError(
            "all_reduce takes a flat, contiguous, writable float32 array; got "
            f"{getattr(buffer, 'dtype', type(buffer).__name__)} of shape "
            f"{getattr(buffer, 'shape', '?')}"
        )
    if len(buffer) > most:
        raise ValueError(f"the buffer has {len(buffer)} elements, this run allows {most}")
    if not len(buffer):
        raise ValueError("the buffer is empty; a round without data would not wait for anybody")
    if not LEAST_WEIGHT <= weight <= MOST_WEIGHT:
        raise ValueError(
            f"weight is {weight:g}, must be in {LEAST_WEIGHT:g}..{MOST_WEIGHT:g}; scale all weights"
        )
