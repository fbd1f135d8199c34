"""A deal that goes on while the round does: chunks, and trees given to them one by one."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

from anabranch.plan._model import Plan

# Chunks of each tree that the shrinking ones at the end make up for, and the most of the buffer
# that is cut so; and how many of the smallest make a whole one.
_ENDING_A_TREE, _ENDING_SHARE = 6, 0.25
_SMALLEST = 4
LEAST_CHUNK_ELEMENTS = 1 << 14
"""Of a chunk: a smaller one costs more to handle than it saves."""
_FILLING_CHUNKS = 1000  # of a buffer, so that filling the trees takes little of the whole
_FILLING_ELEMENTS = 1 << 16
_SHALLOW_ELEMENTS = 1 << 18


def filling_elements(elements: int, deep: bool) -> int:
    """Return the most elements of a chunk that let the trees fill quickly.

    Args:
        elements: of the buffer.
        deep: whether the trees are many and deep.
    """
    if not deep:
        return _SHALLOW_ELEMENTS
    return min(max(elements // _FILLING_CHUNKS, LEAST_CHUNK_ELEMENTS), _FILLING_ELEMENTS)


def cut(plan: Plan, elements: int, chunk_elements: int) -> tuple[tuple[int, int], ...]:
    """Cut a buffer into chunks of at most ``chunk_elements``, whichever trees carry them.

    They are equal, except that towards the end they shrink with what is left, to a quarter: a
    round ends with the way of its last chunks up and down their trees, on which links wait for one
    another, and smaller ones are there sooner. (As in guided self-scheduling, Polychronopoulos and
    Kuck, 1987.) Not where relays carry tree edges, whose credit is for so many chunks of any size.

    Args:
        plan: whose trees share the buffer: the more, the sooner chunks begin to shrink.
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
        stop = start + -(-left // -(-left // size))  # evenly, rather than leave a rest
        bounds.append((start, stop))
        start = stop
    return tuple(bounds)


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
