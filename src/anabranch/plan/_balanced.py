"""The balanced k-way tree, in order of site index, whatever the links (MLNET; BKT in the paper)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

import numpy as np

from anabranch._typed_toml import Positive, Table
from anabranch.overlay import Overlay
from anabranch.plan._fapt import check_site
from anabranch.plan._load import rate_under_bps
from anabranch.plan._model import NO_PARENT, Plan, PlanError, Tree
from anabranch.plan._planner import CHUNK_ELEMENTS, named_or_kept
from anabranch.plan._routes import relay_routes

_Edge = tuple[int, int]


class Balanced(Table, frozen=True, kw_only=True, tag_field="kind", tag="balanced"):
    """A balanced tree in order of site index, whatever the links.

    Args:
        root: a site's name; None for the best.
        arity: the most children that a site has.
    """

    root: str | None = None
    arity: Positive = 2
    deep: ClassVar[bool] = False
    by_size: ClassVar[bool] = False

    def plan(
        self,
        overlay: Overlay,
        *,
        version: int = 1,
        previous: Plan | None = None,
        elements: int | None = None,
        chunk_elements: int = CHUNK_ELEMENTS,
    ) -> Plan:
        """See :class:`anabranch.plan.Planner`."""
        root = named_or_kept(overlay, self.root, previous)
        return balanced(overlay, root=root, arity=self.arity, version=version)


def balanced(
    overlay: Overlay, *, root: int | None = None, arity: int = 2, version: int = 1
) -> Plan:
    """Plan a balanced tree: the root first, then all sites in order of index, filled like a heap.

    Args:
        overlay: n sites. Its links do not shape the tree; an edge without one gets a relay route.
        root: a site index; None for the root of the highest steady rate, ties to the lowest
            index. The root can matter more than the planner, and a baseline should be at its best.
        arity: the most children a site has, >= 1; 1 makes a chain.
        version: the plan's.

    Raises:
        PlanError: ``root`` is no site, or ``arity`` is less than 1.
    """
    if arity < 1:
        raise PlanError(f"a balanced tree of arity {arity} has no children; give 1 or more")
    roots = range(overlay.size) if root is None else [check_site(overlay, root, "root")]
    ups = {at: _edges(overlay.size, at, arity) for at in roots}
    every_up = {edge for edges in ups.values() for edge in edges}  # roots share most edges
    routes = relay_routes(overlay, every_up)
    routes |= relay_routes(overlay, {(parent, site) for site, parent in every_up})
    best = _best(overlay, ups, routes) if root is None else root
    return _plan(overlay, best, ups[best], routes, arity, version)


def _best(
    overlay: Overlay, ups: Mapping[int, list[_Edge]], routes: Mapping[_Edge, tuple[int, ...]]
) -> int:
    """Return the root whose tree has the highest steady rate."""
    links = [(link.source, link.target) for link in overlay]
    number = {ends: place for place, ends in enumerate(links)}
    crossed: dict[_Edge, list[int]] = {}  # the links of an edge up and down; roots share most edges

    def rate_bps(root: int) -> float:
        for site, parent in ups[root]:
            if (site, parent) not in crossed:
                both = (site, parent), (parent, site)
                hops = (hop for edge in both for hop in pairwise(routes.get(edge, edge)))
                crossed[site, parent] = [number[hop] for hop in hops]
        places = [place for edge in ups[root] for place in crossed[edge]]
        load = np.bincount(places, minlength=len(links)).tolist()
        used = {ends: float(buffers) for ends, buffers in zip(links, load, strict=True) if buffers}
        return rate_under_bps(used, overlay)

    return max(ups, key=rate_bps)


def _edges(n: int, root: int, arity: int) -> list[_Edge]:
    """Return each site but the root with its parent."""
    order = [root, *(site for site in range(n) if site != root)]
    return [(order[place], order[(place - 1) // arity]) for place in range(1, n)]


def _plan(
    overlay: Overlay,
    root: int,
    ups: list[_Edge],
    routes: dict[_Edge, tuple[int, ...]],
    arity: int,
    version: int,
) -> Plan:
    parents = [NO_PARENT] * overlay.size
    for site, parent in ups:
        parents[site] = parent
    tree = Tree(root, 1.0, tuple(parents), tuple(parents))
    used = [*ups, *((parent, site) for site, parent in ups)]
    own_routes = {edge: routes[edge] for edge in used if edge in routes}
    label = f"balanced {arity}-way tree at {overlay.sites[root].name}"
    return Plan(version, (tree,), own_routes, label)
