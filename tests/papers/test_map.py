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
from papers import Lab, Outcome, Trial
from papers.map import _setting as setting
from papers.map._setting import SCHEMES, settings
from papers.map.network import verdict


class TimedLab(Lab):
    """A lab whose runs take as long as a table says, by scheme; by rate, the best is the first."""

    def __init__(self, folder: Path, seconds: Mapping[str, float | None]) -> None:
        super().__init__(folder)
        self.seconds = seconds
        self.used: dict[str, set[int]] = {"tuning": set(), "measured": set()}

    def measure(
        self, trials: Sequence[Trial], simulated: bool = False, may_abort: bool = False
    ) -> list[Outcome]:
        told = []
        for trial in trials:
            labels = trial.labels
            self.used[str(labels["use"])].add(int(labels["seed"]))
            reached_s = self.seconds.get(str(labels["scheme"]))
            if reached_s is not None:
                reached_s *= 1 + abs(math.log2(float(labels["rate"]) / setting.FIRST_RATE))
                reached_s += int(labels["seed"]) % 10
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
        trial = setting.trial(Lab(tmp_path), each, name, 0.6, 0.2, 7)
        check(trial.scenario, trial.overlay)
        assert len(trial.scenario.workers(trial.overlay)) == trial.overlay.size


def test_models_that_are_averaged_with_a_period_are_evaluated_at_its_end(tmp_path: Path):
    looked = {
        (scheme, each.name): setting.trial(
            Lab(tmp_path), each, "lan", 0.0, 0.2, 7
        ).scenario.task.evaluate_every
        for scheme in ("every k steps", "DiLoCo", "gossip in pairs", "packed BSP")
        for each in settings(scheme, 0.0)
    }
    letters = {name: k for (scheme, name), k in looked.items() if "gossip" in scheme}
    assert letters == {"a letter a step": 4, "a letter every 8 steps": 8}
    others = {name: k for (scheme, name), k in looked.items() if "gossip" not in scheme}
    assert others == {"": 1, "k = 4": 4, "k = 16": 16, "k = 64": 64}


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


def test_served_schemes_may_have_their_batches_tuned_and_none_states_them_where_all_are_alike():
    tuned = {name for name in SCHEMES if settings(name, 0.0)[0].batches == "tuned"}
    assert tuned == {"R²SP", "HAAF", "asynchronous PS"}
    assert [each.batches for each in settings("R²SP", 0.0)] == ["tuned", "equal"]
    assert [each.batches for each in settings("packed BSP", 0.0)] == ["equal"]


def test_a_rival_whose_interval_reaches_one_makes_it_none():
    first = [10.0, 11.0, 12.0]
    clear = verdict({"a": first, "b": [2.5 * each for each in first]}, 99.0)
    assert clear.first == "a"
    assert clear.told == "a; times as long, the next: b 2.50 (2.50 to 2.50)"
    near = verdict({"a": first, "b": [9.0, 13.0, 13.0]}, 99.0)
    assert near.alike == ["b"]
    assert near.told.startswith(
        "none: a has the least mean where all seeds reach it; over it, b 1.0"
    )
    assert verdict({"a": [math.inf, 1.0]}, 99.0).told == (
        "none: no scheme reaches the target with all seeds"
    )


def test_a_rival_that_misses_the_target_once_is_no_first_and_yet_compared():
    first = [10.0, 11.0, 12.0]
    quick = {"a": first, "b": [math.inf, 5.0, 6.0], "c": [math.inf] * 3}
    found = verdict(quick, 20.0)
    assert found.first == "a"
    assert found.alike == [*found.margins] == ["b"]
    assert "b at least 0.77" in found.told
    assert found.told.endswith("1 missed")


def test_intervals_of_several_rivals_are_wider_than_that_of_one():
    times_s = {"a": [10.0, 11.0, 12.0, 10.0], "b": [20.0, 21.0, 25.0, 22.0]}
    ((_, low, _),) = verdict(times_s, 99.0).margins.values()
    with_others = verdict(times_s | {"c": [50.0] * 4, "d": [60.0] * 4}, 99.0)
    assert with_others.margins["b"][1] < low


def test_rows_and_the_picture_say_who_is_first_with_which_bytes(tmp_path: Path):
    seconds: dict[str, float | None] = dict.fromkeys(SCHEMES, 400.0)
    seconds |= {"HAAF": None, "DiLoCo": 100.0}
    lab = TimedLab(tmp_path, seconds)
    made = papers.EXPERIMENTS["map/aws-8"].make(lab)
    rows = {row.what: row for row in made.rows}
    assert rows["DiLoCo: Gini 0.3"].ours == "103.5 (100 to 107) s, 2 GB"
    assert rows["DiLoCo: Gini 0.3"].why == ("k = 4, stated batches, learning rate 0.4")
    assert rows["HAAF: Gini 0.3"].ours == "not within 3000 s"
    assert rows["first: Gini 0"].ours.startswith("DiLoCo; times as long, the next: packed BSP 3.")
    assert (
        rows["a round of packed BSP: Gini 0"].ours
        == "40.35 (40 to 40.7) s, 20.2 steps of a mean site"
    )
    cell = made.data["picture"]["grid"]["cells"]["Gini 0.6"]
    assert cell["name"] == "DiLoCo"
    assert cell["lines"][:3] == ["DiLoCo", "103.5 (100 to 107) s", "2 GB"]
    assert lab.used == {"tuning": {1000, 1001}, "measured": {*range(8)}}
