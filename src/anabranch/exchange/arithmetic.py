"""Arithmetic of exchanges: adds up chunks in float32, and converts them to and from wire format.

**The payloads, and a root's operation**, by op. w is a weight, x a contribution::

    op      up a tree, float32 or int8      up, 16-bit, blocks   the root makes
    MEAN    sum of w x                      sum of w x / sum w   the sum divided by the weights' sum
    SUM     sum of w x                      the same             the sum
    MAX     largest x, w ignored            the same             the largest
    MIN     least x, w ignored              the same             the least
    STEP    sum of w x                      sum of w x / sum w   a server's step (`partition`)
    COPY    x of the one contributor        its bits, unrounded  the same bits
    LETTER  no tree: models and answers of neighbours (`letters`)

Sums are float32 on every site, whatever the wire format. In 16 bits a mean travels, because sums
would leave float16's range; the parent multiplies it by its weight again.

**Blocks** (``Wire.has_blocks``) lose bits at every hop. Of the weighted sum that a site passes on,
or that a root makes the mean of, it tells its buffer what was lost: :class:`KeepsLost`. All that is
lost, times the weights of those that keep it, plus the result times all weights, is the sum of the
weighted contributions.

**A sum in progress** (:class:`Accumulator`) grows from the left, while pieces of several children
arrive interleaved::

    element   0 ............ reached ............ elements
              | set; pieces   | not set; the first |
              | are added     | piece sets them    |

So memory need not be cleared first, no child's data waits in memory, and each piece costs one pass.

**Size-only exchanges** (``Wire.SIZES``). Neither the waits of sites nor the order of messages
depends on the numbers. A simulation that only measures time leaves them out: :class:`Sized` and
:class:`SizedSum` stand for a buffer and a sum, and no element is ever computed.

**What must never happen.**

- Two sites hold different bits of one result. The root therefore writes to its own buffer what its
  encoded payload decodes to, not the sum before rounding.
- A payload that is still to be sent lies in memory that another sum reuses (:class:`Scratch`).
- One site stops on a NumPy warning (overflow, NaN) that its program turned into an error. The
  others would wait for it; the same value reaches every site as data instead (``_in_silence``).
- An integer is rounded or clipped: ``encode`` raises :class:`NotOnWireError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import ParamSpec, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from anabranch.exchange import _blocks
from anabranch.exchange._halves import to_float32, to_halves
from anabranch.exchange.terms import EXTREMES, Op, Wire
from anabranch.plan import Chunk

P = ParamSpec("P")
R = TypeVar("R")
Floats = npt.NDArray[np.float32]
Combine = Callable[..., object]
Piece = Callable[[int, memoryview], None]
_ROUNDED = Wire.FLOAT16, Wire.BFLOAT16
MOST_INTEGER = 127  # magnitude, in the wire format INT8
_COMBINE: dict[Op, Combine] = {Op.MAX: np.maximum, Op.MIN: np.minimum}  # all others add
Payload = memoryview | Callable[[], memoryview]
"""A payload, or a function that makes it when it begins to leave."""


def _in_silence(call: Callable[P, R]) -> Callable[P, R]:
    """Silence NumPy's floating-point warnings during a call.

    Overflows and NaNs are data, alike at every site. If a program turned the warnings into errors,
    its site would stop in the middle of a sum, and the others would wait.
    """

    @wraps(call)
    def silent(*given: P.args, **named: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            return call(*given, **named)

    return silent


class NotOnWireError(ValueError):
    """A value that the wire format cannot represent exactly."""


def check_integers(values: Floats, most: int = MOST_INTEGER, first: int = 0) -> None:
    """Check that INT8 can represent values exactly.

    Args:
        values: float32, shape (elements,).
        most: the largest magnitude allowed.
        first: the index of the first value in its buffer, for the error message.

    Raises:
        NotOnWireError: a value is no integer, or is too large; names the element.

    >>> check_integers(np.array([3, -127], np.float32))
    >>> try:
    ...     check_integers(np.array([3, 0.5], np.float32), most=42)
    ... except NotOnWireError as error:
    ...     print(error)
    element 1 is 0.5; int8 carries integers from -42 to 42 here
    """
    is_well = (np.abs(values) <= most) & (np.rint(values) == values)
    if not is_well.all():
        index = int(np.argmin(is_well))
        raise NotOnWireError(
            f"element {first + index} is {values[index]:g}; int8 carries integers from {-most} to "
            f"{most}" + (" here" if most < MOST_INTEGER else "")
        )


class Buffer(Protocol):
    """The memory that an exchange reads and overwrites, chunk by chunk.

    Attributes:
        elements: the number of elements.
    """

    @property
    def elements(self) -> int:
        """The number of elements."""

    def read(self, start: int, stop: int) -> Floats:
        """Return elements ``[start, stop)`` as float32: a view of the memory if possible."""

    def write(self, start: int, values: Floats) -> None:
        """Overwrite elements from ``start`` on."""

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """Return the memory of elements ``[start, stop)`` if it is in this wire format, else None.

        Writing to it changes the buffer.
        """


class Flat:
    """A buffer that is one float32 array.

    Args:
        array: shape (elements,), contiguous.
    """

    __slots__ = ("_array", "_bytes")

    def __init__(self, array: Floats) -> None:
        self._array = array
        self._bytes = array.data.cast("B")

    @property
    def elements(self) -> int:
        """See :class:`Buffer`."""
        return len(self._array)

    def read(self, start: int, stop: int) -> Floats:
        """See :class:`Buffer`."""
        return self._array[start:stop]

    def write(self, start: int, values: Floats) -> None:
        """See :class:`Buffer`."""
        self._array[start : start + len(values)] = values

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`Buffer`."""
        return self._bytes[4 * start : 4 * stop] if wire == Wire.FLOAT32 else None


@runtime_checkable
class KeepsLost(Protocol):
    """A buffer that is told what rounding takes from sums, and keeps it for a later exchange."""

    def keep_lost(self, start: int, mean: Floats, sent: Floats, weight: float) -> None:
        """Keep what a weighted sum has lost in elements from ``start`` on, in place of the last.

        Args:
            start: the first element.
            mean: the sum over its weight.
            sent: what of it travels.
            weight: of all contributions to the sum.
        """


def in_one_piece(buffer: Buffer) -> Buffer:
    """Return the buffer as a :class:`Flat` if it is one float32 array: slices are faster."""
    memory = buffer.memory(0, buffer.elements, Wire.FLOAT32)
    return buffer if memory is None else Flat(np.frombuffer(memory, np.float32))


class Sized:
    """A buffer without numbers, for size-only exchanges.

    Args:
        elements: the number of elements that it stands for.
    """

    __slots__ = ("elements",)

    def __init__(self, elements: int) -> None:
        self.elements = elements

    def read(self, start: int, stop: int) -> Floats:
        """See :class:`Buffer`."""
        return _zeros(stop - start)

    def write(self, start: int, values: Floats) -> None:
        """See :class:`Buffer`."""

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`Buffer`."""
        return None


@lru_cache(maxsize=256)
def _zeros(elements: int) -> Floats:
    # The kernel maps pages only when they are written, so these take no memory. Read-only, because
    # all callers share them.
    zeros = np.zeros(elements, np.float32)
    zeros.flags.writeable = False
    return zeros


def payload_without_numbers(payload_bytes: int) -> memoryview:
    """Return a read-only payload of this size, for size-only exchanges."""
    return _zeros(-(-payload_bytes // 4)).data.cast("B")[:payload_bytes]


class Scratch:
    """Recycles the memory of sums that have left, since to map fresh pages costs as much as to add.

    Args:
        most: the number of free arrays to keep, of each length.

    >>> scratch = Scratch(most=1)
    >>> first, second = scratch.take(5), scratch.take(5)
    >>> scratch.give(first)
    >>> scratch.give(second)
    >>> scratch.take(5) is first, scratch.take(5) is second
    (True, False)
    """

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._free: dict[int, list[Floats]] = {}

    def take(self, elements: int) -> Floats:
        """Return an array of this length with undefined contents."""
        free = self._free.get(elements)
        return free.pop() if free else np.empty(elements, np.float32)

    def give(self, array: Floats) -> None:
        """Take back an array from ``take``; no message may refer to it any more."""
        free = self._free.setdefault(len(array), [])
        if len(free) < self._most:
            free.append(array)

    def clear(self) -> None:
        """Release all free arrays."""
        self._free.clear()


class Accumulator:
    """The running weighted sum of one chunk at one site.

    Children's sums arrive in pieces: several children interleaved, each child's from left to right.
    The site's own contribution may come before, between or after them. So the sum grows from the
    left. ``[0, reached)`` holds the sum of all pieces that have arrived for those elements. The
    first piece beyond ``reached`` sets elements instead of adding to them.

    Args:
        elements: the length of the chunk.
        combine: adds two arrays, called as ``combine(a, b, out=...)``.
        values: converts wire bytes to float32; None where they are float32.
        memory: for the sum, shape (elements,); None to allocate. Its contents are ignored, unless
            they are the site's own contribution, to be added with ``add_own``.
        is_scratch: whether that memory goes back to the scratch afterwards.

    Attributes:
        sum: the sum so far, shape (elements,).
        is_scratch: see above.

    >>> chunk = Accumulator(3)
    >>> chunk.add(0, np.array([1, 1], np.float32))
    >>> chunk.add_own(np.array([10, 20, 30], np.float32), weight=2.0)
    >>> chunk.add(2, np.array([1], np.float32))
    >>> chunk.sum.tolist()
    [21.0, 41.0, 61.0]
    """

    __slots__ = ("_combine", "_own", "_own_weight", "_reached", "_values", "is_scratch", "sum")

    def __init__(
        self,
        elements: int,
        combine: Combine = np.add,
        values: Callable[[memoryview], Floats] | None = None,
        memory: Floats | None = None,
        is_scratch: bool = True,
    ) -> None:
        self.is_scratch = is_scratch
        self.sum: Floats = np.empty(elements, np.float32) if memory is None else memory
        self._combine = combine
        self._values = values
        self._reached = 0
        self._own: Floats | None = None  # to be added to elements that are not reached yet
        self._own_weight = np.float32(1.0)

    @_in_silence
    def add_own(self, own: Floats, weight: float) -> None:
        """Add ``weight * own``, shape (elements,); ``own`` must not change before the sum is used.

        Elements that no child's piece has reached get it together with the first such piece.
        """
        self._own, self._own_weight = own, np.float32(weight)
        if self._reached:
            known = self.sum[: self._reached]
            self._combine(known, self._weighted(0, self._reached), out=known)

    @_in_silence
    def add(self, start: int, piece: Floats) -> None:
        """Add a child's piece at element ``start``; each child's pieces must come in order."""
        stop = start + len(piece)
        known = max(start, min(stop, self._reached))
        if known > start:
            old = self.sum[start:known]
            self._combine(old, piece[: known - start], out=old)
        if stop > known:
            fresh = self.sum[known:stop]
            if self._own is None:
                fresh[:] = piece[known - start :]
            else:
                self._combine(self._weighted(known, stop), piece[known - start :], out=fresh)
            self._reached = stop

    def take(self, offset_bytes: int, piece: memoryview) -> None:
        """Add a child's float32 piece straight from the network; see ``add``."""
        self.add(offset_bytes // 4, np.frombuffer(piece, np.float32))

    @_in_silence
    def take_narrow(self, wire: Wire, weight: float, offset_bytes: int, piece: memoryview) -> None:
        """Add a child's piece in another format than float32, times a weight; see ``add``."""
        assert self._values is not None
        values = self._values(piece)
        if weight != 1.0:
            values *= np.float32(weight)
        self.add(wire.elements_of(offset_bytes), values)

    def _weighted(self, start: int, stop: int) -> Floats:
        assert self._own is not None
        own = self._own[start:stop]
        return own if self._own_weight == 1.0 else own * self._own_weight


class SizedSum:
    """The sum of a chunk in a size-only exchange: it has a length, and no numbers."""

    __slots__ = ("sum",)
    is_scratch = False

    def __init__(self, elements: int) -> None:
        self.sum = _zeros(elements)


class Arithmetic:
    """The arithmetic of one op in one wire format; the shape of all arrays is (elements,).

    Args:
        op, wire: see :class:`Op` and :class:`Wire`.

    Attributes:
        op, wire: see above.
        has_numbers: False for size-only exchanges.
    """

    def __init__(self, op: Op, wire: Wire) -> None:
        self.op = op
        self.wire = wire
        self.has_numbers = wire != Wire.SIZES
        self.is_float32 = wire in (Wire.FLOAT32, Wire.SIZES)
        self.rounds = wire in _ROUNDED or wire.has_blocks
        self._combine: Combine = _COMBINE.get(op, np.add)
        self._is_weighted = op not in EXTREMES
        self._copies_halves = wire in _ROUNDED and op == Op.COPY
        self._travels_as_mean = self.rounds and op in (Op.MEAN, Op.STEP)

    def gather(
        self,
        elements: int,
        scratch: Scratch | None = None,
        own: tuple[Buffer, float] | None = None,
        start: int = 0,
        overwrites: bool = False,
    ) -> Accumulator | SizedSum:
        """Return a new, empty sum of one chunk.

        Args:
            elements: the length of the chunk.
            scratch: provides its memory; None to allocate.
            own: this site's buffer and weight; None if it adds nothing, or adds it later.
            start: the chunk's first element in that buffer.
            overwrites: whether the sum may lie in the buffer's own memory, to save a copy. It does
                where that is float32.
        """
        if not self.has_numbers:
            return SizedSum(elements)
        values = None if self.is_float32 else self.values
        lies: memoryview | None = None
        memory: Floats | None = None
        if overwrites and own is not None:
            lies = own[0].memory(start, start + elements, Wire.FLOAT32)
        if lies is not None:
            memory = np.frombuffer(lies, np.float32)
        elif scratch is not None:
            memory = scratch.take(elements)
        gathering = Accumulator(elements, self._combine, values, memory, is_scratch=lies is None)
        if own is not None:
            self.add_own(gathering, own, start)
        return gathering

    def add_own(
        self, gathering: Accumulator | SizedSum, own: tuple[Buffer, float], start: int
    ) -> None:
        """Add this site's contribution to a chunk's sum; see ``gather``."""
        if isinstance(gathering, Accumulator):
            buffer, weight = own
            part = buffer.read(start, start + len(gathering.sum))
            gathering.add_own(part, weight if self._is_weighted else 1.0)

    def intake(self, gathering: Accumulator | SizedSum, weight: float) -> Piece | None:
        """Return a function that adds a child's pieces to a sum; None in a size-only exchange.

        Args:
            gathering: see ``gather``.
            weight: the weight in the child's message.
        """
        if isinstance(gathering, SizedSum):
            return None
        if self.is_float32:
            return gathering.take
        factor = weight if self._travels_as_mean else 1.0
        take = partial(gathering.take_narrow, self.wire, factor)
        return _WholeBlocks(take, self.wire.block_bytes) if self.wire.has_blocks else take

    @_in_silence
    def payload_up(
        self, total: Floats, weight: float, start: int = 0, buffer: Buffer | None = None
    ) -> memoryview:
        """Return the payload for the parent, from a sum and its weight.

        In 16 bits and in blocks the mean so far travels, since sums would leave float16's range.

        Args:
            total: the sum of a chunk.
            weight: of all its contributions.
            start: the chunk's first element.
            buffer: this site's, which is told what the payload has lost; None for none.
        """
        if self._travels_as_mean and weight != 1.0:
            total = total / np.float32(weight)
        payload = self.encode(total)
        self._tell_lost(total, payload, weight, start, buffer)
        return payload

    def _tell_lost(
        self, mean: Floats, payload: memoryview, weight: float, start: int, buffer: Buffer | None
    ) -> Floats | None:
        """Tell a buffer what a payload of blocks has lost; return the payload's values."""
        if not self.wire.has_blocks:
            return None
        values = self.values(payload)
        if isinstance(buffer, KeepsLost):
            buffer.keep_lost(start, mean, values, weight)
        return values

    def own_payload(self, buffer: Buffer, start: int, stop: int, weight: float) -> Payload:
        """Return the payload for the parent, from this site's own elements alone.

        It is the buffer's memory if the format allows. Otherwise it is a function that makes the
        copy when the message leaves, so that no copy waits in a queue.
        """
        own_weight = weight
        weight = weight if self._is_weighted and not self._travels_as_mean else 1.0
        memory = buffer.memory(start, stop, self.wire) if weight == 1.0 else None
        if memory is not None:
            return memory

        @_in_silence
        def copy() -> memoryview:
            own = buffer.read(start, stop)
            payload = self.encode(own if weight == 1.0 else own * np.float32(weight))
            self._tell_lost(own, payload, own_weight, start, buffer)
            return payload

        return copy

    def part_of(self, memory: memoryview, chunk: Chunk) -> memoryview:
        """Return a chunk's part of a whole buffer's memory, which is in wire format."""
        return memory[self.wire.bytes_of(chunk.start) : self.wire.bytes_of(chunk.stop)]

    def finish(
        self,
        chunk: Chunk,
        total: Floats,
        divisor: float,
        buffer: Buffer,
        scratch: Scratch | None = None,
        weight: float = 1.0,
    ) -> Payload:
        """Write a root's result of a chunk into its buffer; return the payload to hand down.

        The payload never lies in scratch memory, because that is reused at once.

        Args:
            chunk: the chunk.
            total: its complete sum; may be overwritten.
            divisor: ``total / divisor`` is the mean.
            buffer: this site's buffer.
            scratch: takes the sum's memory back; None where that is not scratch memory.
            weight: of all contributions.
        """
        payload = self._finish(chunk, total, divisor, buffer, weight)
        if scratch is not None:
            scratch.give(total)
        return payload

    @_in_silence
    def _finish(
        self, chunk: Chunk, total: Floats, divisor: float, buffer: Buffer, weight: float
    ) -> Payload:
        if not self.has_numbers:
            return self.encode(total)
        divides = self.op == Op.MEAN and divisor != 1.0
        memory = buffer.memory(chunk.start, chunk.stop, self.wire)
        if memory is not None and self.is_float32:
            values = np.frombuffer(memory, np.float32)
            if divides:
                np.divide(total, np.float32(divisor), out=values)
            elif not np.shares_memory(values, total):
                values[:] = total
            return memory
        if divides:
            total = total / np.float32(divisor)
        if self.is_float32:
            buffer.write(chunk.start, total)
            return lambda: self.encode(buffer.read(chunk.start, chunk.stop))
        payload = self.encode(total)
        decoded = self._tell_lost(total, payload, weight, chunk.start, buffer)
        # The decoded payload, not `total`: every other site gets the rounded values.
        buffer.write(chunk.start, self.values(payload) if decoded is None else decoded)
        return payload

    def values(self, data: memoryview) -> Floats:
        """Return the float32 values of wire bytes.

        In a 16-bit COPY a value is the bits read as an integer. A conversion to float would change
        the bits of NaNs.
        """
        if self.is_float32:
            return np.frombuffer(data, np.float32)
        if self.wire.has_blocks:
            return _blocks.decode(data, self.wire)
        if self._copies_halves:
            return np.frombuffer(data, np.int16).astype(np.float32)
        if self.wire == Wire.INT8:
            return np.frombuffer(data, np.int8).astype(np.float32)
        return to_float32(data, self.wire)

    def encode(self, values: Floats) -> memoryview:
        """Return the wire bytes of values; for float32 the values' own memory.

        Raises:
            NotOnWireError: the format is INT8, and a value is no integer in its range.
        """
        if not self.has_numbers:
            return _zeros(len(values)).data.cast("B")
        if self.is_float32:
            return values.data.cast("B")
        if self.wire.has_blocks:
            return _blocks.encode(values, self.wire)
        if self._copies_halves:
            return values.astype(np.int16).data.cast("B")
        if self.wire == Wire.INT8:
            check_integers(values)
            return values.astype(np.int8).data.cast("B")
        return to_halves(values, self.wire)


class _WholeBlocks:
    """Passes on the whole blocks of a payload, which arrives in pieces of any length."""

    __slots__ = ("_block_bytes", "_rest", "_take")

    def __init__(self, take: Piece, block_bytes: int) -> None:
        self._take = take
        self._block_bytes = block_bytes
        self._rest = b""  # the beginning of a block

    def __call__(self, offset_bytes: int, piece: memoryview) -> None:
        if self._rest or len(piece) % self._block_bytes:
            offset_bytes -= len(self._rest)
            piece = memoryview(self._rest + bytes(piece))
            whole = len(piece) // self._block_bytes * self._block_bytes
            self._rest, piece = bytes(piece[whole:]), piece[:whole]
        if piece:
            self._take(offset_bytes, piece)


@lru_cache
def arithmetic(op: Op, wire: Wire) -> Arithmetic:
    """Return the arithmetic of an op and a wire format, one object for each pair."""
    return Arithmetic(op, wire)
