from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

from anabranch.overlay import internet2_9
from anabranch.plan import PlanError, dumps, fapt, loads, star

from .networks import all_plans, overlays


@given(overlays())
def test_a_plan_comes_back_equal(overlay):
    for plan in all_plans(overlay):
        assert loads(dumps(plan)) == plan
        assert dumps(loads(dumps(plan))) == dumps(plan)


def test_a_plan_read_twice_cannot_be_changed_by_either_reader():
    text = dumps(star(internet2_9(), hub=0))
    plan = loads(text)
    assert loads(text) is plan
    with pytest.raises(TypeError):
        plan.routes[0, 1] = (0, 2, 1)


def test_auxiliary_paths_come_back_fastest_first():
    plain = star(internet2_9(), hub=0)
    paths = {(1, 0): ((1, 2, 0),), (2, 0): ((2, 1, 0), (2, 3, 4, 1, 0))}
    plan = replace(plain, auxiliary=paths)
    assert json.loads(dumps(plan))["auxiliary"] == [[1, 2, 0], [2, 1, 0], [2, 3, 4, 1, 0]]
    assert loads(dumps(plan)) == plan
    assert dumps(loads(dumps(plan))) == dumps(plan)
    with pytest.raises(TypeError):
        loads(dumps(plan)).auxiliary[1, 0] = ()


def test_a_plan_without_auxiliary_paths_says_nothing_of_them():
    assert "auxiliary" not in json.loads(dumps(star(internet2_9(), hub=0)))


def changed(**changes: object) -> str:
    return json.dumps(json.loads(dumps(star(internet2_9(), hub=0))) | changes)


TREE = {"root": 0, "share": 1.0, "up": [-1, 0], "down": [-1, 0]}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "no plan"),
        (b"\xff\xfe", "no plan"),
        ("{}", "missing required field `version`"),
        (changed(colour="red"), "unknown field `colour`"),
        (changed(version="one"), r"Expected `int`, got `str` - at `\$\.version`"),
        (changed(version=True), "Expected `int`"),
        (changed(trees=[]), "at least one tree"),
        (changed(trees=[TREE | {"weight": 2}]), "unknown field `weight`"),
        (changed(trees=[TREE | {"up": [-1, 0.5]}]), r"\$\.trees\[0\]\.up\[1\]"),
        (changed(trees=[TREE | {"up": [-1, 1]}], routes=[]), "circle"),
        (changed(trees=[TREE | {"share": 0.5}], routes=[]), "sum to 0.5"),
        (changed(trees=[TREE | {"root": 5}], routes=[]), "tree at 5"),
        (changed(routes=[[0, 1]]), "at least one relay"),
        (changed(routes=[[0, 1, 2], [0, 3, 2]]), "0->2 is given twice"),
        (changed(routes=[[0, 99, 2]]), "leaves sites"),
        (changed(auxiliary=[[]]), r"auxiliary path \[\] must join two sites"),
        (changed(auxiliary=[[3]]), r"auxiliary path \[3\] must join two sites"),
        (changed(auxiliary=[[1, 0.5]]), r"\$\.auxiliary\[0\]\[1\]"),
        (changed(auxiliary=[[1, 2, 0], [1, 2, 0]]), "auxiliary path 1->0 is given twice"),
        (changed(auxiliary=[[1, 0]]), "auxiliary path 1->0 is the primary path"),
        (changed(auxiliary=[[1, 99, 0]]), "auxiliary path 1->0 leaves sites"),
    ],
)
def test_a_text_that_is_no_plan_says_why(text, complaint):
    with pytest.raises(PlanError, match=complaint):
        loads(text)


def test_a_complaint_is_made_every_time():
    for _ in range(2):
        with pytest.raises(PlanError, match="no plan"):
            loads("{")


def test_a_plan_of_nine_trees_is_one_short_line():
    text = dumps(fapt(internet2_9(), roots=9))
    assert "\n" not in text
    assert len(text) < 2_000
