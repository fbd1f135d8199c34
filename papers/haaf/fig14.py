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
from anabranch_lab.run.scenario.tasks import Train
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial
from papers._result import Result, Row
from papers.haaf import _setting as setting
from papers.haaf._setting import SCHEMES, Scheme

_GINIS = (0.1, 0.3, 0.6)
_HORIZON_S = 240.0  # ten rounds of the slowest synchronous scheme
_PAPER = "a lower mean, a lower variance (drawn only)"


def _make(lab: Lab) -> Result:
    outcomes = lab.measure(
        [
            _trial(lab, scheme, gini, seed, name)
            for gini in _GINIS
            for name, scheme in SCHEMES.items()
            for seed in setting.seeds(lab, 5)
        ]
    )
    rows = []
    for gini in _GINIS:
        for name in SCHEMES:
            shares = [shares_of(run) for run in setting.of(outcomes, scheme=name, gini=gini)]
            rows.append(
                Row(
                    f"Gini {gini:g}: share of the time that workers compute, {name}",
                    _PAPER if name == "HAAF" else "",
                    f"mean {setting.spread([fmean(each) for each in shares], '.1f')} %, variance "
                    f"{setting.spread([pvariance(each) for each in shares], '.0f')} points²",
                )
            )
    what = (
        "A worker's share is the time it computes over that from one permission to go on to the "
        "next, in the later half of its iterations; mean and variance are over the workers, the "
        f"variance in percentage points squared. {_HORIZON_S:g} s, and nothing is trained: times "
        "do not depend on the numbers."
    )
    return Result(tuple(rows), setting.notes(lab, outcomes, what))


def _trial(lab: Lab, scheme: Scheme, gini: float, seed: int, name: str) -> Trial:
    trial = setting.trial(lab, replace(scheme, merge=Mean()), gini, seed, scheme=name)
    task = trial.scenario.task
    assert isinstance(task, Train)
    scenario = structs.replace(
        trial.scenario,
        task=structs.replace(task, target_accuracy=None),  # nothing is learnt
        simulation=Simulation(tensors="sizes"),
        stop=Stop(rounds=setting.MANY, after_s=setting.QUICK_S if lab.quick else _HORIZON_S),
    )
    return replace(trial, scenario=scenario)


def shares_of(run: Outcome) -> Sequence[float]:
    """Return the share of time that each worker of a run computes, in percent."""
    return [100 * each.compute_s / each.iteration_s for each in run.workers.values()]


EXPERIMENT = Experiment("haaf/fig14", "the share of time that sites compute", _make)
