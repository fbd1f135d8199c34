"""Which training samples each site holds. Pure: counts and a seed in, indices out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def partition_evenly(samples: int, sites: int, seed: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Deal shuffled samples to sites, as evenly as they go.

    Args:
        samples: how many there are; their indices are ``[0, samples)``.
        sites: how many to deal to, in [1, samples].
        seed: of the shuffle; every site that passes the same one gets the same answer.

    Returns:
        For each site its indices. Together they are every index once; their numbers differ by at
        most one.

    Raises:
        ValueError: no site, or more sites than samples.

    >>> [shard.size for shard in partition_evenly(5, 2, seed=0)]
    [3, 2]
    """
    if not 1 <= sites <= samples:
        raise ValueError(
            f"cannot deal {samples} samples to {sites} sites: give at least one site, and a "
            "sample for each"
        )
    order = np.random.default_rng(seed).permutation(samples).astype(np.int64)
    return tuple(np.array_split(order, sites))
