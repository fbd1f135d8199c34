from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.overlay import Overlay, internet2_9
from anabranch.plan import (
    Fapt,
    Plan,
    PlanError,
    Tree,
    down_delays_s_per_bit,
    fapt,
    restrict,
    up_delays_s_per_bit,
)
from anabranch.plan._fapt import fastest_paths
from anabranch.scheduler._collector import equal_rates

from .networks import all_ways, build, overlays, random_overlay


def delays(overlay: Overlay, tree: Tree) -> tuple[float, float]:
    plan = Plan(1, (Tree(tree.root, 1.0, tree.up, tree.down),))
    up = up_delays_s_per_bit(plan, tree, overlay)[tree.root]
    return up, down_delays_s_per_bit(plan, tree, overlay)[tree.root]


@settings(deadline=None)
@given(overlays(max_sites=5))
def test_each_way_has_the_least_delay_of_all_trees_at_its_root(overlay):
    for tree in fapt(overlay, roots=overlay.size).trees:
        up, down = delays(overlay, tree)
        root = tree.root
        best_up = min(
            delays(overlay, Tree(root, 1.0, way, tree.down))[0]
            for way in all_ways(overlay, root, up=True)
        )
        best_down = min(
            delays(overlay, Tree(root, 1.0, tree.up, way))[1]
            for way in all_ways(overlay, root, up=False)
        )
        assert (up, down) == pytest.approx((best_up, best_down), rel=1e-12)


@given(overlays(), st.data(), st.sampled_from(["both-ways", "leaf-to-root"]))
def test_roots_are_the_best_by_quality_and_share_in_proportion_to_it(overlay, data, reading):
    count = data.draw(st.integers(1, overlay.size))
    quality = fastest_paths(overlay, reading).quality_bps
    plan = fapt(overlay, roots=count, quality=reading)
    best = sorted(range(overlay.size), key=lambda site: -quality[site])[:count]
    assert [tree.root for tree in plan.trees] == best
    total = sum(quality[root] for root in best)
    assert [t.share for t in plan.trees] == pytest.approx([quality[r] / total for r in best])
    for tree in plan.trees:
        up, down = delays(overlay, tree)
        counted = up + down if reading == "both-ways" else up
        assert 1 / counted == pytest.approx(quality[tree.root])


def test_the_two_readings_of_the_papers_delay_choose_different_roots_on_directed_links():
    overlay = internet2_9()
    both_ways, literal = (
        Fapt(roots=1, quality=each).plan(overlay) for each in ("both-ways", "leaf-to-root")
    )
    assert [overlay.sites[plan.trees[0].root].name for plan in (both_ways, literal)] == [
        "dc4",
        "dc5",
    ]
    (tree,) = literal.trees
    best = min(delays(overlay, each)[0] for each in fapt(overlay, roots=9).trees)
    assert delays(overlay, tree)[0] == pytest.approx(best)


def test_given_roots_stay_whatever_their_quality():
    assert [tree.root for tree in fapt(internet2_9(), roots=[8, 0]).trees] == [8, 0]


@pytest.mark.parametrize("shares", ["first", "newest"])
def test_shares_stay_if_they_are_to_while_trees_follow_the_network(shares):
    planner = Fapt(roots=4, shares=shares)
    first = planner.plan(equal_rates(internet2_9()))
    later = planner.plan(internet2_9(), version=2, previous=first)
    newest = fapt(internet2_9(), roots=[tree.root for tree in first.trees], version=2)
    assert [(t.root, t.up, t.down) for t in later.trees] == [
        (t.root, t.up, t.down) for t in newest.trees
    ]
    kept = first if shares == "first" else newest
    assert [tree.share for tree in later.trees] == [tree.share for tree in kept.trees]
    assert [t.share for t in first.trees] != [t.share for t in newest.trees]


@pytest.mark.parametrize("roots", [None, ("dc1", "dc4")])
@pytest.mark.parametrize("shares", ["first", "newest"])
def test_trees_are_planned_again_where_a_root_has_left_and_is_passed_over(roots, shares):
    overlay, members = internet2_9(), [0, 1, *range(4, 9)]
    planner = Fapt(roots=roots, shares=shares)
    before = restrict(planner.plan(overlay), members)
    again = restrict(planner.plan(overlay, version=2, previous=before), members)
    again.check_fits(overlay)
    assert {tree.root for tree in again.trees} == {tree.root for tree in before.trees}
    if roots is None and shares == "first":
        for root in members:
            kept = [tree.share for tree in before.trees if tree.root == root]
            assert sum(kept) == pytest.approx(sum(t.share for t in again.trees if t.root == root))


@given(st.integers(2, 8), st.integers(0, 1000))
def test_on_symmetric_links_the_way_down_mirrors_the_way_up_and_q_is_half_the_papers(n, seed):
    overlay = random_overlay(n, seed, density=0.5, symmetric=True)
    for tree in fapt(overlay, roots=n).trees:
        assert tree.up == tree.down
        papers_quality = 1 / delays(overlay, tree)[0]
        literal = fastest_paths(overlay, "leaf-to-root").quality_bps[tree.root]
        assert literal == pytest.approx(papers_quality)
        assert fastest_paths(overlay).quality_bps[tree.root] == pytest.approx(papers_quality / 2)


def test_equal_rates_give_direct_links_and_the_lowest_roots():
    both = [(a, b, 5e6) for a in range(4) for b in range(4) if a != b]
    plan = fapt(build(4, both), roots=2)
    assert [tree.root for tree in plan.trees] == [0, 1]
    assert plan.trees[1].up == plan.trees[1].down == (1, -1, 1, 1)


def test_links_far_faster_than_others_are_not_lost_to_rounding():
    overlay = build(3, [(0, 1, 1e12), (1, 0, 1e12), (1, 2, 1e3), (2, 1, 1e3)])
    assert fapt(overlay).trees[0].up == (1, -1, 1)


@pytest.mark.parametrize("roots", [0, 10, [], [1, 1]])
def test_roots_must_be_different_sites(roots):
    with pytest.raises(PlanError, match="roots"):
        fapt(internet2_9(), roots=roots)


def test_internet2_9_roots_and_shares():
    plan = fapt(internet2_9(), roots=9)
    assert [tree.root + 1 for tree in plan.trees] == [4, 7, 5, 2, 3, 6, 8, 1, 9]
    assert [tree.share for tree in plan.trees] == pytest.approx(
        [0.1224, 0.1221, 0.1220, 0.1175, 0.1175, 0.1099, 0.1005, 0.0967, 0.0913], abs=1e-4
    )
