"""The best forest of few sites, by trying all partitions that a bound does not rule out.

Partitions grow group by group; the next group always holds the first site left. The sites left
cost at least the least sum of latencies of any partition of them, which a dynamic program over
subsets gives. The deviation does not add up over groups. But the sum of squared deviations from
the mean never falls as groups join. So with k groups so far and m sites left, the deviation ends at
``sqrt(squares / (k + m))`` or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from anabranch._typed_toml import Table
from anabranch.plan._forest import Forest, grown
from anabranch.plan._forest_groups import Bools, GroupCosts
from anabranch.plan._forest_problem import ForestProblem
from anabranch.plan._model import PlanError

MOST_SITES = 12  # half a million pairs of a set and a subset


class ExactForest(Table, frozen=True, kw_only=True, tag_field="kind", tag="exact"):
    """The best forest: for checks, and where few sites train."""

    def search(self, problem: ForestProblem) -> Forest:
        """Return a forest of the least objective (eq. 14).

        Raises:
            PlanError: more than 12 sites train.
        """
        groups = GroupCosts(problem)
        return grown(problem, groups, best_partition(problem, groups))


def best_partition(problem: ForestProblem, groups: GroupCosts) -> Bools:
    """Return the groups of a best forest as rows of places.

    Raises:
        PlanError: more than 12 sites train.
    """
    n = groups.size
    if n > MOST_SITES:
        raise PlanError(
            f"{n} sites train, and an exact search takes at most {MOST_SITES}; use a local search"
        )
    subsets = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(bool)
    costs = groups.costs(subsets[1:])
    latency = [0.0, *(problem.latency_weight * costs.latency_s).tolist()]  # by subset
    period_s = [0.0, *costs.period_s.tolist()]
    options = _options(latency)
    best = math.inf
    best_groups: tuple[int, ...] = ()

    def extend(
        left: int, chosen: tuple[int, ...], cost: float, mean_s: float, squares: float
    ) -> None:
        """Complete a forest from the chosen groups.

        ``squares`` is the sum of their periods' squared deviations from ``mean_s``.
        """
        nonlocal best, best_groups
        count = len(chosen)
        if not left:
            total = cost + problem.spread_weight * math.sqrt(squares / count)
            if total < best:
                best, best_groups = total, chosen
            return
        spread = problem.spread_weight * math.sqrt(squares / (count + left.bit_count()))
        for bound, group in options(left):
            if cost + bound + spread >= best:
                return
            away_s = period_s[group] - mean_s
            new_mean_s = mean_s + away_s / (count + 1)
            new_squares = squares + away_s * (period_s[group] - new_mean_s)
            extend(left ^ group, (*chosen, group), cost + latency[group], new_mean_s, new_squares)

    extend(2**n - 1, (), 0.0, 0.0, 0.0)
    return subsets[list(best_groups)]


def _options(latency: list[float]) -> Callable[[int], list[tuple[float, int]]]:
    """Return a function that lists the groups which may hold the first site of a given set.

    It gives each group with the least latency cost of a partition of the set that contains the
    group, cheapest first.
    """
    least = {0: 0.0}
    listed: dict[int, list[tuple[float, int]]] = {}

    def options(left: int) -> list[tuple[float, int]]:
        if left not in listed:
            others = left & (left - 1)  # all but the first
            found, some = [], others
            while True:
                group = left ^ some
                found.append((latency[group] + of(some), group))
                if not some:
                    break
                some = (some - 1) & others
            listed[left] = sorted(found)
        return listed[left]

    def of(left: int) -> float:
        if left not in least:
            least[left] = options(left)[0][0]
        return least[left]

    return options
