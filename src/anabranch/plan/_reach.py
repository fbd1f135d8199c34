"""Trees in which only some sites have anything to say: which must pass it on, which need not."""

from __future__ import annotations

from collections.abc import Collection

from anabranch.plan._model import NO_PARENT, Plan


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
        while site != NO_PARENT and not reaching[site]:
            reaching[site] = True
            site = parents[site]
    children: list[list[int]] = [[] for _ in parents]
    for site, parent in enumerate(parents):
        if reaching[site] and parent != NO_PARENT:
            children[parent].append(site)
    return tuple(map(tuple, children))


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
