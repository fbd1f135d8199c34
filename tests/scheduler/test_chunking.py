"""How finely buffers are cut: bounds, and what makes chunks larger."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from anabranch.overlay import Link, Overlay, Site, internet2_9
from anabranch.plan import LEAST_CHUNK_ELEMENTS, filling_elements, packed, restrict, star
from anabranch.scheduler._dispatch import needed_window
from anabranch.scheduler.chunking import (
    MOST_ELEMENTS,
    chunk_elements,
)
from anabranch.scheduler.deal import Adaptive

from ..every import every

SIZES = [1, 1000, 1 << 14, 1 << 20, 25_000_000, 1 << 28, 1 << 32]
INTERNET2 = internet2_9()
DEEP = packed(INTERNET2)


def pair(rate_bps: float) -> Overlay:
    links = (Link(0, 1, rate_bps), Link(1, 0, rate_bps))
    return Overlay("pair", (Site("a"), Site("b")), links)


@pytest.mark.parametrize("deep", [True, False])
def test_larger_buffers_have_no_smaller_chunks(deep: bool) -> None:
    filling = [filling_elements(size, deep) for size in SIZES]
    assert every(small <= large for small, large in pairwise(filling))
    each = [chunk_elements(size, DEEP, INTERNET2, deep) for size in SIZES]
    assert every(small <= large for small, large in pairwise(each))


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize("rate_bps", [1e3, 1e9, 1e11, 1e15])
@pytest.mark.parametrize("cores", [math.inf, 0.02])
def test_chunks_have_bounds(deep: bool, rate_bps: float, cores: float) -> None:
    overlay = pair(rate_bps)
    plan = star(overlay, hub=0)
    for size in SIZES:
        each = chunk_elements(size, plan, overlay, deep, cores)
        assert LEAST_CHUNK_ELEMENTS <= each <= MOST_ELEMENTS


def test_fast_links_and_crowded_cores_make_larger_chunks() -> None:
    def elements(rate_bps: float, cores: float = math.inf) -> int:
        overlay = pair(rate_bps)
        return chunk_elements(1 << 28, star(overlay, hub=0), overlay, True, cores)

    rates = [elements(10.0**exponent) for exponent in range(6, 13)]
    assert every(slow <= fast for slow, fast in pairwise(rates))
    assert rates[0] < rates[-1] == MOST_ELEMENTS
    crowds = [elements(5e9, cores) for cores in (8.0, 2.0, 1.0, 0.5, 0.25)]
    assert crowds[0] == crowds[1]  # a site uses one core at most
    assert every(many <= few for many, few in pairwise(crowds))
    assert elements(8e9, 0.5) == pytest.approx(2 * elements(8e9, 1.0), rel=0.01)


def test_sites_that_share_cores_are_counted_as_busy_as_they_are() -> None:
    # Eight leaves, each as busy as an eighth of the hub: with it they are as busy as two of it.
    names = ["hub", *"abcdefgh"]
    links = [(0, leaf) for leaf in range(1, 9)] + [(leaf, 0) for leaf in range(1, 9)]
    overlay = Overlay("hub", tuple(map(Site, names)), tuple(Link(*pair, 1e9) for pair in links))
    plan = star(overlay, hub=0)
    alone, two, one, half = (
        chunk_elements(1 << 28, plan, overlay, True, cores) for cores in (math.inf, 2.0, 1.0, 0.5)
    )
    assert alone == two > filling_elements(1 << 28, True)
    assert one == pytest.approx(2 * two, rel=0.01)
    assert half == pytest.approx(4 * two, rel=0.01)


def test_each_tree_has_a_few_chunks_whatever_the_rate() -> None:
    overlay = pair(1e15)
    size = 1 << 20
    each = chunk_elements(size, star(overlay, hub=0), overlay, True)
    assert size / each >= 8


def test_slow_deep_trees_fill_quickly_and_shallow_ones_have_large_chunks() -> None:
    assert chunk_elements(25_000_000, DEEP, INTERNET2, True) == filling_elements(25_000_000, True)
    assert chunk_elements(25_000_000, DEEP, INTERNET2, False) > 4 * filling_elements(
        25_000_000, True
    )


def test_few_members_have_large_chunks_of_which_a_buffer_has_many() -> None:
    def elements(size: int, sites: int) -> int:
        names = tuple(Site(f"s{site}") for site in range(sites))
        pairs = [(a, b) for a in range(sites) for b in range(sites) if a != b]
        overlay = Overlay("all", names, tuple(Link(*pair, 1e8) for pair in pairs))
        return chunk_elements(size, packed(overlay), overlay, True)

    for sites in (2, 3):
        assert elements(25_000_000, sites) == 250_000
        assert elements(1 << 28, sites) == 1 << 18
        assert elements(1 << 20, sites) == LEAST_CHUNK_ELEMENTS
    assert elements(25_000_000, 4) < 100_000


def test_between_two_members_all_chunks_are_dealt_at_once_unless_a_window_is_given() -> None:
    overlay = pair(1e9)
    plan = packed(overlay)
    for window in (None, 7):
        dealt = Adaptive(window=window).dispatching(lambda: overlay, 0.0)(
            plan, 1 << 24, 1 << 16, 0.1
        )
        assert dealt == (dealt[0], window or dealt[0])
    assert dealt[0] > 256


def test_a_member_alone_moves_nothing() -> None:
    alone = restrict(DEEP, (4,))
    assert chunk_elements(1 << 28, alone, INTERNET2, True) == filling_elements(1 << 28, True)
    assert needed_window(alone, INTERNET2, 1 << 18, 50, round_trip_s=0.0) == 50
