"""What is done to the elements of a chunk: added up in float32, converted to and from the wire.

The protocol of an exchange is the same whether its numbers matter or not: who waits for whom, what
is sent, in which order. A simulation that asks only how long exchanges take leaves the numbers out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from anabranch.exchange.terms import Op, Wire
from anabranch.plan import Chunk

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
R = TypeVar("R")
Floats = npt.NDArray[np.float32]
Combine = Callable[..., object]
Piece = Callable[[int, memoryview], None]
MOST_INTEGER = 127  # either sign, of the wire's INT8
Payload = memoryview | Callable[[], memoryview]
"""A payload, or what makes it when it begins to leave."""


def _in_silence(call: Callable[P, R]) -> Callable[P, R]:
    """Let NumPy say nothing of what overflows, or is no number: it is so at every site.

    Where a program turns its warnings into errors, one site would stop, and the others wait.
    """

    @wraps(call)
    def silent(*given: P.args, **named: P.kwargs) -> R:
        with np.errstate(all="ignore"):
            return call(*given, **named)

    return silent


class NotOnWireError(ValueError):
    """A value that the wire's format cannot carry as it is."""


def check_integers(values: Floats, most: int = MOST_INTEGER, first: int = 0) -> None:
    """Check that values can travel as INT8.

    Args:
        values: float32, shape (elements,).
        most: either sign.
        first: index of the first, for the message.

    Raises:
        NotOnWireError: one is no integer, or is too large; says which.

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
        elements: how many there are.
    """

    @property
    def elements(self) -> int:
        """How many there are."""

    def read(self, start: int, stop: int) -> Floats:
        """Return elements ``[start, stop)`` as float32: a view where they lie so, else a copy."""

    def write(self, start: int, values: Floats) -> None:
        """Overwrite elements from ``start`` on."""

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """Return the bytes of elements ``[start, stop)`` if they lie in the wire's format."""


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


def in_one_piece(buffer: Buffer) -> Buffer:
    """Return the same memory as one array, if it lies so: its chunks are found sooner."""
    memory = buffer.memory(0, buffer.elements, Wire.FLOAT32)
    return buffer if memory is None else Flat(np.frombuffer(memory, np.float32))


class Sized:
    """A buffer without numbers.

    Args:
        elements: how many it stands for.
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
    # Never written, so never in memory; read-only, so that it need not be copied either.
    zeros = np.zeros(elements, np.float32)
    zeros.flags.writeable = False
    return zeros


def payload_without_numbers(payload_bytes: int) -> memoryview:
    """Return a payload of a chunk that has a size alone; it cannot be written."""
    return _zeros(-(-payload_bytes // 4)).data.cast("B")[:payload_bytes]


class Scratch:
    """Memory of sums that have left, for those that come: fresh pages cost as much as adding does.

    Args:
        most: arrays of each length that are kept.

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
        """Return an array of this length, with anything in it."""
        free = self._free.get(elements)
        return free.pop() if free else np.empty(elements, np.float32)

    def give(self, array: Floats) -> None:
        """Take back an array that ``take`` returned and that nothing refers to any more."""
        free = self._free.setdefault(len(array), [])
        if len(free) < self._most:
            free.append(array)

    def clear(self) -> None:
        """Keep nothing."""
        self._free.clear()


class Accumulator:
    """The running weighted sum of one chunk at one site.

    Children's sums arrive in pieces, several children at a time, each child's from left to right;
    the site's own contribution may come before, between or after them. So the sum grows from the
    left: ``[0, reached)`` holds the sum of everything that has come for those elements, and the
    first piece to go past ``reached`` sets its elements instead of adding to them. No child's data
    waits in memory, and no element is touched more often than it must be.

    Args:
        elements: length of the chunk.
        combine: what adds two arrays, given as ``combine(a, b, out=...)``.
        values: makes float32 of what came off the wire.
        memory: for the sum, shape (elements,), made here if not given; with anything in it, or with
            what the site contributes.
        is_scratch: whether that memory serves other sums afterwards.

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
        self._own: Floats | None = None  # for elements not reached yet
        self._own_weight = np.float32(1.0)

    @_in_silence
    def add_own(self, own: Floats, weight: float) -> None:
        """Add ``weight * own``, shape (elements,); ``own`` must not change until the sum is whole.

        Where no child's piece has come yet, it is added together with the first one that does.
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
        """Add a child's piece as it comes off the network; see ``add``."""
        self.add(offset_bytes // 4, np.frombuffer(piece, np.float32))

    @_in_silence
    def take_narrow(
        self, item_bytes: int, weight: float, offset_bytes: int, piece: memoryview
    ) -> None:
        """Add a child's piece of one or two bytes an element, times a weight; see ``add``."""
        assert self._values is not None
        values = self._values(piece)
        if weight != 1.0:
            values *= np.float32(weight)
        self.add(offset_bytes // item_bytes, values)

    def _weighted(self, start: int, stop: int) -> Floats:
        assert self._own is not None
        own = self._own[start:stop]
        return own if self._own_weight == 1.0 else own * self._own_weight


class Nothing:
    """The sum of a chunk without numbers."""

    __slots__ = ("sum",)
    is_scratch = False

    def __init__(self, elements: int) -> None:
        self.sum = _zeros(elements)


class Arithmetic:
    """What an exchange of an op and a wire format does to elements; shapes are (elements,).

    Args:
        op, wire: see there.
    """

    def __init__(self, op: Op, wire: Wire) -> None:
        self.op = op
        self.wire = wire
        self.item_bytes = wire.item_bytes
        self.has_numbers = wire != Wire.SIZES
        self._combine: Combine = np.maximum if op == Op.MAX else np.add
        self._copies_halves = self.item_bytes == 2 and op == Op.COPY
        self._travels_as_mean = self.item_bytes == 2 and op in (Op.MEAN, Op.STEP)

    def gather(
        self,
        elements: int,
        scratch: Scratch | None = None,
        own: tuple[Buffer, float] | None = None,
        start: int = 0,
        overwrites: bool = False,
    ) -> Accumulator | Nothing:
        """Return the sum of one chunk.

        Args:
            elements: of the chunk.
            scratch: where to take its memory from.
            own: what this site adds, and its weight; None for nothing, or for nothing yet.
            start: of the chunk in that.
            overwrites: whether the sum may lie in that very memory; it does where that is float32.
        """
        if not self.has_numbers:
            return Nothing(elements)
        values = None if self.item_bytes == 4 else self.values
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
        self, gathering: Accumulator | Nothing, own: tuple[Buffer, float], start: int
    ) -> None:
        """Add what a site contributes to a chunk; see ``gather``."""
        if isinstance(gathering, Accumulator):
            buffer, weight = own
            part = buffer.read(start, start + len(gathering.sum))
            gathering.add_own(part, 1.0 if self.op == Op.MAX else weight)

    def intake(self, gathering: Accumulator | Nothing, weight: float) -> Piece | None:
        """Return what takes a child's payload into a sum, piece by piece; None if none need be.

        Args:
            gathering: see ``gather``.
            weight: that the child's sum carries.
        """
        if isinstance(gathering, Nothing):
            return None
        if self.item_bytes == 4:
            return gathering.take
        factor = weight if self._travels_as_mean else 1.0
        return partial(gathering.take_narrow, self.item_bytes, factor)

    @_in_silence
    def payload_up(self, total: Floats, weight: float) -> memoryview:
        """Return the bytes that travel up for a sum and its weight.

        In two bytes an element the mean so far travels, since sums would leave float16's range.
        """
        if self._travels_as_mean and weight != 1.0:
            total = total / np.float32(weight)
        return self.encode(total)

    def own_payload(self, buffer: Buffer, start: int, stop: int, weight: float) -> Payload:
        """Return the bytes that travel up for a site's own elements alone.

        They are their own memory if that will do, else made when they leave: a copy need not wait.
        """
        weight = 1.0 if self.op == Op.MAX or self._travels_as_mean else weight
        memory = buffer.memory(start, stop, self.wire) if weight == 1.0 else None
        if memory is not None:
            return memory

        @_in_silence
        def copy() -> memoryview:
            own = buffer.read(start, stop)
            return self.encode(own if weight == 1.0 else own * np.float32(weight))

        return copy

    def finish(
        self,
        chunk: Chunk,
        total: Floats,
        divisor: float,
        buffer: Buffer,
        scratch: Scratch | None = None,
    ) -> Payload:
        """Write what a root makes of a chunk's sum into its buffer; return what to hand down.

        What is handed down does not lie in the sum's memory, unless that is the buffer's.

        Args:
            chunk: which.
            total: its sum, which may be overwritten.
            divisor: what makes a mean of it.
            buffer: this site's.
            scratch: takes the sum's memory back; None where that is not its own.
        """
        payload = self._finish(chunk, total, divisor, buffer)
        if scratch is not None:
            scratch.give(total)
        return payload

    @_in_silence
    def _finish(self, chunk: Chunk, total: Floats, divisor: float, buffer: Buffer) -> Payload:
        if not self.has_numbers:
            return self.encode(total)
        divides = self.op == Op.MEAN and divisor != 1.0
        memory = buffer.memory(chunk.start, chunk.stop, self.wire)
        if memory is not None and self.item_bytes == 4:
            values = np.frombuffer(memory, np.float32)
            if divides:
                np.divide(total, np.float32(divisor), out=values)
            elif not np.shares_memory(values, total):
                values[:] = total
            return memory
        if divides:
            total = total / np.float32(divisor)
        if self.item_bytes == 4:
            buffer.write(chunk.start, total)
            return lambda: self.encode(buffer.read(chunk.start, chunk.stop))
        payload = self.encode(total)
        buffer.write(chunk.start, self.values(payload))  # the same bits as everywhere else
        return payload

    def values(self, data: memoryview) -> Floats:
        """Return the float32 that these bytes off the wire stand for.

        Of halves that are copied, the bits as an integer: rounding would change NaNs.
        """
        if self.item_bytes == 4:
            return np.frombuffer(data, np.float32)
        if self._copies_halves:
            return np.frombuffer(data, np.int16).astype(np.float32)
        if self.wire == Wire.INT8:
            return np.frombuffer(data, np.int8).astype(np.float32)
        return _tensor(data, self.wire).float().numpy()

    def encode(self, values: Floats) -> memoryview:
        """Return the bytes that travel for these values; the values' own memory if it can be.

        Raises:
            NotOnWireError: the format is INT8, and a value is no integer in its range.
        """
        if not self.has_numbers:
            return _zeros(len(values)).data.cast("B")
        if self.item_bytes == 4:
            return values.data.cast("B")
        if self._copies_halves:
            return values.astype(np.int16).data.cast("B")
        if self.wire == Wire.INT8:
            check_integers(values)
            return values.astype(np.int8).data.cast("B")
        import torch

        data = torch.from_numpy(values).to(_torch_type(self.wire)).view(torch.int16)
        return data.numpy().data.cast("B")


def _torch_type(wire: Wire) -> torch.dtype:
    import torch

    return torch.float16 if wire == Wire.FLOAT16 else torch.bfloat16


def _tensor(data: memoryview, wire: Wire) -> torch.Tensor:
    import torch

    # Torch warns of memory that it may not write to, which some networks hand over.
    return torch.frombuffer(bytearray(data) if data.readonly else data, dtype=_torch_type(wire))


@lru_cache
def arithmetic(op: Op, wire: Wire) -> Arithmetic:
    """Return the arithmetic of an op and a wire format."""
    return Arithmetic(op, wire)
