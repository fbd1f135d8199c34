"""Eq. 11 to 13 of a tree, against messages that move hop by hop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.plan import ForestProblem, Plan, PlanError, Tree, cycle

from .forests import random_plan, random_problem, simulated_cycle
from .networks import build, with_ports


@pytest.mark.parametrize("seed", range(100))
def test_the_closed_form_is_what_messages_do_on_random_trees(seed):
    problem = random_problem(1 + seed % 7, seed, relays=3, symmetric=False, density=0.4)
    plan = random_plan(problem, seed)
    period_s, sent_s = simulated_cycle(problem, plan)
    found = cycle(problem, plan)
    assert found.send_s == pytest.approx(sent_s)
    assert found.period_s == pytest.approx(period_s)
    assert found.latency_s == pytest.approx(period_s - min(sent_s.values()))


def line(compute_s: dict[int, float]) -> ForestProblem:
    """Return sites 0 - 1 - 2 - 3 with the server at 0; a transfer over a link takes 1 s."""
    pairs = [(a, b) for a in range(4) for b in range(4) if abs(a - b) == 1]
    return ForestProblem(build(4, [(*pair, 8.0) for pair in pairs]), 0, compute_s, size_bytes=1.0)


def test_a_relay_forwards_and_does_not_wait_for_its_own_gradient():
    plan = Plan(
        1,
        (Tree(1, 1.0, (-2, -1, -2, 1), (-2, -1, -2, 1)),),
        {(3, 1): (3, 2, 1), (1, 3): (1, 2, 3)},
    )
    found = cycle(line({1: 1.0, 2: 100.0, 3: 1.0}), plan)
    assert found.start_s == {1: 1.0, 3: 3.0}
    assert found.send_s == {1: 6.0, 3: 4.0}
    assert (found.period_s, found.latency_s) == (7.0, 3.0)


@pytest.mark.parametrize(
    ("compute_s", "send_s", "latency_s"),
    [({1: 0.0, 2: 5.0}, 8.0, 2.0), ({1: 9.0, 2: 5.0}, 10.0, 4.0)],
    ids=["blocked by a child", "blocked by its own computing"],
)
def test_a_site_waits_for_its_children_or_for_itself(compute_s, send_s, latency_s):
    plan = Plan(1, (Tree(1, 1.0, (-2, -1, 1, -2), (-2, -1, 1, -2)),))
    found = cycle(line(compute_s), plan)
    assert found.receive_s == {1: 8.0}
    assert found.send_s == {1: send_s, 2: 7.0}
    assert (found.period_s, found.latency_s) == (send_s + 1, latency_s)


def test_latency_adds_to_each_hop_and_a_slow_port_slows_its_links():
    overlay = with_ports(
        build(2, [(0, 1, 8.0), (1, 0, 8.0)], latency_s=0.5), uplink_bps=[4.0, None]
    )
    alone = Plan(1, (Tree(1, 1.0, (-2, -1), (-2, -1)),))
    found = cycle(ForestProblem(overlay, 0, {1: 1.0}, size_bytes=1.0), alone)
    assert (found.start_s[1], found.period_s, found.latency_s) == (2.5, 5.0, 1.5)


def test_a_tree_that_does_not_fit_is_refused():
    problem = line({1: 1.0, 2: 1.0})
    two = tuple(
        Tree(root, 0.5, *[tuple(-1 if s == root else root for s in range(4))] * 2)
        for root in (0, 1)
    )
    with pytest.raises(PlanError, match="the plan has 2"):
        cycle(problem, Plan(1, two))
    with pytest.raises(PlanError, match="site 0 of the tree does not train"):
        cycle(problem, Plan(1, (Tree(1, 1.0, (1, -1, 1, -2), (1, -1, 1, -2)),)))
    with pytest.raises(PlanError, match="has no link"):
        cycle(
            replace(problem, compute_s={1: 1.0, 3: 1.0}),
            Plan(1, (Tree(1, 1.0, (-2, -1, -2, 1), (-2, -1, -2, 1)),)),
        )


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"server": 4}, PlanError, "server 4 is not a site"),
        ({"compute_s": {}}, PlanError, "no site trains"),
        ({"compute_s": {7: 1.0}}, PlanError, "7 is not a site"),
        ({"compute_s": {1: -1.0}}, ValueError, "site 2 computes for -1 s"),
        ({"size_bytes": 0.0}, ValueError, "size_bytes is 0"),
        ({"spread_weight": -1.0}, ValueError, "spread_weight is -1"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(wrong, error, message):
    with pytest.raises(error, match=message):
        replace(line({1: 1.0}), **wrong)
