"""Routes: the plan that was asked for, and a planner that keeps its roots."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.overlay import OverlayError, internet2_9, random_complete
from anabranch.plan import PlanError, dumps, star
from anabranch.run.scenario.routes import (
    Balanced,
    Fapt,
    FromFile,
    Route,
    Spanning,
    Star,
    make_planner,
    plan_route,
)


@pytest.mark.parametrize(
    ("route", "roots", "label"),
    [
        (Star(), [1], "star at dc2"),
        (Star(hub="dc7"), [6], "star at dc7"),
        (Balanced(root="dc1", arity=3), [0], "balanced 3-way tree at dc1"),
        (Spanning(root="dc2"), [1], "spanning tree at dc2"),
        (Fapt(roots=("dc5", "dc2")), [4, 1], "fapt, 2 roots"),
        (Fapt(roots=3), [3, 6, 4], "fapt, 3 roots"),
    ],
)
def test_a_route_becomes_its_plan(route: Route, roots: list[int], label: str) -> None:
    plan = plan_route(route, internet2_9())
    assert [tree.root for tree in plan.trees] == roots
    assert plan.label == label


def test_a_plan_made_again_keeps_its_roots_and_takes_its_version() -> None:
    # A root elsewhere would need its part of the model moved to it.
    overlay, other = internet2_9(), random_complete(9, 5)
    for route in (Star(), Balanced(), Spanning(), Fapt(roots=2), Fapt(roots=("dc1", "dc9"))):
        planner = make_planner(route, overlay)
        first = planner(overlay, 1, None)
        again = planner(other, 7, first)
        assert [tree.root for tree in again.trees] == [tree.root for tree in first.trees]
        assert (first.version, again.version) == (1, 7)


def test_a_plan_from_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    overlay, path = internet2_9(), tmp_path / "own.json"
    own = star(overlay, hub=2)
    path.write_text(dumps(own))
    planner = make_planner(FromFile(path=str(path)), overlay)
    assert planner(overlay, 1, None) == own
    assert planner(random_complete(9, 5), 4, own).trees == own.trees
    assert planner(random_complete(9, 5), 4, own).version == 4


def test_every_site_is_a_root_unless_told_otherwise() -> None:
    plan = plan_route(Fapt(), internet2_9())
    assert sorted(tree.root for tree in plan.trees) == list(range(9))


@pytest.mark.parametrize(
    ("route", "error", "named"),
    [
        (Star(hub="dc0"), OverlayError, "no site 'dc0'.*did you mean"),
        (Fapt(roots=10), PlanError, "10 roots"),
        (Fapt(roots=0), PlanError, "0 roots"),
        (Fapt(roots=("dc1", "dc1")), PlanError, "different sites"),
    ],
)
def test_a_route_that_cannot_be_planned_is_named(
    route: Route, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        plan_route(route, internet2_9())
