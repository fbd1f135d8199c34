"""Scenario files: what is written is what runs; what is wrong is named, with the fix."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from anabranch.overlay import OverlayError, internet2_9
from anabranch.plan import Fapt, FromFile, Packed, Star, dumps, star
from anabranch.scheduler.awareness import Oracle
from anabranch_lab.run.scenario import Scenario, ScenarioError, Stop, load, loads
from anabranch_lab.run.scenario.tasks import Train

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
        ("= 0.1", "= 0.1\nevaluate_every_s = 2", r"task\.evaluate_every_s: .*give \[serve\]"),
        ("rounds = 3", "rounds = ", "not TOML: .*line 3"),
        (
            "= 0.1",
            "= 0.1\npartition = {kind = 'dirichlet', alpha = 0}",
            r"task\.partition\.alpha: must be a number > 0",
        ),
        ("= 0.1", "= 0.1\npartition.kind = 'shard'", r"task\.partition\.kind: .*mean 'shards'"),
        (
            "= 0.1",
            "= 0.1\ndata = 'translation'\npartition.kind = 'shards'",
            r'task\.partition\.kind: "shards" goes by the one label of each sample, and trans',
        ),
        (
            "= 0.1",
            "= 0.1\ndata = 'translation'\n[sampling]\nkind = 'resampled'",
            r'sampling\.kind: "resampled" goes by the one label of each sample, and translation',
        ),
        (
            "= 0.1",
            "= 0.1\n[sampling]\nkind = 'resampled'\nbeta = 1",
            r"sampling\.beta: must be a number < 1, not 1",
        ),
        (
            'kind = "train"\nlearning_rate = 0.1',
            'kind = "exchange"\nelements = 9\n[sampling]\nkind = "resampled"',
            r'sampling\.kind: "resampled" is for task\.kind = "train"; .*; leave it out',
        ),
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
            "deal = {kind = 'by-share', cut = 'tensors'}\nperiod = {kind = 'every', steps = 2}\n"
            "stop.rounds",
            r'deal\.cut: "tensors" is of gradients, and here sites average or send whole models',
        ),
        (
            'kind = "train"\nlearning_rate = 0.1',
            "kind = 'exchange'\nelements = 9\n[deal]\nkind = 'by-share'\ncut = 'tensors'",
            r"deal\.cut: the tensors of a buffer of so many elements are not known; give task\.pro",
        ),
        (
            'kind = "train"\nlearning_rate = 0.1',
            "kind = 'own'\nfactory = 'a:b'\n[deal]\nkind = 'by-share'\ncut = 'tensors'",
            r"deal\.cut: the tensors in a buffer of your own code are not known",
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
            "awareness = {kind = 'passive', least_gain = 'any'}\nstop.rounds",
            r"awareness\.least_gain: .*none",
        ),
        (
            "stop.rounds",
            "awareness = {kind = 'passive', belief = 'newest'}\nstop.rounds",
            r"awareness\.belief: .*latest",
        ),
        (
            "stop.rounds",
            "auxiliary.when_full = 'drop'\nstop.rounds",
            r"auxiliary\.when_full: .*primary",
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


def test_the_path_of_a_plan_counts_from_the_scenario_s_folder(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    own = tmp_path / "plans" / "own.json"
    own.write_text(dumps(star(internet2_9(), hub=2)))
    route = '"file"\npath = "plans/own.json"'
    path = tmp_path / "s.toml"
    path.write_text(TEXT.replace('"fapt"\nroots = 9', route))
    scenario, _ = load(path)
    assert scenario.routes == (FromFile(path=str(own)),)


def test_awareness_is_off_unless_it_is_asked_for() -> None:
    assert loads(TEXT).awareness is None
    text = TEXT.replace("stop.rounds", 'awareness.kind = "oracle"\nstop.rounds')
    assert loads(text).awareness == Oracle()


def test_the_demo_is_one_scenario_whose_first_route_is_the_default() -> None:
    scenario = loads((files("anabranch_lab.run") / "demo.toml").read_text())
    assert scenario.routes == (Packed(), Fapt(), Star())
    assert [run.routes for run in scenario.runs()] == [(Packed(),), (Fapt(),), (Star(),)]
    assert {run.task for run in scenario.runs()} == {scenario.task}


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
