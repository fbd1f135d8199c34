"""The forest as a route: groups of workers, each with a tree to one server (HAAF, section 3.4)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta
from msgspec.structs import replace as struct_replace

from anabranch._typed_toml import Seconds, Table
from anabranch.overlay import Overlay
from anabranch.plan._fapt import Fapt, fastest_paths
from anabranch.plan._forest import fastest_tree, objective
from anabranch.plan._forest_cycle import cycle
from anabranch.plan._forest_eda import EdaForest
from anabranch.plan._forest_exact import ExactForest
from anabranch.plan._forest_given import GivenForest
from anabranch.plan._forest_local import LocalForest
from anabranch.plan._forest_problem import ForestProblem
from anabranch.plan._model import NO_PARENT, Group, Plan, Tree
from anabranch.plan._packed import Packed
from anabranch.plan._planner import CHUNK_ELEMENTS, named_or_kept
from anabranch.plan._reach import meetings, restrict

AnyForestSearch = EdaForest | LocalForest | ExactForest | GivenForest

_ELEMENT_BYTES = 4
_SOME_ELEMENTS = 1 << 20
_ALIKE_S = 1.0  # any time: eq. 14 goes by differences


class ForestRoute(Table, frozen=True, kw_only=True, tag_field="kind", tag="forest"):
    """A forest of aggregation trees (HAAF), for a model that servers hold.

    Workers that compute for about as long, and are near one another, form a group. A tree of
    fastest ways adds up their updates, and its root sends the sum to the server. Beyond the paper,
    ``within`` gives several trees at once, whose roots hold one part of the model each.

    Args:
        server: the site that holds the model; None for the best root of fastest paths. With
            ``within``, groups are found for it, and it holds a part only if it is a root.
        search: how to find the groups: the paper's ``eda``, ``local`` or ``exact``; or ``given``.
        latency_weight, spread_weight: lambda_1 and lambda_2 of eq. 14.
        elements: of the model; they set the time of a transfer. Without them, a scenario takes
            them from its task, and a group from ``model_elements``. Where that is unknown too,
            the first forest is planned for a million elements, and later ones for the size that
            sites report.
        compute_s: seconds that workers compute an update, by name; other sites only relay. Without
            them, a scenario takes them from its [compute]. In a group, and without [compute],
            all workers count as equally fast until awareness has measured them. Where no worker is
            known, all sites but the server count as workers.
        within: plans the trees of all sites together, ``packed`` or ``fapt``, whose roots hold the
            model. Each group uses the parts of these trees that lead from its workers to the roots
            and back. None for the paper's one tree for each group.

    Raises:
        ValueError: a weight that is negative or not finite.
    """

    server: str | None = None
    search: AnyForestSearch = LocalForest()
    latency_weight: float = 0.5
    spread_weight: float = 0.1
    elements: Annotated[int, Meta(ge=1)] | None = None
    compute_s: dict[str, Seconds] | None = None
    within: Packed | Fapt | None = None

    def __post_init__(self) -> None:
        for name in ("latency_weight", "spread_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} is {getattr(self, name):g}, which must be finite and 0 or more"
                )

    by_size: ClassVar[bool] = True

    @property
    def deep(self) -> bool:
        """See :class:`anabranch.plan.Planner`."""
        return self.within is not None and self.within.deep

    def plan(
        self,
        overlay: Overlay,
        *,
        version: int = 1,
        previous: Plan | None = None,
        elements: int | None = None,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> Plan:
        """See :class:`anabranch.plan.Planner`.

        The plan's own trees are those of ``within``; without it, the tree of fastest ways between
        the server and all sites. Without ``elements``, transfers count for a million elements.
        """
        server = named_or_kept(overlay, self.server, previous)
        if server is None:
            server = fastest_paths(overlay).best_root
        given = self.compute_s or {}
        compute_s = {overlay.index(name): seconds for name, seconds in given.items()}
        if not compute_s:
            compute_s = {site: 0.0 for site in range(overlay.size) if site != server}
        compute_s = compute_s or {server: 0.0}  # the server is the only site
        formed = self.formed(self.problem(overlay, server, compute_s, elements), version)
        if self.within is None:
            return formed
        together = self.within.plan(
            overlay,
            version=version,
            previous=previous,
            elements=self.elements or elements,
            chunk_elements=chunk_elements,
        )
        return _within(together, formed)

    def of_workers(self, names: Iterable[str]) -> ForestRoute:
        """Return this planner for these workers, equally fast if it has no compute times."""
        if self.compute_s is not None:
            return self
        return struct_replace(self, compute_s=dict.fromkeys(names, _ALIKE_S))

    def among(self, names: Collection[str]) -> ForestRoute:
        """Return this planner for the named sites alone: given groups lose the other sites."""
        if not isinstance(self.search, GivenForest):
            return self
        return struct_replace(self, search=self.search.among(names))

    def problem(
        self,
        overlay: Overlay,
        server: int,
        compute_s: Mapping[int, float],
        elements: int | None = None,
    ) -> ForestProblem:
        """Return the input of a search: see :class:`ForestProblem`."""
        return ForestProblem(
            overlay,
            server,
            compute_s,
            _ELEMENT_BYTES * (self.elements or elements or _SOME_ELEMENTS),
            self.latency_weight,
            self.spread_weight,
        )

    def formed(self, problem: ForestProblem, version: int) -> Plan:
        """Return the plan of the forest that the search finds for a problem.

        Args:
            problem: see ``problem``.
            version: the plan's; its groups have the versions after it.
        """
        overlay, server = problem.overlay, problem.server
        found = self.search.search(problem)
        groups = tuple(
            Group(tuple(sorted(tree.plan.members)), to_server(problem, tree.plan, version + number))
            for number, tree in enumerate(found.trees, 1)
        )
        plural = "s" if len(groups) > 1 else ""
        label = f"forest of {len(groups)} tree{plural} to {overlay.sites[server].name}"
        base = fastest_tree(problem, server, range(overlay.size))
        return replace(base, version=version, label=label, groups=groups)


def _within(together: Plan, forest: Plan) -> Plan:
    """Return a plan of all sites, with each group's part of its trees.

    Where a group's ways meet at a site that trains in no group, that site is an edge aggregator: it
    adds up the group's updates, and passes the model on to each way.
    """
    roots = {tree.root for tree in together.trees}
    training = {worker for group in forest.groups for worker in group.workers}
    groups = []
    for group in forest.groups:
        members = roots.union(group.workers)
        members |= meetings(together, members) - training
        own = replace(restrict(together, members), version=group.plan.version)
        groups.append(Group(group.workers, own))
    plural = "s" if len(groups) > 1 else ""
    label = f"forest of {len(groups)} group{plural}, {together.label}"
    return replace(together, label=label, groups=tuple(groups))


def to_server(problem: ForestProblem, plan: Plan, version: int) -> Plan:
    """Return the plan of a group's tree with the server above its root.

    Where the server is a member of the group, return Algorithm 1's tree at the server.
    """
    server, overlay = problem.server, problem.overlay
    if server in plan.members:
        return replace(fastest_tree(problem, server, plan.members), version=version)
    (tree,) = plan.trees
    root = tree.root
    up, down = [*tree.up], [*tree.down]
    up[root] = down[root] = server
    up[server] = down[server] = NO_PARENT
    routes = dict(plan.routes)
    ways = (
        _way(problem.paths.up_parent[server].tolist(), root),
        _way(problem.paths.down_parent[server].tolist(), root)[::-1],
    )
    routes |= {(way[0], way[-1]): way for way in ways if len(way) > 2}
    label = f"aggregation tree at {overlay.sites[root].name}"
    return Plan(version, (Tree(server, 1.0, tuple(up), tuple(down)),), routes, label)


def _way(parents: list[int], site: int) -> tuple[int, ...]:
    way = [site]
    while parents[way[-1]] >= 0:
        way.append(parents[way[-1]])
    return tuple(way)


@dataclass(frozen=True, slots=True)
class ForestCosts:
    """The cost of a forest, and its workers' speed, with its groups' present ways.

    Args:
        objective_s: eq. 14, seconds.
        updates_per_s: of all workers, if each worker makes one update in its group's period.
    """

    objective_s: float
    updates_per_s: float


def forest_costs(problem: ForestProblem, plan: Plan) -> ForestCosts:
    """Return the cost and the speed of a plan's groups.

    Args:
        problem: which of the workers train now, and over which network.
        plan: its groups have the server at their roots.
    """
    cycles, workers = [], []
    for group in plan.groups:
        here = {worker for worker in group.workers if worker in problem.compute_s}
        if here:
            there = here | {problem.server}
            way = group.plan if here == {*group.workers} else restrict(group.plan, there)
            cycles.append(cycle(problem, way))
            workers.append(len(here))
    if not cycles:
        return ForestCosts(0.0, 0.0)
    latency_s = np.array([each.latency_s for each in cycles])
    period_s = np.array([each.period_s for each in cycles])
    return ForestCosts(
        float(objective(problem, latency_s, period_s)), float((np.array(workers) / period_s).sum())
    )


def with_kept_groups(plan: Plan, previous: Plan, lost: Collection[int] = ()) -> Plan:
    """Return a plan whose groups keep their plans from the previous plan where they are the same.

    Such a group keeps its version, so its workers need not hear of the change. It keeps its
    auxiliary paths too. A group whose auxiliary paths pass a lost site is not kept.
    """
    known = {
        _way_of(group): group
        for group in previous.groups
        if not group.plan.auxiliary_relays & {*lost}
    }
    return replace(plan, groups=tuple(known.get(_way_of(each), each) for each in plan.groups))


def _way_of(group: Group) -> tuple[object, ...]:
    routes = tuple(sorted(group.plan.routes.items()))
    return group.workers, group.plan.trees, routes
