from __future__ import annotations

import pytest
from hypothesis import given, settings

from anabranch.overlay import Overlay, internet2_9
from anabranch.plan import NO_PARENT, spanning, steady_rate_bps

from .networks import all_ways, build, overlays, random_overlay


def rates(overlay: Overlay, parents: tuple[int, ...], *, up: bool) -> list[float]:
    edges = [(site, p) if up else (p, site) for site, p in enumerate(parents) if p != NO_PARENT]
    return [overlay.link(*edge).goodput_bps for edge in edges]


@settings(deadline=None)
@given(overlays(max_sites=5))
def test_the_slowest_link_of_each_way_is_the_fastest_possible(overlay):
    for root in range(overlay.size):
        (tree,) = spanning(overlay, root=root).trees
        for up, way in ((True, tree.up), (False, tree.down)):
            best = max(min(rates(overlay, w, up=up)) for w in all_ways(overlay, root, up=up))
            assert min(rates(overlay, way, up=up)) == best


@pytest.mark.parametrize("seed", range(10))
def test_on_symmetric_links_it_is_the_maximum_spanning_tree(seed):
    overlay = random_overlay(5, seed, density=0.7, symmetric=True)
    (tree,) = spanning(overlay).trees
    best = max(sum(rates(overlay, w, up=True)) for w in all_ways(overlay, tree.root, up=True))
    assert sum(rates(overlay, tree.up, up=True)) == best
    assert tree.up == tree.down


def test_equally_fast_links_join_the_lowest_site_to_the_earliest():
    both = [(a, b, 1.0) for a in range(4) for b in range(4) if a != b]
    (tree,) = spanning(build(4, both), root=2).trees
    assert tree.up == tree.down == (2, 2, -1, 2)


def test_on_internet2_9_both_ways_avoid_the_slow_links():
    overlay = internet2_9()
    assert steady_rate_bps(spanning(overlay), overlay) == pytest.approx(38.4923e6, rel=1e-5)
