"""Who must pass on what members of a tree have to say, against walking up from each."""

from __future__ import annotations

from itertools import pairwise

import pytest

from anabranch.overlay import internet2_9, random_complete
from anabranch.plan import Plan, Tree, balanced, children_towards, fapt, in_between, star

from ..every import every

PLANS = {
    "star": star(internet2_9()),
    "balanced": balanced(internet2_9()),
    "fapt": fapt(internet2_9(), roots=3),
    "complete": fapt(random_complete(7, 1), roots=2),
}
MEMBERS = [(), (0,), (2, 5), (1, 3, 4, 6), tuple(range(7))]


def edges_above(tree: Tree, way: tuple[int, ...], member: int) -> list[tuple[int, int]]:
    """Return the (child, parent) pairs from a member to the root."""
    passed = [member]
    while passed[-1] != tree.root:
        passed.append(way[passed[-1]])
    return list(pairwise(passed))


@pytest.mark.parametrize("members", MEMBERS, ids=str)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_child_counts_if_a_member_sends_through_it(plan: Plan, members: tuple[int, ...]) -> None:
    for tree in plan.trees:
        for way in (tree.up, tree.down):
            used = {edge for member in members for edge in edges_above(tree, way, member)}
            found = children_towards(way, members)
            assert {(child, parent) for parent, row in enumerate(found) for child in row} == used
            assert every(list(row) == sorted(row) for row in found)


@pytest.mark.parametrize("members", MEMBERS, ids=str)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_in_between_are_roots_inner_sites_and_relays(plan: Plan, members: tuple[int, ...]) -> None:
    expected = {tree.root for tree in plan.trees}
    for tree in plan.trees:
        for member in members:
            for child, parent in edges_above(tree, tree.up, member):
                expected |= set(plan.path(child, parent)) - {child}
            for child, parent in edges_above(tree, tree.down, member):
                expected |= set(plan.path(parent, child)) - {child}
    assert in_between(plan, members) == expected


def test_a_site_that_a_short_cut_leaves_out_is_in_between_all_the_same() -> None:
    tree = Tree(0, 1.0, up=(-1, 0, 1), down=(-1, 0, 1))
    plan = Plan(1, (tree,), routes={(2, 1): (2, 0, 1), (1, 2): (1, 0, 2)})
    assert plan.way_up(0, 2) == (2, 0)
    assert in_between(plan, {2}) == {0, 1}
