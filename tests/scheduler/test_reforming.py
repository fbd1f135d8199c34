"""When a run takes another forest: what has changed, how much it gains, who is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from anabranch import plan as plans
from anabranch.overlay import Link, Overlay, Site, random_complete
from anabranch.plan import ForestRoute, GivenForest, Plan, PlanError
from anabranch.scheduler._policy import Replan
from anabranch.scheduler.reforming import Reforming

from ..every import every

SIZE = 8  # of which the last serves
ELEMENTS = 100_000
OVERLAY = random_complete(SIZE, 3, low_bps=20e6, high_bps=200e6, latency_s=0.01, loss=0.0)
COMPUTE_S = dict.fromkeys(range(SIZE - 1), 1.0)
SERVER = SIZE - 1
FOREST = ForestRoute()
GIVEN = ForestRoute(
    search=GivenForest(groups=(("site0", "site1"), ("site2", "site3", "site4"), ("site5", "site6")))
)


def first(route: ForestRoute) -> Plan:
    problem = route.problem(OVERLAY, SERVER, COMPUTE_S, ELEMENTS)
    return route.formed(problem, 1)


def follows(route: ForestRoute = FOREST) -> Reforming:
    return Reforming(route, first(route), OVERLAY, COMPUTE_S, ELEMENTS)


def look(reforming: Reforming, belief: Overlay = OVERLAY) -> Replan | None:
    return reforming.consider(belief, 4 * ELEMENTS, 1e5)


def workers(plan: Plan) -> set[tuple[int, ...]]:
    return {group.workers for group in plan.groups}


def slowed(reforming: Reforming, site: int, seconds: float, times: int = 5) -> None:
    for _ in range(times):
        reforming.computed(site, seconds)


def test_trees_are_formed_for_the_size_that_sites_tell_where_none_was_known_before() -> None:
    small = 1000

    def without(known: int | None, told: int) -> list[tuple[object, ...]]:
        reforming = Reforming(FOREST, first(FOREST), OVERLAY, COMPUTE_S, known)
        reforming.begin(told)
        found = reforming.without({0}, "one is lost").plan
        return [(group.workers, group.plan.trees) for group in found.groups]

    assert without(None, small) == without(small, small) == without(small, 1 << 20)
    assert without(None, small) != without(None, 1 << 20)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_tree_that_has_finished_stays_where_the_last_model_is_to_come_to_it(keeps: bool) -> None:
    plan = first(GIVEN)
    reforming = Reforming(GIVEN, plan, OVERLAY, COMPUTE_S, ELEMENTS, keeps_finished=keeps)
    done, *others = plan.groups
    reforming.finished(done.workers)
    lost = others[0].workers[0]
    found = reforming.without({lost}, "one is lost").plan
    assert (done in found.groups) == keeps
    left = {*range(SERVER)} - {lost, *done.workers}
    assert {site for group in found.groups for site in group.workers if group != done} == left


def test_a_site_that_has_become_slow_leaves_its_tree_and_only_once_it_is_certain() -> None:
    reforming = follows()
    slowed(reforming, 2, 9.0, times=2)
    assert look(reforming) is None  # twice may be chance
    slowed(reforming, 2, 9.0)
    found = look(reforming)
    assert found is not None
    assert (2,) in workers(found.plan)
    assert found.before_s is not None
    assert found.after_s is not None
    assert found.before_s - found.after_s > 0.1
    assert f"{OVERLAY.sites[2].name} computes for 9 s instead of 1 s" in found.why
    assert "updates a second instead of 0.7" in found.why  # seven in a period of a little over 9 s
    assert reforming.accept(found, is_free=True, now_s=0.0)
    assert look(reforming) is None  # nothing has changed since


def test_a_single_hang_changes_nothing() -> None:
    reforming = follows()
    slowed(reforming, 2, 1.0)
    reforming.computed(2, 100.0)
    assert look(reforming) is None


def test_small_changes_count_for_nothing_and_nor_do_small_gains() -> None:
    reforming = follows()
    slowed(reforming, 2, 1.09)
    assert look(reforming) is None
    patient = Reforming(ForestRoute(), first(ForestRoute()), OVERLAY, COMPUTE_S, ELEMENTS, 0.1, 9.0)
    slowed(patient, 2, 9.0)
    assert look(patient) is None


def test_links_that_have_become_slow_are_left() -> None:
    reforming = follows()
    [group] = reforming.plan.groups
    slow = {hop for hop in hops(group.plan) if SERVER in hop}
    links = (
        replace(link, rate_bps=link.rate_bps / 50) if (link.source, link.target) in slow else link
        for link in OVERLAY
    )
    found = look(reforming, replace(OVERLAY, links=tuple(links)))
    assert found is not None
    assert {(change.source, change.target) for change in found.changed} == slow
    assert "fell from" in found.why
    assert every(not slow & hops(each.plan) for each in found.plan.groups)


def hops(plan: Plan) -> set[tuple[int, int]]:
    return {
        hop
        for tree in plan.trees
        for site, parent in enumerate(tree.up)
        if parent >= 0
        for hop in pairwise(plan.path(site, parent))
    }


def test_groups_that_stay_keep_their_plans_and_the_others_have_versions_of_their_own() -> None:
    reforming = follows()
    before = {group.workers: group.plan for group in reforming.plan.groups}
    slowed(reforming, 2, 9.0)
    found = look(reforming)
    assert found is not None
    versions = [found.plan.version, *(group.plan.version for group in found.plan.groups)]
    assert len({*versions}) == len(versions)
    used = {reforming.plan.version, *(plan.version for plan in before.values())}
    for group in found.plan.groups:
        if group.plan.version in used:
            assert before[group.workers] == group.plan
        else:
            assert group.plan.version > max(used)


def test_a_forest_that_was_looked_for_before_a_loss_is_not_taken_after_it() -> None:
    reforming = follows()
    slowed(reforming, 2, 9.0)
    found = look(reforming)
    assert found is not None
    without = reforming.without({0}, "site0 is lost")
    assert workers(without.plan) == workers(reforming.plan)
    assert every(0 not in group.plan.members for group in without.plan.groups)
    assert not reforming.accept(found, is_free=True, now_s=0.0)
    again = look(reforming)
    assert again is None or all(0 not in group.workers for group in again.plan.groups)


def test_a_leaf_that_is_lost_is_in_no_forest_until_it_is_back() -> None:
    reforming = follows()
    slowed(reforming, 2, 9.0)
    found = look(reforming)
    assert found is not None
    reforming.missing({4})
    assert not reforming.accept(found, is_free=True, now_s=0.0)
    again = look(reforming)
    assert again is not None
    assert {worker for group in again.plan.groups for worker in group.workers} == {*range(7)} - {4}
    reforming.missing(())
    assert not reforming.accept(again, is_free=True, now_s=0.0)
    again = look(reforming)
    assert again is not None
    assert {worker for group in again.plan.groups for worker in group.workers} == {*range(7)}


def test_groups_stay_with_their_auxiliary_paths_unless_one_leads_through_a_lost_site() -> None:
    names = [site.name for site in OVERLAY.sites]
    route = ForestRoute(server=names[SERVER], search=GivenForest(groups=((names[0], names[1]),)))
    compute_s, search = {0: 1.0, 1: 1.0}, partial(plans.disjoint_paths, most=1)
    problem = route.problem(OVERLAY, SERVER, compute_s, ELEMENTS)
    plan = plans.with_auxiliary(route.formed(problem, 1), OVERLAY, search)
    [before] = plan.groups
    relays = before.plan.auxiliary_relays - {SERVER, 0, 1}
    assert relays
    assert relays < {*range(2, SERVER)}
    for lost in range(2, SERVER):
        reforming = Reforming(route, plan, OVERLAY, compute_s, ELEMENTS, search=search)
        [after] = reforming.without({lost}, "it is lost").plan.groups
        assert (after == before) == (lost not in relays)
        assert lost not in after.plan.auxiliary_relays
        assert after.plan.auxiliary


def test_one_that_is_back_while_a_forest_is_searched_for_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reforming = follows()
    reforming.missing({4})
    slowed(reforming, 2, 9.0)
    remainder = plans.remainder

    def and_one_is_back(*args: Any, **named: Any) -> plans.Remainder:
        found = remainder(*args, **named)
        reforming.missing(())
        return found

    monkeypatch.setattr(plans, "remainder", and_one_is_back)
    found = look(reforming)
    assert found is not None
    assert not reforming.accept(found, is_free=True, now_s=0.0)


def test_where_all_that_train_are_in_no_tree_no_forest_is_searched_for() -> None:
    names = [site.name for site in OVERLAY.sites]
    route = ForestRoute(server=names[SERVER], search=GivenForest(groups=((names[0],),)))
    plan = route.formed(route.problem(OVERLAY, SERVER, {0: 1.0}, ELEMENTS), 1)
    reforming = Reforming(FOREST, plan, OVERLAY, COMPUTE_S, ELEMENTS)
    reforming.finished([0])
    slowed(reforming, 2, 9.0)
    assert look(reforming) is None


def test_a_forest_that_comes_while_another_is_formed_is_looked_for_again() -> None:
    reforming = follows()
    slowed(reforming, 2, 9.0)
    found = look(reforming)
    assert found is not None
    assert not reforming.accept(found, is_free=False, now_s=0.0)
    again = look(reforming)
    assert again is not None
    assert workers(again.plan) == workers(found.plan)


def test_forming_takes_at_most_a_tenth_of_the_time() -> None:
    reforming = follows()
    slowed(reforming, 2, 9.0)
    reforming.formed(began_s=1.0, now_s=3.0)
    found = look(reforming)
    assert found is not None
    assert not reforming.accept(found, is_free=True, now_s=20.9)
    again = look(reforming)
    assert again is not None
    assert reforming.accept(again, is_free=True, now_s=21.0)


def test_who_has_finished_is_in_no_tree() -> None:
    reforming = follows()
    slowed(reforming, 2, 9.0)
    found = look(reforming)
    assert found is not None
    reforming.finished([4])
    assert not reforming.accept(found, is_free=True, now_s=0.0)
    again = look(reforming)
    assert again is not None
    assert every(4 not in group.workers for group in again.plan.groups)
    reforming.finished(range(SERVER))
    slowed(reforming, 3, 50.0)
    assert look(reforming) is None


def test_given_groups_go_on_with_those_that_are_left() -> None:
    names = [site.name for site in OVERLAY.sites]
    given = GivenForest(groups=(tuple(names[:3]), (names[3],), tuple(names[4:7])))
    reforming = follows(ForestRoute(server=names[SERVER], search=given))
    left = reforming.without({1, 3}, "lost").plan
    assert workers(left) == {(0, 2), (4, 5, 6)}


def test_a_run_can_lose_what_the_others_do_not_need_to_reach_the_server() -> None:
    ways = [(0, 1), (1, 2), (2, 3)]  # a chain to the server, and a way round the site before it
    links = [Link(*p, 1e8, 0.01) for a, b in (*ways, (1, 3)) for p in ((a, b), (b, a))]
    chain = Overlay("chain", tuple(Site(name) for name in "abcs"), tuple(links))
    route = ForestRoute(server="s")
    compute_s = dict.fromkeys(range(3), 1.0)
    plan = route.formed(route.problem(chain, 3, compute_s, ELEMENTS), 1)
    reforming = Reforming(route, plan, chain, compute_s, ELEMENTS)
    lost: list[set[int]] = [{0}, {1}, {2}, {3}, {0, 1}]
    assert [reforming.can_lose(each) for each in lost] == [True, False, True, False, True]
    reforming.finished([0, 2])
    assert reforming.can_lose({1})  # no worker is left that has to reach the server


def test_eq_14_of_a_plan_is_that_of_the_forest_it_was_made_from() -> None:
    route = FOREST
    problem = route.problem(OVERLAY, SERVER, COMPUTE_S, ELEMENTS)
    found = route.search.search(problem)
    per_s = sum(len(tree.plan.members) / tree.period_s for tree in found.trees)
    costs = plans.forest_costs(problem, route.formed(problem, 1))
    assert (costs.objective_s, costs.updates_per_s) == pytest.approx((found.objective, per_s))


def test_eq_14_of_a_plan_counts_those_that_still_train() -> None:
    route, plan = FOREST, first(FOREST)
    group = max(plan.groups, key=lambda each: len(each.workers))
    (tree,) = group.plan.trees
    leaf = next(site for site in group.workers if not tree.children(tree.up)[site])
    left = {site: 1.0 for site in COMPUTE_S if site != leaf}
    problem = route.problem(OVERLAY, SERVER, left, ELEMENTS)
    costs = plans.forest_costs(problem, plan)
    assert costs.objective_s > 0
    longest_s = plans.cycle(
        problem, plans.restrict(group.plan, {*group.workers, SERVER} - {leaf})
    ).period_s
    others = [
        len(each.workers) / plans.cycle(problem, each.plan).period_s
        for each in plan.groups
        if each is not group
    ]
    assert costs.updates_per_s == pytest.approx((len(group.workers) - 1) / longest_s + sum(others))
    with pytest.raises(PlanError, match="does not train"):
        plans.cycle(problem, group.plan)
