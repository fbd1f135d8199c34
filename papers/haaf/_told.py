"""What runs of HAAF's figures came to, as the text of rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from papers._compare import bound, compared, interval, known, or_never, ratio_interval, spread
from papers._result import Row
from papers._trial import Label, Outcome, chosen


def of(outcomes: Iterable[Outcome], **labels: Label) -> list[Outcome]:
    """Return the runs with these labels, in order of their seeds."""
    return sorted(chosen(outcomes, **labels), key=lambda each: each.labels["seed"])


PART = 0.05
"""Of a run: rows that say so average the recorded evaluations in so much of its time."""


def rising(name: str, runs: Sequence[Outcome]) -> list[Row]:
    """Return a row that says by how much runs still rise at their end; none without curves."""
    rises = [_rise(run) for run in runs if len(run.curve) > 1]
    what = f"{name}, mean accuracy of the last tenth beside the tenth before"
    return [Row(what, "", f"{more(rises, [0.0] * len(rises))} points")] if rises else []


def _rise(run: Outcome) -> float:
    tenth = max(1, len(run.curve) // 10)
    before, last = run.curve[-2 * tenth : -tenth], run.curve[-tenth:]
    return 100 * (fmean(seen for _, seen in last) - fmean(seen for _, seen in before))


def reached_s(run: Outcome, accuracy: float | None = None, part: float = 0.0) -> float:
    """Return when a run first had its target, or another accuracy; infinite if never.

    Args:
        run: with a curve, where there is an accuracy.
        accuracy: that is looked for; None: the run's target.
        part: of the run's time, in which evaluations are averaged; 0: one evaluation counts.
    """
    if accuracy is None:
        return or_never(run.reached_s)
    curve = run.curve
    window_s = part * curve[-1][0] if curve else 0.0
    first = 0
    for last, (at_s, _) in enumerate(curve):
        while curve[first][0] < at_s - window_s:
            first += 1
        mean = fmean(seen for _, seen in curve[first : last + 1])
        if at_s >= window_s and mean >= accuracy:
            return at_s
    return math.inf


def times(runs: Sequence[Outcome], accuracy: float | None = None) -> str:
    """Return how long runs took to their target or another accuracy."""
    found = [reached_s(each, accuracy) for each in runs]
    if all(map(math.isfinite, found)):
        return f"{spread(found, '.3g')} s"
    return f"{sum(map(math.isfinite, found))} of {len(found)} reach it"


def over(
    ours: Sequence[Outcome],
    theirs: Sequence[Outcome],
    accuracy: float | None = None,
    part: float = 0.0,
) -> str:
    """Return the times of runs to an accuracy over those of others, seed by seed."""
    first, second = ([reached_s(run, accuracy, part) for run in runs] for runs in (ours, theirs))
    return compared(first, second)


def averaged(
    ours: Mapping[str, Sequence[Outcome]], ps: Sequence[Outcome], accuracy: float
) -> list[Row]:
    """Return rows of when the mean over a part of a run reaches an accuracy, beside PS.

    One high evaluation does not decide these times.
    """
    what = f"to {accuracy:.0%} in the mean of {PART:.0%} of a run, over PS"
    return [
        Row(f"{name}, {what}", "", over(runs, ps, accuracy, PART)) for name, runs in ours.items()
    ]


def final(runs: Sequence[Outcome]) -> str:
    """Return the accuracies of runs' final models."""
    whole = [run for run in runs if run.aborted is None]
    if not whole:
        return "all diverged"
    return f"{spread(finals(whole), '.1f')} %{_diverged(len(whole), len(runs))}"


def gain(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> str:
    """Return by how much more final models of runs have right than those of others."""
    pairs = [
        (a, b) for a, b in zip(ours, theirs, strict=True) if a.aborted is None and b.aborted is None
    ]
    if not pairs:
        return "all diverged"
    mine, others = ([*each] for each in zip(*pairs, strict=True))
    return f"{more(finals(mine), finals(others))} points{_diverged(len(pairs), len(ours))}"


def _diverged(whole: int, of: int) -> str:
    return f", {of - whole} of {of} diverged" if whole < of else ""


def finals(runs: Sequence[Outcome]) -> list[float]:
    """Return the accuracies of runs' final models, percent."""
    return [100 * known(run.accuracy, "accuracy") for run in runs]


def more(ours: Sequence[float], theirs: Sequence[float], form: str = "+.1f") -> str:
    """Return how much more values are than others, seed by seed: the mean, with a 95 % interval.

    >>> more([82.0, 83.0, 84.0], [81.0, 81.0, 81.0])
    '+2.0 (-0.5 to +4.5)'
    """
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    told = format(fmean(gains), form)
    if len(gains) < 2:
        return told
    low, high = interval(gains)
    return f"{told} ({bound(low, form, 0.0)} to {bound(high, form, 0.0)})"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return values over others, seed by seed: the geometric mean, with a 95 % interval.

    >>> ratio([2.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    '2.52 (0.93 to 6.81)'
    """
    pairs = [*zip(ours, theirs, strict=True)]
    logs = [math.log(a / b) for a, b in pairs if a > 0 and b > 0]
    if len(logs) < len(pairs):
        return f"{len(pairs) - len(logs)} of {len(pairs)} are 0"
    told = f"{math.exp(fmean(logs)):.2f}"
    if len(logs) < 2:
        return told
    return f"{told} ({ratio_interval(logs)})"


def trees(runs: Sequence[Outcome]) -> str:
    """Return how many trees the forests of runs have."""
    found = [known(each.trees, "trees") for each in runs if each.aborted is None]
    return spread(found, ".3g") if found else "all diverged"


def rates(found: Mapping[Any, float]) -> str:
    """Return learning rates, in order."""
    return ", ".join(f"{rate:g}" for rate in found.values())
