"""Which parts of a model's state are buffers, and how several sites' values of one are mixed.

A parameter may move by the sum of what sites have changed: that is a step. A buffer, such as the
running variance of batch normalisation, is an estimate: only a value between those that sites hold
makes sense of it. Four variances that each fell from 1 to .1 would otherwise add up to -2.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

NAMES = ("running_mean", "running_var", "num_batches_tracked")
"""The last parts of the names that PyTorch gives to the buffers of its normalisation layers."""


def is_counted(array: Array) -> bool:
    """Return whether elements are integers or booleans, which have no mean of their own type."""
    return not np.issubdtype(array.dtype, np.inexact)


def buffers_of(arrays: Mapping[str, Array]) -> frozenset[str]:
    """Return which arrays of a state are buffers, as far as names and types tell.

    >>> state = {"0.weight": np.ones(2), "1.running_var": np.ones(2), "steps": np.array(3)}
    >>> sorted(buffers_of(state))
    ['1.running_var', 'steps']
    """
    return frozenset(
        name
        for name, array in arrays.items()
        if name.rpartition(".")[2] in NAMES or is_counted(array)
    )


def mixed(
    before: Array, came: Sequence[Array], parts: Sequence[float], share: float
) -> npt.NDArray[np.generic]:
    """Return what a step makes of a buffer.

    Args:
        before: as the model has it.
        came: as sites have it, of the same shape.
        parts: what each of these weighs, >= 0, sum 1.
        share: how far the step goes from ``before`` to their mean; beyond 1 counts as 1.

    Returns:
        A value between those given, float64; of integers and booleans the largest, in their type.
    """
    if is_counted(before):
        return np.asarray(np.maximum.reduce([before, *came]), dtype=before.dtype)
    share = min(1.0, share)
    total = (1.0 - share) * before.astype(np.float64)
    for each, part in zip(came, parts, strict=True):
        total += share * part * each.astype(np.float64)
    return total
