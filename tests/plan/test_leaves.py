from __future__ import annotations

import pytest

from anabranch.overlay import Link, random_complete
from anabranch.plan import NO_PARENT, Balanced, Fapt, Packed, Plan, Spanning, Star, with_leaves
from anabranch.plan._remainder import remainder


@pytest.mark.parametrize("planner", [Packed, Star, Fapt, Spanning, Balanced])
@pytest.mark.parametrize("seed", range(4))
def test_a_leaf_hangs_below_each_tree_and_changes_nothing_for_the_others(
    planner: type, seed: int
) -> None:
    overlay = random_complete(5, seed)
    rest = remainder(overlay, {3})
    plan = rest.widen(planner().plan(rest.overlay, version=7))
    found = with_leaves(plan, overlay, {3})
    assert found is not None
    found.check_fits(overlay)
    assert (found.version, found.members) == (7, frozenset(range(5)))
    for before, after in zip(plan.trees, found.trees, strict=True):
        assert after.up[3] == after.down[3] >= 0
        for ways in ((before.up, after.up), (before.down, after.down)):
            assert [parent for site, parent in enumerate(ways[1]) if site != 3] == [
                parent for site, parent in enumerate(ways[0]) if site != 3
            ]
            assert 3 not in ways[1]


def test_what_a_leaf_gets_is_shared_among_its_links_by_their_rates() -> None:
    rates_bps = {0: 1e6, 1: 3e6}
    links = [Link(0, 1, 1e9), Link(1, 0, 1e9)]
    links += [Link(site, 2, rate_bps) for site, rate_bps in rates_bps.items()]
    links += [Link(2, site, 1e3) for site in rates_bps]
    trees = Packed().plan(random_complete(2, 0)).trees
    share = 1 / 8
    ways = ((NO_PARENT, 0, -2), (NO_PARENT, 0, -2))
    plan = Plan(1, tuple(type(trees[0])(0, share, *ways) for _ in range(8)))
    found = with_leaves(plan, links, {2})
    assert found is not None
    over = {
        site: sum(tree.share for tree in found.trees if tree.down[2] == site) for site in (0, 1)
    }
    assert over == {0: 0.25, 1: 0.75}


def test_a_leaf_without_a_link_there_and_back_cannot_be_one() -> None:
    plan = Packed().plan(random_complete(2, 0))
    wide = Plan(1, tuple(type(t)(t.root, t.share, (*t.up, -2), (*t.down, -2)) for t in plan.trees))
    assert with_leaves(wide, [Link(0, 2, 1e6)], {2}) is None
    assert with_leaves(wide, [Link(0, 2, 1e6), Link(2, 1, 1e6)], {2}) is None
    assert with_leaves(wide, [Link(0, 2, 1e6), Link(2, 0, 1e6)], {2}) is not None
