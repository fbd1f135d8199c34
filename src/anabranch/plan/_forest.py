"""A forest of aggregation trees: every site that trains is in one tree (HAAF, section 3.4).

Each tree synchronises its own sites, at its own pace, and the server applies each tree's sum when
it arrives. The objective of a forest is eq. 14,

    lambda_1 * sum of l_k + lambda_2 * Std(d_k),

with the latency l_k and period d_k of each tree (:mod:`anabranch.plan._forest_cycle`). Std is the
population standard deviation, 0 for a single tree. A search chooses the groups; Algorithms 1 and 2
give each group's tree (:mod:`anabranch.plan._forest_groups`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anabranch.plan._fapt import check_site
from anabranch.plan._forest_groups import Bools, Floats, GroupCosts
from anabranch.plan._forest_problem import ForestProblem
from anabranch.plan._model import ABSENT, NO_PARENT, Plan, PlanError, Tree


@dataclass(frozen=True, slots=True)
class AggregationTree:
    """One tree of a forest.

    Args:
        plan: its only tree carries the whole buffer; its members are the group. An edge whose
            fastest way passes sites outside the group has a route, on which those sites relay.
        period_s: d_k of eq. 12, seconds.
        latency_s: l_k of eq. 13, seconds.
    """

    plan: Plan
    period_s: float
    latency_s: float

    @property
    def root(self) -> int:
        """The site that talks to the server."""
        return self.plan.trees[0].root


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees: each site that trains is in exactly one.

    Args:
        trees: in order of period, then of root.
        objective: eq. 14, seconds.
    """

    trees: tuple[AggregationTree, ...]
    objective: float

    @property
    def groups(self) -> tuple[frozenset[int], ...]:
        """The sites of each tree, by index."""
        return tuple(tree.plan.members for tree in self.trees)


def forest(problem: ForestProblem, groups: Iterable[Collection[int]]) -> Forest:
    """Return the forest of given groups: Algorithm 2 chooses each group's tree.

    Args:
        problem: which sites train, over which network.
        groups: sites by index; each site that trains is in exactly one.

    Raises:
        PlanError: an empty group, or a site that is in none, in several, or does not train.

    Two near sites and a far one, 1 s away each way; all compute for 1 s:

    >>> from anabranch.overlay import Link, Overlay, Site
    >>> ways = [(0, 1, 0.1), (0, 2, 1.0), (1, 2, 1.0)]
    >>> links = [Link(*p, 8e9, s) for a, b, s in ways for p in ((a, b), (b, a))]
    >>> overlay = Overlay("three", (Site("a"), Site("b"), Site("far")), tuple(links))
    >>> compute_s = {0: 1.0, 1: 1.0, 2: 1.0}
    >>> problem = ForestProblem(overlay, server=0, compute_s=compute_s, size_bytes=1)
    >>> found = forest(problem, [[0, 1], [2]])
    >>> [(tree.root, round(tree.period_s, 3), round(tree.latency_s, 3)) for tree in found.trees]
    [(0, 1.2, 0.1), (2, 3.0, 1.0)]
    >>> round(found.objective, 3)  # 0.5 * (0.1 + 1.0) + 0.1 * 0.9
    0.64
    """
    given = [sorted(group) for group in groups]
    listed = sorted(site for group in given for site in group)
    if listed != list(problem.sites) or not all(given):
        raise PlanError(
            f"groups hold sites {listed}; give groups that are not empty and together hold each "
            f"site that trains once: {list(problem.sites)}"
        )
    members = np.array([[site in group for site in problem.sites] for group in given])
    return grown(problem, GroupCosts(problem), members)


def grown(problem: ForestProblem, groups: GroupCosts, members: Bools) -> Forest:
    """Return the forest of groups, given as rows of places; each place is in one row."""
    costs = groups.costs(members)
    trees = [
        AggregationTree(
            fastest_tree(
                problem, problem.sites[root], [problem.sites[at] for at in row.nonzero()[0]]
            ),
            period_s,
            latency_s,
        )
        for row, root, period_s, latency_s in zip(
            members,
            costs.root.tolist(),
            costs.period_s.tolist(),
            costs.latency_s.tolist(),
            strict=True,
        )
    ]
    trees.sort(key=lambda tree: (tree.period_s, tree.root))
    return Forest(tuple(trees), float(objective(problem, costs.latency_s, costs.period_s)))


def objective(
    problem: ForestProblem, latency_s: Floats, period_s: Floats, where: Bools | bool = True
) -> Floats:
    """Return eq. 14 of forests; the last axis holds trees, and ``where`` masks those that exist."""
    spread_s = np.std(period_s, axis=-1, where=where)
    total_s = np.sum(latency_s, axis=-1, where=where)
    found: Floats = problem.latency_weight * total_s + problem.spread_weight * spread_s
    return found


def fastest_tree(problem: ForestProblem, root: int, sites: Collection[int]) -> Plan:
    """Return Algorithm 1's tree for a root: the fastest ways between it and the other sites.

    Where a way passes a site outside the group, that site relays and is not a member of the tree.

    Raises:
        PlanError: the root is not among the sites, or a site is not in the overlay.
    """
    for site in sites:
        check_site(problem.overlay, site, "the group's")
    if root not in sites:
        raise PlanError(f"root {root} is not in its group {sorted(sites)}; choose one that is")
    members = frozenset(sites)
    up = [ABSENT] * problem.overlay.size
    down = [ABSENT] * problem.overlay.size
    up[root] = down[root] = NO_PARENT
    routes = {}
    for site in members - {root}:
        way = tuple(_to_member(problem.paths.up_parent[root], site, members))
        up[site], routes[way[0], way[-1]] = way[-1], way
    for site in members - {root}:
        way = tuple(_to_member(problem.paths.down_parent[root], site, members))[::-1]
        down[site] = way[0]
        routes.setdefault((way[0], way[-1]), way)
    over_relays = {edge: way for edge, way in sorted(routes.items()) if len(way) > 2}
    label = f"aggregation tree at {problem.overlay.sites[root].name}"
    return Plan(1, (Tree(root, 1.0, tuple(up), tuple(down)),), over_relays, label)


def _to_member(parents: npt.NDArray[np.int32], site: int, members: frozenset[int]) -> Iterator[int]:
    """Yield the sites of a way from a site to the next member of the group, both included."""
    yield site
    while (site := int(parents[site])) not in members:
        yield site
    yield site
