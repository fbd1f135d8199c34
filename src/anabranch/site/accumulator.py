"""Where a chunk's sum is computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Accumulator:
    """The running weighted sum of one chunk at one site.

    Children's sums arrive in pieces, several children at a time, each child's from left to right;
    the site's own contribution may come before, between or after them. So the sum grows from the
    left: ``[0, reached)`` holds the sum of everything that has come for those elements, and the
    first piece to go past ``reached`` sets its elements instead of adding to them. No child's data
    waits in memory, and no element is touched more often than it must be.

    Args:
        elements: length of the chunk.

    >>> chunk = Accumulator(3)
    >>> chunk.add(0, np.array([1, 1], np.float32))
    >>> chunk.add_own(np.array([10, 20, 30], np.float32), weight=2.0)
    >>> chunk.add(2, np.array([1], np.float32))
    >>> chunk.sum.tolist()
    [21.0, 41.0, 61.0]
    """

    __slots__ = ("_own", "_own_weight", "_reached", "sum")

    def __init__(self, elements: int) -> None:
        self.sum: Floats = np.empty(elements, np.float32)
        self._reached = 0
        self._own: Floats | None = None  # for elements not reached yet
        self._own_weight = np.float32(1.0)

    def add_own(self, own: Floats, weight: float) -> None:
        """Add ``weight * own``, shape (elements,); ``own`` must not change until the sum is whole.

        Where no child's piece has come yet, it is added together with the first one that does.
        """
        self._own, self._own_weight = own, np.float32(weight)
        if self._reached:
            self.sum[: self._reached] += self._weighted(0, self._reached)

    def add(self, start: int, piece: Floats) -> None:
        """Add a child's piece at element ``start``; each child's pieces must come in order."""
        stop = start + len(piece)
        known = max(start, min(stop, self._reached))
        if known > start:
            self.sum[start:known] += piece[: known - start]
        if stop > known:
            fresh = self.sum[known:stop]
            if self._own is None:
                fresh[:] = piece[known - start :]
            else:
                np.add(self._weighted(known, stop), piece[known - start :], out=fresh)
            self._reached = stop

    def take(self, offset_bytes: int, piece: memoryview) -> None:
        """Add a child's piece as it comes off the network; see ``add``."""
        self.add(offset_bytes // 4, np.frombuffer(piece, np.float32))

    def _weighted(self, start: int, stop: int) -> Floats:
        assert self._own is not None
        own = self._own[start:stop]
        return own if self._own_weight == 1.0 else own * self._own_weight
