"""The forests next to a forest: one site moved, two swapped, two trees merged, one split.

The cost of a change follows from the groups that it replaces. Eq. 14 needs the sum of the latencies
and the first two moments of the periods. A change subtracts the moments of the groups that it
removes, and adds those of the groups that it makes. So one array operation weighs all changes of a
kind, and :class:`anabranch.plan._forest_groups.GroupCosts` gives the costs of all groups that
differ by a site at once. Periods count from their mean, so that the second moment loses few digits.

Legend of shapes: n sites that train; arrays of *moments* begin with an axis of three.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anabranch.plan._forest import objective
from anabranch.plan._forest_groups import Bools, Floats, GroupCosts, Ints
from anabranch.plan._forest_problem import ForestProblem

_CUTS = 16  # most ways to split a group in each order, at the widest gaps


class Neighbourhood:
    """A forest and the forests one change away.

    Every public method returns the best forest of one kind of change: its objective and its groups,
    as rows of places. The objective is infinite where there is no such forest.

    Args:
        problem: for the weights.
        groups: for the costs.
        members: the groups as rows of places, shape (trees, n).
    """

    def __init__(self, problem: ForestProblem, groups: GroupCosts, members: Bools) -> None:
        self.members = members
        self._problem, self._groups = problem, groups
        costs = groups.costs(members)
        self.cost = float(objective(problem, costs.latency_s, costs.period_s))
        self._centre_s = costs.period_s.mean()
        self._of_tree = self._moments(costs.latency_s, costs.period_s)
        self._total = self._of_tree.sum(axis=1)
        self._trees, self._size = members.shape
        self._tree = members.argmax(axis=0)  # of each place

    def moved(self) -> tuple[float, Bools]:
        """One site moved to another tree, or to a new tree."""
        trees, every = self._trees, np.arange(self._size)
        sizes = self.members.sum(axis=1)
        none = np.zeros(self._size, dtype=bool)
        more = np.array([self._groups.additions(row) for row in (*self.members, none)])
        less = np.zeros((trees, 2, self._size))
        for tree in np.flatnonzero(sizes > 1):
            less[tree] = self._groups.removals(self.members[tree])
        less = less[self._tree, :, every]
        emptied = sizes[self._tree] == 1
        left = self._moments(*less.T)
        left[:, emptied] = 0.0
        joined = self._moments(more[:, 0], more[:, 1])
        joined[:, :trees] -= self._of_tree[:, :, None]
        change = (left - self._of_tree[:, self._tree])[:, None] + joined
        count = trees + (np.arange(trees + 1) == trees)[:, None] - emptied
        cost = self._objective(change, count)
        tree, site = np.unravel_index(cost.argmin(), cost.shape)
        found = np.vstack([self.members, np.zeros(self._size, dtype=bool)])
        found[:, site] = np.arange(trees + 1) == tree
        return float(cost[tree, site]), found[found.any(axis=1)]

    def swapped(self) -> tuple[float, Bools]:
        """Two sites of different trees exchanged."""
        without = self.members[self._tree]
        np.fill_diagonal(without, val=False)
        instead = np.array([self._groups.additions(row) for row in without])  # (n, 2, n)
        moments = self._moments(instead[:, 0], instead[:, 1])
        moments -= self._of_tree[:, self._tree, None]
        change = moments + moments.transpose(0, 2, 1)
        cost = self._objective(change, np.array(self._trees))
        cost[self._tree[:, None] == self._tree] = np.inf
        one, other = np.unravel_index(cost.argmin(), cost.shape)
        found = self.members.copy()
        found[:, [one, other]] = found[:, [other, one]]
        return float(cost[one, other]), found

    def merged(self) -> tuple[float, Bools]:
        """Two trees merged into one."""
        one, other = np.triu_indices(self._trees, k=1)
        if not len(one):
            return np.inf, self.members
        union = self.members[one] | self.members[other]
        costs = self._groups.costs(union)
        change = self._moments(costs.latency_s, costs.period_s)
        change -= self._of_tree[:, one] + self._of_tree[:, other]
        cost = self._objective(change, np.array(self._trees - 1))
        best = int(cost.argmin())
        rest = np.delete(self.members, [one[best], other[best]], axis=0)
        return float(cost[best]), np.vstack([rest, union[best]])

    def split(self) -> tuple[float, Bools]:
        """One tree split in two, by compute time, by distance to the server, or by their sum."""
        cuts = list(self._cuts())
        if not cuts:
            return np.inf, self.members
        tree = np.array([tree for tree, _ in cuts])
        part = np.array([part for _, part in cuts])
        rest = self.members[tree] & ~part
        change = -self._of_tree[:, tree]
        for half in (part, rest):
            costs = self._groups.costs(half)
            change += self._moments(costs.latency_s, costs.period_s)
        cost = self._objective(change, np.array(self._trees + 1))
        best = int(cost.argmin())
        found = self.members.copy()
        found[tree[best]] = rest[best]
        return float(cost[best]), np.vstack([found, part[best]])

    def _cuts(self) -> Iterator[tuple[int, Bools]]:
        """Yield trees and the parts to split off them."""
        for tree, row in enumerate(self.members):
            (inside,) = row.nonzero()
            for key_s in self._groups.orders_s:
                for part in parts_at_gaps(inside[np.argsort(key_s[inside])], key_s, _CUTS):
                    below = np.zeros(self._size, dtype=bool)
                    below[part] = True
                    yield tree, below

    def _moments(self, latency_s: Floats, period_s: Floats) -> Floats:
        away_s = period_s - self._centre_s
        return np.array([latency_s, away_s, away_s**2])

    def _objective(self, change: Floats, count: Ints) -> Floats:
        """Return eq. 14 after this change of the moments, with this count of trees."""
        latency_s, away_s, squares = self._total.reshape(3, *[1] * (change.ndim - 1)) + change
        variance = np.maximum(squares / count - (away_s / count) ** 2, 0.0)
        weighed_s = self._problem.latency_weight * latency_s
        found: Floats = weighed_s + self._problem.spread_weight * np.sqrt(variance)
        return found


def parts_at_gaps(order: Ints, key_s: Floats, most: int) -> list[Ints]:
    """Return the beginnings of an ordered group that end at its widest gaps, widest first.

    Args:
        order: places by rising key.
        key_s: of every place.
        most: how many beginnings, at most.
    """
    gaps_s = np.diff(key_s[order])
    ends = np.argsort(-gaps_s, kind="stable")[:most] + 1
    return [order[:end] for end in ends.tolist()]
