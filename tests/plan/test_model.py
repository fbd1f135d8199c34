from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.plan import Chunk, Plan, PlanError, Tree, deal

from .networks import all_plans, build, overlays

PAIR = Tree(0, 1.0, (-1, 0), (-1, 0))


@pytest.mark.parametrize(
    ("parents", "complaint"),
    [
        ((-1, 2, 1), "circle"),
        ((-1, 1, 0), "circle"),
        ((-1, -1, 0), "site 1 has no way up"),
        ((-1, 3, 0), "no way up"),
        ((1, 0, 0), "the root must be a site with no parent"),
    ],
)
def test_a_way_must_lead_every_site_to_the_root(parents, complaint):
    with pytest.raises(PlanError, match=complaint):
        Tree(0, 1.0, parents, (-1, 0, 0))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_lies_between_0_and_1(share):
    with pytest.raises(PlanError, match="share"):
        Tree(0, share, (-1, 0), (-1, 0))


def test_shares_must_sum_to_1():
    with pytest.raises(PlanError, match=r"sum to 1\.5"):
        Plan(1, (PAIR, Tree(1, 0.5, (1, -1), (1, -1))))


@pytest.mark.parametrize("path", [(0, 1), (0, 2, 2, 1), (0, 7, 1), (2, 0, 1)])
def test_a_route_is_a_simple_path_over_relays_of_the_plan(path):
    tree = Tree(0, 1.0, (-1, 0, 0), (-1, 0, 0))
    with pytest.raises(PlanError, match="route 0->1"):
        Plan(1, (tree,), {(0, 1): path})


THREE = Tree(0, 1.0, (-1, 0, 0), (-1, 0, 0))


@pytest.mark.parametrize(
    ("paths", "complaint"),
    [
        ((), "auxiliary path 2->0 is an empty list"),
        (((2,),), r"auxiliary path 2->0 is \(2,\): it must start and end there"),
        (((0, 1, 2),), "must start and end there"),
        (((2, 1, 1, 0),), "auxiliary path 2->0 passes a site twice"),
        (((2, 3, 0),), r"auxiliary path 2->0 leaves sites 0\.\.2"),
        (((2, 0),), r"auxiliary path 2->0 is the primary path \(2, 0\) again"),
        (((2, 1, 0), (2, 1, 0)), "auxiliary path 2->0 is given twice"),
    ],
)
def test_an_auxiliary_path_is_a_simple_path_of_its_own(paths, complaint):
    with pytest.raises(PlanError, match=complaint):
        Plan(1, (THREE,), auxiliary={(2, 0): paths})


def test_the_direct_link_may_be_auxiliary_where_the_primary_path_is_a_route():
    plan = Plan(1, (THREE,), {(2, 0): (2, 1, 0)}, auxiliary={(2, 0): ((2, 0),)})
    assert plan.path(2, 0) == (2, 1, 0)
    with pytest.raises(PlanError, match=r"is the primary path \(2, 1, 0\) again"):
        Plan(1, (THREE,), {(2, 0): (2, 1, 0)}, auxiliary={(2, 0): ((2, 1, 0),)})


def test_a_round_needs_no_auxiliary_path():
    plain, richer = Plan(1, (THREE,)), Plan(1, (THREE,), auxiliary={(2, 0): ((2, 1, 0),)})
    assert richer.next_hops == plain.next_hops == ((1, 2), (0,), (0,))
    assert list(richer.hops()) == list(plain.hops())


def test_an_auxiliary_path_needs_its_links_too():
    overlay = build(3, [(0, 1, 1.0), (1, 0, 1.0), (0, 2, 1.0), (2, 0, 1.0)])
    Plan(1, (THREE,)).check_fits(overlay)
    with pytest.raises(PlanError, match="3->2, which has no link"):
        Plan(1, (THREE,), auxiliary={(2, 0): ((2, 1, 0),)}).check_fits(overlay)


def test_a_plan_that_needs_a_missing_link_does_not_fit():
    ring = build(3, [(0, 1, 1.0), (1, 2, 1.0), (2, 0, 1.0)])
    with pytest.raises(PlanError, match="3->2, which has no link"):
        Plan(1, (Tree(1, 1.0, (1, -1, 1), (1, -1, 0)),)).check_fits(ring)
    with pytest.raises(PlanError, match="spans 2 sites, the overlay 3"):
        Plan(1, (PAIR,)).check_fits(ring)


def test_hops_follow_relays():
    tree = Tree(0, 1.0, (-1, 0, 0), (-1, 0, 1))
    plan = Plan(1, (tree,), {(2, 0): (2, 1, 0)})
    assert sorted(hop for _, hop in plan.hops()) == [(0, 1), (1, 0), (1, 0), (1, 2), (2, 1)]


@given(overlays())
def test_next_hops_are_those_of_the_hops(overlay):
    for plan in all_plans(overlay):
        for site in range(plan.size):
            leaving = {hop[1] for _, hop in plan.hops() if hop[0] == site}
            assert plan.next_hops[site] == tuple(sorted(leaving))


def test_a_relay_sends_to_the_next_hop():
    plan = Plan(1, (Tree(0, 1.0, (-1, 0, 0), (-1, 0, 1)),), {(2, 0): (2, 1, 0)})
    assert plan.next_hops == ((1,), (0, 2), (1,))


def test_lookups_are_worked_out_once_and_leave_the_plan_as_it_was():
    plan, same = (Plan(1, (PAIR,)) for _ in range(2))
    assert plan.next_hops is plan.next_hops
    assert plan == same
    assert replace(plan, version=2).next_hops == plan.next_hops


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    weights = draw(st.lists(st.integers(1, 100), min_size=1, max_size=6))
    return Plan(1, tuple(Tree(0, w / sum(weights), (-1, 0), (-1, 0)) for w in weights))


@given(plans(), st.integers(0, 5_000), st.integers(1, 700))
def test_a_deal_covers_the_buffer_once(plan, elements, chunk_elements):
    chunks = deal(plan, elements, chunk_elements)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert not [each for each in chunks if not 0 < each.elements <= chunk_elements]
    ends = [0]
    for chunk in sorted(chunks, key=lambda chunk: chunk.start):
        assert chunk.start == ends[-1]
        ends.append(chunk.stop)
    assert ends[-1] == elements


def test_a_deal_covers_the_buffer_though_shares_sum_to_a_little_less_than_1():
    trees = tuple(Tree(0, 0.4999997, (-1, 0), (-1, 0)) for _ in range(2))
    chunks = deal(Plan(1, trees), 10_000_000, 10_000_000)
    assert [(chunk.start, chunk.stop) for chunk in chunks] == [
        (0, 4_999_997),
        (4_999_997, 10_000_000),
    ]


@given(plans(), st.integers(0, 5_000), st.integers(1, 700))
def test_each_tree_gets_its_share_of_the_buffer(plan, elements, chunk_elements):
    chunks = deal(plan, elements, chunk_elements)
    for index, tree in enumerate(plan.trees):
        own = sum(chunk.elements for chunk in chunks if chunk.tree == index)
        assert own == pytest.approx(tree.share * elements, abs=1.5)


@given(plans(), st.integers(1, 5_000), st.integers(20, 700))
def test_at_every_moment_all_trees_have_sent_the_same_part_of_theirs(
    plan, elements, chunk_elements
):
    chunks = deal(plan, elements, chunk_elements)
    totals = Counter(chunk.tree for chunk in chunks)
    sent: Counter[int] = Counter()
    for chunk in chunks:
        sent[chunk.tree] += 1
        for tree, total in totals.items():
            lead = sent[chunk.tree] / totals[chunk.tree] - sent[tree] / total
            assert lead <= 0.5 / totals[chunk.tree] + 0.5 / total + 1e-12


def test_a_deal_follows_from_the_shares_and_is_made_once():
    turned = Plan(2, (Tree(1, 1.0, (1, -1), (1, -1)),), label="other")
    assert deal(Plan(1, (PAIR,)), 10, 3) is deal(turned, 10, 3)


def test_an_empty_buffer_has_no_chunks():
    assert deal(Plan(1, (PAIR,)), 0, 8) == ()
    assert deal(Plan(1, (PAIR,)), 3, 8) == (Chunk(0, 0, 0, 3),)


@pytest.mark.parametrize(("elements", "chunk_elements"), [(-1, 8), (8, 0)])
def test_a_deal_needs_sizes_that_make_sense(elements, chunk_elements):
    with pytest.raises(ValueError, match="cannot deal"):
        deal(Plan(1, (PAIR,)), elements, chunk_elements)
