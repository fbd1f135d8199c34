"""HAAF, Fig. 15: time to accuracy of four schemes, as more sites share the data."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from papers._experiment import Experiment
from papers._lab import Lab, Outcome
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf import _told as told
from papers.haaf._setting import ANY_TREES, FEW_TREES, LENET, LONGEST_S, Case

_WORKERS = (6, 12, 24)
_GINI = 0.6  # where schemes differ most; the paper names none
_SEEDS = 8
_PAPER = {6: "all alike", 12: "less (drawn only)", 24: "less, by more (drawn only)"}
_FORESTS = (FEW_TREES, ANY_TREES)
_NOTE = (
    f"Gini {_GINI:g} at each number of workers, so that the slowest of more is slower; all share "
    "one data set. Each scheme has the best rate at each number of workers."
)


def _make(lab: Lab) -> Result:
    rows = []
    for workers in _WORKERS:
        rates, runs = _runs(lab, workers)
        rows += [
            replace(row, what=f"{row.what}: {workers} workers")
            for row in _rows(workers, rates, runs)
        ]
    return Result(tuple(rows), setting.notes(lab, _NOTE))


def _runs(lab: Lab, workers: int) -> tuple[dict[str, float], list[Outcome]]:
    """Return each scheme's learning rate, and all runs."""
    case = Case(_GINI, lab.seed, workers=workers)
    cases = [replace(case, seed=seed) for seed in setting.seeds(lab, _SEEDS)]
    synchronous = setting.synchronous(workers)
    rates = {"PS": setting.tuned(lab, synchronous["PS"], case).rate}
    rates |= setting.tuned_forests(lab, case)
    runs = lab.measure(
        [
            setting.trial(lab, how, each, rates["PS"], ends_s=LONGEST_S, uses=(), scheme=name)
            for name, how in synchronous.items()
            for each in cases
        ]
    )
    by_gini = {name: {_GINI: rates[name]} for name in _FORESTS}
    return rates, [*runs, *setting.forests(lab, cases, by_gini, ends_s=LONGEST_S, uses=())]


def _rows(workers: int, rates: dict[str, float], runs: list[Outcome]) -> list[Row]:
    """Return the rows of one number of workers."""
    of = partial(told.of, runs)
    ps, to = of(scheme="PS"), f"to {LENET.target:.0%}"
    rows = [
        Row("seeds", "", f"{len(ps)}"),
        Row("learning rates of PS and both HAAFs", "", told.rates(rates)),
        Row("trees as searched", "", told.trees(of(scheme=ANY_TREES))),
        Row(f"PS {to}", "", told.times(ps)),
    ]
    for name in ("AVL", "FAT", *_FORESTS):
        paper = _PAPER[workers] if name in _FORESTS else ""
        rows.append(Row(f"{name}, {to}, over PS", paper, told.over(of(scheme=name), ps)))
    return rows


EXPERIMENT = Experiment("haaf/fig15", "time to accuracy with more workers", _make)
