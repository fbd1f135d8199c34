"""How a model is served: as scenario files spell it, and as a log keeps its pace. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

from anabranch._typed_toml import Table, tag_of
from anabranch.cohort import Clients, Registry
from anabranch.merge import AnyMerge, Mean, Robust, filter_of
from anabranch.pace import AnyLoad, AnyPace, Asp, R2sp, Ssp
from anabranch.plan import Plan
from anabranch.scheduler.awareness import AnyAwareness
from anabranch.scheduler.pacing import PaceBook


class Serve(Table, frozen=True, kw_only=True):
    """Let the roots of the route's trees hold the model; workers push updates and pull it.

    Args:
        only: names of sites that compute nothing.
        ahead: whether a worker computes its next update while its last one and the model are on
            their way: they then cost no time, but what it computes on is one update older.
        mixes: what a step makes of what workers come to. With ``updates`` the model goes as far as
            they went, from where it is; with ``models`` it goes towards the models that they came
            to, and so back where they began on an old one (FL-R²SP's Algorithm 2, FedAsync); with
            ``cache`` it is the mean of the last models of all workers (SAFA).
    """

    only: tuple[str, ...] = ()
    ahead: bool = False
    mixes: Literal["updates", "models", "cache"] = "updates"

    def workers(self, names: Sequence[str]) -> list[int]:
        """Return which of the sites with these names compute, by index."""
        return [index for index, name in enumerate(names) if name not in self.only]


def misfit(pace: AnyPace, merge: AnyMerge, serve: Serve, is_forest: bool) -> str | None:
    """Return why servers cannot look at updates one by one as is asked; None where they can.

    Args:
        pace, merge, serve: the answers.
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
    """Return why a forest cannot be served as is asked; None where it can.

    Args:
        has_within: whether its groups have trees of another planner.
        serve, awareness: the answers.
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
    """Return why the groups of a plan are not those of a served model; None where they are.

    Args:
        plan: which; it may have none.
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
    """Return why a rule cannot weigh the letters of sites that gossip; None where it can."""
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
        batch_size: of the slowest worker.
        workers: which sites compute.
        updates: how many each worker makes; logs of older releases have it as their rounds.
        ahead: whether a worker computes its next update while its last one is on its way.
        seed: of the registry of clients.
        look_every_s: see there.
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
        """Return it as text, which ``decode`` reads."""
        return msgspec.json.encode(self).decode()

    def book(self, plan: Plan, rounds: int = 0) -> PaceBook:
        """Return the books of a run, nothing in them.

        Args:
            plan: its roots are the servers; its groups are those of the workers, if it has any.
            rounds: how many updates each worker makes, where this does not say so.
        """
        return PaceBook(
            self.pace,
            self.load.load(self.batch_size),
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
    """Return what a log keeps.

    Raises:
        ValueError: the text is no such thing.
    """
    return msgspec.json.decode(text, type=Paced)
