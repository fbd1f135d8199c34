"""Every experiment: what it asks of the lab can run, and what it says follows from the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

import papers
from anabranch_lab.run.scenario import loads
from papers import EXPERIMENTS, Experiment, Result, Trial
from papers._scenario_file import scenario_toml

from ..every import every
from .told import lab, ours

ALL = list(EXPERIMENTS.values())

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
    assert ours("netstorm/fig19", what, tmp_path) == "1.64 s, 0.41 s: 4.0x, 4.0x to 4.0x"


def test_a_scaling_efficiency_of_equal_rounds_is_one(tmp_path: Path):
    what = "b: scaling efficiency of pro, samples/s from 5 to 15 sites"
    assert ours("netstorm/fig19", what, tmp_path) == "1.00, 1.00 to 1.00"


def test_a_paper_names_all_its_figures_and_a_figure_itself():
    assert papers.find("netstorm") == [e for e in ALL if e.name.startswith("netstorm/")]
    assert [each.name for each in papers.find("netstorm/fig17")] == ["netstorm/fig17"]
    with pytest.raises(ValueError, match="did you mean 'netstorm/fig1"):
        papers.find("netstorm/fig1")
