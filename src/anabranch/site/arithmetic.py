"""What is done to the elements of a round: the arithmetic of float32, or none.

The protocol of a round is the same whether its numbers matter or not: who waits for whom, what is
sent, in which order. A simulation that asks only how long rounds take leaves the numbers out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from anabranch.site.accumulator import Accumulator, Floats

Piece = Callable[[int, memoryview], None]


class Gathering(Protocol):
    """The running weighted sum of one chunk; see :mod:`anabranch.site.accumulator`."""

    @property
    def take(self) -> Piece | None:
        """What takes a child's payload in, piece by piece; None if nobody need look at it."""

    @property
    def sum(self) -> Floats:
        """The sum, shape (elements,); whole once everything has been added."""

    def add_own(self, own: Floats, weight: float) -> None:
        """Add ``weight * own``, shape (elements,)."""


class Arithmetic(Protocol):
    """What a round does to elements; shapes are (elements,) throughout."""

    def gather(self, elements: int) -> Gathering:
        """Return an empty sum of this many elements."""

    def weighted(self, own: Floats, weight: float) -> Floats:
        """Return ``weight * own``; ``own`` itself where that is the same."""

    def divide(self, total: Floats, weight: float, mean: Floats) -> None:
        """Set ``mean`` to ``total / weight``."""

    def payload(self, elements: Floats) -> memoryview:
        """Return the bytes to send for these elements."""

    def memory(self, elements: Floats) -> memoryview | None:
        """Return where a payload of these elements is received; None if nobody need look at it."""


class Float32:
    """The real thing."""

    def gather(self, elements: int) -> Gathering:
        """See :class:`Arithmetic`."""
        return Accumulator(elements)

    def weighted(self, own: Floats, weight: float) -> Floats:
        """See :class:`Arithmetic`."""
        return own if weight == 1.0 else own * np.float32(weight)

    def divide(self, total: Floats, weight: float, mean: Floats) -> None:
        """See :class:`Arithmetic`."""
        np.divide(total, np.float32(weight), out=mean)

    def payload(self, elements: Floats) -> memoryview:
        """See :class:`Arithmetic`."""
        return elements.data.cast("B")

    memory = payload


class SizesOnly:
    """Chunks have a size, and no numbers: nothing is read, added up or written.

    A round may then be given any buffer of the right length, the same one at all sites too.

    Args:
        chunk_elements: the most elements of a chunk.
    """

    def __init__(self, chunk_elements: int) -> None:
        # Never written, so never in memory; read-only, so nobody need copy it either.
        zeros = np.zeros(chunk_elements, np.float32)
        zeros.flags.writeable = False
        self._zeros = zeros
        self._bytes = zeros.data.cast("B")

    def gather(self, elements: int) -> Gathering:
        """See :class:`Arithmetic`."""
        return _Nothing(self._zeros[:elements])

    def weighted(self, own: Floats, weight: float) -> Floats:
        """See :class:`Arithmetic`."""
        return own

    def divide(self, total: Floats, weight: float, mean: Floats) -> None:
        """See :class:`Arithmetic`."""

    def payload(self, elements: Floats) -> memoryview:
        """See :class:`Arithmetic`."""
        return self._bytes[: elements.nbytes]

    def memory(self, elements: Floats) -> None:
        """See :class:`Arithmetic`."""


class _Nothing:
    """The sum of chunks without numbers."""

    __slots__ = ("sum",)
    take = None

    def __init__(self, zeros: Floats) -> None:
        self.sum = zeros

    def add_own(self, own: Floats, weight: float) -> None:
        pass
