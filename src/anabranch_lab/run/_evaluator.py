"""Which site of a run with a served model evaluates it, and how it gets the whole model. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.plan import Plan
from anabranch_lab.run.scenario import Scenario


def holds_whole(plan: Plan, site: int) -> bool:
    """Return whether a site alone serves the model."""
    return {tree.root for tree in plan.trees} == {site}


def evaluator_of(scenario: Scenario, plan: Plan, workers: Sequence[int]) -> int:
    """Return which site evaluates a served model during the run.

    The first worker does, when it pulls. With federated averages any client may be barred or away,
    so a single server that is no worker evaluates instead.
    """
    servers = {tree.root for tree in plan.trees}
    if scenario.period.averages and len(servers) == 1 and not servers & {*workers}:
        return min(servers)
    return workers[0]
