"""HAAF, Fig. 15: time to accuracy of four schemes, as more sites share the data.

All synchronous schemes wait for the slowest worker, which a Gini coefficient leaves open. So this
script also has fleets of two speeds, a quarter of them fast. There the slowest is alike at each
number of workers, and much quicker than with log-normal speeds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome
from papers.haaf import _setting as setting
from papers.haaf import _told as told
from papers.haaf._setting import ANY_TREES, FEW_TREES, LENET, LONGEST_S, Case

_WORKERS = (4, 12, 24)
_GINI = 0.6  # where schemes differ most; the paper names none
_SEEDS = 8
_PAPER = {
    4: "alike where the scale is small",
    12: "less (no number)",
    24: "less, by more (no number)",
}
_FORESTS = (FEW_TREES, ANY_TREES)
_NOTE = (
    f"Gini {_GINI:g} at each number of workers, which the paper does not state; it ascribes the "
    'growth of its gain to "increasing heterogeneity and IO pressure". All share one data set. '
    "Each scheme has its best rate at each number of workers. Two speeds: a quarter of the workers "
    "is fast, so that the slowest takes as long at each number of workers. The coefficient is that "
    "of speeds; the paper's is of times (6.2), which is the same for log-normal speeds, and 0.23 "
    "for two."
)


def _make(lab: Lab) -> Result:
    rows = []
    for workers in _WORKERS:
        case = Case(_GINI, lab.seed, workers=workers)
        two = replace(case, fast=workers // 4)
        found = _rows(lab, case, [*setting.synchronous(workers)])
        found += [replace(row, what=f"two speeds, {row.what}") for row in _rows(lab, two, ["PS"])]
        rows += [replace(row, what=f"{row.what}: {workers} workers") for row in found]
    return Result(tuple(rows), setting.notes(lab, _NOTE, is_literal=False))


def _rows(lab: Lab, case: Case, names: list[str]) -> list[Row]:
    """Return the rows of a fleet: of the named synchronous schemes, and of HAAF."""
    workers = case.workers
    cases = [replace(case, seed=seed) for seed in lab.seeds(_SEEDS)]
    rates = {"PS": setting.tuned(lab, setting.ps(workers), case).rate}
    rates |= setting.tuned_forests(lab, case)
    synchronous = setting.synchronous(workers)
    runs: list[Outcome] = lab.measure(
        [
            setting.trial(lab, synchronous[name], each, rates["PS"], ends_s=LONGEST_S, scheme=name)
            for name in names
            for each in cases
        ]
    )
    by_gini = {name: {_GINI: rates[name]} for name in _FORESTS}
    runs += setting.forests(lab, cases, by_gini, ends_s=LONGEST_S)
    of = partial(told.of, runs)
    ps, to = of(scheme="PS"), f"to {LENET.target:.0%}"
    slowest_s = max(setting.batch_times_s(case))
    rows = [
        Row("seeds", "", f"{len(ps)}"),
        Row("a batch of the slowest", "", f"{slowest_s:.2f} s"),
        Row("learning rates of PS and both HAAFs", "", told.rates(rates)),
        Row("trees as searched", "", told.trees(of(scheme=ANY_TREES))),
        Row(f"PS {to}", "", told.times(ps)),
    ]
    for name in (*names[1:], *_FORESTS):
        paper = _PAPER[workers] if name in _FORESTS and case.fast is None else ""
        rows.append(Row(f"{name}, {to}, over PS", paper, told.over(of(scheme=name), ps)))
    return rows


EXPERIMENTS = (Experiment("haaf/fig15", "time to accuracy with more workers", _make),)
