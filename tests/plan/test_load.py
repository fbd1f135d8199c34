from __future__ import annotations

import math

import pytest

from anabranch.overlay import internet2_9
from anabranch.plan import Plan, PlanError, Tree, fapt, link_load, star, steady_rate_bps

from .networks import build


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


def test_every_site_takes_in_at_least_one_whole_buffer():
    plan = fapt(internet2_9(), roots=9)
    load = link_load(plan)
    for site in range(9):
        into = sum(part for (_, target), part in load.items() if target == site)
        assert into >= 1 - 1e-12


def test_a_missing_link_is_named():
    ring = build(3, [(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0)])
    with pytest.raises(PlanError, match="2->1, which has no link"):
        steady_rate_bps(Plan(1, (Tree(0, 1.0, (-1, 0, 0), (-1, 0, 1)),)), ring)
