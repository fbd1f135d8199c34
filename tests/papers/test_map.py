"""Who wins where: what cells are made of, and what rows and the picture say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import papers
from anabranch.fleet import uneven_samples_per_s
from anabranch.pace import StatedBatches
from anabranch_lab.run.scenario._checks import check
from anabranch_lab.run.scenario.tasks import Train
from papers import Lab, Outcome, Trial
from papers.map import _setting as setting
from papers.map._setting import SCHEMES, settings, with_momentum
from papers.map.network import verdict


class TimedLab(Lab):
    """A lab whose runs take as long as a table says, by scheme; by rate, the best is the first."""

    def __init__(self, folder: Path, seconds: Mapping[str, float | None]) -> None:
        super().__init__(folder)
        self.seconds = seconds
        self.seeds: dict[str, set[int]] = {"tuning": set(), "measured": set()}

    def measure(self, trials: Sequence[Trial], simulated: bool = False) -> list[Outcome]:
        told = []
        for trial in trials:
            labels, task = trial.labels, trial.scenario.task
            assert isinstance(task, Train)
            self.seeds[str(labels["use"])].add(int(labels["seed"]))
            reached_s = self.seconds.get(str(labels["scheme"]))
            if reached_s is not None:
                first = setting.FIRST_RATES[task.momentum]
                reached_s *= 1 + abs(math.log2(float(labels["rate"]) / first))
                reached_s += int(labels["seed"]) % 10 + 100 * task.momentum
            limit_s = trial.scenario.stop.after_s
            if reached_s is not None and limit_s is not None and reached_s > limit_s:
                reached_s = None
            outcome = Outcome(labels, "told.toml", 4, 40.0, 10.0, 0)
            told.append(
                replace(outcome, reached_s=reached_s, reached_updates=10.0, sent_bytes=200_000)
            )
        return told


@pytest.mark.parametrize("name", setting.NETWORKS)
@pytest.mark.parametrize("gini", setting.GINIS)
def test_a_place_is_the_network_with_the_same_speeds_dealt_anew(name: str, gini: float):
    (overlay, speeds), (_, again) = (setting.place(name, gini, seed) for seed in (0, 1))
    whole = setting.NETWORKS[name].draw(0)
    for link in whole.links:
        a, b = (overlay.index(whole.sites[k].name) for k in (link.source, link.target))
        there = overlay.link(a, b)
        assert there is not None
        assert (there.rate_bps, there.latency_s) == (link.rate_bps, link.latency_s)
    expected = uneven_samples_per_s(whole.size, setting.BATCH / setting.STEP_S, gini, 0)
    assert sorted(speeds.values()) == sorted(expected)
    assert speeds[overlay.sites[0].name] == max(expected)
    assert gini == 0 or speeds != again


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", setting.NETWORKS)
def test_every_setting_of_every_scheme_can_run_and_all_sites_compute(
    scheme: str, name: str, tmp_path: Path
):
    for each in settings(scheme, 0.6):
        for way in (each, *with_momentum(each)):
            trial = setting.trial(Lab(tmp_path), way, name, 0.6, 0.2, 7)
            check(trial.scenario, trial.overlay)
            assert len(trial.scenario.workers(trial.overlay)) == trial.overlay.size


@pytest.mark.parametrize("gini", [0.3, 0.6])
def test_stated_batches_add_up_to_as_many_samples_and_take_equally_long(gini: float):
    stated = next(each for each in settings("packed BSP", gini) if each.batches == "stated")
    trial = setting.trial(Lab(None), stated, "geographic-12", gini, 0.2, 7)
    load, fleet = trial.scenario.load, trial.scenario.compute
    assert isinstance(load, StatedBatches)
    assert fleet is not None
    sizes = list(load.samples.values())
    assert sum(sizes) == pytest.approx(12 * setting.BATCH, rel=0.02)
    for name, samples in load.samples.items():
        speed = fleet.sites[name].samples_per_s
        assert speed is not None
        assert abs(samples / speed - setting.STEP_S) <= 0.5 / speed + 1e-9


def test_where_all_sites_are_alike_only_r2sp_has_other_batches():
    assert {each.batches for name in SCHEMES for each in settings(name, 0.0) if name != "R²SP"} == {
        "equal"
    }
    assert [each.batches for each in settings("R²SP", 0.0)] == ["tuned", "equal"]


def test_a_rival_whose_interval_reaches_one_makes_it_none():
    first = [10.0, 11.0, 12.0]
    clear = verdict({"a": first, "b": [2.5 * each for each in first], "c": [math.inf, 1.0, 1.0]})
    assert clear.first == "a"
    assert [*clear.margins] == ["b"]
    assert clear.told == "a; the next, b, takes 2.50 (2.50 to 2.50) times as long"
    near = verdict({"a": first, "b": [9.0, 13.0, 13.0]})
    assert near.alike == ["b"]
    assert near.told.startswith("none: a has the least mean; over it, b 1.0")
    assert verdict({"a": [math.inf, 1.0]}).told == (
        "none: no scheme reaches the target with all seeds"
    )


def test_rows_and_the_picture_say_who_is_first_with_which_bytes(tmp_path: Path):
    seconds: dict[str, float | None] = dict.fromkeys(SCHEMES, 400.0)
    seconds |= {"HAAF": None, "DiLoCo": 100.0}
    lab = TimedLab(tmp_path, seconds)
    made = papers.EXPERIMENTS["map/aws-8"].make(lab)
    rows = {row.what: row for row in made.rows}
    assert rows["DiLoCo: Gini 0.3"].ours == "103.5 (100 to 109) s, 2 GB"
    assert rows["DiLoCo: Gini 0.3"].why == ("k = 8, stated batches, no momentum, learning rate 0.4")
    assert rows["HAAF: Gini 0.3"].ours == "not within 3000 s"
    assert rows["first: Gini 0"].ours.startswith("DiLoCo; the next, packed BSP, takes 3.")
    assert rows["a round of packed BSP: Gini 0"].ours == "40.35 (40 to 40.9) s"
    cell = made.data["picture"]["grid"]["cells"]["Gini 0.6"]
    assert cell["name"] == "DiLoCo"
    assert cell["lines"][:3] == ["DiLoCo", "103.5 (100 to 109) s", "2 GB"]
    assert lab.seeds == {"tuning": {1000, 1001, 1002, 1003}, "measured": {*range(16)}}
