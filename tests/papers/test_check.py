"""A result is checked against its script without a run, and its smallest run is made again."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from anabranch.fleet import Compute
from anabranch.net.errors import RunAborted
from anabranch.overlay import internet2_9
from anabranch.plan import Star
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Exchange, Train
from anabranch_lab.tasks.kinds import DataError
from papers import (
    Experiment,
    Lab,
    NotRecorded,
    Record,
    Result,
    Row,
    Trial,
    _check,
    _scripts,
    write_result,
)
from papers.__main__ import app
from papers._record import Ran

SCENARIO = Scenario(
    overlay="",
    route=Star(),
    task=Exchange(elements=90_000),
    stop=Stop(rounds=2),
    chunk_elements=10_000,
)


@dataclass(frozen=True)
class Squared:
    of: int
    value: int


def squared(of: int, data_dir: Path | None) -> Squared:
    return Squared(of, of * of)


def make(
    lab: Lab, rounds: int = 2, numbers: tuple[int, ...] = (3, 4), word: str = "rounds"
) -> Result:
    """Run a star twice, the second time as the first one says, and square numbers."""
    scenario = msgspec.structs.replace(SCENARIO, stop=Stop(rounds=rounds))
    (first,) = lab.measure([Trial({"which": "first"}, scenario, internet2_9())])
    longer = msgspec.structs.replace(SCENARIO, stop=Stop(rounds=20 * first.rounds))
    (second,) = lab.measure([Trial({"which": "second"}, longer, internet2_9())])
    found = lab.map(squared, numbers, Squared)
    told = f"{second.rounds} {word}, {sum(each.value for each in found)}"
    return Result((Row("a star", "", told),), ("All of it.",))


def experiment(**changed: Any) -> Experiment:
    return Experiment("toy/fig1", "a star", partial(make, **changed))


@pytest.fixture(autouse=True)
def only_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now(monkeypatch)


def now(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    monkeypatch.setattr(_scripts, "EXPERIMENTS", {"toy/fig1": experiment(**changed)})


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    lab = Lab(tmp_path / "scenarios")
    written, _, _ = write_result(experiment(), make(lab), lab, tmp_path)
    return json.loads(written.read_text())


def test_a_script_says_the_same_of_its_recorded_runs_without_making_one(document: dict[str, Any]):
    assert len(document["runs"]) == 4
    assert list(_check.differences(document)) == []
    document["runs"][1]["made"]["rounds"] = 7
    (told,) = _check.differences(document)
    assert "'ours': '7 rounds, 25'} now, and was {" in told


@pytest.mark.parametrize("changed", [{"rounds": 3}, {"numbers": (3, 5)}])
def test_a_script_whose_settings_have_changed_does_not_find_its_runs(
    document: dict[str, Any], changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    now(monkeypatch, **changed)
    with pytest.raises(NotRecorded, match="no run has these settings"):
        list(_check.differences(document))


def test_a_run_that_the_script_no_longer_asks_for_is_named(document: dict[str, Any]):
    document["runs"].append({"key": "0123", "cpu_s": -1.0, "made": {}})
    (told,) = _check.differences(document)
    assert told == "its script does not ask for 1 of its runs, such as 0123"
    assert list(_check.differences(_check.said_anew(document))) == []


def test_a_result_whose_script_is_gone_is_named_and_the_others_are_checked(
    document: dict[str, Any], tmp_path: Path
):
    for stem, experiment in (("a", "toy/fig0"), ("b", document["experiment"])):
        (tmp_path / f"{stem}.json").write_text(json.dumps(document | {"experiment": experiment}))
    for names in ((), ("toy",)):
        code, said = check(*names, "--results", str(tmp_path), "--not-again")
        assert code == 1
        assert "no script makes toy/fig0; remove its JSON" in said
        assert "b.json: its script says the same" in said


def test_a_result_of_before_runs_had_keys_is_named(document: dict[str, Any]):
    del document["language"]
    with pytest.raises(NotRecorded, match="toy/fig1 have no keys yet; make it again"):
        list(_check.differences(document))


def test_the_smallest_run_is_made_again_and_compared(document: dict[str, Any]):
    first = document["runs"][0]
    first["cpu_s"] = -1.0
    done = _check.again(document, None)
    assert done is not None
    assert (done.about, done.differs) == ("first", ())
    first["made"]["round_s"] *= 1 + 1e-8  # on another machine
    done = _check.again(document, None)
    assert done is not None
    assert done.differs == ()
    first["made"]["round_s"] = 1.5
    again = _check.again(document, None)
    assert again is not None
    (differs,) = again.differs
    assert differs.startswith("round_s was 1.5, is 0.")


def learnt(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *without: tuple[str, ...]
) -> dict[str, Any]:
    """Return the result of one run that learns, of which each trial leaves something out."""

    def make(lab: Lab) -> Result:
        for each in without:
            lab.measure([Trial({}, learns, internet2_9(), without=each)])
        return Result(())

    learns = msgspec.structs.replace(
        SCENARIO,
        task=Train(data="digits", model="softmax", learning_rate=0.1),
        compute=Compute(samples_per_s=1e3),
    )
    monkeypatch.setattr(_scripts, "EXPERIMENTS", {"toy/fig1": Experiment("toy/fig1", "", make)})
    lab = Lab(folder / "scenarios")
    written, _, _ = write_result(_scripts.EXPERIMENTS["toy/fig1"], make(lab), lab, folder)
    document: dict[str, Any] = json.loads(written.read_text())
    return document


def test_a_run_that_is_made_again_is_compared_in_all_that_any_trial_uses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    document = learnt(monkeypatch, tmp_path, ("curve",), ())
    (run,) = document["runs"]
    assert run["made"]["curve"]
    done = _check.again(document, None)
    assert done is not None
    assert done.differs == ()
    run["made"]["curve"] = []
    done = _check.again(document, None)
    assert done is not None
    assert done.differs


def test_a_run_that_is_made_again_is_not_compared_in_what_no_trial_uses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    document = learnt(monkeypatch, tmp_path, ("curve",))
    assert "curve" not in document["runs"][0]["made"]
    done = _check.again(document, None)
    assert done is not None
    assert done.differs == ()


def test_the_smallest_run_may_be_a_function_of_its_job(document: dict[str, Any]):
    document["runs"][3]["cpu_s"] = -1.0
    document["runs"][3]["made"]["value"] = 17
    done = _check.again(document, None)
    assert done is not None
    assert done.differs == ("value was 17, is 16",)


def test_a_number_that_is_computed_before_the_runs_is_none_of_them(document: dict[str, Any]):
    first, *_, number = document["runs"][:4]
    first["cpu_s"] = -1.0
    number |= {"cpu_s": -2.0, "made": 16.0}
    done = _check.again(document, None)
    assert done is not None
    assert (done.about, done.differs) == ("first", ())


def unfound(of: int, data_dir: Path | None) -> Squared:
    raise DataError("squares are nowhere; give --data-dir")


def test_a_run_whose_data_are_not_here_is_named_and_the_others_are_checked(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    document["runs"][3]["cpu_s"] = -1.0
    (tmp_path / "toy-fig1.json").write_text(json.dumps(document))
    unfound.__qualname__ = squared.__qualname__
    monkeypatch.setitem(globals(), "squared", unfound)
    code, said = check("--results", str(tmp_path))
    assert code == 1
    assert "says the same; not made again: squares are nowhere; give --data-dir" in said


def check(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["check", *arguments])
    return done.exit_code, done.output


def test_the_command_says_what_differs(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code, said = check("--results", str(tmp_path))
    assert code == 0, said
    assert "toy-fig1.json: its script says the same; made again in " in said
    now(monkeypatch, word="turns")
    code, said = check("--results", str(tmp_path), "--not-again")
    assert code == 1
    assert "'ours': '40 turns, 25'" in said
    code, said = check("--results", str(tmp_path), "--not-again", "--write")
    assert code == 0
    assert "toy-fig1.json: written anew, since a row is" in said
    anew = json.loads((tmp_path / "toy-fig1.json").read_text())
    assert anew["rows"][0]["ours"] == "40 turns, 25"
    assert {**document, "rows": None} == {**anew, "rows": None}
    assert check("--results", str(tmp_path), "--not-again")[0] == 0
    now(monkeypatch, rounds=3)
    code, said = check("toy", "--results", str(tmp_path), "--write")
    assert code == 1
    assert "toy-fig1.json: not of today's settings" in said
    code, said = check("toy/fig2", "--results", str(tmp_path))
    assert code == 2


def test_a_run_that_fails_is_recorded_as_that(tmp_path: Path):
    lab = Lab(tmp_path / "scenarios")
    diverging = msgspec.structs.replace(
        SCENARIO,
        task=Train(data="digits", model="mlp", learning_rate=1e9, batch_size=8),
        compute=Compute(samples_per_s=1e3),
        stop=Stop(rounds=9),
    )
    trial = Trial({}, diverging, internet2_9())
    with pytest.raises(RunAborted) as said:
        lab.measure([trial])
    (run,) = lab.record.runs.values()
    assert run["made"]["aborted"] == str(said.value)
    (made,) = lab.measure([trial], may_abort=True)
    assert (made.aborted, made.reached_s, made.accuracy) == (str(said.value), None, None)
    with pytest.raises(RunAborted) as again:
        Lab(None, kept=lab.record).measure([trial])
    assert str(again.value) == str(said.value)


RESULTS = sorted(path.stem for path in _check.RESULTS.glob("*.json"))


@pytest.mark.parametrize("name", RESULTS)
def test_each_committed_result_is_what_its_script_says_of_its_runs(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.undo()
    document = json.loads((_check.RESULTS / f"{name}.json").read_text("utf-8"))
    assert list(_check.differences(document)) == []


def route(**of_a_field: Any) -> Any:
    """Return a route of a struct that is made here, as a release may have it."""
    fields = [(name, type(value), value) for name, value in {"roots": 1.0, **of_a_field}.items()]
    return msgspec.defstruct("Tree", fields, frozen=True)()


def test_a_key_that_has_come_since_with_its_default_changes_nothing_and_no_last_bit_does():
    record = Record()
    record.add(("simulated", route()), Ran(Squared(1, 1), 0.1))
    assert record.language == {"Tree.roots"}
    record = Record.of({"runs": list(record.runs.values()), "language": list(record.language)})
    assert record.find(("simulated", route(metric="up")), Squared).made == Squared(1, 1)
    assert record.find(("simulated", route(roots=1 + 1e-14)), Squared).made == Squared(1, 1)
    later = msgspec.structs.replace(route(metric="up"), metric="up and down")
    for changed in (later, route(roots=2)):
        with pytest.raises(NotRecorded):
            record.find(("simulated", changed), Squared)


def test_the_commit_that_made_a_committed_result_is_clean_and_in_the_history():
    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments], cwd=_check.RESULTS, capture_output=True, text=True, check=False
        )

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("without the whole history")
    for name in RESULTS:
        commit = json.loads((_check.RESULTS / f"{name}.json").read_text("utf-8"))["commit"]
        done = git("merge-base", "--is-ancestor", commit, "HEAD")
        assert done.returncode == 0, f"{name}: {commit} {done.stderr}"
