"""Who wins where: what cells are made of, how rates are chosen, and what rows say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import papers
from anabranch import overlay as overlays
from anabranch.fleet import uneven_samples_per_s
from anabranch.net.errors import RunAborted
from anabranch_lab.run.scenario._checks import check
from anabranch_lab.run.scenario.tasks import Train
from papers import Lab, Outcome, Trial
from papers._choice import Choice, best_rate
from papers.map import _setting as setting
from papers.map._setting import FORESTS, SCHEMES

ALL = {**SCHEMES, **FORESTS}


class TimedLab(Lab):
    """A lab whose runs take as long as a table says, by scheme or learning rate."""

    def __init__(self, folder: Path, seconds: Mapping[object, float | None], key: str) -> None:
        super().__init__(folder)
        self.seconds, self.key = seconds, key
        self.limits_s: dict[object, float | None] = {}

    def measure(self, trials: Sequence[Trial]) -> list[Outcome]:
        told = []
        for trial in trials:
            which = trial.labels[self.key]
            limit_s = trial.scenario.stop.after_s
            self.limits_s[which] = limit_s
            reached_s = self.seconds.get(which)
            if reached_s == -1:
                raise RunAborted("the loss is nan")
            if reached_s is not None and limit_s is not None and reached_s > limit_s:
                reached_s = None
            if reached_s is not None:
                reached_s += int(trial.labels["seed"]) % 10
            outcome = Outcome(trial.labels, "told.toml", 4, 40.0, 10.0, 0, 0.0, 1.0, 2.0, 3.0)
            told.append(replace(outcome, reached_s=reached_s, reached_updates=5.0, missed=0.5))
        return told


def tried(seconds: Mapping[object, float | None], tmp_path: Path) -> tuple[Choice | None, TimedLab]:
    lab = TimedLab(tmp_path, seconds, "rate")

    def make(rate: float, seed: int, most_s: float) -> Trial:
        return setting.trial(lab, SCHEMES["HAAF"], "aws-8", 0.3, rate, seed, most_s)

    return best_rate(lab, make, [1000, 1010], 500.0, []), lab


def test_the_best_rate_is_one_that_has_a_worse_one_on_either_side(tmp_path: Path):
    found, _ = tried({0.1: 90.0, 0.2: 80.0, 0.4: 70.0, 0.8: 60.0, 1.6: 65.0}, tmp_path)
    assert found == Choice(0.8, (60.0, 60.0), (0.2, 0.4, 0.8, 1.6))
    found, _ = tried({0.05: 50.0, 0.1: 40.0, 0.2: 80.0}, tmp_path)
    assert found == Choice(0.1, (40.0, 40.0), (0.2, 0.4, 0.1, 0.05))


def test_a_rate_that_takes_a_quarter_longer_is_given_up(tmp_path: Path):
    _, lab = tried({0.1: 90.0, 0.2: 80.0, 0.4: 200.0}, tmp_path)
    assert lab.limits_s[0.2] == 500
    assert lab.limits_s[0.4] == 100


def test_a_rate_with_which_a_run_diverges_or_does_not_get_there_loses(tmp_path: Path):
    found, _ = tried({0.1: 90.0, 0.2: None, 0.4: -1}, tmp_path)
    assert found is not None
    assert found.rate == 0.1
    assert tried({}, tmp_path)[0] is None


@pytest.mark.parametrize("name", setting.NETWORKS)
@pytest.mark.parametrize("gini", setting.GINIS)
def test_a_place_is_the_network_slowed_down_and_the_same_speeds_dealt_anew(name: str, gini: float):
    whole, server = overlays.load(name), setting.NETWORKS[name]
    (overlay, fleet), (_, again) = (setting.place(name, gini, seed) for seed in (0, 1))
    for link in whole.links:
        a, b = (overlay.index(whole.sites[k].name) for k in (link.source, link.target))
        slowed = overlay.link(a, b)
        assert slowed is not None
        assert slowed.rate_bps == pytest.approx(link.rate_bps / 400)
        assert (slowed.latency_s, slowed.loss) == (link.latency_s, link.loss)
    speeds = {site: each.samples_per_s for site, each in fleet.sites.items()}
    assert speeds.keys() == {site.name for site in whole.sites} - {server}
    expected = uneven_samples_per_s(whole.size - 1, 40 / 30, gini, 0)
    assert sorted(speeds.values()) == sorted(expected)
    assert speeds[overlay.sites[0].name] == max(expected)
    assert speeds != {site: each.samples_per_s for site, each in again.sites.items()}


@pytest.mark.parametrize("scheme", ALL)
@pytest.mark.parametrize("name", setting.NETWORKS)
def test_every_scheme_can_run_with_the_same_sites_and_data(scheme: str, name: str, tmp_path: Path):
    trial = setting.trial(Lab(tmp_path), ALL[scheme], name, 0.3, 0.2, 7)
    check(trial.scenario, trial.overlay)
    server = trial.overlay.index(setting.NETWORKS[name])
    assert trial.scenario.workers(trial.overlay) == [
        site for site in range(trial.overlay.size) if site != server
    ]


@pytest.mark.parametrize("gini", setting.GINIS)
def test_tuned_batches_add_up_to_as_many_samples_and_steps_are_as_long(gini: float, tmp_path: Path):
    how = SCHEMES["packed, BSP, tuned"]
    trial = setting.trial(Lab(tmp_path), how, "internet2-9", gini, 0.2, 7)
    task, fleet = trial.scenario.task, trial.scenario.compute
    assert isinstance(task, Train)
    assert fleet is not None
    speeds = [each.samples_per_s or 0.0 for each in fleet.sites.values()]
    batches = [task.batch_size * speed / min(speeds) for speed in speeds]
    assert sum(batches) == pytest.approx(8 * setting.BATCH, rel=0.03)
    assert task.learning_rate * sum(batches) / task.batch_size / 8 == pytest.approx(0.2, rel=0.03)


def rows(seconds: Mapping[object, float | None], tmp_path: Path) -> dict[str, str]:
    lab = TimedLab(tmp_path, seconds, "scheme")
    made = papers.EXPERIMENTS["map/aws-8-gini-0.6"].make(lab)
    return {row.what: row.ours for row in made.rows}


def test_rows_say_who_is_first_and_by_how_much(tmp_path: Path):
    seconds: dict[object, float | None] = dict.fromkeys(SCHEMES, 400.0)
    seconds |= {"HAAF": None, "our forest, asp, tuned": 100.0, "asynchronous PS": 200.0}
    found = rows(seconds, tmp_path)
    ours = "our forest, asp, tuned"
    assert found[f"{ours}: to the target"] == "104 (100 to 107) s"
    assert found["HAAF: to the target"] == "not before its run ends"
    assert found[f"{ours}: over asynchronous PS, seed by seed"] == (
        "0.51 (0.50 to 0.52); sooner in 8 of 8, p = 0.00781"
    )
    assert found[f"HAAF: over {ours}, seed by seed"] == (
        "in no seed do both reach it; sooner in 0 of 8, p = 0.00781"
    )
    assert found[f"{ours}: first in"] == "8 of 8"
    assert found["asynchronous PS: first in"] == "0 of 8"
    assert found[f"{ours}: its time"].startswith(
        "5.0 (5.0 to 5.0) updates a worker, 20.7 (20.0 to 21.4) s each; 40% computing, "
        "30% pulling, 20% pushing, 10% blocked"
    )


def test_where_none_reaches_the_target_none_is_first(tmp_path: Path):
    found = rows({}, tmp_path)
    assert found["HAAF: first in"] == "0 of 8"
    assert found["HAAF: over R²SP, tuned, seed by seed"] == (
        "in no seed do both reach it; sooner in 0 of 8, p = 1"
    )
