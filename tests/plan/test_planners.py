"""What holds for every planner."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from anabranch.overlay import OverlayError, internet2_9, random_complete
from anabranch.plan import (
    PLANNERS,
    AnyPlanner,
    Balanced,
    Fapt,
    FromFile,
    Packed,
    PlanError,
    Ring,
    Spanning,
    Star,
    balanced,
    dumps,
    fapt,
    spanning,
    star,
)

from .networks import all_plans, build, overlays

OWN = [planner() for planner in PLANNERS if planner is not FromFile]


@settings(deadline=None)
@given(overlays())
def test_every_plan_fits_its_overlay_and_shares_out_the_whole_buffer(overlay):
    for plan in [*all_plans(overlay), *(planner.plan(overlay) for planner in OWN)]:
        plan.check_fits(overlay)
        assert math.fsum(tree.share for tree in plan.trees) == pytest.approx(1, abs=1e-12)


@given(overlays())
def test_planning_twice_gives_the_same_plan(overlay):
    assert all_plans(overlay) == all_plans(overlay)


@pytest.mark.parametrize("planner", OWN)
def test_a_single_site_is_its_own_plan(planner):
    plan = planner.plan(build(1, []), version=7)
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


@pytest.mark.parametrize(
    ("planner", "roots", "label"),
    [
        (Star(), [1], "star at dc2"),
        (Star(hub="dc7"), [6], "star at dc7"),
        (Balanced(root="dc1", arity=3), [0], "balanced 3-way tree at dc1"),
        (Spanning(root="dc2"), [1], "spanning tree at dc2"),
        (Fapt(roots=("dc5", "dc2")), [4, 1], "fapt, 2 roots"),
        (Fapt(roots=3), [3, 6, 4], "fapt, 3 roots"),
        (Ring(), [0, 1, 2, 3, 4, 5, 6, 7, 8], "ring"),
        (Ring(both_ways=True), sorted([*range(9)] * 2), "ring, both ways"),
    ],
)
def test_a_planner_plans_what_its_parameters_say(
    planner: AnyPlanner, roots: list[int], label: str
) -> None:
    plan = planner.plan(internet2_9())
    assert [tree.root for tree in plan.trees] == roots
    assert plan.label == label


@pytest.mark.parametrize(
    "planner",
    [each for each in OWN if not each.deep] + [Ring(), Fapt(roots=2), Fapt(roots=("dc1", "dc9"))],
)
def test_a_plan_made_again_keeps_its_roots_and_takes_its_version(planner: AnyPlanner) -> None:
    # A root elsewhere would need its part of the model moved to it.
    first = planner.plan(internet2_9())
    other = replace(random_complete(9, 5), sites=internet2_9().sites)
    again = planner.plan(other, version=7, previous=first)
    assert [tree.root for tree in again.trees] == [tree.root for tree in first.trees]
    assert (first.version, again.version) == (1, 7)


def test_packed_trees_made_again_stay_where_another_plan_would_be_hardly_faster() -> None:
    first = Packed().plan(internet2_9(), elements=1 << 24)
    again = Packed().plan(internet2_9(), version=7, previous=first, elements=1 << 24)
    assert {(tree.root, tree.up, tree.down) for tree in again.trees} <= {
        (tree.root, tree.up, tree.down) for tree in first.trees
    }


def test_packed_trees_follow_the_size_of_the_buffer() -> None:
    assert Packed().plan(internet2_9(), elements=1 << 14) != Packed().plan(internet2_9())


def test_a_plan_from_a_file_is_taken_as_it_is_and_read_once(tmp_path: Path) -> None:
    overlay, path = internet2_9(), tmp_path / "own.json"
    own = star(overlay, hub=2)
    path.write_text(dumps(own))
    planner = FromFile(path=str(path))
    assert planner.plan(overlay) == own
    path.unlink()
    again = planner.plan(random_complete(9, 5), version=4, previous=own)
    assert (again.version, again.trees) == (4, own.trees)
    with pytest.raises(PlanError, match=r"own\.json: "):
        planner.plan(overlay)


def test_the_planner_of_the_page_on_extending_plans() -> None:
    page = Path(__file__).parents[2] / "docs" / "extending.md"
    code = page.read_text().partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"__name__": "chain"}
    exec(compile(code, str(page), "exec", dont_inherit=True), names)
    plan = names["Chain"]().plan(internet2_9())
    plan.check_fits(internet2_9())
    assert plan.trees[0].up == (-1, 0, 1, 2, 3, 4, 5, 6, 7)


def test_every_site_is_a_root_unless_told_otherwise() -> None:
    plan = Fapt().plan(internet2_9())
    assert sorted(tree.root for tree in plan.trees) == list(range(9))


@pytest.mark.parametrize(
    ("planner", "error", "named"),
    [
        (Star(hub="dc0"), OverlayError, "no site 'dc0'.*did you mean"),
        (Fapt(roots=10), PlanError, "10 roots"),
        (Fapt(roots=0), PlanError, "0 roots"),
        (Fapt(roots=("dc1", "dc1")), PlanError, "different sites"),
    ],
)
def test_a_plan_that_cannot_be_made_is_named(
    planner: AnyPlanner, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        planner.plan(internet2_9())
