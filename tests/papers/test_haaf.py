"""HAAF: its fleets, runs to the end, numbers of trees and gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anabranch.fleet import uneven_samples_per_s
from anabranch_lab.run.control import first_plan
from anabranch_lab.run.scenario import compute_model, loads
from papers import EXPERIMENTS, Lab, Outcome, Trial
from papers._scenario_file import scenario_toml
from papers.haaf import _setting as haaf
from papers.haaf import _told, fig08, fig13, trees
from papers.haaf.fig13 import off_diagonal

from ..every import every
from .told import ToldLab


@pytest.mark.slow
def test_a_forest_is_looked_at_about_as_often_as_asked_and_counts_its_trees(tmp_path: Path):
    quick = Lab(tmp_path, quick=True)
    case = haaf.Case(0.6, seed=1)
    trial = replace(haaf.trial(quick, haaf.haaf(), case, 0.2), without=())
    (done,) = quick.measure([trial])
    assert done.trees is not None
    assert haaf.FEW < done.trees <= haaf.WORKERS
    assert done.look_s == pytest.approx(haaf.takes_s(case, 36), rel=0.5)
    assert done.curve[-1][1] == pytest.approx(done.accuracy, abs=1e-5)
    # Alone in its tree, or with others as fast, the slowest worker computes nearly all the time.
    slowest = max(done.workers.values(), key=lambda each: each.iteration_s)
    assert 0.9 < slowest.compute_s / slowest.iteration_s <= 1


def test_workers_are_as_uneven_as_asked_and_the_server_computes_nothing() -> None:
    case = haaf.Case(0.6, seed=3, workers=6)
    scenario, overlay = haaf.scenario(haaf.ps(6), case, 0.1), haaf.network(3, 6)
    speeds = compute_model(scenario, overlay)
    assert speeds is not None
    taken = sorted(1 / speeds.mean_s(site, haaf.BATCH) for site in range(6))
    assert taken == pytest.approx(sorted(uneven_samples_per_s(6, 10.0, 0.6, seed=3)))
    assert scenario.workers(overlay) == [*range(6)]


def test_two_speeds_have_the_gini_coefficient_and_one_slowest_at_each_number() -> None:
    for workers in (4, 12, 24):
        case = haaf.Case(0.6, seed=0, workers=workers, fast=workers // 4)
        times_s = haaf.batch_times_s(case)
        speeds = sorted(case.batch_s / each for each in times_s)
        assert sum(speeds) == pytest.approx(workers)
        between = sum(abs(a - b) for a in speeds for b in speeds)
        assert between / (2 * workers * sum(speeds)) == pytest.approx(0.6)
        assert max(times_s) == pytest.approx(0.5)


def test_schemes_that_wait_for_no_one_end_after_as_many_batches_not_as_much_time() -> None:
    small = replace(haaf.LENET, data="digits", model="mlp", batches=240, batch=16)
    case = haaf.Case(0.6, seed=0, learner=small)
    schemes = {"HAAF": haaf.haaf(3), "asynchronous PS": haaf.ASYNCHRONOUS_PS}
    ends_s = {name: haaf.batches_end_s((how, case)) for name, how in schemes.items()}
    # Its fast workers wait for no tree, so it computes as many batches in less time.
    assert ends_s["asynchronous PS"] < 0.8 * ends_s["HAAF"]
    later_s = haaf.batches_end_s((haaf.haaf(3), replace(case, learner=replace(small, batches=480))))
    assert 1.5 * ends_s["HAAF"] < later_s < 2.5 * ends_s["HAAF"]
    # Eight local steps are eight batches of one update, so fewer updates go over the links.
    local_s = haaf.batches_end_s((haaf.haaf(3), replace(case, steps=8)))
    assert 0.4 * ends_s["HAAF"] < local_s < 1.2 * ends_s["HAAF"]


@pytest.mark.parametrize("most", [1, 3, None])
def test_haaf_has_at_most_as_many_trees_as_its_scenario_says(most: int | None) -> None:
    case = haaf.Case(0.6, seed=2)
    scenario = loads(scenario_toml(haaf.scenario(haaf.haaf(most), case, 0.1)))
    trees = len(first_plan(scenario, haaf.network(2)).groups)
    assert trees == most if most else trees > haaf.FEW


def test_a_run_to_the_end_has_as_many_batches_at_any_scheme() -> None:
    waits = haaf.scenario(haaf.ps(), haaf.Case(0.3, seed=0), 0.1).stop
    hurries = haaf.scenario(haaf.haaf(), haaf.Case(0.3, seed=0), 0.1).stop
    assert (waits.rounds * haaf.WORKERS, waits.after_s) == (haaf.LENET.batches, None)
    assert hurries.after_s == haaf.LENET.batches / 48
    to_target = haaf.scenario(haaf.ps(), haaf.Case(0.3, seed=0), 0.1, ends_s=9.0).stop
    assert (to_target.after_s, to_target.at_target) == (9.0, True)


@pytest.mark.slow
@pytest.mark.long
def test_figures_that_share_runs_say_the_same_together_and_alone(tmp_path: Path):
    """A run that one of them has made must have kept what the next one needs."""
    names = ["haaf/fig10", "haaf/fig11"]
    together = Lab(tmp_path, quick=True)
    found = [EXPERIMENTS[name].make(together).rows for name in names]
    assert found[1] == EXPERIMENTS[names[1]].make(Lab(tmp_path, quick=True)).rows


@pytest.mark.parametrize(("searched", "rate", "runs"), [(3, 0.2, 1), (3, 0.4, 2), (4, 0.2, 2)])
def test_few_trees_are_run_again_only_where_the_search_takes_more_or_another_rate_is_best(
    searched: int, rate: float, runs: int, tmp_path: Path
):
    asked: list[Trial] = []

    class Searching(ToldLab):
        def measure(
            self, trials: Sequence[Trial], simulated: bool = False, may_abort: bool = False
        ) -> list[Outcome]:
            asked.extend(trials)
            return [replace(each, trees=searched) for each in super().measure(trials)]

    told = Searching(tmp_path, quick=True)
    rates = {haaf.FEW_TREES: {0.3: rate}, haaf.ANY_TREES: {0.3: 0.2}}
    found = haaf.forests(told, [haaf.Case(0.3, seed=0)], rates)
    assert len(asked) == runs
    assert [each.labels["scheme"] for each in found] == [haaf.ANY_TREES, haaf.FEW_TREES]


def test_an_accuracy_may_have_to_be_reached_in_the_mean_of_several_evaluations() -> None:
    curve = ((1.0, 0.9), (2.0, 0.5), (3.0, 0.8), (4.0, 0.9))
    run = Outcome({}, "", 1, 4.0, 1.0, 0, reached_s=7.0, curve=curve)
    assert [_told.reached_s(run, 0.8, part) for part in (0.0, 0.3, 0.75)] == [1.0, 4.0, np.inf]
    assert _told.reached_s(run) == 7.0


def test_each_number_of_trees_has_a_forest_of_all_workers() -> None:
    planned = trees.plan(trees.Plan(0.3, 0.1, 6, 0, all_numbers=True), None)
    (searched,) = trees.plan(trees.Plan(0.3, 0.1, 6, 0), None)
    assert [len(each.groups) for each in planned] == [*range(1, 7)]
    everyone = [f"site{k}" for k in range(6)]
    assert every(sorted(sum(each.groups, ())) == everyone for each in planned)
    assert min(each.objective_s for each in planned) <= searched.objective_s
    # A tree of one worker waits for no other: its latency is its way to the server.
    assert planned[-1].objective_s < 0.5 * 6 * 0.06 + 0.1


def test_the_gradients_of_roots_are_kept_for_each_of_their_updates() -> None:
    seen = fig08.watch(fig08.Watch(haaf.LENET, 0, 0.1, quick=True), None)
    assert 1 < len(seen.trees) <= haaf.FEW
    periods = [each.period_s for each in seen.trees]
    assert periods == sorted(periods)
    for tree in seen.trees:
        assert len(tree.places) == pytest.approx(3.0 / tree.period_s, abs=2)
        assert tree.losses[1] < tree.losses[0]
    assert 0.1 < seen.share < 1.0


def test_first_gradients_are_more_alike_where_labels_are_resampled() -> None:
    plain, resampled = (
        fig13.similarity(fig13.First(1.0, beta, 5, quick=True), None) for beta in (0.0, 0.999)
    )
    for alike in (plain.several, resampled.several):
        assert np.shape(alike) == (haaf.WORKERS, haaf.WORKERS)
        assert np.allclose(np.diag(alike), 1.0)
    assert off_diagonal(resampled.several) > off_diagonal(plain.several) + 0.1


def test_where_workers_wait_for_each_other_each_third_round_is_looked_at(tmp_path: Path):
    quick = Lab(tmp_path, quick=True, seed=5)
    how = haaf.synchronous()["FAT"]
    (done,) = quick.measure([haaf.trial(quick, how, haaf.Case(0.3, seed=5), 0.2)])
    assert done.look_s == pytest.approx(3 * done.round_s, rel=0.3)
    assert done.trees is None
