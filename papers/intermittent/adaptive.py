"""Time to a target with fixed periods, and with the adaptive one, on networks of many kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from papers._compare import compared, or_never
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome, Trial
from papers._tuning import Tuned, Wanted, search, times_s, together
from papers.intermittent import _setting as setting

OURS = "adaptive"
FIRST_RATE = 0.2
_SEEDS = 8
_TUNING = (1000, 1001)  # added to the first seed: not among those that are measured
_QUICK_NOTE = "Quick: one seed, one learning rate; says that it runs, and nothing of who is sooner."
_NOTE = (
    f"A perceptron with 32 hidden units on 8 x 8 digits for a model {setting.SMALLER:,} times as "
    f"large, batches of {setting.BATCH}, labels dealt by Dirichlet alpha = {setting.ALPHA:g}, "
    f"jitter 5 %. The target is {setting.TARGET:.0%} of held-out samples, in the mean over the "
    "sites' models, looked at after each local step. Each period has the learning rate, of powers "
    f"of two, that was best on two other seeds. Times are geometric means of {_SEEDS} seeds, the "
    "least to the most in parentheses, or how many reach the target. The best fixed period is that "
    "with the least geometric mean of the measured times, chosen in hindsight; ratios to it are "
    "geometric means over the seeds, seed by seed, with 95 % intervals of Student's t on their "
    "logarithms."
)

Case = tuple[str, str]
"""The names of a network and of a period."""


def _make(lab: Lab) -> Result:
    networks = {**setting.NETWORKS, **setting.CHANGING}
    cases = [(name, period) for name in networks for period in setting.periods()]
    tuned = _tuned(lab, cases)
    seeds = lab.seeds(_SEEDS)
    trials = [
        setting.trial(lab, *case, best.rate, seed, networks[case[0]].most_s, use="measured")
        for case, best in tuned.items()
        for seed in seeds
    ]
    measured = lab.measure(trials, may_abort=True)
    runs = {
        case: measured[at * len(seeds) : (at + 1) * len(seeds)] for at, case in enumerate(cases)
    }
    rows = [
        Row(f"{name}: {period}", "", _told(of), f"rate {tuned[name, period].rate_told}")
        for (name, period), of in runs.items()
    ]
    for name in networks:
        fixed = [period for of, period in cases if of == name and period != OURS]
        best = min(fixed, key=lambda period: mean_s(runs[name, period]))
        mine = runs[name, OURS]
        ratio = compared(_times_s(mine), _times_s(runs[name, best]))
        rows.append(Row(f"{name}: {OURS} over the best fixed", "", ratio, best))
        rows.append(Row(f"{name}: local steps that it chose", "", _steps(mine)))
    about = [f"{name}: {of.what}; a step takes {of.step_s:g} s." for name, of in networks.items()]
    return Result(tuple(rows), (_QUICK_NOTE if lab.quick else _NOTE, *about))


def _tuned(lab: Lab, cases: Sequence[Case]) -> Mapping[Case, Tuned[Case]]:
    """Return the best learning rates, on seeds that are not measured."""
    if lab.quick:
        return {case: Tuned(case, FIRST_RATE, ()) for case in cases}
    networks = {**setting.NETWORKS, **setting.CHANGING}
    seeds = [lab.seed + each for each in _TUNING]
    searches = {case: search([case], FIRST_RATE, seeds, networks[case[0]].most_s) for case in cases}

    def make(case: Case, wanted: Wanted[Case]) -> Trial:
        name, period = case
        of = wanted.rate, wanted.seed, wanted.most_s
        return setting.trial(lab, name, period, *of, use="tuning")

    return together(searches, lambda wanted: times_s(lab, [make(*each) for each in wanted]))


def _times_s(runs: Sequence[Outcome]) -> list[float]:
    """Return how long runs took to the target; infinite for those that did not reach it."""
    return [or_never(run.reached_s) for run in runs]


def mean_s(runs: Sequence[Outcome]) -> float:
    """Return the geometric mean of times to the target; infinite if one run does not reach it."""
    return math.exp(fmean(map(math.log, _times_s(runs))))


def _told(runs: Sequence[Outcome]) -> str:
    reached = [each for each in _times_s(runs) if math.isfinite(each)]
    if len(reached) < len(runs):
        return f"{len(reached)} of {len(runs)}"
    return f"{mean_s(runs):.0f} ({min(reached):.0f} to {max(reached):.0f}) s"


def _steps(runs: Sequence[Outcome]) -> str:
    found = [run.steps / run.rounds for run in runs if run.steps is not None and run.rounds]
    if not found:
        return "not known"
    return f"{median(found):.1f} ({min(found):.1f} to {max(found):.1f}), over a run"


EXPERIMENTS = (
    Experiment(
        "intermittent/adaptive", "the adaptive period beside fixed ones, on eight networks", _make
    ),
)
