from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.overlay import internet2_9
from anabranch.plan import PlanError, balanced, steady_rate_bps

from .networks import overlays


def test_sites_fill_the_tree_like_a_heap_from_the_root():
    (tree,) = balanced(internet2_9(), root=4, arity=2).trees
    # order 4 0 1 2 3 5 6 7 8: 4 over 0 and 1, 0 over 2 and 3, 1 over 5 and 6, 2 over 7 and 8
    assert tree.up == tree.down == (4, 4, 0, 0, -1, 1, 1, 2, 2)


@given(overlays(), st.integers(1, 4))
def test_no_site_has_more_children_than_the_arity_and_depths_differ_by_one(overlay, arity):
    (tree,) = balanced(overlay, arity=arity).trees
    children = tree.children(tree.up)
    assert max(map(len, children)) <= arity

    def depth(site: int) -> int:
        return 0 if site == tree.root else 1 + depth(tree.up[site])

    if arity > 1:
        leaves = [depth(site) for site in range(overlay.size) if not children[site]]
        assert max(leaves) - min(leaves) <= 1


@given(overlays(max_sites=5), st.integers(1, 3))
def test_the_default_root_has_the_highest_steady_rate(overlay, arity):
    each = [balanced(overlay, root=root, arity=arity) for root in range(overlay.size)]
    rates = [steady_rate_bps(plan, overlay) for plan in each]
    assert balanced(overlay, arity=arity) == each[rates.index(max(rates))]


def test_an_arity_below_1_is_refused():
    with pytest.raises(PlanError, match="arity 0"):
        balanced(internet2_9(), arity=0)
