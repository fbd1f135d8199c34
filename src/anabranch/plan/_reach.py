"""Trees in which only some sites have anything to say: which must pass it on, which need not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import MappingProxyType

from anabranch.plan._model import ABSENT, NO_PARENT, Plan, Tree


def children_towards(
    parents: tuple[int, ...], members: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Return, for each site, its children in a tree that are members or have some below them.

    Args:
        parents: of each site, ``NO_PARENT`` at the root: a tree's way up, or its way down.
        members: sites.

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
    """Return the sites of a plan's trees where ways to or from members meet, members or not.

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
    """Return the sites that something from a member passes on its trees, or to it, roots included.

    A member that no other's passes is not among them. Relays are.
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
            root, and where nothing passes.
        path: every site on the way up to the parent, both ends included; empty where nothing goes
            up.
        children: the sites whose sums it awaits, in order of index.
        paths_down: the ways to the sites that it passes results on to, in order of their index.
    """

    parent: int = NO_PARENT
    path: tuple[int, ...] = ()
    children: tuple[int, ...] = ()
    paths_down: tuple[tuple[int, ...], ...] = ()


def places_up(
    plan: Plan, site: int, contributors: frozenset[int] | None = None
) -> tuple[Place, ...]:
    """Return a site's place in each tree's way up, if only some sites contribute.

    Every site with contributors below adds up what comes from them; a lone contributor sends to
    the roots directly.

    Args:
        plan: whose trees carry the sums.
        site: whose places.
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
    for tree in plan.trees:
        children = children_towards(
            tree.up, plan.members if contributors is None else contributors
        )[site]
        parent = tree.up[site]
        path = plan.path(site, parent) if parent >= 0 else ()
        places.append(Place(max(parent, NO_PARENT), path, children))
    return tuple(places)


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
        plan: whose trees carry the results.
        site: whose places.
        receivers: None for every member of the plan.
        by_nodes: whether what goes to a lone receiver, too, stops at each node of the tree in
            between: then no site's parent changes as receivers are lost.

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
    for tree in plan.trees:
        children = children_towards(tree.down, plan.members if receivers is None else receivers)
        paths = tuple(plan.path(site, child) for child in children[site])
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
    """Return a plan whose trees span some members of another, which relay for one another.

    Each member sends to the nearest member above it in the tree; the sites in between relay. Where
    the root is no member, the first member below it becomes one, and the others' ways lead to it
    past the old root.

    Args:
        plan: to take the trees from.
        members: sites of its trees, one at least.
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
    """Return the member that is the fewest edges below a root that is none."""

    def depth(site: int) -> int:
        edges = 0
        while site != root:
            site, edges = parents[site], edges + 1
        return edges

    return min(wanted, key=lambda site: (depth(site), site))


def _way(plan: Plan, index: int, source: int, target: int) -> tuple[int, ...]:
    """Return the sites between two that are neighbours only since others were left out.

    Up to the lowest site that both have above them, by the tree's way up, and down again by its
    way down: a tree has links for either.
    """
    ahead = plan.way_up(index, source)
    behind = plan.way_down(index, target)
    for place, passed in enumerate(ahead):
        if passed in behind:
            return ahead[:place] + behind[behind.index(passed) :]
    raise AssertionError("both ways pass the root")
