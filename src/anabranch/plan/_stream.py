"""A deal during a round: the chunks of a buffer, and trees for them one by one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

from anabranch.plan._model import Plan

# The end of a buffer, which is cut into shrinking chunks: so many whole chunks for each tree, and
# at most this part of the buffer. The smallest chunk is a whole one divided by _SMALLEST.
_ENDING_A_TREE, _ENDING_SHARE = 6, 0.25
_SMALLEST = 4
LEAST_CHUNK_ELEMENTS = 1 << 14
"""A smaller chunk costs more to handle than it saves."""
_FILLING_CHUNKS = 1000  # chunks of a buffer, so that filling the trees is a small part of a round
_FILLING_ELEMENTS = 1 << 16
_SHALLOW_ELEMENTS = 1 << 18


def filling_elements(elements: int, deep: bool) -> int:
    """Return the most elements of a chunk with which the trees fill quickly.

    Args:
        elements: of the buffer.
        deep: whether the trees are many and deep.
    """
    if not deep:
        return _SHALLOW_ELEMENTS
    return min(max(elements // _FILLING_CHUNKS, LEAST_CHUNK_ELEMENTS), _FILLING_ELEMENTS)


def cut(plan: Plan, elements: int, chunk_elements: int) -> tuple[tuple[int, int], ...]:
    """Cut a buffer into chunks of at most ``chunk_elements``, whichever trees carry them.

    They are equal, except that the last ones shrink with what is left of the buffer, to a quarter.
    A round ends when its last chunks have gone up and down their trees, where links wait for one
    another; smaller chunks arrive sooner. (As in guided self-scheduling, Polychronopoulos and Kuck,
    1987.) Chunks do not shrink where relays carry tree edges: a relay's credit counts chunks,
    whatever their size.

    Args:
        plan: its trees share the buffer; the more trees, the sooner chunks begin to shrink.
        elements: of the buffer, >= 0.
        chunk_elements: the most elements a chunk may have, >= 1.

    Returns:
        ``(start, stop)`` of each chunk, in order.

    >>> from anabranch.plan import Tree
    >>> bounds = cut(Plan(1, (Tree(0, 1.0, (-1, 0), (-1, 0)),)), 64, 8)
    >>> [stop - start for start, stop in bounds]
    [8, 8, 8, 8, 8, 8, 8, 4, 2, 2]
    """
    if elements < 0 or chunk_elements < 1:
        raise ValueError(
            f"cannot cut {elements} elements in chunks of {chunk_elements}: give elements >= 0 "
            "and chunk_elements >= 1"
        )
    return _cut(0 if plan.routes else len(plan.trees), elements, chunk_elements)


@lru_cache(maxsize=8)  # every site of a simulation asks for the same cuts in every round
def _cut(shrinking: int, elements: int, most: int) -> tuple[tuple[int, int], ...]:
    ending = min(_ENDING_A_TREE * shrinking * most, _ENDING_SHARE * elements)
    least = max(1, most // _SMALLEST)
    bounds: list[tuple[int, int]] = []
    start = 0
    while left := elements - start:
        size = most if left >= ending else max(least, int(most * left / ending))
        stop = start + -(-left // -(-left // size))  # evenly, so that no small rest stays
        bounds.append((start, stop))
        start = stop
    return tuple(bounds)


def interleave(shares: Sequence[float], chunks: int) -> tuple[int, ...]:
    """Return the trees of the first chunks; each tree comes at even distances, by its share.

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
