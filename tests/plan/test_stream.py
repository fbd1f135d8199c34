"""Chunks, and trees given to them one by one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.plan import Plan, Tree, cut, deal, deal_tensors, interleave

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


SHARES = Plan(1, tuple(Tree(0, share, (-1, 0), (-1, 0)) for share in (0.3, 0.25, 0.2, 0.15, 0.1)))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(1, 1000))
def test_no_chunk_has_elements_of_two_tensors_and_each_tree_has_its_share_of_the_chunks(
    tensors: list[int], most: int
) -> None:
    chunks = deal_tensors(SHARES, tuple(tensors), most)
    found = iter(chunks)
    for elements in tensors:
        sizes = [*[most] * ((elements - 1) // most), (elements - 1) % most + 1]
        assert [next(found).elements for _ in sizes] == sizes
    assert [0, *(chunk.stop for chunk in chunks)] == [*(c.start for c in chunks), sum(tensors)]
    assert [chunk.index for chunk in chunks] == [*range(len(chunks))]
    counts = Counter(chunk.tree for chunk in chunks)
    for index, tree in enumerate(SHARES.trees):
        assert abs(counts[index] - tree.share * len(chunks)) <= 1 + len(SHARES.trees) * tree.share


def test_small_tensors_count_as_much_as_large_ones_so_that_trees_carry_unequal_loads() -> None:
    even, uneven = (100,) * 20, (100, 1) * 20
    pair = of_trees(2)

    def most(tensors: tuple[int, ...]) -> float:
        carried = Counter[int]()
        for chunk in deal_tensors(pair, tensors, 100):
            carried[chunk.tree] += chunk.elements
        return max(carried.values()) / sum(tensors)

    assert most(even) == 0.5
    assert most(uneven) == pytest.approx(100 / 101)
    halves = [chunk.elements for chunk in deal(pair, sum(uneven), 100) if chunk.tree == 0]
    assert sum(halves) == sum(uneven) / 2


@pytest.mark.parametrize(("tensors", "most"), [((3, 0), 4), ((3,), 0)])
def test_empty_tensors_and_chunks_are_refused(tensors: tuple[int, ...], most: int) -> None:
    with pytest.raises(ValueError, match="cannot cut tensors"):
        deal_tensors(of_trees(1), tensors, most)


def test_a_tree_comes_at_even_distances() -> None:
    trees = interleave([0.75, 0.25], 40)
    places = [place for place, tree in enumerate(trees) if tree == 1]
    assert {b - a for a, b in pairwise(places)} <= {3, 4, 5}
