"""What holds for every planner."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from anabranch.overlay import internet2_9
from anabranch.plan import PlanError, balanced, fapt, packed, spanning, star

from .networks import all_plans, build, overlays


@given(overlays())
def test_every_plan_fits_its_overlay_and_shares_out_the_whole_buffer(overlay):
    for plan in all_plans(overlay):
        plan.check_fits(overlay)
        assert math.fsum(tree.share for tree in plan.trees) == pytest.approx(1, abs=1e-12)


@given(overlays())
def test_planning_twice_gives_the_same_plan(overlay):
    assert all_plans(overlay) == all_plans(overlay)


@pytest.mark.parametrize("planner", [star, balanced, spanning, fapt, packed])
def test_a_single_site_is_its_own_plan(planner):
    plan = planner(build(1, []), version=7)
    assert plan.version == 7
    assert [(t.root, t.share, t.up, t.down) for t in plan.trees] == [(0, 1.0, (-1,), (-1,))]


@pytest.mark.parametrize("site", [-1, 9])
def test_an_unknown_root_is_refused(site):
    overlay = internet2_9()
    for plan in (
        lambda: star(overlay, hub=site),
        lambda: balanced(overlay, root=site),
        lambda: spanning(overlay, root=site),
        lambda: fapt(overlay, roots=[site]),
    ):
        with pytest.raises(PlanError, match=f"{site} is not a site"):
            plan()
