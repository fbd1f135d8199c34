"""Merge rules that a few arbitrary updates of a step cannot lead astray.

They are not weights: each combines all updates of a step at the server. Where several servers hold
the model, each does so for its part. The only update of a step is applied unchanged, so these rules
suit paces whose steps have many updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, ClassVar

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch._typed_toml import Positive, Table
from anabranch.merge._merge import UpdateFacts

Floats = npt.NDArray[np.float32]

_ROUNDING = 1e-9  # a part of the updates may miss a whole number by this much
_BLOCK_ELEMENTS = 1 << 16  # elements of each update in one array operation


class _Robust(Table, frozen=True, kw_only=True):
    """The base of these rules: every update weighs 1."""

    weighs_data: ClassVar[bool] = False
    asks_loss: ClassVar[bool] = False
    asks_norm: ClassVar[bool] = False

    def weight(self, facts: UpdateFacts) -> float:
        """Return 1."""
        return 1.0


class TrimmedMean(_Robust, frozen=True, kw_only=True, tag_field="kind", tag="trimmed-mean"):
    """The mean of each element without its largest and smallest values (Yin et al., ICML 2018).

    Args:
        trim: the part of the updates left out at each end, rounded down, in [0, 0.5).
    """

    trim: Annotated[float, Meta(ge=0, lt=0.5)] = 0.2

    def combine(self, updates: Sequence[Floats]) -> Floats:
        """Return the combination of a step's updates, each of shape (elements,).

        >>> TrimmedMean(trim=0.25).combine([np.float32([each]) for each in (1, 2, 4, 900)])
        array([3.], dtype=float32)
        """
        cut = math.floor(self.trim * len(updates) + _ROUNDING)
        kept = slice(cut, len(updates) - cut)
        return _by_block(updates, lambda block: np.sort(block, axis=0)[kept].mean(axis=0))


class Median(_Robust, frozen=True, kw_only=True, tag_field="kind", tag="median"):
    """The median of each element (Yin et al., ICML 2018)."""

    def combine(self, updates: Sequence[Floats]) -> Floats:
        """Return the combination of a step's updates, each of shape (elements,)."""
        count = len(updates)
        middle = slice((count - 1) // 2, count // 2 + 1)
        # Sorted, NaN is last; np.median would return NaN.
        return _by_block(updates, lambda block: np.sort(block, axis=0)[middle].mean(axis=0))


class Krum(_Robust, frozen=True, kw_only=True, tag_field="kind", tag="krum"):
    """The mean of the updates that are closest to their neighbours (Blanchard et al., NIPS 2017).

    An update's score is the sum of its squared distances to its ``n - f - 2`` nearest others, with
    f the ``bad`` part of n. The mean is of the ``keep`` with the least scores.

    Args:
        bad: the part of the updates that may be arbitrary, rounded up, in [0, 0.5).
        keep: how many updates to average; 1 is Krum, more is Multi-Krum. Never more than ``n - f``.

    Of two updates neither has a lower score, and the first is taken; so steps should have many
    more.
    """

    bad: Annotated[float, Meta(ge=0, lt=0.5)] = 0.3
    keep: Positive = 1

    def combine(self, updates: Sequence[Floats]) -> Floats:
        """Return the combination of a step's updates, each of shape (elements,).

        >>> close = [np.float32([each]) for each in (1, 1.5, 2, 2.5)]
        >>> Krum(bad=0.2, keep=2).combine([*close, np.float32([-50])])
        array([1.75], dtype=float32)
        """
        count = len(updates)
        bad = math.ceil(self.bad * count - _ROUNDING)
        nearest = max(1, count - bad - 2)
        if count == 1:
            return updates[0].copy()
        squares = np.zeros((count, count))
        for _, block in _blocks(updates):
            # Differences, since the rounding of products could hide a small distance.
            for row, one in enumerate(block):
                apart = (block - one).astype(np.float64)
                squares[row] += np.einsum("ij,ij->i", apart, apart)
        np.fill_diagonal(squares, np.inf)
        scores = np.sort(squares, axis=1)[:, :nearest].sum(axis=1)
        best = sorted(np.argsort(scores, kind="stable")[: min(self.keep, count - bad)].tolist())
        mean = np.mean([updates[each] for each in best], axis=0, dtype=np.float64)
        return np.asarray(mean, np.float32)


def _blocks(updates: Sequence[Floats]) -> Iterator[tuple[slice, Floats]]:
    """Yield blocks of elements of all updates: their slice, and an array (updates, elements)."""
    for start in range(0, len(updates[0]), _BLOCK_ELEMENTS):
        place = slice(start, start + _BLOCK_ELEMENTS)
        yield place, np.stack([each[place] for each in updates])


def _by_block(updates: Sequence[Floats], combine: Callable[[Floats], Floats]) -> Floats:
    """Return a combination that treats each element of the updates alone, block by block."""
    result = np.empty_like(updates[0])
    for place, block in _blocks(updates):
        result[place] = combine(block)
    return result
