from __future__ import annotations

import math

import pytest
from hypothesis import given

from anabranch.overlay import internet2_9
from anabranch.plan import Plan, PlanError, Tree, fapt, link_load, port_load, star, steady_rate_bps

from .networks import build, overlays, with_ports


def test_load_counts_shares_ways_and_relay_hops():
    first = Tree(0, 0.75, (-1, 0, 0), (-1, 0, 1))
    second = Tree(1, 0.25, (1, -1, 1), (1, -1, 1))
    plan = Plan(1, (first, second), {(2, 0): (2, 1, 0)})
    assert link_load(plan) == {
        (0, 1): 0.75 + 0.25,
        (1, 0): 0.75 + 0.75 + 0.25,
        (1, 2): 0.75 + 0.25,
        (2, 1): 0.75 + 0.25,
    }


def test_the_busiest_link_sets_the_steady_rate():
    overlay = build(2, [(0, 1, 4e6), (1, 0, 1e6)], loss=0.5)
    assert steady_rate_bps(star(overlay, hub=0), overlay) == 0.5e6
    assert steady_rate_bps(star(build(1, [])), build(1, [])) == math.inf


def test_a_port_sets_the_steady_rate_where_its_links_together_are_faster():
    links = [way for leaf in (1, 2) for way in ((0, leaf, 4e6), (leaf, 0, 4e6))]
    overlay = with_ports(build(3, links), uplink_bps=[6e6, None, None])
    assert steady_rate_bps(star(overlay, hub=0), overlay) == 3e6
    assert port_load(star(overlay, hub=0), overlay) == {(0, "uplink"): 2.0}
    wide = with_ports(overlay, uplink_bps=[8e6, None, None])
    assert steady_rate_bps(star(wide, hub=0), wide) == 4e6


@given(overlays())
def test_the_load_of_a_port_is_that_of_its_links(overlay):
    plan = fapt(overlay, roots=overlay.size)
    overlay = with_ports(overlay, uplink_bps=[1e6] * plan.size, downlink_bps=[1e6] * plan.size)
    load, through = link_load(plan), port_load(plan, overlay)
    for site in range(plan.size):
        out = sum(part for (source, _), part in load.items() if source == site)
        into = sum(part for (_, target), part in load.items() if target == site)
        assert (through[site, "uplink"], through[site, "downlink"]) == pytest.approx((out, into))


def test_the_best_hub_is_chosen_with_its_port_in_mind():
    links = [(a, b, 1e6 * (1 + (0 in (a, b)))) for a in range(3) for b in range(3) if a != b]
    overlay = build(3, links)
    assert star(overlay).trees[0].root == 0
    assert star(with_ports(overlay, uplink_bps=[1e6, None, None])).trees[0].root == 1


def test_every_site_takes_in_at_least_one_whole_buffer():
    plan = fapt(internet2_9(), roots=9)
    load = link_load(plan)
    for site in range(9):
        into = sum(part for (_, target), part in load.items() if target == site)
        assert into >= 1 - 1e-12


def test_a_missing_link_is_named():
    ring = build(3, [(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0)])
    plan = Plan(1, (Tree(0, 1.0, (-1, 0, 0), (-1, 0, 1)),))
    for find in (steady_rate_bps, port_load):
        with pytest.raises(PlanError, match="2->1, which has no link"):
            find(plan, ring)
