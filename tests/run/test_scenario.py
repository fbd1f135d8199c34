"""Scenarios: what is written is what runs; what is wrong is named, with the fix."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from anabranch.learn.models import MODELS
from anabranch.learn.tasks import TASKS
from anabranch.overlay import OverlayError, internet2_9, random_complete
from anabranch.plan import PlanError, dumps, star
from anabranch.run.scenario import (
    Adaptive,
    Auxiliary,
    Balanced,
    ByShare,
    Exchange,
    Fapt,
    FromFile,
    Oracle,
    Packed,
    Passive,
    Route,
    Scenario,
    ScenarioError,
    Spanning,
    Star,
    Stop,
    Train,
    decode,
    encode,
    load,
    loads,
    make_planner,
    plan_route,
)

TEXT = """
overlay = "internet2-9"
stop.rounds = 3
[route]
kind = "fapt"
roots = 9
[task]
kind = "train"
learning_rate = 0.1
"""


def test_a_scenario_is_read_with_its_defaults() -> None:
    scenario = loads(TEXT)
    assert scenario == Scenario(
        overlay="internet2-9",
        stop=Stop(rounds=3),
        route=Fapt(roots=9),
        task=Train(learning_rate=0.1),
    )


@pytest.mark.parametrize(
    "scenario",
    [
        loads(TEXT),
        Scenario(
            overlay="x",
            stop=Stop(rounds=1),
            route=Fapt(roots=("a", "b")),
            task=Exchange(profile="alexnet"),
        ),
        Scenario(overlay="x", stop=Stop(rounds=1), route=Star(hub="a"), task=Exchange(elements=7)),
        Scenario(
            overlay="x",
            stop=Stop(rounds=1),
            route=FromFile(path="/plans/own.json"),
            task=Exchange(elements=7),
            deal=Adaptive(window=9),
            awareness=Passive(start="equal"),
            auxiliary=Auxiliary(search="algorithm-3"),
        ),
    ],
)
def test_a_scenario_reaches_the_sites_unchanged(scenario: Scenario) -> None:
    assert decode(encode(scenario)) == scenario


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("rounds", "round", r"stop\.round: no such key; did you mean 'rounds'"),
        ("roots", "root", r"route\.root: no such key; did you mean 'roots'"),
        ("learning_rate", "rate", r"task\.rate: no such key; .*learning_rate"),
        ("fapt", "fabt", r"route\.kind: no such kind 'fabt'; did you mean 'fapt'"),
        ('kind = "train"', "", r"task\.kind: this key is required; give one of train, exchange"),
        ("stop.rounds = 3", "", "stop: this key is required"),
        ("rounds = 3", "rounds = 0", r"stop\.rounds: must be an integer >= 1, not 0"),
        ("rounds = 3", 'rounds = "many"', r"stop\.rounds: must be an integer, not 'many'"),
        ("rounds = 3", "rounds = 3\nseed = -1", "seed: must be an integer >= 0"),
        ("= 0.1", "= -0.1", r"task\.learning_rate: must be a number > 0"),
        ("= 0.1", '= 0.1\noptimiser = "adm"', r"task\.optimiser: .* did you mean 'adam'"),
        ("= 0.1", "= 0.1\ntarget_accuracy = 90", r"task\.target_accuracy: must be a number <= 1"),
        ("rounds = 3", "rounds = 3\nstop.after_s = inf", r"stop\.after_s: must be"),
        ("stop.rounds", "rounds", "rounds: no such key; did you mean 'stop.rounds'"),
        ("stop.rounds = 3", "stop.rounds = 3\nchunk_elements = 0", "chunk_elements: must be"),
        (
            "learning_rate",
            "optimiser = 'adam'\nmomentum = 0.9\nlearning_rate",
            r"task\.momentum: adam has none",
        ),
        (
            "stop.rounds = 3",
            "stop = {rounds = 3, at_target = true}",
            r"stop\.at_target: there is no target",
        ),
        ("rounds = 3", "rounds = ", "not TOML: .*line 3"),
        ('"fapt"\nroots = 9', '"file"', r"route\.path: this key is required"),
        (
            "stop.rounds",
            "deal.kind = 'adaptiv'\nstop.rounds",
            r"deal\.kind: .* did you mean 'adaptive'",
        ),
        (
            "stop.rounds",
            "deal = {kind = 'by-share', window = 3}\nstop.rounds",
            r"deal\.window: no such key",
        ),
        (
            "stop.rounds",
            "deal = {kind = 'adaptive', window = 0}\nstop.rounds",
            r"deal\.window: must be an integer >= 1",
        ),
        (
            "stop.rounds",
            "awareness = {kind = 'oracle', start = 'equal'}\nstop.rounds",
            r"awareness\.start: no such key",
        ),
        (
            "stop.rounds",
            "awareness = {kind = 'passive', estimator = 'mean'}\nstop.rounds",
            r"awareness\.estimator: .*busy-period",
        ),
        (
            "stop.rounds",
            "awareness = {kind = 'passive', least_gain = 1.0}\nstop.rounds",
            r"awareness\.least_gain: must be a number < 1",
        ),
        (
            "stop.rounds",
            "auxiliary.search = 'disjunct'\nstop.rounds",
            r"auxiliary\.search: .*did you mean 'disjoint'",
        ),
        ("stop.rounds", "congestion_control = 'reno'\nstop.rounds", r"congestion_control: .*bbr"),
        (
            'kind = "train"\nlearning_rate = 0.1',
            'kind = "exchange"',
            "task: give either profile or elements",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_key_and_fix(old: str, new: str, named: str) -> None:
    assert old in TEXT
    with pytest.raises(ScenarioError, match=rf"^my\.toml: {named}"):
        loads(TEXT.replace(old, new), "my.toml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"cannot read .*none\.toml"):
        load(tmp_path / "none.toml")


def test_an_unknown_overlay_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(TEXT.replace("internet2-9", "internet-9"))
    with pytest.raises(OverlayError, match="internet2-9"):
        load(path)


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


def test_the_path_of_a_plan_counts_from_the_scenario_s_folder(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    own = tmp_path / "plans" / "own.json"
    own.write_text(dumps(star(internet2_9(), hub=2)))
    route = '"file"\npath = "plans/own.json"'
    path = tmp_path / "s.toml"
    path.write_text(TEXT.replace('"fapt"\nroots = 9', route))
    scenario, _ = load(path)
    assert scenario.routes == (FromFile(path=str(own)),)


def test_chunks_are_small_and_dealt_during_the_round_on_packed_trees_unless_told_otherwise() -> (
    None
):
    def given(route: Route, **others: object) -> Scenario:
        task = Exchange(elements=1)
        return Scenario(overlay="x", stop=Stop(rounds=1), route=route, task=task, **others)  # type: ignore[arg-type]

    assert given(Packed()).adaptive == Adaptive()
    assert given(Packed(), deal=ByShare()).adaptive is None
    assert given(Fapt()).adaptive is None
    assert given(Fapt(), deal=Adaptive(window=5)).adaptive == Adaptive(window=5)
    assert given(Fapt()).chunk_elements_of(61_000_000) == 1 << 18
    for elements, chunk_elements in (
        (100, 1 << 14),
        (30_000_000, 30_000),
        (61_000_000, 61_000),
        (1_000_000_000, 1 << 16),
    ):
        assert given(Packed()).chunk_elements_of(elements) == chunk_elements
        assert given(Packed(), chunk_elements=7).chunk_elements_of(elements) == 7


def test_awareness_is_off_unless_it_is_asked_for() -> None:
    assert loads(TEXT).awareness is None
    text = TEXT.replace("stop.rounds", 'awareness.kind = "oracle"\nstop.rounds')
    assert loads(text).awareness == Oracle()


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


def test_the_demo_is_one_scenario_with_two_routes() -> None:
    scenario = loads((files("anabranch.run") / "demo.toml").read_text())
    assert scenario.routes == (Star(), Fapt())
    assert [run.routes for run in scenario.runs()] == [(Star(),), (Fapt(),)]
    assert {run.task for run in scenario.runs()} == {scenario.task}


def test_a_scenario_offers_just_the_models_and_data_sets_there_are() -> None:
    offered = get_type_hints(Train, include_extras=False)
    assert get_args(offered["model"]) == MODELS
    assert set(get_args(offered["data"])) == set(TASKS)


@pytest.mark.parametrize(
    ("route", "named"),
    [
        ('route = {kind = "star", hub = "dc12"}', r"route: no site 'dc12'.*did you mean 'dc2'"),
        ('route = {kind = "fapt", roots = 12}', "route: .*12 roots"),
        ('route = {kind = "fapt", roots = ["dc1", "dc1"]}', "route: .*different sites"),
        ('route = [{kind = "star"}, {kind = "mst", root = "x"}]', r"route\[1\]: no site 'x'"),
        ('route = {kind = "file", path = "none.json"}', r"route: .*none\.json.*No such file"),
        ('route = {kind = "file", path = "s.toml"}', r"route: .*s\.toml: this text is no plan"),
    ],
)
def test_a_route_through_an_unknown_site_is_named_when_the_file_is_read(
    route: str, named: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.toml"
    task = 'task = {kind = "exchange", elements = 9}'
    path.write_text(f'overlay = "internet2-9"\nstop.rounds = 3\n{route}\n{task}\n')
    with pytest.raises(ScenarioError, match=f"s.toml: {named}"):
        load(path)


def test_trees_are_packed_where_no_route_is_given() -> None:
    text = 'overlay = "internet2-9"\nstop.rounds = 1\ntask = {kind = "exchange", elements = 9}\n'
    assert loads(text).routes == (Packed(),)
