"""A deal that goes on while the round does: equal chunks, and trees given to them one by one."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache


@lru_cache(maxsize=8)  # every site of a simulation asks for the same cuts in every round
def cut(elements: int, chunk_elements: int) -> tuple[tuple[int, int], ...]:
    """Cut a buffer evenly into chunks of at most ``chunk_elements``, whichever trees carry them.

    Returns:
        ``(start, stop)`` of each chunk, in order.

    >>> cut(10, 4)
    ((0, 3), (3, 6), (6, 10))
    """
    if elements < 0 or chunk_elements < 1:
        raise ValueError(
            f"cannot cut {elements} elements in chunks of {chunk_elements}: give elements >= 0 "
            "and chunk_elements >= 1"
        )
    count = math.ceil(elements / chunk_elements)
    return tuple((elements * k // count, elements * (k + 1) // count) for k in range(count))


def interleave(shares: Sequence[float], chunks: int) -> tuple[int, ...]:
    """Return the trees of the first chunks: each tree at even distances, as often as its share.

    >>> interleave([0.5, 0.25, 0.25], 6)
    (0, 1, 2, 0, 0, 1)
    """
    due = [(0.5 / share, index) for index, share in enumerate(shares)]
    heapq.heapify(due)
    trees = []
    for _ in range(chunks):
        place, index = due[0]
        trees.append(index)
        heapq.heapreplace(due, (place + 1.0 / shares[index], index))
    return tuple(trees)
