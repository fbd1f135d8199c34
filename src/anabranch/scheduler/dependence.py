"""The sites that updates and models pass between workers and servers. Pure."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

from anabranch import plan as plans
from anabranch.plan import Plan
from anabranch.scheduler.pacing import PaceBook


def groups_of(plan: Plan, before: Plan) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return a plan's groups, and the leads of those that the plan before has, too."""
    versions = {group.plan.version for group in before.groups}
    kept = [group.workers[0] for group in plan.groups if group.plan.version in versions]
    return [group.workers for group in plan.groups], kept


def led_through(plan: Plan, pacing: PaceBook, site: int) -> tuple[int, ...]:
    """Return the leads of a plan's groups whose updates or model pass a site on their way."""
    return tuple(
        group.workers[0]
        for group in plan.groups
        if (left := pacing.standing.left_of(group.workers)) and site in needed(group.plan, left)
    )


def needed(plan: Plan, workers: Collection[int]) -> set[int]:
    """Return the sites that data from or to some workers of a group may pass.

    Relays of auxiliary paths are among them: data that a lost relay held is not sent again.
    """
    return plans.in_between(plan, workers) | plan.auxiliary_relays


def lost_between(plan: Plan, worker: int, lost: Collection[int]) -> frozenset[int]:
    """Return the lost sites that lie between a worker and the servers in its group's plan."""
    ways = (group.plan for group in plan.groups if worker in group.workers)
    return frozenset(site for way in ways for site in needed(way, [worker]) & {*lost} - {worker})


def dispensable(plan: Plan, pacing: PaceBook) -> set[int]:
    """Return the sites without which the others still have a way to every server and back."""
    if plan.groups:
        return {site for site in range(plan.size) if not led_through(plan, pacing, site)}
    if pacing.standing.adds_up:
        return set(range(plan.size)) - needed(plan, pacing.standing.workers)
    passed = plan.auxiliary_relays | {tree.root for tree in plan.trees}
    for tree, site in product(range(len(plan.trees)), pacing.standing.workers):
        passed.update(plan.way_up(tree, site)[1:], plan.way_down(tree, site)[:-1])
    return set(range(plan.size)) - passed
