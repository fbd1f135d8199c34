"""Trees in which only some sites contribute or receive: the other sites that data still passes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from anabranch.plan._model import ABSENT, NO_PARENT, Plan, Tree


def children_towards(
    parents: tuple[int, ...], members: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Return, for each site, its children in a tree that are members or have members below them.

    Args:
        parents: of each site, ``NO_PARENT`` at the root: a tree's way up, or its way down.
        members: of the exchange, by index.

    >>> children_towards((-1, 0, 1, 1, 0), members={0, 3})
    ((1,), (3,), (), (), ())
    """
    reaching = [False] * len(parents)
    for site in members:
        while site >= 0 and not reaching[site]:
            reaching[site] = True
            site = parents[site]
    children: list[list[int]] = [[] for _ in parents]
    for site, parent in enumerate(parents):
        if reaching[site] and parent >= 0:
            children[parent].append(site)
    return tuple(map(tuple, children))


def meetings(plan: Plan, members: Collection[int]) -> set[int]:
    """Return the sites, members or not, where ways to or from members meet in a plan's trees.

    >>> hub = Plan(1, (Tree(0, 1.0, (-1, 0, 1, 1, 0), (-1, 0, 1, 1, 0)),))
    >>> meetings(hub, {2, 3, 4}), meetings(hub, {2, 4})
    ({0, 1}, {0})
    """
    ways = (way for tree in plan.trees for way in (tree.up, tree.down))
    return {
        site
        for way in ways
        for site, children in enumerate(children_towards(way, members))
        if len(children) > 1
    }


def in_between(plan: Plan, members: Collection[int]) -> set[int]:
    """Return the sites that members' data passes on a plan's trees, up or down.

    Roots and relays are included. A member is included only if another member's data passes it.
    """
    found = {tree.root for tree in plan.trees}
    for tree in plan.trees:
        for parent, children in enumerate(children_towards(tree.up, members)):
            for child in children:
                found.update(plan.path(child, parent)[1:])
        for parent, children in enumerate(children_towards(tree.down, members)):
            for child in children:
                found.update(plan.path(parent, child)[:-1])
    return found


@dataclass(frozen=True, slots=True)
class Place:
    """Where a site stands in one tree of an exchange.

    Args:
        parent: the site that it sends its sums to, or gets results from; ``NO_PARENT`` at the
            root, and where no data passes.
        path: every site on the way up to the parent, both ends included; empty where it sends
            nothing up.
        children: the sites whose sums it awaits, in order of index.
        paths_down: the ways to the sites that get its results, in order of their index.
    """

    parent: int = NO_PARENT
    path: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    paths_down: tuple[tuple[int, ...], ...] = ()


def places_up(
    plan: Plan, site: int, contributors: frozenset[int] | None = None
) -> tuple[Place, ...]:
    """Return a site's place in each tree's way up, if only some sites contribute.

    Every site with contributors below adds up their sums. A lone contributor sends to the roots
    directly.

    Args:
        plan: its trees carry the sums.
        site: the site to place.
        contributors: None for every member of the plan.

    >>> from anabranch.plan import Tree
    >>> chain = Plan(1, (Tree(0, 1.0, (-1, 0, 1), (-1, 0, 1)),))
    >>> places_up(chain, 0)[0].children, places_up(chain, 0, frozenset({2}))[0].children
    ((1,), (2,))
    >>> places_up(chain, 2, frozenset({2}))[0].path
    (2, 1, 0)
    """
    return plan.cached(("up", site, contributors), lambda: _places_up(plan, site, contributors))


def _places_up(plan: Plan, site: int, contributors: frozenset[int] | None) -> tuple[Place, ...]:
    if contributors is not None and len(contributors) == 1:
        return _lone_up(plan, site, *contributors)
    places = []
    for index, tree in enumerate(plan.trees):
        children = _children(plan, index, "up", contributors)[site]
        parent = tree.up[site]
        path = plan.path(site, parent) if parent >= 0 else ()
        places.append(Place(max(parent, NO_PARENT), path, children))
    return tuple(places)


def _children(
    plan: Plan, index: int, way: Literal["up", "down"], members: frozenset[int] | None
) -> tuple[tuple[int, ...], ...]:
    """Return `children_towards` of a tree; kept, since each site of a simulation asks for it."""
    parents = getattr(plan.trees[index], way)
    return plan.cached(
        ("children", index, way, members),
        lambda: children_towards(parents, plan.members if members is None else members),
    )


def _lone_up(plan: Plan, site: int, contributor: int) -> tuple[Place, ...]:
    places = []
    for index, tree in enumerate(plan.trees):
        if site == tree.root:
            places.append(Place(children=() if site == contributor else (contributor,)))
        elif site == contributor:
            places.append(Place(tree.root, plan.way_up(index, site)))
        else:
            places.append(Place())
    return tuple(places)


def places_down(
    plan: Plan, site: int, receivers: frozenset[int] | None = None, by_nodes: bool = False
) -> tuple[Place, ...]:
    """Return a site's place in each tree's way down, if only some sites receive.

    Args:
        plan: its trees carry the results.
        site: the site to place.
        receivers: None for every member of the plan.
        by_nodes: whether results for a lone receiver, too, stop at each tree node on the way. Then
            no site's parent changes when receivers are lost.

    >>> from anabranch.plan import Tree
    >>> chain = Plan(1, (Tree(0, 1.0, (-1, 0, 1), (-1, 0, 1)),))
    >>> places_down(chain, 2, frozenset({2}))[0].parent
    0
    >>> places_down(chain, 2, frozenset({2}), by_nodes=True)[0].parent
    1
    """
    return plan.cached(
        ("down", site, receivers, by_nodes), lambda: _places_down(plan, site, receivers, by_nodes)
    )


def _places_down(
    plan: Plan, site: int, receivers: frozenset[int] | None, by_nodes: bool
) -> tuple[Place, ...]:
    if receivers is not None and len(receivers) == 1 and not by_nodes:
        return _lone_down(plan, site, *receivers)
    places = []
    for index, tree in enumerate(plan.trees):
        children = _children(plan, index, "down", receivers)[site]
        paths = tuple(plan.path(site, child) for child in children)
        places.append(Place(max(tree.down[site], NO_PARENT), paths_down=paths))
    return tuple(places)


def _lone_down(plan: Plan, site: int, receiver: int) -> tuple[Place, ...]:
    places = []
    for index, tree in enumerate(plan.trees):
        if site == tree.root and site != receiver:
            places.append(Place(paths_down=(plan.way_down(index, receiver),)))
        elif site == receiver and site != tree.root:
            places.append(Place(tree.root))
        else:
            places.append(Place())
    return tuple(places)


def restrict(plan: Plan, members: Collection[int]) -> Plan:
    """Return a plan whose trees span only some members of a given plan.

    Each member sends to the nearest member above it in the tree; the sites between them relay.
    Where the root is not a member, the nearest member below becomes the root. The other members'
    ways lead to it past the old root.

    Args:
        plan: has the trees.
        members: sites of its trees, at least one.
    """
    wanted = frozenset(members)
    routes: dict[tuple[int, int], tuple[int, ...]] = {}
    trees = []
    for index, tree in enumerate(plan.trees):
        root = tree.root if tree.root in wanted else _nearest(tree.up, tree.root, wanted)
        ways = []
        for parents, upwards in ((tree.up, True), (tree.down, False)):
            new = [NO_PARENT if site == root else ABSENT for site in range(plan.size)]
            for site in sorted(wanted - {root}):
                above = parents[site]
                while above >= 0 and above not in wanted:
                    above = parents[above]
                new[site] = above if above >= 0 else root
            if not _leads_up(new, root):  # the old root's members hang below the new one
                new = [
                    NO_PARENT if site == root else (root if site in wanted else ABSENT)
                    for site in range(plan.size)
                ]
            for site in wanted - {root}:
                ends = (site, new[site]) if upwards else (new[site], site)
                kept = new[site] == parents[site]
                there = plan.path(*ends) if kept else _way(plan, index, *ends)
                routes[ends] = min(routes.get(ends, there), there, key=lambda way: (len(way), way))
            ways.append(tuple(new))
        trees.append(Tree(root, tree.share, *ways))
    routes = {ends: way for ends, way in routes.items() if len(way) > 2}
    return Plan(plan.version, tuple(trees), MappingProxyType(routes), plan.label)


def _leads_up(parents: list[int], root: int) -> bool:
    for start, parent in enumerate(parents):
        site, steps = start, 0
        while parent != ABSENT and site != root:
            site, steps = parents[site], steps + 1
            if steps > len(parents):
                return False
    return True


def _nearest(parents: tuple[int, ...], root: int, wanted: frozenset[int]) -> int:
    """Return the member the fewest edges below a root that is not a member."""

    def depth(site: int) -> int:
        edges = 0
        while site != root:
            site, edges = parents[site], edges + 1
        return edges

    return min(wanted, key=lambda site: (depth(site), site))


def _way(plan: Plan, index: int, source: int, target: int) -> tuple[int, ...]:
    """Return the way between two sites that became neighbours when others were left out.

    It follows the tree's way up to the lowest site above both, and then the tree's way down. The
    tree has links for both ways.
    """
    ahead = plan.way_up(index, source)
    behind = plan.way_down(index, target)
    for place, passed in enumerate(ahead):
        if passed in behind:
            return ahead[:place] + behind[behind.index(passed) :]
    raise AssertionError("both ways pass the root")
