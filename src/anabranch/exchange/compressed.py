"""A buffer whose mean travels in blocks of few bits, with error feedback. Pure."""

from __future__ import annotations

import numpy as np

from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.terms import Wire


class Compressed:
    """A float32 array as a buffer of whole blocks, with the interface of ``Buffer``.

    Rounding takes something from the sums that this site passes on, and from the means that it
    makes as a root. It is kept here, as a change of this site's own contribution. A program adds it
    to its next contribution: error feedback (Seide et al., 2014; Karimireddy et al., 2019). Sums
    of the hops are fed back as well as this site's own elements, as in DoubleSqueeze (Tang et al.,
    2019).

    Args:
        values: the contribution, shape (n,); the mean overwrites it.
        lost: takes what is lost, shape (n,).
        weight: of the contribution, > 0.
        wire: a format that has blocks.

    Attributes:
        elements: of whole blocks, at least n. Those beyond n are zero.
    """

    __slots__ = ("_lost", "_values", "_weight", "elements")

    def __init__(self, values: Floats, lost: Floats, weight: float, wire: Wire) -> None:
        self._values = values
        self._lost = lost
        self._weight = np.float32(weight)
        self.elements = wire.padded(len(values))

    def read(self, start: int, stop: int) -> Floats:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        part = self._values[start:stop]
        if len(part) == stop - start:
            return part
        return np.concatenate([part, np.zeros(stop - start - len(part), np.float32)])

    def write(self, start: int, values: Floats) -> None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        part = self._values[start : start + len(values)]
        part[:] = values[: len(part)]

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`; None, as blocks are made of it."""
        return None

    def finish(self) -> None:
        """End an exchange: the mean is in the values already."""

    def keep_lost(self, start: int, mean: Floats, sent: Floats, weight: float) -> None:
        """See :class:`anabranch.exchange.arithmetic.KeepsLost`."""
        part = self._lost[start : start + len(mean)]
        np.subtract(mean[: len(part)], sent[: len(part)], out=part)
        if weight != self._weight:
            part *= np.float32(weight) / self._weight
        if not np.isfinite(part.sum()):  # kept, a NaN would be in all later means
            part[~np.isfinite(part)] = 0.0
