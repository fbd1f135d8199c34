"""What follows from a pace: steps of the model, who may go on, and what the log says of it."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.log import events
from anabranch.pace import Update


@dataclass(frozen=True, slots=True)
class Permission:
    """A worker may go on: pull the model as it is after this step, and compute.

    Args:
        worker: who.
        update: which of its updates it is to compute, from 1.
        samples: of its batch.
        pulls: whether the model comes for it; otherwise it computes on what it has.
        client: for which client it computes, where it stands for many; None for itself.
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
        update: which.
        version: of the model since; steps that change it are counted from 1.
        missed: how many updates of other groups it missed.
        factor: what its step is multiplied by; None where no rule weighs updates.
    """

    update: Update
    version: int
    missed: int
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A step of the model and what follows from it.

    Args:
        applied: updates that become part of the model, in this order, with what each had missed.
        discarded: updates that never will.
        permissions: who may go on.
        version: of the model from then on.
        finished: workers that have computed all they were to, and the last of whose updates is
            settled.
        came: the update that is all here now, and has its worker wait; where updates are added up
            it may come again, if a loss voids it.
        squared_norm: of what came, if the servers told.
        abandoned: for each worker that is to compute and push nothing before it goes on anew, the
            last of its updates that are given up.
        is_broken: whether the way is broken over which the models for these would come.
        share: how far the step goes to the mean of its updates; None for their weights' part.
        barred: outliers, that take no part from now on: clients, or workers that stand for
            themselves.
        readmitted: those that were barred, and take part again.
        uncounted: workers whose last model counts no more where the model is the mean of all.
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
    """Return what the log says of a decision."""
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
