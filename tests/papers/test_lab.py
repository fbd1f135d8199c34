"""Trials run once, side by side or one by one, and leave files that run again."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from anabranch.fleet import Compute
from anabranch.overlay import internet2_9, redraw
from anabranch.pace import Asp
from anabranch.period import Every
from anabranch.plan import Auxiliary, Fapt, Star
from anabranch.scheduler.awareness import Passive
from anabranch.scheduler.paced import Serve
from anabranch_lab.run.scenario import Scenario, ScenarioError, Stop, load, loads
from anabranch_lab.run.scenario.tasks import Exchange, Train
from papers import Lab, Outcome, Trial, _kept, _lab, seconds
from papers._kept import Outcomes
from papers._outcome import CURVE_POINTS
from papers._record import Record
from papers._scenario_file import scenario_toml

STAR = Scenario(
    overlay="internet2-9",
    route=Star(),
    task=Exchange(elements=100_000),
    stop=Stop(rounds=3),
    chunk_elements=10_000,
)
TREES = msgspec.structs.replace(STAR, route=Fapt(roots=2), seed=3)
AWARE = msgspec.structs.replace(
    TREES,
    stop=Stop(rounds=1000, after_s=2.0),
    awareness=Passive(estimator="chunk-mean", probe_chunk_elements=5_000),
    auxiliary=Auxiliary(search="algorithm-3"),
)
CHANGING = redraw(internet2_9(), period_s=0.5, low_bps=20e6, high_bps=155e6, duration_s=5, seed=1)


def trial(scenario: Scenario, overlay=None, **labels) -> Trial:
    return Trial(labels, scenario, overlay or internet2_9())


def outcome(round_s: float, rounds: int, **labels) -> Outcome:
    return Outcome(labels, "a.toml", rounds, round_s * rounds, round_s, 0)


def test_a_trial_is_run_as_its_scenario_says(tmp_path: Path):
    (done,) = Lab(tmp_path).measure([trial(STAR, system="star")])
    assert (done.rounds, done.plans, done.labels) == (3, 0, {"system": "star"})
    assert done.total_s / 3 == pytest.approx(done.round_s, rel=0.2)
    # Eight buffers of 100,000 elements into the hub over its links.
    assert 0.1 < done.round_s < 2


def test_a_run_with_a_time_to_fill_gives_the_mean_of_its_rounds(tmp_path: Path):
    (done,) = Lab(tmp_path).measure([trial(AWARE, CHANGING)])
    assert done.total_s >= 2
    assert done.round_s == done.total_s / done.rounds


def test_what_is_evaluated_after_the_end_is_no_time_to_the_target(tmp_path: Path):
    """A run whose sites' models differ goes on until they are averaged."""
    local = msgspec.structs.replace(
        STAR,
        period=Every(steps=50),
        task=Train(
            data="digits",
            model="softmax",
            learning_rate=0.01,
            batch_size=8,
            evaluate_every=1,
            target_accuracy=0.27,
        ),
        compute=Compute(samples_per_s=8.0),
        stop=Stop(rounds=1000, after_s=30.0),
    )
    (done,) = Lab(tmp_path).measure([trial(local)])
    assert min(at_s for at_s, accuracy in done.curve if accuracy >= 0.27) > 30.0
    assert done.reached_by["mean"] is None
    assert done.sent_by["mean"] is None


def test_outcomes_come_in_order_and_the_same_run_is_made_once(tmp_path: Path):
    told = []
    lab = Lab(tmp_path, on_trial=lambda ended, of: told.append((ended, of)))
    first = lab.measure([trial(STAR, a=1), trial(TREES, a=2), trial(STAR, a=3)])
    again = lab.measure([trial(TREES, a=4)])
    assert [each.labels["a"] for each in first + again] == [1, 2, 3, 4]
    assert first[0].round_s == first[2].round_s != first[1].round_s == again[0].round_s
    assert told == [(0, 2), (1, 2), (2, 2), (0, 0)]


def test_a_run_that_two_experiments_share_is_in_the_record_of_each(tmp_path: Path):
    lab = Lab(tmp_path)
    lab.measure([trial(STAR, a=1)])
    first, lab.record = lab.record, Record()
    lab.measure([trial(STAR, a=2), trial(TREES, a=3)])
    assert len(lab.record.runs) == 2
    assert first.runs.keys() < lab.record.runs.keys()


def test_each_trial_of_a_run_gets_the_fields_that_it_uses_and_the_record_has_all(tmp_path: Path):
    trains = msgspec.structs.replace(
        STAR,
        task=Train(data="digits", model="softmax", learning_rate=0.1),
        compute=Compute(samples_per_s=1000.0),
    )
    few = Trial({"a": 1}, trains, internet2_9(), without=("curve", "accuracy"))
    more = Trial({"a": 2}, trains, internet2_9(), without=("accuracy",))
    for trials in ([few, more], [more, few]):
        lab = Lab(tmp_path, kept=Outcomes(tmp_path / "kept"))
        done = [run for each in trials for run in lab.measure([each])]
        assert {run.labels["a"]: bool(run.curve) for run in done} == {1: False, 2: True}
        (recorded,) = lab.record.runs.values()
        assert recorded["made"].get("curve")
        assert "accuracy" not in recorded["made"]


@pytest.mark.parametrize("name", ["curv", "round_s", "aborted"])
def test_a_trial_cannot_do_without_a_field_that_is_not_there_or_that_each_needs(name: str):
    with pytest.raises(ValueError, match=f"no outcome can be without '{name}'"):
        Trial({}, STAR, internet2_9(), without=(name,))


def test_a_run_with_servers_has_the_curve_of_its_evaluations(tmp_path: Path):
    scenario = Scenario(
        overlay="internet2-9",
        route=Star(hub="dc4"),
        serve=Serve(only=("dc4",)),
        pace=Asp(),
        task=Train(
            data="digits",
            model="softmax",
            learning_rate=0.1,
            evaluate_every_s=0.01,
            evaluate_samples=50,
        ),
        compute=Compute(samples_per_s=1000.0),
        stop=Stop(rounds=40),
    )
    (done,) = Lab(tmp_path).measure([trial(scenario)])
    assert 50 < len(done.curve) <= CURVE_POINTS
    assert done.curve[-1][1] == done.accuracy
    assert [at_s for at_s, _ in done.curve] == sorted(at_s for at_s, _ in done.curve)


def test_a_run_with_servers_says_what_links_carried_until_the_target(tmp_path: Path):
    scenario = Scenario(
        overlay="internet2-9",
        route=Star(hub="dc4"),
        pace=Asp(),
        task=Train(
            data="digits",
            model="softmax",
            learning_rate=0.5,
            evaluate_every=1,
            target_accuracy=0.6,
        ),
        compute=Compute(samples_per_s=1000.0),
        stop=Stop(rounds=200, at_target=True),
    )
    (done,) = Lab(tmp_path).measure([trial(scenario)])
    assert done.reached_updates is not None
    assert done.sent_bytes is not None
    # Eight workers push and pull 650 float32; the ninth serves. Ways have one to four links.
    exchanged = 2 * 8 * done.reached_updates * 650 * 4
    assert exchanged / 2 < done.sent_bytes < 4 * exchanged


def check_side_by_side(folder: Path) -> None:
    trials = [trial(STAR, a=1), trial(AWARE, CHANGING, a=2)]
    alone = Lab(folder / "alone").measure(trials)
    beside = Lab(folder / "beside", jobs=2).measure(trials)
    assert [each.labels["a"] for each in beside] == [1, 2]
    assert alone == beside


class _Here:
    """A pool without processes: what would go to them is pickled, and calls are made last first."""

    made = 0

    def __init__(self, jobs: int, context: object) -> None:
        _Here.made += 1

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *raised: object) -> None: ...

    def map(self, call: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        sent = [pickle.dumps((call, each)) for each in zip(*arguments, strict=True)]
        came = []
        for each in reversed(sent):
            made, of = pickle.loads(each)
            came.append(pickle.loads(pickle.dumps(made(*of))))
        return came[::-1]


def test_simulations_side_by_side_give_what_they_give_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(_lab, "ProcessPoolExecutor", _Here)
    check_side_by_side(tmp_path)
    assert _Here.made == 1


@pytest.mark.slow
def test_simulations_in_processes_give_what_they_give_alone(tmp_path: Path):
    check_side_by_side(tmp_path)


def test_the_files_of_a_trial_run_again(tmp_path: Path):
    (done,) = Lab(tmp_path).measure([trial(AWARE, CHANGING, system="Aware, 2 roots", draw=1)])
    assert done.scenario_file == "aware-2-roots-1.toml"
    scenario, overlay = load(tmp_path / done.scenario_file)
    assert overlay == CHANGING
    beside = AWARE.beside_its_scheduler()  # as in the papers, and the file says so
    assert msgspec.structs.replace(scenario, overlay=AWARE.overlay) == beside != AWARE


def test_two_trials_of_the_same_labels_keep_a_file_each(tmp_path: Path):
    done = Lab(tmp_path).measure([trial(STAR, a="x"), trial(TREES, a="x")])
    assert [each.scenario_file for each in done] == ["x.toml", "x-2.toml"]


def test_a_scenario_that_no_file_could_say_is_refused(tmp_path: Path):
    blind = msgspec.structs.replace(
        AWARE, awareness=Passive(estimator="chunk-mean", probe_chunk_elements=20_000)
    )
    with pytest.raises(ScenarioError, match="probe_chunk_elements"):
        Lab(tmp_path).measure([trial(blind)])


@pytest.mark.parametrize("scenario", [STAR, TREES, AWARE])
def test_a_scenario_survives_its_file(scenario: Scenario):
    assert loads(scenario_toml(scenario)) == scenario


def test_seconds_weigh_each_run_by_its_rounds():
    found = [outcome(10.0, 3, a=1, b=1), outcome(20.0, 1, a=1, b=2), outcome(99.0, 5, a=2)]
    assert seconds(found, a=1) == 12.5
    assert seconds(found, a=1, b=2) == 20.0
    with pytest.raises(ValueError, match="'b': 7"):
        seconds(found, b=7)


def test_a_lab_needs_a_job(tmp_path: Path):
    with pytest.raises(ValueError, match="at least 1"):
        Lab(tmp_path, jobs=0)


def test_an_emulated_lab_refuses_what_no_link_emulates(tmp_path: Path):
    fault = loads(scenario_toml(STAR) + 'fault = [{ kind = "cut", site = "dc1", at_s = 1.0 }]\n')
    with pytest.raises(ScenarioError, match="fault"):
        Lab(tmp_path, emulate=True).measure([trial(fault)])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_was_cut_off_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trials = [trial(STAR, a=1), trial(TREES, a=2), trial(AWARE, CHANGING, a=3)]
    whole = Lab(tmp_path / "whole").measure(trials)

    def cut(ended: int, of: int) -> None:
        if ended == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Lab(tmp_path / "cut", kept=Outcomes(tmp_path / "kept"), on_trial=cut).measure(trials)
    told: list[tuple[int, int]] = []

    def go_on() -> list[Outcome]:
        told.clear()
        folder = tmp_path / f"again-{len([*tmp_path.iterdir()])}"
        return Lab(
            folder,
            kept=Outcomes(tmp_path / "kept"),
            on_trial=lambda ended, of: told.append((ended, of)),
        ).measure(trials)

    assert go_on() == whole
    assert told == [(0, 1), (1, 1)]
    assert go_on() == whole
    assert told == [(0, 0)]
    monkeypatch.setattr(_kept, "_code", lambda: "other")
    assert go_on() == whole
    assert told[-1] == (3, 3)


@dataclass(frozen=True)
class Doubled:
    value: float
    parts: tuple[int, ...]


CALLED: list[int] = []


def doubled(job: int, times: int, data_dir: Path | None = None) -> Doubled:
    CALLED.append(job)
    return Doubled(times * job, (job, job))


def test_what_a_function_made_is_kept_by_all_that_it_was_given(tmp_path: Path):
    wanted = [Doubled(6.0, (3, 3)), Doubled(8.0, (4, 4))]
    twice, thrice = (partial(doubled, times=times) for times in (2, 3))
    for jobs, make, called in (
        ([3], twice, [3]),
        ([3, 4], twice, [4]),
        ([3, 4], twice, []),
        ([3], thrice, [3]),
    ):
        CALLED.clear()
        found = Lab(tmp_path, kept=Outcomes(tmp_path / "kept")).map(make, jobs, Doubled)
        assert called == CALLED
        assert make is thrice or found == wanted[: len(jobs)]


def test_runs_are_recorded_in_the_order_of_jobs_however_many_are_kept(tmp_path: Path):
    orders = []
    for jobs in ([3], [2, 3, 1]):
        lab = Lab(tmp_path, kept=Outcomes(tmp_path / "kept"))
        lab.map(partial(doubled, times=2), jobs, Doubled)
        orders.append([run["made"]["parts"][0] for run in lab.record.runs.values()])
    assert orders == [[3], [2, 3, 1]]


def test_a_damaged_outcome_is_named(tmp_path: Path):
    Lab(tmp_path, kept=Outcomes(tmp_path / "kept")).map(partial(doubled, times=2), [3], Doubled)
    (path,) = (tmp_path / "kept").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"{path.name} is damaged .*; remove it"):
        Lab(tmp_path, kept=Outcomes(tmp_path / "kept")).map(partial(doubled, times=2), [3], Doubled)
