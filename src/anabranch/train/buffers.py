"""Buffers in a model's state, and the mean of several sites' values of one.

A parameter may move by the sum of the sites' changes: that is a step. A buffer, such as the running
variance of batch normalisation, is an estimate: it needs a value between those of the sites. The
sum of four changes from 1 to 0.1 would make a variance of -2.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

NAMES = ("running_mean", "running_var", "num_batches_tracked")
"""The last parts of the names that PyTorch gives to the buffers of its normalisation layers."""


def is_counted(array: Array) -> bool:
    """Return whether elements are integers or booleans, whose mean has another type."""
    return not np.issubdtype(array.dtype, np.inexact)


def buffers_of(arrays: Mapping[str, Array]) -> frozenset[str]:
    """Return the names of a state's buffers, judged by name and type.

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
    """Return a buffer's value after a step.

    Args:
        before: the model's value.
        came: the sites' values, of the same shape.
        parts: the weight of each site's value, >= 0, sum 1.
        share: how far the step goes from ``before`` to their mean; above 1 counts as 1.

    Returns:
        A value between those given, float64. For integers and booleans, the largest, in their type.
    """
    if is_counted(before):
        return np.asarray(np.maximum.reduce([before, *came]), dtype=before.dtype)
    share = min(1.0, share)
    total = (1.0 - share) * before.astype(np.float64)
    for each, part in zip(came, parts, strict=True):
        total += share * part * each.astype(np.float64)
    return total
