"""Sets of elements of a buffer, as runs ``[start, stop)`` in rising order. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from anabranch.exchange.arithmetic import Buffer, Floats, KeepsLost, arithmetic
from anabranch.exchange.terms import Op, Wire

Ranges = tuple[tuple[int, int], ...]


def union(*several: Iterable[tuple[int, int]]) -> Ranges:
    """Return the elements that are in any of several sets.

    >>> union([(4, 6), (0, 2)], [(2, 3), (5, 9)])
    ((0, 3), (4, 9))
    """
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(each for ranges in several for each in ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return tuple(joined)


def minus(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the elements of one set that are not in another.

    >>> minus(((0, 10),), ((2, 3), (8, 12)))
    ((0, 2), (3, 8))
    """
    left: list[tuple[int, int]] = []
    index = 0
    for begin, end in ranges:
        start = begin
        while index < len(others) and others[index][1] <= start:
            index += 1
        at = index
        while at < len(others) and others[at][0] < end:
            low, high = others[at]
            if low > start:
                left.append((start, low))
            start, at = max(start, high), at + 1
        if start < end:
            left.append((start, end))
    return tuple(left)


def length(ranges: Ranges) -> int:
    """Return the number of elements in a set."""
    return sum(stop - start for start, stop in ranges)


def places(ranges: Ranges, inside: Ranges) -> Ranges:
    """Return where elements of a part lie in the whole.

    Args:
        ranges: the elements of the whole that form the part, in order.
        inside: elements of the part, counted within it.

    >>> places(((10, 14), (20, 30)), ((2, 6),))
    ((12, 14), (20, 22))
    """
    found: list[tuple[int, int]] = []
    before = index = 0
    for start, stop in ranges:
        end = before + stop - start
        while index < len(inside) and inside[index][1] <= before:
            index += 1
        at = index
        while at < len(inside) and inside[at][0] < end:
            low, high = inside[at]
            found.append((start + max(low, before) - before, start + min(high, end) - before))
            at += 1
        before = end
    return union(found)


class Bits:
    """A 16-bit buffer whose values are the bits read as integers, as in a 16-bit COPY.

    Args:
        buffer: the same buffer, whose values are numbers.
        wire: the 16-bit format.
    """

    def __init__(self, buffer: Buffer, wire: Wire) -> None:
        self._buffer = buffer
        self._numbers = arithmetic(Op.SUM, wire)
        self._bits = arithmetic(Op.COPY, wire)

    @property
    def elements(self) -> int:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        return self._buffer.elements

    def read(self, start: int, stop: int) -> Floats:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        return self._bits.values(self._numbers.encode(self._buffer.read(start, stop)))

    def write(self, start: int, values: Floats) -> None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        self._buffer.write(start, self._numbers.values(self._bits.encode(values)))

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        return self._buffer.memory(start, stop, wire) if wire == self._bits.wire else None


class PartOf:
    """A part of a buffer, with the interface :class:`anabranch.exchange.arithmetic.Buffer`.

    Args:
        buffer: the whole.
        ranges: the elements of the whole that form the part.
    """

    def __init__(self, buffer: Buffer, ranges: Ranges) -> None:
        self._buffer = buffer
        self._ranges = ranges
        self._begins: Sequence[int] = [
            0,
            *accumulate(stop - start for start, stop in ranges),
        ]

    @property
    def elements(self) -> int:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        return self._begins[-1]

    def _spans(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        """Yield where elements ``[start, stop)`` lie in the whole, run by run."""
        index = bisect_right(self._begins, start) - 1
        while start < stop:
            begin, (low, _) = self._begins[index], self._ranges[index]
            end = min(stop, self._begins[index + 1])
            yield low + start - begin, low + end - begin
            start, index = end, index + 1

    def read(self, start: int, stop: int) -> Floats:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        pieces = [self._buffer.read(*span) for span in self._spans(start, stop)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def write(self, start: int, values: Floats) -> None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        taken = 0
        for low, high in self._spans(start, start + len(values)):
            self._buffer.write(low, values[taken : taken + high - low])
            taken += high - low

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        spans = [*self._spans(start, stop)]
        return self._buffer.memory(*spans[0], wire) if len(spans) == 1 else None

    def keep_lost(self, start: int, mean: Floats, sent: Floats, weight: float) -> None:
        """See :class:`anabranch.exchange.arithmetic.KeepsLost`; dropped if the whole keeps none."""
        if not isinstance(self._buffer, KeepsLost):
            return
        taken = 0
        for low, high in self._spans(start, start + len(mean)):
            part = slice(taken, taken + high - low)
            self._buffer.keep_lost(low, mean[part], sent[part], weight)
            taken += high - low
