"""How a model is served: parameters, as scenario files spell them and as logs keep them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from anabranch._typed_toml import Table, decode_json, tag_of
from anabranch.cohort import Clients, Registry
from anabranch.merge import AnyMerge, Mean, Robust, filter_of
from anabranch.pace import AnyLoad, AnyPace, Asp, R2sp, Ssp
from anabranch.plan import Plan
from anabranch.scheduler.awareness import AnyAwareness
from anabranch.scheduler.pacing import PaceBook


class Serve(Table, frozen=True, kw_only=True):
    """The roots of the route's trees hold the model; workers push updates and pull it.

    Args:
        only: names of sites that compute nothing.
        ahead: whether a worker computes its next update while its last one and the model are on
            their way. The transfers then cost no time, but the model is one update older.
        mixes: how a step uses workers' results. With ``updates`` it adds their changes to the
            model. With ``models`` it moves the model towards theirs. That is back towards an old
            model if they began there (FL-R²SP's Algorithm 2, FedAsync). With ``cache`` the model is
            the mean of the last models of all workers (SAFA).
    """

    only: tuple[str, ...] = ()
    ahead: bool = False
    mixes: Literal["updates", "models", "cache"] = "updates"

    def workers(self, names: Sequence[str]) -> list[int]:
        """Return which of the sites with these names compute, by index."""
        if not self.only:
            return [*range(len(names))]
        return [index for index, name in enumerate(names) if name not in self.only]


def misfit(pace: AnyPace, merge: AnyMerge, serve: Serve, is_forest: bool) -> str | None:
    """Return why servers cannot handle updates one by one, if the answers need that; else None.

    Args:
        pace, merge, serve: the answers of the scenario.
        is_forest: whether the route is a forest.
    """
    compares = filter_of(merge) is not None or isinstance(merge, Robust)
    if not compares and serve.mixes == "updates":
        return None
    kind = tag_of(merge)
    key = f"serve.mixes: {serve.mixes}" if serve.mixes != "updates" else f'merge.kind: "{kind}"'
    if serve.ahead:
        return f"{key} has to know the model that an update was computed on; leave serve.ahead out"
    if pace.barrier:
        return (
            f'{key} looks at updates one by one, and pace.kind = "bsp" adds them up on their way; '
            'give "fedavg", whose rounds are as synchronous'
        )
    if compares and isinstance(pace, Asp | Ssp | R2sp):
        return (
            f'merge.kind: "{kind}" holds the updates of a step against each other, and '
            f'pace.kind = "{tag_of(pace)}" has one in each; give "fedavg", "fl-r2sp" or "fedbuff"'
        )
    if is_forest:
        return (
            f"{key} looks at updates one by one, and a forest adds them up on their way; give "
            "another route"
        )
    if isinstance(merge, Robust) and serve.mixes == "cache":
        return (
            f"serve.mixes: a cache is the mean of all workers' last models, and merge.kind: "
            f'"{kind}" is not a mean; give "updates" or "models"'
        )
    return None


def forest_misfit(has_within: bool, serve: Serve, awareness: AnyAwareness | None) -> str | None:
    """Return why a forest cannot serve the model with these answers; None if it can.

    Args:
        has_within: whether its groups have trees of another planner.
        serve, awareness: the answers of the scenario.
    """
    if serve.ahead:
        return (
            "a forest adds updates up on their way, so no worker can compute ahead; leave "
            "serve.ahead out"
        )
    if awareness is None:
        return None
    if has_within:
        return (
            "groups with trees within are not formed again; have no awareness, or leave within out"
        )
    if awareness.least_gain == "none":
        return (
            'a forest is formed again only where that gains, so awareness.least_gain = "none" is '
            "not for it; give a number, or leave it out"
        )
    return None


def groups_misfit(plan: Plan, workers: Collection[int], names: Sequence[str]) -> str | None:
    """Return why the groups of a plan do not fit a served model; None if they do.

    Args:
        plan: the plan; it may have no groups.
        workers: the sites that compute.
        names: of all sites, by index.
    """
    if not plan.groups:
        return None
    if any(group.plan.groups for group in plan.groups):
        return "the plan of a group has groups itself; leave them out"
    in_trees = {worker for group in plan.groups for worker in group.workers}
    if in_trees == {*workers}:
        return None
    listed = [[names[site] for site in sorted(each)] for each in (in_trees, workers)]
    return (
        f"{listed[0]} are in trees, and {listed[1]} compute; they must be the same sites: see "
        "serve.only, and compute_s or groups if they are given"
    )


def unfit_for_letters(merge: AnyMerge) -> str | None:
    """Return why a rule cannot weigh the letters of sites that gossip; None if it can."""
    if merge.asks_loss or merge.asks_norm:
        what = "weighs by losses or gradients"
    elif filter_of(merge) is not None or isinstance(merge, Robust):
        what = "looks at the updates of a step"
    else:
        return None
    return (
        f'merge.kind: "{tag_of(merge)}" {what}, and what sites that gossip send are models; give '
        '"mean" or "staleness"'
    )


class Paced(msgspec.Struct, frozen=True, kw_only=True):
    """How workers are paced, beside the plan.

    Args:
        pace, load, merge, clients: see :class:`anabranch.scheduler.pacing.PaceBook`.
        batch_size: of the slowest worker, or of a worker whose batch is not stated.
        workers: the sites that compute.
        updates: the number of updates that each worker makes; None in logs of older releases, where
            it is the number of rounds.
        ahead: whether a worker computes its next update while its last one is on its way.
        seed: of the registry of clients.
        look_every_s: see :class:`anabranch.scheduler.pacing.PaceBook`.
    """

    pace: AnyPace
    load: AnyLoad
    batch_size: int
    workers: list[int]
    updates: int | None = None
    ahead: bool = False
    merge: AnyMerge = Mean()
    clients: Clients | None = None
    seed: int = 0
    look_every_s: float | None = None

    def encode(self) -> str:
        """Return the parameters as text, which ``decode`` reads."""
        return msgspec.json.encode(self).decode()

    def book(self, plan: Plan, names: Sequence[str], rounds: int = 0) -> PaceBook:
        """Return the empty books of a run.

        Args:
            plan: its roots are the servers, and its groups those of the workers, if it has any.
            names: of all sites, by index.
            rounds: the number of updates that each worker makes, if ``updates`` is None.
        """
        return PaceBook(
            self.pace,
            self.load.load(self.batch_size, names),
            self.workers,
            [tree.root for tree in plan.trees],
            rounds if self.updates is None else self.updates,
            int(self.ahead),
            [group.workers for group in plan.groups],
            self.merge,
            None if self.clients is None else Registry(self.clients, self.seed),
            self.look_every_s,
        )


def decode(text: str) -> Paced:
    """Return the parameters that a log keeps.

    Raises:
        ValueError: the text has no such parameters.
    """
    found: Paced = decode_json(text, Paced)
    return found
