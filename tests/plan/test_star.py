from __future__ import annotations

import pytest
from hypothesis import example, given

from anabranch.overlay import internet2_9
from anabranch.plan import Plan, balanced, link_load, star, steady_rate_bps

from .networks import overlays, random_overlay


@given(overlays())
def test_every_site_talks_to_the_hub_alone(overlay):
    for hub in range(overlay.size):
        (tree,) = star(overlay, hub=hub).trees
        others = set(range(overlay.size)) - {hub}
        assert {tree.up[site] for site in others} | {tree.down[site] for site in others} == {hub}


def test_relays_forward_every_copy():
    """Site 9 of internet2-9 has two links; all eight copies come in over them."""
    load = link_load(star(internet2_9(), hub=8))
    assert sum(load[link] for link in load if link[1] == 8) == 8
    assert load[5, 8] == 7  # all but site 8's own


# Site 1's copy for hub 4 and the hub's for site 2 take the same link, since others are one-way.
@example(random_overlay(5, 200, density=1.0, symmetric=True, one_way=0.5, ports=0.0))
@given(overlays(max_sites=5))
def test_the_best_hub_has_the_highest_steady_rate(overlay):
    rates = [steady_rate_bps(star(overlay, hub=hub), overlay) for hub in range(overlay.size)]
    best = star(overlay)
    assert best.trees[0].root == rates.index(max(rates))


@pytest.mark.parametrize("planner", [star, balanced])
def test_a_plan_is_made_for_the_best_site_alone(planner, monkeypatch):
    """Hundreds of sites are too many to write the routes of a tree at each of them out."""
    made: list[Plan] = []
    monkeypatch.setattr(Plan, "__post_init__", lambda plan: made.append(plan))
    planner(internet2_9())
    assert len(made) == 1
