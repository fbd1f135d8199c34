"""HAAF, Fig. 14: the share of time that each site computes, by scheme.

Times do not depend on the numbers that sites exchange, so this script trains nothing: buffers have
only sizes, and all updates have equal weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pvariance

from msgspec import structs

from anabranch.merge import Mean
from anabranch_lab.run.scenario import Simulation, Stop
from papers._compare import spread
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Label, Outcome, Trial
from papers.haaf import _setting as setting
from papers.haaf import _told as told
from papers.haaf._setting import ANY_TREES, FEW, FEW_TREES, RATE, Case, Scheme, haaf

_GINIS = (0.1, 0.3, 0.6)
_SEEDS = 8
_HORIZON_S = 24.0  # ten rounds of the slowest synchronous scheme
_PAPER = ("a lower mean", "a lower variance")
_NOTE = (
    "A worker's share is the time it computes over that from one permission to go on to the next, "
    "in the later half of its iterations, in percent; mean and variance are over the workers. "
    f"{_HORIZON_S:g} s, and nothing is trained: times do not depend on the numbers. All updates "
    "have equal weights."
)


def _make(lab: Lab) -> Result:
    schemes = {**setting.synchronous(), FEW_TREES: haaf(FEW), ANY_TREES: haaf()}
    outcomes = lab.measure(
        [
            _trial(lab, how, Case(gini, seed), name)
            for gini in _GINIS
            for name, how in schemes.items()
            for seed in lab.seeds(_SEEDS)
        ]
    )
    rows = []
    for gini in _GINIS:
        shares = {
            name: [shares_of(run) for run in told.of(outcomes, scheme=name, gini=gini)]
            for name in schemes
        }
        means = {name: [*map(fmean, each)] for name, each in shares.items()}
        variances = {name: [*map(pvariance, each)] for name, each in shares.items()}
        found = [Row("seeds", "", f"{len(means['PS'])}")]
        for what, by_name, form, paper in (
            ("mean share, %", means, ".1f", _PAPER[0]),
            ("variance", variances, ".0f", _PAPER[1]),
        ):
            for name, values in by_name.items():
                theirs = paper if name in (FEW_TREES, ANY_TREES) else ""
                found.append(Row(f"{name}, {what}", theirs, spread(values, form)))
        for name in (FEW_TREES, ANY_TREES):
            for other in setting.synchronous():
                more = told.more(means[name], means[other])
                over = told.ratio(variances[name], variances[other])
                found += [
                    Row(f"{name}, mean beside {other}", "", more),
                    Row(f"{name}, variance over {other}", "", over),
                ]
        rows += [replace(row, what=f"{row.what}: Gini {gini:g}") for row in found]
    return Result(tuple(rows), setting.notes(lab, _NOTE, is_tuned=False))


def _trial(lab: Lab, how: Scheme, case: Case, name: str) -> Trial:
    trained = setting.scenario(replace(how, merge=Mean()), case, RATE, quick=lab.quick)
    scenario = structs.replace(
        trained,
        task=structs.replace(trained.task, target_accuracy=None),  # nothing is learnt
        simulation=Simulation(tensors="sizes"),
        stop=Stop(rounds=setting.MANY, after_s=_HORIZON_S),
    )
    about: dict[str, Label] = {"scheme": name, "gini": case.gini, "seed": case.seed}
    network = setting.network(case.seed, case.workers)
    return Trial(about, scenario, network, without=("gaps", "curve"))


def shares_of(run: Outcome) -> Sequence[float]:
    """Return the share of time that each worker of a run computes, in percent."""
    return [100 * each.compute_s / each.iteration_s for each in run.workers.values()]


EXPERIMENTS = (Experiment("haaf/fig14", "the share of time that sites compute", _make),)
