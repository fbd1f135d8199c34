"""Decisions of a served model's books: steps of the model, permissions, and their log events."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.log import events
from anabranch.pace import Update


@dataclass(frozen=True, slots=True)
class Permission:
    """A worker may compute an update.

    Args:
        worker: the worker.
        update: the number of the update, from 1.
        samples: of its batch.
        pulls: whether it first pulls the model of after this step; otherwise it computes on the
            model that it has.
        client: the client for which it computes; None if it stands for itself.
        looks: whether it evaluates the model that it pulls.
    """

    worker: int
    update: int
    samples: int
    pulls: bool
    client: int | None = None
    looks: bool = False


@dataclass(frozen=True, slots=True)
class Merged:
    """An update that becomes part of the model.

    Args:
        update: the update.
        version: of the model from then on; steps are counted from 1.
        missed: how many updates of other groups it missed.
        factor: of its step; None if no rule weighs updates.
    """

    update: Update
    version: int
    missed: int
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A step of the model, or another event, and its consequences.

    Args:
        applied: updates that become part of the model, in this order.
        discarded: updates that never become part of it.
        permissions: for workers that may proceed.
        version: of the model from then on.
        finished: workers that have made all their updates, the last of which is settled.
        came: the update that is complete now. If updates are added up and a loss voids their sum,
            it may come again.
        squared_norm: of ``came``, if the servers told it.
        abandoned: for each worker that abandons updates, the last one of these. It computes and
            pushes nothing until its next permission.
        is_broken: whether the way to the abandoning workers is broken, so that no model comes.
        share: how far the step goes towards the mean of its updates; None for the part that their
            weights have in all.
        barred: outliers that are barred now: clients, or workers that stand for themselves.
        readmitted: clients or workers that are readmitted now.
        uncounted: workers whose last model no longer counts, if the model is the mean of all.
    """

    applied: tuple[Merged, ...]
    discarded: tuple[Update, ...]
    permissions: tuple[Permission, ...]
    version: int
    finished: tuple[int, ...] = ()
    came: Update | None = None
    squared_norm: float | None = None
    abandoned: tuple[Update, ...] = ()
    is_broken: bool = False
    share: float | None = None
    barred: tuple[int, ...] = ()
    readmitted: tuple[int, ...] = ()
    uncounted: tuple[int, ...] = ()


def events_of(decision: Decision, at_s: float) -> list[events.Event]:
    """Return the log's events for a decision."""
    came = [] if decision.came is None else [decision.came]
    return [
        *(
            events.UpdateCame(
                at_s=at_s, site=worker, update=update, squared_norm=decision.squared_norm
            )
            for worker, update in came
        ),
        *(
            events.UpdateApplied(
                at_s=at_s,
                site=each.update[0],
                update=each.update[1],
                version=each.version,
                missed=each.missed,
                factor=each.factor,
            )
            for each in decision.applied
        ),
        *(
            events.UpdateDiscarded(at_s=at_s, site=worker, update=update)
            for worker, update in decision.discarded
        ),
        *(
            events.WorkerWent(
                at_s=at_s,
                site=went.worker,
                update=went.update,
                samples=went.samples,
                client=went.client,
            )
            for went in decision.permissions
        ),
        *(events.ClientBarred(at_s=at_s, client=client) for client in decision.barred),
        *(events.ClientReadmitted(at_s=at_s, client=client) for client in decision.readmitted),
    ]
