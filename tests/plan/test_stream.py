"""Chunks, and trees given to them one by one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.plan import Plan, Tree, cut, interleave

from ..every import every


def of_trees(count: int) -> Plan:
    return Plan(1, tuple(Tree(0, 1 / count, (-1, 0), (-1, 0)) for _ in range(count)))


@given(st.integers(0, 5000), st.integers(1, 700), st.integers(1, 70))
def test_chunks_cover_the_buffer_once_and_none_is_larger_than_may_be(
    elements: int, most: int, trees: int
) -> None:
    bounds = cut(of_trees(trees), elements, most)
    assert [0, *(stop for _, stop in bounds)] == [*(start for start, _ in bounds), elements]
    assert not [(a, b) for a, b in bounds if not 0 < b - a <= most]


@given(st.integers(1000, 5000), st.integers(8, 700), st.integers(1, 70))
def test_chunks_are_about_equal_but_for_the_last_quarter_where_they_shrink_to_a_quarter(
    elements: int, most: int, trees: int
) -> None:
    bounds = cut(of_trees(trees), elements, most)
    sizes = [stop - start for start, stop in bounds]
    assert every(later <= earlier + 1 for earlier, later in pairwise(sizes))
    whole = [stop - start for start, stop in bounds if 4 * stop <= 3 * elements]
    assert max(whole, default=0) - min(whole, default=0) <= 1
    assert 2 * sizes[-1] >= most // 4


def test_chunks_that_relays_carry_stay_equal() -> None:
    relayed = Plan(1, (Tree(0, 1.0, (-1, 0, 0), (-1, 0, 0)),), {(0, 2): (0, 1, 2)})
    sizes = {stop - start for start, stop in cut(relayed, 10_001, 100)}
    assert max(sizes) - min(sizes) <= 1


def test_the_more_trees_the_sooner_chunks_shrink() -> None:
    counts = [len(cut(of_trees(trees), 100_000, 100)) for trees in (1, 4, 16)]
    assert counts == sorted(set(counts))
    assert counts[0] < 1020


@pytest.mark.parametrize(("elements", "most"), [(-1, 4), (4, 0)])
def test_what_cannot_be_cut_is_refused(elements: int, most: int) -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        cut(of_trees(1), elements, most)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12), st.integers(0, 300))
def test_every_tree_keeps_its_share_from_the_first_chunk_on(
    weights: list[float], chunks: int
) -> None:
    shares = [weight / sum(weights) for weight in weights]
    trees = interleave(shares, chunks)
    assert len(trees) == chunks
    counts = Counter(trees)
    for tree, share in enumerate(shares):
        assert abs(counts[tree] - share * chunks) <= 1 + len(shares) * share


def test_a_tree_comes_at_even_distances() -> None:
    trees = interleave([0.75, 0.25], 40)
    places = [place for place, tree in enumerate(trees) if tree == 1]
    assert {b - a for a, b in pairwise(places)} <= {3, 4, 5}
