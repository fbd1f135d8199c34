"""Deals of chunks to trees one by one: during a round, or tensor by tensor."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache

from anabranch.plan._model import Chunk, Plan

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


def deal_tensors(plan: Plan, tensors: tuple[int, ...], chunk_elements: int) -> tuple[Chunk, ...]:
    """Cut each tensor of a buffer into chunks, and deal whole chunks to the plan's trees.

    A tensor is cut into chunks of ``chunk_elements`` and a rest; a smaller one stays whole. Each
    tree gets its share of the chunks, whatever their sizes, at even distances. (NetStorm, IV-C: a
    root gets a proportion of chunks. :func:`anabranch.plan.deal` gives a tree its share of the
    elements instead.)

    Args:
        plan: whose trees share the chunks.
        tensors: the elements of each, in the order of the buffer, >= 1.
        chunk_elements: the most elements a chunk may have, >= 1.

    Returns:
        The chunks in order of sending, which is that of the buffer.

    >>> from anabranch.plan import Tree
    >>> plan = Plan(1, (Tree(0, 0.5, (-1, 0), (-1, 0)), Tree(1, 0.5, (1, -1), (1, -1))))
    >>> [(c.tree, c.start, c.stop) for c in deal_tensors(plan, (5, 1, 2), 4)]
    [(0, 0, 4), (1, 4, 5), (0, 5, 6), (1, 6, 8)]
    """
    return _deal_tensors(tuple(tree.share for tree in plan.trees), tensors, chunk_elements)


@lru_cache(maxsize=8)  # every site of a simulation asks for the same deal in every round
def _deal_tensors(
    shares: tuple[float, ...], tensors: tuple[int, ...], chunk_elements: int
) -> tuple[Chunk, ...]:
    if chunk_elements < 1 or min(tensors, default=1) < 1:
        raise ValueError(
            f"cannot cut tensors of {min(tensors, default=1)} elements or more in chunks of "
            f"{chunk_elements}: give 1 or more of both"
        )
    bounds: list[tuple[int, int]] = []
    first = 0
    for elements in tensors:
        last = first + elements
        starts = range(first, last, chunk_elements)
        bounds += [(start, min(start + chunk_elements, last)) for start in starts]
        first = last
    trees = interleave(shares, len(bounds))
    return tuple(
        Chunk(index, tree, *each)
        for index, (tree, each) in enumerate(zip(trees, bounds, strict=True))
    )
