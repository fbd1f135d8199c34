"""Algorithms 1 and 2, against every tree of small groups, and the evaluator of many groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anabranch.plan import Forest, ForestProblem, PlanError, cycle, forest
from anabranch.plan._forest import fastest_tree
from anabranch.plan._forest_groups import GroupCosts

from .forests import all_parents, random_problem, seconds_between, times_of
from .networks import build

SMALL = [(n, seed) for n in (2, 3, 4, 5) for seed in range(4)]


def transmission_only(problem: ForestProblem) -> ForestProblem:
    return replace(problem, compute_s=dict.fromkeys(problem.compute_s, 0.0))


@pytest.mark.parametrize(("n", "seed"), SMALL)
@pytest.mark.parametrize("computing", [False, True])
def test_algorithm_1_has_the_least_period_of_all_trees_at_its_root(n, seed, computing):
    # The paper proves it where transmission alone counts; it holds with computing too.
    problem = random_problem(n, seed, relays=2)
    if not computing:
        problem = transmission_only(problem)
    between_s = seconds_between(problem)
    for root in problem.sites:
        found = cycle(problem, fastest_tree(problem, root, problem.sites))
        least_s = min(
            times_of(problem, between_s, tree, tree)[0] for tree in all_parents(root, problem.sites)
        )
        assert found.period_s == pytest.approx(least_s)


@pytest.mark.parametrize("seed", range(6))
def test_on_asymmetric_links_it_has_too_whatever_the_two_ways(seed):
    problem = random_problem(4, seed, relays=2, symmetric=False)
    between_s = seconds_between(problem)
    for root in problem.sites:
        ways = list(all_parents(root, problem.sites))
        found = cycle(problem, fastest_tree(problem, root, problem.sites))
        least_s = min(times_of(problem, between_s, up, down)[0] for up in ways for down in ways)
        assert found.period_s == pytest.approx(least_s)


def test_its_latency_is_not_always_the_least_as_the_paper_claims():
    # Three sites 1 s apart, the root beside the server, and a slow site. In the star the fast site
    # sends at 1 s. Below the slow one it sends at 2 s, and the period is the same.
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    overlay = build(3, [(*pair, 8.0) for pair in pairs])
    problem = ForestProblem(overlay, 0, {0: 0.0, 1: 10.0, 2: 0.0}, size_bytes=1.0)
    star = fastest_tree(problem, 0, problem.sites)
    assert star.trees[0].up == (-1, 0, 0)
    chain = {0: -1, 1: 0, 2: 1}
    assert (cycle(problem, star).period_s, cycle(problem, star).latency_s) == (12.0, 11.0)
    assert times_of(problem, seconds_between(problem), chain, chain) == (12.0, 10.0)


@pytest.mark.parametrize("seed", range(20))
def test_algorithm_2_chooses_the_root_of_least_latency_for_every_group(seed):
    problem = random_problem(6, seed, relays=3, symmetric=seed % 2 == 0, density=0.5)
    groups = GroupCosts(problem)
    every = (np.arange(1, 2**6)[:, None] >> np.arange(6) & 1).astype(bool)
    costs = groups.costs(every)
    for row, latency_s, period_s, root in zip(every, *costs, strict=True):
        sites = [problem.sites[place] for place in row.nonzero()[0]]
        cycles = [cycle(problem, fastest_tree(problem, site, sites)) for site in sites]
        assert latency_s == pytest.approx(min(each.latency_s for each in cycles))
        chosen = cycles[sites.index(problem.sites[root])]
        assert (chosen.latency_s, chosen.period_s) == pytest.approx((latency_s, period_s))


@pytest.mark.parametrize(("n", "seed"), [(2, 0), (5, 1), (9, 2), (30, 3), (65, 4), (130, 5)])
def test_groups_with_a_site_more_or_less_cost_what_they_cost_alone(n, seed):
    # To the last bit, so that a search and what it reports agree.
    problem = random_problem(n, seed, relays=3, symmetric=False, density=0.1)
    groups, fresh = GroupCosts(problem), GroupCosts(problem)
    rng = np.random.default_rng(seed)
    for share in (0.0, 0.1, 0.5, 0.9):
        group = rng.random(n) < share
        latency_s, period_s = groups.additions(group)
        for site in np.flatnonzero(~group):
            one = fresh.costs((group | (np.arange(n) == site))[None])
            assert (latency_s[site], period_s[site]) == (one.latency_s[0], one.period_s[0])
        assert np.isinf(latency_s[group]).all()
        if group.sum() < 2:
            continue
        latency_s, period_s = groups.removals(group)
        for site in np.flatnonzero(group):
            one = fresh.costs((group & (np.arange(n) != site))[None])
            assert (latency_s[site], period_s[site]) == (one.latency_s[0], one.period_s[0])
        assert np.isinf(latency_s[~group]).all()


def test_a_forest_has_the_paths_of_its_trees_and_their_times():
    problem = random_problem(8, 1, relays=4, symmetric=False, density=0.2)
    half = [problem.sites[:3], problem.sites[3:]]
    found = forest(problem, half)
    assert isinstance(found, Forest)
    assert set(found.groups) == {frozenset(group) for group in half}
    assert any(tree.plan.routes for tree in found.trees)
    for tree in found.trees:
        tree.plan.check_fits(problem.overlay)
        times = cycle(problem, tree.plan)
        assert (tree.period_s, tree.latency_s) == pytest.approx((times.period_s, times.latency_s))
    latencies_s = [tree.latency_s for tree in found.trees]
    periods_s = [tree.period_s for tree in found.trees]
    assert periods_s == sorted(periods_s)
    half_gap_s = (periods_s[1] - periods_s[0]) / 2  # the population deviation of two
    assert found.objective == pytest.approx(0.5 * sum(latencies_s) + 0.1 * half_gap_s)


def test_one_tree_has_no_spread():
    problem = random_problem(5, 1)
    found = forest(problem, [problem.sites])
    assert found.objective == pytest.approx(0.5 * found.trees[0].latency_s)


@pytest.mark.parametrize("groups", [[[0, 1]], [[0, 1], [1, 2]], [[0, 1, 2], []], [[0, 1, 2, 3]]])
def test_groups_that_are_no_partition_are_refused(groups):
    problem = replace(random_problem(4, 0), compute_s=dict.fromkeys(range(3), 1.0))
    with pytest.raises(PlanError, match="hold each site that trains once"):
        forest(problem, groups)


def test_a_root_outside_its_group_is_refused():
    problem = random_problem(4, 0)
    with pytest.raises(PlanError, match="root 0 is not in its group"):
        fastest_tree(problem, 0, [1, 2])
