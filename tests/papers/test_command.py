"""``python -m papers``: lists, refuses, and writes what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.overlay import internet2_9
from anabranch.plan import Star
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Exchange
from papers import Experiment, Lab, Result, Row, Trial, _scripts
from papers.__main__ import app


def make(lab: Lab) -> Result:
    scenario = Scenario(
        overlay="",
        route=Star(),
        task=Exchange(elements=90_000),
        stop=Stop(rounds=1 if lab.quick else 2),
        chunk_elements=10_000,
        seed=lab.seed,
    )
    outcomes = lab.measure([Trial({"system": "star"}, scenario, internet2_9())])
    rows = (Row("a star", "9 s", f"{outcomes[0].rounds} rounds", "it is small"),)
    return Result(rows, ("All of it.",))


@pytest.fixture(autouse=True)
def only_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Experiment("toy/fig1", "a small star", make)
    monkeypatch.setattr(_scripts, "EXPERIMENTS", {small.name: small})


def reproduce(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*arguments])
    return done.exit_code, done.output


@pytest.mark.parametrize("arguments", [(), ("--list",), ("toy", "--list")])
def test_it_lists_what_there_is(arguments: tuple[str, ...]):
    code, said = reproduce(*arguments)
    assert code == 0
    assert "toy/fig1" in said
    assert "a small star" in said


@pytest.mark.parametrize("name", ["toy/fig1", "toy"])
def test_it_prints_the_papers_figure_beside_ours_and_writes_both(name: str, tmp_path: Path):
    code, said = reproduce(name, "--quick", "--seed", "4", "--jobs", "1", "--out", str(tmp_path))
    assert code == 0, said
    assert "9 s" in said
    assert "1 rounds" in said
    assert "All of it." in said
    (page,) = tmp_path.glob("*/toy-fig1.json")
    found = json.loads(page.read_text())
    assert (found["seed"], found["quick"]) == (4, True)
    assert found["runs"][0]["made"]["rounds"] == 1
    assert (page.parent / "toy-fig1.csv").exists()
    assert (page.parent / "scenarios" / found["runs"][0]["made"]["scenario_file"]).exists()


def test_what_there_is_not_is_refused_with_the_nearest(tmp_path: Path):
    code, said = reproduce("toy/fig2", "--out", str(tmp_path))
    assert code == 2
    assert "toy/fig1" in said
    assert not list(tmp_path.iterdir())


def test_what_runs_in_simulation_only_is_not_emulated(tmp_path: Path):
    code, said = reproduce("toy/fig1", "--emulate", "--out", str(tmp_path))
    assert code == 2
    assert "simulation only" in said
    assert not list(tmp_path.iterdir())


def test_of_a_paper_what_cannot_be_emulated_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made: list[bool] = []

    def note(lab: Lab) -> Result:
        made.append(lab.emulate)
        return Result((Row("a star", "9 s", "8 s"),))

    emulable = Experiment("toy/fig2", "another", note, emulable=True)
    both = {**_scripts.EXPERIMENTS, emulable.name: emulable}
    monkeypatch.setattr(_scripts, "EXPERIMENTS", both)
    code, said = reproduce("toy", "--emulate", "--out", str(tmp_path))
    assert code == 0, said
    assert made == [True]
    assert "left out, for they run in simulation only: toy/fig1" in said
