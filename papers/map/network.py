"""A network of the map: which scheme reaches the target first with each fleet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

from papers._compare import bound, interval, or_never, spread
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers._trial import Outcome, Trial
from papers._tuning import Tuned, Wanted, search, times_s, together
from papers.map import _setting as setting
from papers.map._setting import FIRST_RATE, GINIS, NETWORKS, SCHEMES, Setting

_SEEDS = 8
_TUNING = (1000, 1001)  # added to the first seed: not among those that are measured
_QUICK_NOTE = (
    "Quick: one seed, a tenth of the time, nothing tuned; says that it runs, and nothing of who is "
    "sooner."
)
_NOTE = (
    f"A perceptron with 32 hidden units on 8 x 8 digits, labels dealt by Dirichlet alpha = "
    f"{setting.ALPHA:g}, {setting.BATCH} samples a batch on average, which a site of mean speed "
    f"computes in {setting.STEP_S:g} s; jitter 5 %. R²SP's rule may make batches larger. The "
    f"target is {setting.TARGET:.0%} of held-out samples, in the mean of the evaluations in a "
    "sixtieth of the longest time of a run, and over the sites' models where these differ. Where "
    "models are averaged with a period, they are evaluated at its end alone; gossip's, every four "
    "or eight steps. Each scheme has the setting, batches and learning rate that were best on two "
    f"other seeds. Times and bytes are medians of {_SEEDS} seeds, the least to the most in "
    "parentheses; bytes are of all links until the target. A scheme is first if it reaches the "
    "target with all seeds, in the least geometric mean of times. Margins are geometric means of "
    "ratios, seed by seed, with intervals of Student's t on their logarithms; those of a cell hold "
    "together with 95 % (Bonferroni). A run that misses the target counts as if it had reached it "
    "at the longest time. A rival whose interval reaches 1 is not told apart from the first; with "
    "such a rival, none is first."
)

Cell = tuple[float, str]
"""The Gini coefficient of a fleet, and a scheme."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which scheme is the first in a cell, and by how much.

    Args:
        first: the scheme with the least mean time; empty if none reaches the target with all seeds.
        margins: how many times as long each other scheme takes that reaches it with any seed: the
            geometric mean and the bounds of its interval, the least first. A run that does not
            reach it counts as if it had at the longest time, so these are at least so large.
        missed: with how many seeds such schemes do not reach it, where with any.
    """

    first: str
    margins: Mapping[str, tuple[float, float, float]]
    missed: Mapping[str, int]

    @property
    def alike(self) -> list[str]:
        """Schemes that are not told apart from the first."""
        return [name for name, (_, low, _) in self.margins.items() if low <= 1]

    @property
    def told(self) -> str:
        """The verdict, as text."""
        if not self.first:
            return "none: no scheme reaches the target with all seeds"
        if self.alike:
            rivals = "; ".join(map(self.margin, self.alike))
            return (
                f"none: {self.first} has the least mean where all seeds reach it; over it, {rivals}"
            )
        if not self.margins:
            return f"{self.first}, the only one that reaches the target"
        second = next(iter(self.margins))
        return f"{self.first}; times as long, the next: {self.margin(second)}"

    def margin(self, name: str) -> str:
        """Return how many times as long another scheme takes, with its name, as text."""
        mean, low, high = self.margins[name]
        missed = f", {self.missed[name]} missed" if name in self.missed else ""
        least = "at least " if missed else ""
        return f"{name} {least}{mean:.2f} ({bound(low)} to {bound(high)}){missed}"


def verdict(times_s: Mapping[str, Sequence[float]], most_s: float) -> Verdict:
    """Return which scheme is the first.

    Args:
        times_s: to the target, for each seed, by scheme; infinite where it was not reached.
        most_s: when a run ends without the target.
    """
    missed = {name: sum(map(math.isinf, of)) for name, of in times_s.items()}
    logs = {
        name: [math.log(min(each, most_s)) for each in of]
        for name, of in times_s.items()
        if missed[name] < len(of)
    }
    means = {name: fmean(of) for name, of in logs.items()}
    whole = [name for name in means if not missed[name]]
    if not whole:
        return Verdict("", {}, {})
    first = min(whole, key=means.__getitem__)
    margins = {}
    others = [name for name in means if name != first]
    for name in sorted(others, key=means.__getitem__):
        ratios = [a - b for a, b in zip(logs[name], logs[first], strict=True)]
        many = len(ratios) > 1
        bounds = interval(ratios, len(times_s) - 1) if many else (0.0, math.inf)
        low, high = map(math.exp, bounds)
        margins[name] = math.exp(fmean(ratios)), low, high
    return Verdict(first, margins, {name: missed[name] for name in margins if missed[name]})


def _make(lab: Lab, name: str) -> Result:
    tuned = _tuned(lab, name)
    seeds = lab.seeds(_SEEDS)
    trials = [
        _trial(lab, name, cell, best.setting, best.rate, seed, use="measured")
        for cell, best in tuned.items()
        for seed in seeds
    ]
    measured = lab.measure(trials, may_abort=True)
    runs = {
        cell: measured[at * len(seeds) : (at + 1) * len(seeds)] for at, cell in enumerate(tuned)
    }
    rows, cells = [], {}
    for gini in GINIS:
        column = f"Gini {gini:g}"
        of = {scheme: runs[gini, scheme] for scheme in SCHEMES}
        of_all_s = {scheme: list(map(_seconds, each)) for scheme, each in of.items()}
        found = verdict(of_all_s, NETWORKS[name].most_s)
        for scheme, each in of.items():
            best = tuned[gini, scheme]
            why = f"{best.setting.told}, learning rate {best.rate_told}{_trees(each)}"
            rows.append(Row(f"{scheme}: {column}", "", _told(each, name), why))
        rows.append(Row(f"first: {column}", "", found.told, seeds=f"{len(seeds)} seeds"))
        rows.append(Row(f"a round of packed BSP: {column}", "", _round(of["packed BSP"])))
        cells[column] = _drawn(found, of, name)
    note = _QUICK_NOTE if lab.quick else _NOTE
    about = f"{name}: {NETWORKS[name].what}; a run ends after {NETWORKS[name].most_s:g} s."
    grid = {"line": name, "names": list(SCHEMES), "cells": cells}
    return Result(tuple(rows), (note, about), {"picture": {"grid": grid}})


def _tuned(lab: Lab, name: str) -> dict[Cell, Tuned[Setting]]:
    cells = [(gini, scheme) for gini in GINIS for scheme in SCHEMES]
    if lab.quick:
        first = {cell: setting.settings(cell[1], cell[0])[0] for cell in cells}
        return {cell: Tuned(of, FIRST_RATE, ()) for cell, of in first.items()}
    seeds = [lab.seed + each for each in _TUNING]
    most_s = NETWORKS[name].most_s
    searches = {
        cell: search(
            setting.settings(cell[1], cell[0]),
            FIRST_RATE,
            seeds,
            most_s,
        )
        for cell in cells
    }

    def make(cell: Cell, wanted: Wanted[Setting]) -> Trial:
        of = wanted.setting, wanted.rate, wanted.seed, wanted.most_s
        return _trial(lab, name, cell, *of, use="tuning")

    return together(searches, lambda wanted: times_s(lab, [make(*each) for each in wanted]))


def _trial(
    lab: Lab,
    name: str,
    cell: Cell,
    of: Setting,
    rate: float,
    seed: int,
    most_s: float = math.inf,
    *,
    use: str,
) -> Trial:
    gini, scheme = cell
    labels = {"scheme": scheme, "setting": of.told, "use": use}
    return setting.trial(lab, of, name, gini, rate, seed, most_s, **labels)


def _seconds(run: Outcome) -> float:
    """Return how long a run took to the target; infinite if it did not reach it."""
    return or_never(run.reached_s)


def _told(runs: Sequence[Outcome], name: str) -> str:
    """Return times and bytes to the target, as text."""
    reached = [run for run in runs if run.reached_s is not None]
    if not reached:
        return f"not within {NETWORKS[name].most_s:g} s"
    told = f"{spread(list(map(_seconds, reached)), '.4g')} s, {_bytes(reached, name)}"
    return told if len(reached) == len(runs) else f"{len(reached)} of {len(runs)}: {told}"


def _round(runs: Sequence[Outcome]) -> str:
    """Return how long a round took until the target, its step included."""
    found = [_seconds(run) / run.reached_updates for run in runs if run.reached_updates]
    if not found:
        return "not known"
    return f"{spread(found, '.4g')} s, {median(found) / setting.STEP_S:.3g} steps of a mean site"


def _trees(runs: Sequence[Outcome]) -> str:
    """Return how many trees forests had, as text; empty if there was none."""
    trees = [run.trees for run in runs if run.trees]
    return f", trees: {spread(trees, '.4g')}" if trees else ""


def _bytes(runs: Sequence[Outcome], name: str) -> str:
    """Return the payload of all links until the target, of the model that is stood for."""
    sent = [run.sent_bytes for run in runs if run.sent_bytes is not None]
    if not sent:
        return "no bytes"
    whole = median(sent) * NETWORKS[name].smaller
    return f"{whole / 1e9:.3g} GB" if whole >= 1e9 else f"{whole / 1e6:.3g} MB"


def _drawn(found: Verdict, of: Mapping[str, Sequence[Outcome]], name: str) -> dict[str, Any]:
    """Return a cell of the picture: the name of its colour, if one is first, and its lines."""
    if not found.first:
        return {"name": "", "lines": ["none with all seeds"]}
    lines = [found.first, f"{spread(list(map(_seconds, of[found.first])), '.4g')} s"]
    lines.append(_bytes(of[found.first], name))
    if found.alike:
        lines += [found.margin(each) for each in found.alike[:2]]
        lines += [f"and {len(found.alike) - 2} more"] if len(found.alike) > 2 else []
        return {"name": "", "lines": ["none", *lines]}
    lines += [found.margin(second) for second in list(found.margins)[:1]]
    return {"name": found.first, "lines": lines}


EXPERIMENTS = tuple(
    Experiment(f"map/{name}", f"who reaches a target first on {name}", partial(_make, name=name))
    for name in NETWORKS
)
"""One for each network."""
