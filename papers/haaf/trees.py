"""HAAF's number of trees: what eq. 14 asks for, and what it does to the time to an accuracy.

The paper shows three trees in Fig. 8, and gives no number elsewhere. How many trees the search
takes depends on the time of a batch beside the links' latencies, which the paper does not give
either. So this experiment varies that time, and each number of trees for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

from anabranch.fleet import ComputeModel
from anabranch.plan import EdaForest, Forest, ForestProblem, ForestRoute, GivenForest, forest
from papers._compare import spread
from papers._experiment import Experiment
from papers._lab import Lab
from papers._picture import picture
from papers._result import Result, Row
from papers._trial import Outcome
from papers.haaf import _setting as setting
from papers.haaf import _told as told
from papers.haaf._setting import (
    ANY_TREES,
    BATCH_S,
    LENET,
    LONGEST_S,
    WORKERS,
    Case,
    Scheme,
    haaf,
)

_GINIS = (0.1, 0.3, 0.6)
_BATCHES_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
_SIZES = (4, 12, 24)
_LONG_S = 1.0  # a batch that takes much longer than a transfer
_PLANNED = 8
_SEEDS = 5
_LEARNER = replace(LENET, target=0.75, tries=(1000,))
_ELEMENTS = 61_706  # of LeNet-5
_BEST, _SAME = "the best rate", "PS's rate"
_WITH_SAME = (1, 3, 6, 12)
_PAPER = {
    12: "3 in Fig. 8, at a coefficient that it does not give",
    4: "1 where the scale is small, which it does not give",
}
_NOTE = (
    "A number of trees is exact: the forest of least eq. 14 that the search and splits of its "
    "forests find. With PS's rate the weights "
    "of eq. 10 shorten the steps, the more the more trees there are. The target is lower than in "
    "Fig. 9, and there are fewer seeds, since there are many runs."
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Forests to search for.

    Args:
        gini, batch_s, workers, seed: see :class:`papers.haaf._setting.Case`.
        all_numbers: whether each number of trees is wanted, or the search's alone.
    """

    gini: float
    batch_s: float
    workers: int
    seed: int
    all_numbers: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A forest.

    Args:
        groups: names of the sites of each tree.
        objective_s: eq. 14.
    """

    groups: tuple[tuple[str, ...], ...]
    objective_s: float


def plan(of: Plan, data_dir: Path | None) -> list[Planned]:
    """Return the search's forest; or the best that is found with 1, 2, 3 trees and so on.

    The search has an upper bound on trees. Where it takes fewer, the rest are made by splits: of
    all cuts of a tree at a compute time, the one after which eq. 14 is least.
    """
    case = Case(of.gini, 0, workers=of.workers, batch_s=of.batch_s)
    case = replace(case, seed=of.seed)
    overlay = setting.network(of.seed, of.workers)
    names = [site.name for site in overlay.sites]
    times = ComputeModel(setting.compute(case, LENET.batch), names, of.seed)
    compute_s = {site: times.mean_s(site, LENET.batch) for site in range(of.workers)}
    problem = ForestRoute().problem(overlay, of.workers, compute_s, _ELEMENTS)

    def planned(found: Forest) -> Planned:
        groups = tuple(tuple(names[site] for site in sorted(group)) for group in found.groups)
        return Planned(groups, found.objective)

    if not of.all_numbers:
        return [planned(EdaForest(most_trees=of.workers).search(problem))]
    best: dict[int, Forest] = {}
    for most in range(1, of.workers + 1):
        tried = [EdaForest(most_trees=most).search(problem)]
        if most - 1 in best:
            tried += _splits(problem, best[most - 1])
        for found in tried:
            trees = len(found.trees)
            if trees not in best or found.objective < best[trees].objective:
                best[trees] = found
    return [planned(best[trees]) for trees in range(1, of.workers + 1)]


def _splits(problem: ForestProblem, of: Forest) -> list[Forest]:
    """Return the forests with one tree of a forest cut in two, at each compute time."""
    found = []
    for number, group in enumerate(of.groups):
        others = [each for at, each in enumerate(of.groups) if at != number]
        order = sorted(group, key=lambda site: (problem.compute_s[site], site))
        found += [
            forest(problem, [*others, order[:cut], order[cut:]]) for cut in range(1, len(order))
        ]
    return found


def _make(lab: Lab) -> Result:
    ps_rate = setting.tuned(lab, setting.ps(), Case(_GINIS[0], lab.seed, _LEARNER)).rate
    rows = _searched(lab)
    panels = {}
    for gini in _GINIS:
        found, panels[f"Gini {gini:g}"] = _each_number(lab, gini, ps_rate)
        rows += [replace(row, what=f"{row.what}: Gini {gini:g}") for row in found]
    for gini in _GINIS:
        case = Case(gini, lab.seed, _LEARNER, batch_s=_LONG_S)
        rows += [
            replace(row, what=f"{row.what}: Gini {gini:g}") for row in _long(lab, case, ps_rate)
        ]
    return Result(
        tuple(rows),
        setting.notes(lab, _NOTE, learner=_LEARNER, is_literal=False),
        picture("trees", f"time to {_LEARNER.target:.0%} over PS", panels),
    )


def _searched(lab: Lab) -> list[Row]:
    """Return how many trees the search takes, by the time of a batch and the number of workers."""
    asked = [(batch_s, WORKERS) for batch_s in _BATCHES_S]
    asked += [(BATCH_S, workers) for workers in _SIZES if workers != WORKERS]
    seeds = lab.seeds(_PLANNED)
    jobs = [
        Plan(gini, batch_s, workers, seed)
        for batch_s, workers in asked
        for gini in _GINIS
        for seed in seeds
    ]
    planned = dict(zip(jobs, lab.map(plan, jobs, list[Planned]), strict=True))
    rows = []
    for batch_s, workers in asked:
        for gini in _GINIS:
            found = [planned[Plan(gini, batch_s, workers, seed)] for seed in seeds]
            trees = spread([len(each.groups) for (each,) in found], ".3g")
            what = f"{workers} workers, a batch takes {batch_s:g} s, trees as searched"
            paper = _PAPER.get(workers, "")
            rows.append(Row(f"{what}: Gini {gini:g}", paper, trees, seeds=f"{len(seeds)} networks"))
    return rows


Points = dict[str, list[tuple[float, float]]]
"""(trees, time over PS's), by the kind of learning rate."""


def _each_number(lab: Lab, gini: float, ps_rate: float) -> tuple[list[Row], Points]:
    """Return a row for each number of trees, and what it says as points."""
    seeds = lab.seeds(_SEEDS)
    cases = [Case(gini, seed, _LEARNER) for seed in seeds]
    plans = [
        Plan(gini, BATCH_S, WORKERS, seed, True) for seed in (*seeds, lab.seed + _LEARNER.tries[0])
    ]
    *planned, tried = lab.map(plan, plans, list[Planned])

    def measured(name: str, schemes: Sequence[Scheme], rate: float) -> list[Outcome]:
        return lab.measure(
            [
                setting.trial(lab, how, case, rate, ends_s=LONGEST_S, scheme=name)
                for how, case in zip(schemes, cases, strict=True)
            ]
        )

    ps = measured("PS", [setting.ps()] * len(cases), ps_rate)
    rows = [Row("seeds", "", f"{len(cases)}"), Row("PS", "", told.times(ps))]
    points: Points = {_BEST: [], _SAME: []}
    for trees in range(1, WORKERS + 1, 5 if lab.quick else 1):
        schemes = [_given(each[trees - 1]) for each in planned]
        best = setting.tuned(lab, _given(tried[trees - 1]), cases[0]).rate
        objective = spread([each[trees - 1].objective_s for each in planned], ".2f")
        said = [f"eq. 14: {objective} s"]
        for name, rate in ((_BEST, best), (_SAME, ps_rate)):
            if name == _BEST or trees in _WITH_SAME:
                runs = measured(f"{trees} trees, {name}", schemes, rate)
                said.append(f"{name}, {rate:g}: {told.over(runs, ps)}")
                points[name].append((float(trees), _ratio(runs, ps)))
        rows.append(Row(f"K = {trees}, to {_LEARNER.target:.0%}, over PS", "", "; ".join(said)))
    return rows, points


def _given(planned: Planned) -> Scheme:
    return haaf(search=GivenForest(groups=planned.groups))


def _ratio(runs: Sequence[Outcome], ps: Sequence[Outcome]) -> float:
    """Return the geometric mean of times over PS's, of those that reached the target."""
    pairs = [(told.reached_s(a), told.reached_s(b)) for a, b in zip(runs, ps, strict=True)]
    found = [a / b for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    return round(geometric_mean(found), 3) if found else math.nan


def _long(lab: Lab, case: Case, ps_rate: float) -> list[Row]:
    """Return the rows of a batch that takes much longer than a transfer."""
    cases = [replace(case, seed=seed) for seed in lab.seeds(_SEEDS)]
    ps = lab.measure(
        [
            setting.trial(lab, setting.ps(), each, ps_rate, ends_s=LONGEST_S, scheme="PS", long=1)
            for each in cases
        ]
    )
    rates = setting.tuned_forests(lab, case)
    by_gini = {name: {case.gini: rate} for name, rate in rates.items()}
    runs = setting.forests(lab, cases, by_gini, ends_s=LONGEST_S, long=1)
    where = f"a batch takes {case.batch_s:g} s"
    rows = [Row(f"{where}, trees as searched", "", told.trees(told.of(runs, scheme=ANY_TREES)))]
    for name, rate in rates.items():
        said = f"rate {rate:g}: {told.over(told.of(runs, scheme=name), ps)}"
        rows.append(Row(f"{where}, {name}, to {_LEARNER.target:.0%}, over PS", "", said))
    return rows


EXPERIMENTS = (Experiment("haaf/trees", "the number of trees", _make),)
