"""Equal chunks, and trees given to them one by one."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.plan import cut, interleave


@given(st.integers(0, 5000), st.integers(1, 700))
def test_chunks_cover_the_buffer_once_and_are_about_equal(elements: int, most: int) -> None:
    bounds = cut(elements, most)
    assert [a[1] for a in bounds[:-1]] == [b[0] for b in bounds[1:]]
    assert sum(stop - start for start, stop in bounds) == elements
    sizes = {stop - start for start, stop in bounds}
    assert max(sizes, default=1) <= most
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


@pytest.mark.parametrize(("elements", "most"), [(-1, 4), (4, 0)])
def test_what_cannot_be_cut_is_refused(elements: int, most: int) -> None:
    with pytest.raises(ValueError, match="cannot cut"):
        cut(elements, most)


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
