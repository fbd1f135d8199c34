"""Every experiment: what it asks of the lab can run, and what it says follows from the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import papers
from anabranch._typed_toml import tag_of
from anabranch.fleet import Compute, uneven_samples_per_s
from anabranch.log.events import Evaluated, StepDone, UpdateCame
from anabranch.overlay import internet2_9
from anabranch.pace import Bsp, R2sp, Ssp
from anabranch.plan import Fapt, Packed, Star
from anabranch.scheduler.deal import cuts_tensors
from anabranch.train.schedules import Constant, InversePower
from anabranch_lab.run.control import first_plan
from anabranch_lab.run.scenario import compute_model, load, loads
from anabranch_lab.run.scenario.tasks import Exchange, Train
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.profiles import ALEXNET
from papers import EXPERIMENTS, Experiment, Lab, Outcome, Result, Trial, WorkerOutcome
from papers._outcome import fell_s
from papers._scenario_file import scenario_toml
from papers.haaf import _setting as haaf
from papers.haaf import _told, fig08, fig13, trees
from papers.haaf.fig13 import off_diagonal
from papers.intermittent._literal import Literal
from papers.intermittent._runs import Job
from papers.intermittent._runs import Made as MadeLiterally
from papers.netstorm import _setting as setting
from papers.netstorm import fig14, fig19
from papers.netstorm import training as netstorm_training
from papers.netstorm.fig13 import cubic_bps, hub_and_spokes, one_connection_each
from papers.netstorm.tables import turns
from papers.r2sp import _federated as federated
from papers.r2sp import _setting as r2sp
from papers.r2sp import _training as training
from papers.r2sp import edges, fig01, fig05, fig15, theorem1
from papers.r2sp import fig14 as r2sp_fig14
from papers.r2sp._federated import Seen
from papers.r2sp._setting import PACES
from papers.r2sp.fig04 import Algorithm1, search, worst
from papers.r2sp.fig15 import Trained

from ..every import every

SECONDS = {
    "star": 100.0,
    "balanced": 80.0,
    "mst": 50.0,
    "fapt": 25.0,
    "packed": 10.0,
    "forest": 15.0,
}
ALL = list(EXPERIMENTS.values())


class ToldLab(Lab):
    """A lab whose runs take what a table says, by their route and what they exchange."""

    trials: Sequence[Trial] = ()

    def measure(
        self, trials: Sequence[Trial], simulated: bool = False, may_abort: bool = False
    ) -> list[Outcome]:
        self.trials = list(trials)
        told = []
        for trial in trials:
            round_s = SECONDS[tag_of(trial.scenario.routes[0])]
            task = trial.scenario.task
            if isinstance(task, Exchange):
                round_s *= task.buffer_elements / ALEXNET.elements
            names = [trial.overlay.sites[k].name for k in trial.scenario.workers(trial.overlay)]
            workers = {name: WorkerOutcome(round_s, 0.1, 600.0, 0.8 * round_s) for name in names}
            served = (0.5, 0.1, 0.2 * round_s, 0.3 * round_s, workers)
            told.append(Outcome(trial.labels, "told.toml", 4, 4 * round_s, round_s, 0, *served))
            if isinstance(task, Train):  # the larger the steps, the sooner, but not always
                most = 0.3 if isinstance(task.schedule, Constant) else 2.0
                reached_s = None if task.learning_rate > most and trial.scenario.seed else round_s
                seen = {"accuracy": 0.5, "accuracy_by_site": {"a": 0.4, "b": 0.6}}
                seen["curve"] = ((0.5 * round_s, 0.7), (round_s, 0.8))
                told[-1] = replace(told[-1], reached_s=reached_s, reached_updates=4.0, **seen)
        return told

    def map(self, make: Callable[..., Any], jobs: Sequence[Any], kind: type) -> list[Any]:
        how = getattr(make, "func", make)
        return [_made(how, job) for job in jobs]


def _made(how: Callable[..., Any], job: Any) -> Any:
    """Return what a job comes to, as it is told."""
    if how is federated.observe:
        groups = job.under.groups
        return Seen(10.0 / groups, 0.1, 2.0 / groups, 0.5, 1.0, 0.1, 3e6 / groups)
    if how is fig15.train:
        looks = fig15.Look(1.0, 1.0, 0.5), fig15.Look(2.0, 2.0, 0.7 + job.seed / 1000)
        return Trained(looks, 2, 1, (0.2, 0.8))
    if how is fig01.watch:
        return fig01.Traffic((0.6, 0.4), (0.125, 0.25), (((1.0, 4.0, 0.5, 0.5),),) * 2)
    if how is fig05.time:
        return fig05.Timed(tuple(0.1 + 0.01 * batch for batch in job[1]))
    if how is search:
        return search(job)
    if how is fig08.watch:
        fast = fig08.Rooted(1.0, [(0.0, 1.0)] * 4, (1.0, 1.0), (2.0, 1.0))
        return fig08.Seen([fast, replace(fast, period_s=3.0, losses=(2.0, 1.5))], 0.4)
    if how is fig13.similarity:
        return fig13.Alike([[1.0, job.beta], [job.beta, 1.0]], [[1.0, 0.5], [0.5, 1.0]])
    if how is trees.plan:
        groups = [[("site0", "site1")], [("site0",), ("site1",)]]
        told = [trees.Planned(tuple(each), 0.25) for each in groups]
        return told * 6 if job.all_numbers else told[1:]
    if how is haaf.batches_end_s:
        return 20.0
    if how is edges.train:
        reached_s = 10.0 * job.clients + job.seed
        return edges.Trained(reached_s, ((9.0, 0.7), (reached_s, 0.8)))
    assert isinstance(job, Job)
    return MadeLiterally([], Literal({"first": 10.0 + job.seed, "mean": 20.0, "all": None}))


def lab(tmp_path: Path, quick: bool = True, emulate: bool = False) -> ToldLab:
    return ToldLab(tmp_path, quick=quick, seed=5, emulate=emulate)


Made = Callable[..., tuple[Result, Sequence[Trial]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Make an experiment, once for all tests of a worker: its result and its runs."""

    @cache
    def made(experiment: Experiment, quick: bool, emulate: bool) -> tuple[Result, Sequence[Trial]]:
        told = lab(tmp_path_factory.mktemp("lab"), quick, emulate)
        return experiment.make(told), told.trials

    return made


@pytest.mark.parametrize("experiment", ALL, ids=lambda each: each.name)
@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_run_of_an_experiment_is_a_scenario_with_labels_of_its_own(
    experiment: Experiment, quick: bool, made: Made
):
    result, trials = made(experiment, quick, False)
    assert result.rows
    labels = [tuple(sorted((k, str(v)) for k, v in each.labels.items())) for each in trials]
    assert len(set(labels)) == len(labels)
    for trial in trials[:: max(1, len(trials) // 12)]:  # alike, but for numbers
        assert loads(scenario_toml(trial.scenario)) == trial.scenario


@pytest.mark.parametrize("experiment", [each for each in ALL if each.emulable])
def test_emulation_leaves_out_what_it_cannot_do(experiment: Experiment, made: Made):
    (_, whole), (result, emulated) = made(experiment, True, False), made(experiment, True, True)
    assert result.rows
    assert len(emulated) <= len(whole)


@pytest.mark.parametrize("experiment", ALL, ids=lambda each: each.name)
def test_a_row_with_the_papers_figure_has_ours(experiment: Experiment, made: Made):
    rows = made(experiment, True, False)[0].rows
    edges = {"r2sp/edges-128", "r2sp/edges-1024"}
    ours = {"map", "intermittent/adaptive", "intermittent/steps3", "intermittent/steps9"}
    beyond = {"r2sp/robust", *edges, *ours}  # of which the paper says nothing
    names = {experiment.name, experiment.name.partition("/")[0]}
    assert any(row.paper for row in rows) == (not names & beyond)
    assert every(row.ours or row.literal for row in rows)


def ours(name: str, what: str, tmp_path: Path) -> str:
    (row,) = [row for row in EXPERIMENTS[name].make(lab(tmp_path)).rows if row.what == what]
    return row.ours


@pytest.mark.parametrize(
    ("name", "what", "expected"),
    [
        (
            "r2sp/table4",
            "CNN, program as in Table V: a round of FL-R²SP",
            "1.25 s, 0.12 of BSP's",
        ),
        (
            "r2sp/fig17",
            "CNN, port of 10 Gbit/s: peak of the uplink, BSP over FL-R²SP",
            "8.00 (3 Mbit/s, 0 Mbit/s)",
        ),
        (
            "r2sp/fig15",
            "softmax, ASP: accuracy, and points beside BSP with the filter",
            "after 6 rounds 60.2 %, +0.0",
        ),
        (
            "r2sp/fig15",
            "softmax: converged by the paper's rule, both with the filter (Table IV)",
            "BSP not in 2 rounds; FL-R²SP not in 2 rounds",
        ),
        (
            "r2sp/fig01",
            "VGG16, 3 workers: a worker's share of the uplink while it uses it, BSP and R²SP",
            "BSP 0.25, R²SP 0.25",
        ),
        (
            "r2sp/fig05",
            "ResNet32, g3.4xlarge: the batch that takes as long as 1000 on a g2.2xlarge",
            "2303",
        ),
        (
            "r2sp/theorem1",
            "VGG16: BSP, a constant rate",
            "rate 0.2: 25 (25 to 25) s, 4 iterations; of R²SP, a constant rate's time 1.000; "
            "sooner in 0 of 1",
        ),
        ("haaf/fig08", "slowest tree, loss in both halves: LeNet-5", "2.00, 1.50"),
        (
            "haaf/fig08",
            "slowest beside fastest tree, loss in the second half: CNN-6",
            "+0.50",
        ),
        (
            "r2sp/edges-128",
            "16 uneven clients, edges, in turns",
            "165 (165 to 165) s; 1.000; sooner in 0 of 1",
        ),
        (
            "haaf/fig09",
            "HAAF, at most 3 trees, to 70%, over PS: Gini 0.6",
            "0.150; sooner in 1 of 1",
        ),
        (
            "haaf/fig09-cnn6",
            "HAAF, trees as searched, final accuracy beside PS: Gini 0.1",
            "+0.0 points",
        ),
        ("haaf/fig10", "HAAF, a = 0.8, final accuracy: Gini 0.3", "50.0 %"),
        ("haaf/fig11", "q = 0, variance over workers: Gini 0.6", "100.0"),
        ("haaf/fig11", "q = 5, variance over workers beside q = 0: Gini 0.6", "1.00"),
        ("haaf/fig12", "beta 0.999, beside beta 0: alpha 0.1", "+0.0 points"),
        ("haaf/fig13", "first batch, gain: alpha 1", "+1.00"),
        ("haaf/fig14", "HAAF, trees as searched, mean share, %: Gini 0.6", "80.0"),
        (
            "haaf/fig15",
            "FAT, to 80%, over PS: 24 workers",
            "0.250; sooner in 1 of 1",
        ),
        (
            "haaf/trees",
            "K = 1, to 75%, over PS: Gini 0.3",
            "eq. 14: 0.25 s; the best rate, 0.4: sooner in 0 of 1; in 0 do both reach it; "
            "PS's rate, 0.2: 0.150; sooner in 1 of 1",
        ),
        ("intermittent/table1", "all-reduce every 4", "100 (100 to 100)"),
        (
            "intermittent/table2",
            "pairs, half, over the best of the six",
            "6.455 (4.28 to 9.73); sooner in 0 of 2",
        ),
        ("intermittent/steps3", "0.5 s an iteration: gossip, half", "100 (100 to 100)"),
        ("intermittent/future9", "ours: average after a move of 5 %", "100 (100 to 100)"),
        (
            "netstorm/fig01",
            "a round, up and down, the model one chunk: FAPT over the star",
            "4.0x, 4.0x to 4.0x",
        ),
        (
            "netstorm/fig01",
            "eq. 2, the balanced tree of Fig. 1c: subtrees v2, v3, v4, v5, and all",
            "24, 20, 23, 7, and 57",
        ),
        (
            "netstorm/fig13",
            "static: NetStorm pro over MLNET, by MLNET's root",
            "best 3.2x, 3.2x to 3.2x; median 3.2x, 3.2x to 3.2x; worst 3.2x, 3.2x to 3.2x",
        ),
        (
            "netstorm/fig13",
            "dynamic: packed trees over MXNET, by MXNET's root",
            "best 10.0x; median 10.0x; worst 10.0x",
        ),
        ("netstorm/fig14", "dynamic: adaptive FAPT over static FAPT", "+0 %"),
        (
            "netstorm/fig14",
            "static: FAPT up and down over leaf to root",
            "+0 %, +0 % to +0 %; the same root in 1 of 3",
        ),
        (
            "netstorm/fig14",
            "static, symmetric links: FAPT over star, each at its best, median, worst root",
            "best 4.0x, 4.0x to 4.0x; median 4.0x, 4.0x to 4.0x; worst 4.0x, 4.0x to 4.0x",
        ),
        ("netstorm/fig15", "dynamic: 9 roots over 1", "+0 %"),
        ("netstorm/fig16", "packed trees", "10.0 s -> 10.0 s (+0 %)"),
        (
            "netstorm/fig17",
            "ours: the paper's default (2, 1), and its best (2, 5)",
            "(2, 1) +0 %; (2, 5) +0 %",
        ),
        ("netstorm/fig18", "std over lite", "+0 %"),
        ("netstorm/fig18", "packed trees over pro, ours", "+150 %"),
        ("netstorm/fig19", "a: AlexNet over ResNet-152, parameters a second, pro", "+0 %"),
        ("netstorm/tables", "Table II: UPDATE_TIME", "1 s"),
        (
            "r2sp/table1",
            "Inception-v3: communication under BSP",
            "92.8% (9.05 of 9.75 s) at 4.7 Gbit/s",
        ),
        (
            "r2sp/fig02",
            "ResNet32: an iteration of 1 worker for one of 8",
            "0% less (0.19 for 0.19 s)",
        ),
        ("r2sp/table3", "all: samples/s, tuned over equal batches", "+0% (25275 to 25275)"),
    ],
)
def test_rows_compare_what_they_say(name: str, what: str, expected: str, tmp_path: Path):
    assert ours(name, what, tmp_path) == expected


def test_rounds_that_grow_with_the_model_have_its_slope(tmp_path: Path):
    what = "a: seconds for each further million of parameters, star and pro"
    assert ours("netstorm/fig19", what, tmp_path) == "1.64 s, 0.41 s: 4.0x"


def test_a_scaling_efficiency_of_equal_rounds_is_one(tmp_path: Path):
    what = "b: scaling efficiency of pro, samples/s from 5 to 15 sites"
    assert ours("netstorm/fig19", what, tmp_path) == "1.00, 1.00 to 1.00"


def test_a_paper_names_all_its_figures_and_a_figure_itself():
    assert papers.find("netstorm") == [e for e in ALL if e.name.startswith("netstorm/")]
    assert [each.name for each in papers.find("netstorm/fig17")] == ["netstorm/fig17"]
    with pytest.raises(ValueError, match="did you mean 'netstorm/fig1"):
        papers.find("netstorm/fig1")


# --- HAAF


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


# --- Fig. 4 of R²SP: every schedule


@pytest.mark.parametrize("lead", [0, 1, 2])
def test_the_promise_of_ssp_is_what_some_schedule_reaches(lead: int):
    pushes = lead + (2 * lead + 1) + 1
    assert worst(Ssp(lead=lead), 2, pushes)[0] == Ssp(lead=lead).staleness_bound(2)


def test_the_papers_example_is_that_of_ssp_if_pushes_wait_too():
    everything = worst(Ssp(lead=1), 3, 8)
    assert everything == worst(Ssp(lead=1), 3, 8, alike=True) == (6, (1, 2, 2, 3, 2, 3, 3, 1))
    assert worst(Ssp(lead=1), 3, 8, lead=1) == (4, (1, 2, 3, 2, 3, 1))


@pytest.mark.parametrize("relaxation", [0.0, 0.8])
def test_nobody_misses_more_than_one_turn_of_each_other_under_r2sp(relaxation: float):
    assert worst(R2sp(relaxation=relaxation), 3, 7)[0] == 2


def test_an_update_that_counts_as_it_comes_may_miss_two_of_each_other_worker():
    assert worst(Algorithm1(), 3, 12) == (4, (1, 1, 2, 2, 3))


def test_schedules_are_as_long_as_asked():
    assert worst(Ssp(lead=1), 3, 2) == (1, (1, 2))
    assert worst(Bsp(), 3, 7)[0] == 0


# --- R²SP's clusters


def test_under_a_barrier_all_share_the_servers_ports(tmp_path: Path):
    overlay = r2sp.cluster(1e9, workers=4, servers=2)
    scenario = r2sp.served(1_000_000, PACES["BSP"], 4, overlay, None, 0)
    (outcome,) = Lab(tmp_path).measure([Trial({}, scenario, overlay)])
    shared_s = 4 * 32e6 / 2 / 1e9
    assert outcome.push_s == pytest.approx(shared_s, rel=0.01)
    assert outcome.pull_s == pytest.approx(shared_s, rel=0.01)
    assert list(outcome.workers) == [f"worker-{k}" for k in range(1, 5)]
    assert r2sp.steady_s([outcome]) == pytest.approx(2 * shared_s, rel=0.01)


def test_emulated_paces_stand_beside_their_simulation(tmp_path: Path):
    emulated = lab(tmp_path, emulate=True)
    rows = EXPERIMENTS["r2sp/fig08"].make(emulated).rows
    assert {trial.overlay.size for trial in emulated.trials} == {5}
    assert every(row.why.startswith("simulated ") for row in rows)


def test_the_loss_has_fallen_once_ten_iterations_of_all_workers_were_below_a_bound():
    def fell(losses: Sequence[float]) -> float | None:
        steps = [
            StepDone(at_s=float(at), site=at % 2, round=1, loss=loss, samples=1, compute_s=0.1)
            for at, loss in enumerate(losses)
        ]
        return fell_s(steps, workers=2, below=0.4)

    low, high = [0.1, 0.5], [0.1, 0.9]  # of two workers; the mean counts
    assert fell(10 * low) == 19.0
    assert fell(9 * low + high + 10 * low) == 39.0
    assert fell(9 * low + high + 9 * low) is None


def test_the_small_model_moves_as_slowly_as_the_large_one():
    cluster = training.Cluster(r2sp.VGG16.elements, Compute(samples_per_s=1.0), window_s=1.0)
    overlay = cluster.overlay()
    port_bps = overlay.sites[0].uplink_bps
    assert port_bps is not None
    assert training.DIGITS.elements / port_bps == pytest.approx(r2sp.VGG16.elements / 10e9)
    alone = cluster.overlay(all_reduces=True)
    assert [site.uplink_bps for site in alone.sites] == 16 * [port_bps]
    assert len(alone.links) == 16 * 15


@pytest.mark.parametrize("learner", [training.ALEXNET_LIKE, training.RESNET_LIKE])
def test_what_is_trained_on_cifar_10_has_a_million_parameters(learner: training.Learner) -> None:
    model = build_model(learner.model, (3, 32, 32), learner.classes, seed=0)
    assert sum(each.numel() for each in model.parameters()) == learner.elements > 1e6


@pytest.mark.parametrize("name", ["BSP", "ASP", "R²SP"])
def test_the_rate_of_theorem_1_falls_with_each_update_and_ours_alike_under_all_paces(
    name: str, tmp_path: Path
) -> None:
    told = lab(tmp_path)
    theorem1.EXPERIMENTS[0].make(told)
    schedules = {
        str(each.labels["name"]): each.scenario.task.schedule
        for each in told.trials
        if isinstance(each.scenario.task, Train)
    }
    updates = 1 if name == "BSP" else 16
    assert schedules[f"{name}, k^(-3/4)"] == InversePower(power=0.75)
    ours = schedules[f"{name}, (1 + k / 20 iterations)^(-3/4) (ours)"]
    assert ours.factor(20 * updates) == pytest.approx(2**-0.75)


def test_under_bsp_workers_share_a_port_that_is_idle_for_half_of_the_time_beside_computing():
    small = replace(r2sp.VGG16, elements=20_000_000, iteration_s=2.0, blocked_s=1.5)
    job = fig01.Watch(small, PACES["BSP"], 640e6 * 4 / 0.75, 4, 1, from_s=4.0)
    seen = fig01.watch(job)
    assert seen.idle == pytest.approx((0.625, 0.625), abs=0.08)
    assert seen.share == pytest.approx((0.25, 0.25), abs=0.05)
    seconds = [point[0] for point in seen.traces[0]]
    assert len(seconds) == 100
    assert seconds[-1] == pytest.approx(20.0)


def test_training_has_converged_when_no_evaluation_of_ten_rounds_was_a_new_best() -> None:
    def converged(accuracies: Sequence[float], a_round: int = 1) -> float | None:
        looks = tuple(
            fig15.Look(float(at), at / a_round, accuracy) for at, accuracy in enumerate(accuracies)
        )
        end = Trained(looks, 0, 0, (None, None)).converged()
        return None if end is None else end.rounds

    assert converged([0.1, 0.5, *9 * [0.4]]) is None
    assert converged([0.1, 0.5, *10 * [0.5], 0.9]) == 11
    assert converged([0.1, 0.5, *9 * [0.4], 0.6, *10 * [0.2]]) == 21
    # Rounds count, however often there are looks.
    assert converged([0.1, 0.5, *19 * [0.4]], a_round=2) is None
    assert converged([0.1, 0.5, *20 * [0.4]], a_round=2) == 10.5


def test_a_look_has_the_rounds_of_clients_that_are_never_barred() -> None:
    def came(site: int, update: int) -> UpdateCame:
        return UpdateCame(at_s=1.0, site=site, update=update)

    def looked(at_s: float) -> Evaluated:
        return Evaluated(at_s=at_s, site=0, round=0, accuracy=0.5)

    events = [*(came(site, 1) for site in range(4)), looked(2.0)]
    # Two of four are barred: a look after as many updates as there are clients is no round.
    events += [came(0, 2), came(1, 2), looked(3.0), came(0, 3), came(1, 3), looked(4.0)]
    looks = fig15._looks(events, {0, 1})
    assert [each.rounds for each in looks] == [1, 2, 3]
    trained = Trained(looks, 2, 2, (None, None))
    assert trained.curve(2) == [(2.0, 0.5), (3.0, 0.5)]


def test_an_accuracy_is_the_mean_of_the_looks_in_the_last_ten_rounds() -> None:
    looks = tuple(fig15.Look(float(at), at / 2, at / 100) for at in range(1, 61))
    trained = Trained(looks, 0, 0, (None, None))
    assert trained.after(20) == pytest.approx(sum(range(21, 41)) / 20 / 100)
    assert trained.after(100) == pytest.approx(sum(range(41, 61)) / 20 / 100)


def test_the_papers_groups_wait_for_their_fraction_and_ours_do_not() -> None:
    schemes = fig15.schemes(8)
    literal = {each.under for name, each in schemes.items() if name.startswith(("BSP", "FL-R²SP"))}
    ours = schemes["FL-R²SP, ours"].under
    assert {each.late_after for each in literal - {ours}} == {"never"}
    assert ours.late_after == 3.0


def test_a_picture_of_clients_has_each_in_one_phase() -> None:
    case = federated.Case(federated.CNN, federated.PROGRAM_5, federated.pace(2), clients=8)
    seen = federated.observe(case, draws=True)
    assert len(seen.phases) == 100
    assert every(7 <= sum(counts) <= 8 for _, *counts in seen.phases)
    assert federated.observe(case) == replace(seen, phases=(), uplink=())


@pytest.mark.parametrize("learner", [training.DIGITS, r2sp_fig14.T5, r2sp_fig14.BERT])
def test_what_is_trained_in_a_models_place_has_the_size_and_answers_that_are_told(
    learner: training.Learner,
) -> None:
    task = load_task(learner.data)
    model = build_model(
        learner.model,
        task.shape,
        task.classes,
        seed=0,
        hidden=learner.hidden or None,
        vocabulary=task.vocabulary,
    )
    assert sum(each.numel() for each in model.parameters()) == learner.elements
    assert task.classes == learner.classes
    assert learner.looked_at is None or learner.looked_at <= len(task.held_out_labels)


def test_workers_may_have_narrower_ports(tmp_path: Path):
    overlay = r2sp.cluster(1e9, workers=2, servers=1, worker_bps=1e8)
    scenario = r2sp.served(100_000, PACES["BSP"], 3, overlay, None, 0)
    (outcome,) = Lab(tmp_path).measure([Trial({}, scenario, overlay)])
    assert outcome.push_s == pytest.approx(3.2e6 / 1e8, rel=0.02)


@pytest.mark.parametrize("model", r2sp.MODELS, ids=lambda each: each.name)
def test_servers_hold_equal_parts_of_a_model(model: r2sp.Model):
    overlay = r2sp.cluster(servers=2)
    scenario = r2sp.served(model.elements, PACES["BSP"], 1, overlay, None, 0)
    assert scenario.chunk_elements is not None
    chunks = -(-model.elements // scenario.chunk_elements)
    assert chunks % 2 == 0
    assert scenario.chunk_elements <= r2sp.CHUNK_ELEMENTS


# --- the setting


def test_the_static_network_is_the_reference_and_the_dynamic_one_begins_as_it():
    static, dynamic = setting.reference(), setting.dynamic(3)
    assert static == internet2_9()
    assert [link.rate_bps for link in dynamic] == [link.rate_bps for link in static]
    traces = [link.trace for link in dynamic if link.trace is not None]
    assert len(traces) == 26
    assert traces[0].starts_s[:3] == (0.0, 180.0, 360.0)
    later = [rate for trace in traces for rate in trace.rates_bps[1:]]
    assert 20e6 <= min(later) < 25e6
    assert 150e6 < max(later) <= 155e6


def test_emulated_and_quick_all_but_latencies_is_a_tenth(tmp_path: Path):
    small = lab(tmp_path, quick=True, emulate=True)
    EXPERIMENTS["netstorm/fig18"].make(small)
    (std,) = [each for each in small.trials if each.labels["system"] == "std"]
    (aware,) = [each for each in small.trials if each.labels["system"] == "packed trees"]
    assert std.scenario.task == Exchange(elements=6_110_084)
    assert std.scenario.chunk_elements == 100_000
    assert std.scenario.awareness.probe_chunk_elements == 50_000
    assert std.scenario.awareness.update_time_s == 0.5
    assert aware.scenario.awareness.update_time_s == 0.1
    assert std.overlay.links[0].trace.starts_s[:2] == (0.0, 18.0)
    assert std.overlay.links[0].latency_s == setting.reference().links[0].latency_s


def test_drawn_networks_differ_and_follow_from_the_seed():
    first, second = setting.drawn(2, 7)
    assert first != second
    assert first.name != second.name
    assert setting.drawn(3, 7)[:2] == (first, second)
    assert every(link.trace is None for link in first)


def test_the_paper_measures_half_a_chunk():
    cut = setting.in_chunks_of(setting.PRO, 4096)
    assert cut.awareness is not None
    assert (cut.chunk_elements, cut.awareness.probe_chunk_elements) == (4096, 2048)
    assert setting.in_chunks_of(setting.PACKED, 4096).awareness == setting.PACKED.awareness


@pytest.mark.parametrize("sites", [5, 9, 15])
def test_networks_of_other_sizes_are_as_dense_as_the_papers(sites: int):
    assert len(fig19.sparse(sites, 0).links) == pytest.approx(26 / 9 * sites, abs=1)


# --- what connections do to a star


def test_a_connection_slows_with_its_path_as_cubics_response_says():
    # Per hop: round trip and loss grow alike, so the window stays, and the rate falls as 1 / hops.
    one, three = cubic_bps(1.0, 0.001), cubic_bps(3.0, 0.003)
    assert one == pytest.approx(8 * 1448 * 1.054 * 1000**0.75)
    assert three == pytest.approx(one / 3)


def test_at_short_round_trips_cubic_is_as_fast_as_reno():
    assert cubic_bps(0.001, 0.01) == pytest.approx(8 * 1448 * (1.5 / 0.01) ** 0.5 / 0.001)


def test_links_are_no_faster_than_one_connection_and_else_as_they_were():
    overlay, cap_bps = internet2_9(), cubic_bps(0.06, 0.0002)
    for before, after in zip(overlay, one_connection_each(overlay), strict=True):
        assert after.rate_bps == min(before.rate_bps, cap_bps)
        assert (after.latency_s, after.loss) == (before.latency_s, before.loss)


def test_a_hub_sees_each_site_over_one_long_connection():
    overlay = internet2_9()
    spokes = hub_and_spokes(overlay, overlay.index("dc1"))
    assert len(spokes.links) == 16
    far = spokes.link(overlay.index("dc9"), overlay.index("dc1"))
    assert far is not None
    hops = round(far.latency_s / 0.03)
    assert hops == 4
    assert far.loss == pytest.approx(1 - (1 - 0.0002) ** hops)
    assert far.rate_bps == pytest.approx(cubic_bps(2 * far.latency_s, far.loss))
    near = spokes.link(overlay.index("dc3"), overlay.index("dc1"))
    assert near is not None
    assert near.rate_bps == pytest.approx(cubic_bps(0.06, 0.0002))


def test_the_systems_are_the_papers():
    assert setting.MXNET.route == Star()
    assert setting.PRO.route == Fapt(shares="first", quality="leaf-to-root")
    assert every(
        each.cuts_tensors
        for each in (setting.MXNET, setting.MLNET, setting.TSENGINE, setting.LITE, setting.PRO)
    )
    assert not setting.OUR_PRO.cuts_tensors
    assert setting.PACKED.route == Packed()
    assert setting.LITE.awareness is None
    assert setting.STD.auxiliary is None
    assert setting.PRO.awareness == setting.STD.awareness == setting.PAPERS_AWARENESS
    assert {each.chunk_elements for each in (setting.MXNET, setting.LITE, setting.PRO)} == {10**6}


@pytest.mark.parametrize("system", [setting.LITE, setting.STD, setting.PRO], ids=lambda s: s.name)
def test_the_papers_stages_are_those_of_the_examples(system: setting.System):
    path = Path(__file__).parents[2] / f"examples/scenarios/netstorm-{system.name}.toml"
    example, _ = load(path)
    assert example.routes == (system.route,)
    assert (example.awareness, example.auxiliary) == (system.awareness, system.auxiliary)
    assert example.chunk_elements == system.chunk_elements
    assert example.adaptive is None
    assert cuts_tensors(example.deal) == system.cuts_tensors


def drawn(times_s: Sequence[float], **labels: str) -> list[Outcome]:
    """Return runs of four rounds, each of a draw."""
    return [
        Outcome({**labels, "draw": draw}, "a.toml", 4, 4 * each, each, 0)
        for draw, each in enumerate(times_s)
    ]


def test_a_ratio_is_of_all_rounds_and_then_of_the_least_and_the_most_of_its_draws():
    slow, fast = drawn([60.0, 30.0, 90.0]), drawn([20.0, 15.0, 25.0])
    assert setting.ratio(slow, fast, setting.times) == "3.0x, 2.0x to 3.6x"
    assert setting.ratio(slow[:1], fast[:1], setting.times) == "3.0x"
    assert setting.over(slow, fast) == "3.0x, 2.0x to 3.6x (20.0 s)"


def test_of_static_networks_the_median_counts_and_a_doubtful_order_says_how_often_it_holds():
    slow, fast = (
        drawn(times_s, network="static") for times_s in ([60.0, 30.0, 90.0], [20.0, 40.0, 60.0])
    )
    assert setting.ratio(slow, fast, setting.times) == "1.5x, 0.8x to 3.0x, faster in 2 of 3"
    assert setting.ratio(fast, slow, setting.gain) == "-33 %, -67 % to +33 %, faster in 1 of 3"


def test_roots_of_static_networks_are_ranked_for_each_network():
    runs = [
        outcome
        for root, times_s in {"a": (9.0, 1.0), "b": (2.0, 2.0), "c": (6.0, 6.0)}.items()
        for outcome in drawn(times_s, root=root, network="static")
    ]
    found = {
        rank: [each.labels["root"] for each in of] for rank, of in setting.ranked(runs).items()
    }
    assert found == {"best": ["b", "a"], "median": ["c", "b"], "worst": ["a", "c"]}


def test_roots_are_ranked_by_all_draws_together():
    runs = [
        outcome
        for root, times_s in {"a": (9.0, 1.0), "b": (2.0, 2.0), "c": (6.0, 6.0)}.items()
        for outcome in drawn(times_s, root=root, network="dynamic")
    ]
    found = {rank: each[0].labels["root"] for rank, each in setting.ranked(runs).items()}
    assert found == {"best": "b", "median": "a", "worst": "c"}


def test_a_graph_that_has_fallen_apart_takes_algorithm_3_more_turns_than_the_paper_says():
    drawn_networks = setting.drawn(20, 0)
    assert max(turns(each, undirected=True) for each in drawn_networks) > 13 / 8
    assert every(turns(each, undirected=False) <= 26 / 8 for each in drawn_networks)


def test_accuracies_are_compared_after_equally_many_rounds():
    quick, slow = (
        Outcome({}, "a.toml", 4, 4.0, 1.0, 0, curve=curve)
        for curve in (
            ((1.0, 0.2), (2.0, 0.4), (3.0, 0.9), (3.5, 0.7)),
            ((5.0, 0.2), (9.0, 0.5), (9.5, 0.1)),
        )
    )
    assert netstorm_training.most_apart([quick, slow]) == pytest.approx(0.1)


def test_links_drawn_once_change_both_ways_alike():
    changing = setting.dynamic(3)
    once = fig14.drawn_once(changing)
    for before, after in zip(changing.links, once.links, strict=True):
        back = once.link(after.target, after.source)
        assert back is not None
        assert (after.rate_bps, after.trace) == (back.rate_bps, back.trace)
        if before.source < before.target:
            assert (after.rate_bps, after.trace) == (before.rate_bps, before.trace)
