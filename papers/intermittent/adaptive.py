"""Time to a target with fixed periods, and with the adaptive one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, median

from papers._choice import FIRST, Choice, best_rate
from papers._compare import compared
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial
from papers._result import Result, Row
from papers.intermittent import _setting as setting

OURS = "adaptive"
_SEEDS = 8
_TUNING = (1000, 1001)  # added to the first seed: not among those that are measured
_QUICK_NOTE = "Quick: one seed, one learning rate; says that it runs, and nothing of who is sooner."
_NOTE = (
    f"A perceptron with 32 hidden units on 8 x 8 digits for a model {setting.SMALLER:,} times as "
    f"large, batches of {setting.BATCH}, labels dealt by Dirichlet alpha = {setting.ALPHA:g}, "
    f"jitter 5 %. The target is {setting.TARGET:.0%} of held-out samples, in the mean over the "
    "sites' models, looked at after each local step. Each period has the learning rate, of powers "
    "of two, that was best on two other seeds. Times are medians, the least to the most in "
    "parentheses. The best fixed period is that with the least geometric mean of the measured "
    "times, chosen in hindsight; ratios to it are geometric means over the seeds, seed by seed, "
    "with 95 % intervals of Student's t on their logarithms."
)

Runs = Mapping[str, Sequence[Outcome]]


def _make(lab: Lab, name: str) -> Result:
    network = {**setting.NETWORKS, **setting.CHANGING}[name]
    tuning: list[Outcome] = []
    rates = {period: _rate(lab, name, period, tuning) for period in setting.periods()}
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else _SEEDS))
    trials = [
        setting.trial(lab, name, period, rate, seed, network.most_s, use="measured")
        for seed in seeds
        for period, rate in rates.items()
    ]
    measured = lab.measure(trials)
    runs = {each: [o for o in measured if o.labels["period"] == each] for each in rates}
    fixed = [each for each in rates if each != OURS]
    best = min(fixed, key=lambda each: mean_s(runs[each]))
    rows = [
        Row(f"{each}: to the target", "", _to_target(runs[each]), f"learning rate {rates[each]:g}")
        for each in rates
    ]
    is_changing = name in setting.CHANGING
    claim = "less than 1" if is_changing else "at most 1.05"
    rows.append(Row("best fixed period", "", best, "in hindsight"))
    rows += [
        Row(
            f"{OURS} over {each}",
            claim if is_changing or each == best else "",
            compared(_times_s(runs[OURS]), _times_s(runs[each])),
        )
        for each in fixed
    ]
    rows.append(Row(f"{OURS}: local steps to an average", "", _steps(runs[OURS])))
    note = _QUICK_NOTE if lab.quick else _NOTE
    step = f"{network.what}; a local step takes {network.step_s:g} s."
    return Result(tuple(rows), (note, f"{name}: {step}"))


def _rate(lab: Lab, name: str, period: str, log: list[Outcome]) -> float:
    if lab.quick:
        return FIRST
    most_s = {**setting.NETWORKS, **setting.CHANGING}[name].most_s

    def make(rate: float, seed: int, limit_s: float) -> Trial:
        return setting.trial(lab, name, period, rate, seed, limit_s, use="tuning")

    found: Choice | None = best_rate(lab, make, [lab.seed + k for k in _TUNING], most_s, log)
    return FIRST if found is None else found.rate


def _seconds(run: Outcome) -> float:
    """Return how long a run took to the target; infinite if it did not reach it."""
    return math.inf if run.reached_s is None else run.reached_s


def _times_s(runs: Sequence[Outcome]) -> list[float]:
    return [_seconds(run) for run in runs]


def mean_s(runs: Sequence[Outcome]) -> float:
    """Return the geometric mean of times to the target; infinite if one run does not reach it."""
    return math.exp(fmean(map(math.log, _times_s(runs))))


def _to_target(runs: Sequence[Outcome]) -> str:
    reached = [run.reached_s for run in runs if run.reached_s is not None]
    if not reached:
        return "not before its run ends"
    told = f"{median(reached):.0f} ({min(reached):.0f} to {max(reached):.0f}) s"
    if len(reached) < len(runs):
        return f"{len(reached)} of {len(runs)} reach it; those in {told}"
    return f"{told}; geometric mean {mean_s(runs):.1f} s"


def _steps(runs: Sequence[Outcome]) -> str:
    found = [run.steps / run.rounds for run in runs if run.steps is not None and run.rounds]
    if not found:
        return "not known"
    return f"{median(found):.1f} ({min(found):.1f} to {max(found):.1f}), over a run"


EXPERIMENTS = tuple(
    Experiment(
        f"intermittent/adaptive-{name.replace(', ', '-')}",
        f"the adaptive period beside fixed ones on {name}",
        partial(_make, name=name),
    )
    for name in (*setting.NETWORKS, *setting.CHANGING)
)
"""One for each network."""
