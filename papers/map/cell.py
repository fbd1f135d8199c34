"""A cell of the map: which scheme reaches the target first on one network with one fleet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean, median

from anabranch_lab.run.control import first_plan
from papers._choice import FIRST, Choice, best_rate
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial
from papers._result import Result, Row
from papers.map import _setting as setting
from papers.map._setting import FORESTS, SCHEMES, Scheme

OURS = "our forest"
_SEEDS = 8
_TUNING = (1000,)  # added to the first seed: not among those that are measured
_QUICK_NOTE = (
    "Quick: one seed, one learning rate, one forest, a perceptron on 8 x 8 digits; says that it "
    "runs, and nothing of who is faster."
)
_NOTE = (
    f"LeNet-5 on Fashion-MNIST for a model {setting.SMALLER} times as large: rates are a "
    f"{setting.SMALLER}th of the network's, latencies its own. One site serves and computes "
    "nothing; the others' speeds have exactly the Gini coefficient and are dealt anew with each "
    "seed, as are data (Dirichlet alpha = 1, resampled with beta = 0.999), model and jitter (5 %). "
    f"A site of mean speed takes {setting.COMPUTE_S:g} s for a batch of {setting.BATCH}; tuned "
    "batches add up to as many samples. The target is "
    f"{setting.TARGET:.0%} of the first {setting.LOOK} held-out samples, looked at by the fastest "
    f"worker after each of its updates; a run ends after {setting.HORIZON_S:g} s. Each scheme has "
    "the learning rate, of powers of two times 0.1, that was best on one other seed. Medians, the "
    "least to the most in parentheses; p is of a two-sided sign test over the seeds."
)

Runs = Mapping[str, Sequence[Outcome]]


def _make(lab: Lab, name: str, gini: float) -> Result:
    tuning: list[Outcome] = []
    tried = {**SCHEMES, **{_titled(each): how for each, how in FORESTS.items()}}
    if lab.quick:
        tried = {**SCHEMES, _titled(next(iter(FORESTS))): next(iter(FORESTS.values()))}
    choices = {each: _choice(lab, how, each, name, gini, tuning) for each, how in tried.items()}
    ours = min(tried.keys() - SCHEMES.keys(), key=lambda each: (_mean_s(choices[each]), each))
    entered = [*SCHEMES, ours]
    trials = [
        setting.trial(
            lab, tried[each], name, gini, _rate(choices[each]), seed, scheme=each, use="measured"
        )
        for seed in range(lab.seed, lab.seed + (1 if lab.quick else _SEEDS))
        for each in entered
    ]
    measured = lab.measure(trials)
    runs = {each: [o for o in measured if o.labels["scheme"] == each] for each in entered}
    order = sorted(entered, key=lambda each: _median_s(runs[each]))
    rows = [
        Row(
            f"{each}: to the target", tried[each].paper, _to_target(runs[each]), _why(choices, each)
        )
        for each in order
    ]
    rows += [_beside_best_rival(each, order, runs) for each in order]
    rows += [Row(f"{each}: first in", "", _first(each, runs)) for each in order]
    for each in order:
        trees = _trees([trial for trial in trials if trial.labels["scheme"] == each])
        rows.append(Row(f"{each}: its time", "", _parts(runs[each]), trees))
    note = _QUICK_NOTE if lab.quick else _NOTE
    return Result(tuple(rows), (note,))


def _titled(forest: str) -> str:
    return f"{OURS}, {forest}"


def _choice(
    lab: Lab, how: Scheme, each: str, name: str, gini: float, log: list[Outcome]
) -> Choice | None:
    if lab.quick:
        return None

    def make(rate: float, seed: int, most_s: float) -> Trial:
        return setting.trial(lab, how, name, gini, rate, seed, most_s, scheme=each, use="tuning")

    seeds = [lab.seed + more for more in _TUNING]
    return best_rate(lab, make, seeds, setting.HORIZON_S, log)


def _rate(choice: Choice | None) -> float:
    return FIRST if choice is None else choice.rate


def _mean_s(choice: Choice | None) -> float:
    return math.inf if choice is None else fmean(choice.times_s)


def _why(choices: Mapping[str, Choice | None], each: str) -> str:
    choice = choices[each]
    if choice is None:
        return f"learning rate {FIRST:g}, untuned"
    of = ", ".join(f"{rate:g}" for rate in sorted(choice.tried))
    said = f"learning rate {choice.rate:g} of {of}"
    if not each.startswith(OURS):
        return said
    others = [
        f"{other.removeprefix(f'{OURS}, ')} {_mean_s(found):.0f} s"
        for other, found in choices.items()
        if other.startswith(OURS)
    ]
    return f"{said}; forests in tuning: {'; '.join(others)}"


def _seconds(run: Outcome) -> float:
    """Return how long a run took to the target; infinite if it did not reach it."""
    return math.inf if run.reached_s is None else run.reached_s


def _median_s(runs: Sequence[Outcome]) -> float:
    return float(median(_seconds(run) for run in runs))


def spread(numbers: Sequence[float], form: str) -> str:
    """Return the median of numbers, and the least to the most in parentheses.

    >>> spread([3.0, 1.0, 2.0], ".1f")
    '2.0 (1.0 to 3.0)'
    """
    told = [format(each, form) for each in (median(numbers), min(numbers), max(numbers))]
    return told[0] if len(numbers) == 1 else f"{told[0]} ({told[1]} to {told[2]})"


def _to_target(runs: Sequence[Outcome]) -> str:
    reached = [run.reached_s for run in runs if run.reached_s is not None]
    if not reached:
        return "not before its run ends"
    if len(reached) == len(runs):
        return f"{spread(reached, '.0f')} s"
    return f"{len(reached)} of {len(runs)} reach it; those in {spread(reached, '.0f')} s"


def _beside_best_rival(each: str, order: Sequence[str], runs: Runs) -> Row:
    """Return a scheme's times over those of the best other scheme, seed by seed."""
    rival = next(other for other in order if other != each)
    ratios, wins, losses = [], 0, 0
    for ours, theirs in zip(runs[each], runs[rival], strict=True):
        a_s, b_s = _seconds(ours), _seconds(theirs)
        wins, losses = wins + (a_s < b_s), losses + (a_s > b_s)
        if math.isfinite(a_s) and math.isfinite(b_s):
            ratios.append(a_s / b_s)
    said = spread(ratios, ".2f") if ratios else "in no seed do both reach it"
    p = sign_test(wins, losses)
    return Row(
        f"{each}: over {rival}, seed by seed",
        "",
        f"{said}; sooner in {wins} of {len(runs[each])}, p = {p:.3g}",
    )


def sign_test(wins: int, losses: int) -> float:
    """Return the two-sided p of these wins and losses if both are equally likely.

    >>> sign_test(8, 0)
    0.0078125
    """
    n = wins + losses
    tail: float = sum(math.comb(n, k) for k in range(min(wins, losses) + 1)) / 2**n
    return min(1.0, 2 * tail)


def _first(each: str, runs: Runs) -> str:
    """Return in how many seeds a scheme was the soonest, ties included."""
    count = 0
    for at, run in enumerate(runs[each]):
        soonest_s = min(_seconds(other[at]) for other in runs.values())
        count += math.isfinite(soonest_s) and _seconds(run) == soonest_s
    return f"{count} of {len(runs[each])}"


def _parts(runs: Sequence[Outcome]) -> str:
    """Return the parts of times to the target: number of updates, time of each, and its phases."""
    told = []
    reached = [(r.reached_s, r.reached_updates) for r in runs if r.reached_s and r.reached_updates]
    if reached:
        updates = spread([updates for _, updates in reached], ".1f")
        each_s = spread([seconds / updates for seconds, updates in reached], ".1f")
        told.append(f"{updates} updates a worker, {each_s} s each")
    shares = []
    for name, part in (
        ("pulling", "pull_s"),
        ("pushing", "push_s"),
        ("blocked", "blocked_s"),
    ):
        shares.append((name, median((getattr(run, part) or 0.0) / run.round_s for run in runs)))
    computing = median(
        1 - sum(x or 0.0 for x in (run.pull_s, run.push_s, run.blocked_s)) / run.round_s
        for run in runs
    )
    told.append(
        f"{computing:.0%} computing, " + ", ".join(f"{share:.0%} {name}" for name, share in shares)
    )
    samples = [
        sum(worker.samples / worker.iteration_s for worker in run.workers.values()) for run in runs
    ]
    told.append(f"{spread(samples, '.1f')} samples/s")
    missed = [run.missed for run in runs if run.missed is not None]
    if missed:
        told.append(f"an update misses {spread(missed, '.1f')}")
    return "; ".join(told)


def _trees(trials: Sequence[Trial]) -> str:
    """Return how many trees the forests of runs have; an empty text for other routes."""
    counts = [len(first_plan(trial.scenario, trial.overlay).groups) for trial in trials]
    return f"trees: {spread(counts, '.3g')}" if any(counts) else ""


EXPERIMENTS = tuple(
    Experiment(
        f"map/{name}-gini-{gini:g}",
        f"who reaches a target first on {name}, speeds of Gini {gini:g}",
        partial(_make, name=name, gini=gini),
    )
    for name in setting.NETWORKS
    for gini in setting.GINIS
)
"""The four cells."""
