"""The life of each worker in the pace's books. Pure.

A worker is at one stage at a time. :data:`TABLE` lists every change of stage; an event that the
table lacks at a stage is a bug of the scheduler, and raises an error::

    in ──is lost, or has made all its updates──▶ out ──comes back──▶ in, returning or homeless
     │ ──is barred──▶ barred ──is recalled──▶ recalled ──has asked to proceed──▶ in
     └ ──has no client──▶ idle ──a client is free──▶ in

- **In**: the worker computes, or may get a permission. It is out once it has made all its updates
  or is lost. A lost worker with updates left may come back, as another process.
- **Returning**: the worker is back in a group that adds up. The workers of such a group make the
  same update at a time, so it is in from the group's next update on. A worker that moves alone is
  in at once.
- **Homeless**: the worker is back and its group does not exist any more. It waits for new groups.
- **Barred**: an outlier, where workers stand for themselves. It leaves the pace. If it is lost, it
  comes back barred.
- **Recalled**: the judge readmits the worker. It is in once it has asked to proceed after each
  update that it abandoned.
- **Idle**: the worker stands for clients, and too many of these are barred. It leaves the pace
  until a client is free.
- **Late**: the worker was back as the run stopped. It gets the final model with its group.

The stage of its group (`_groups`) tells whether a worker may compute now. `_updates` has its
updates under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from anabranch.scheduler._stages import Stages


class Stage(Enum):
    """The stages of a worker's life."""

    OUT = "out"
    IN = "in"
    IDLE = "idle"
    BARRED = "barred"
    RECALLED = "recalled"
    RETURNING = "returning"
    HOMELESS = "homeless"
    LATE = "late"


class Happens(Enum):
    """The events of a worker's life."""

    IS_TAKEN_IN = "is taken in"
    HAS_FINISHED = "has made all its updates"
    IS_LOST = "is lost"
    IS_BARRED = "is barred"
    IS_RECALLED = "is recalled"
    HAS_NO_CLIENT = "has no client"
    RETURNS = "is back, and waits for its group's next update"
    HAS_NO_GROUP = "is back, and in no group"
    RUN_STOPS = "is back too late, as the run stops"


S, H = Stage, Happens
TABLE: dict[Stage, dict[Happens, Stage]] = {
    S.OUT: {
        H.IS_TAKEN_IN: S.IN,
        H.IS_BARRED: S.BARRED,
        H.RETURNS: S.RETURNING,
        H.HAS_NO_GROUP: S.HOMELESS,
        H.RUN_STOPS: S.LATE,
    },
    S.IN: {
        H.HAS_FINISHED: S.OUT,
        H.IS_LOST: S.OUT,
        H.IS_BARRED: S.BARRED,
        H.HAS_NO_CLIENT: S.IDLE,
    },
    S.IDLE: {H.IS_TAKEN_IN: S.IN, H.IS_LOST: S.OUT},
    S.BARRED: {H.IS_RECALLED: S.RECALLED, H.IS_LOST: S.OUT},
    S.RECALLED: {H.IS_TAKEN_IN: S.IN, H.IS_LOST: S.OUT},
    S.RETURNING: {
        H.IS_TAKEN_IN: S.IN,
        H.HAS_NO_GROUP: S.HOMELESS,
        H.HAS_FINISHED: S.OUT,
        H.IS_LOST: S.OUT,
        H.RUN_STOPS: S.LATE,
    },
    S.HOMELESS: {H.IS_TAKEN_IN: S.IN, H.IS_LOST: S.OUT, H.RUN_STOPS: S.LATE},
    S.LATE: {H.IS_LOST: S.OUT},
}
"""For each stage, the events that are possible there and the stage that each leads to."""

MEMBERS = (S.IN, S.IDLE, S.BARRED, S.RECALLED)
"""Stages of workers that are members of a group."""

BESIDE_THE_PACE = (S.IDLE, S.BARRED, S.RECALLED)
"""Stages of members that are out of the pace."""


class Workers(Stages[Stage, Happens]):
    """The stages of all workers; the first one is *in*.

    Args:
        workers: the sites that compute.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        super().__init__("worker", TABLE, workers, Stage.IN)

    def __getitem__(self, worker: int) -> Stage:
        """Return the stage of a site; a site that computes nothing is *out*."""
        return self._stages.get(worker, Stage.OUT)

    @property
    def all(self) -> Collection[int]:
        """The sites that compute, whatever their stage."""
        return self._stages.keys()

    def is_member(self, worker: int) -> bool:
        """Return whether a worker is a member of a group."""
        return self[worker] in MEMBERS

    def take_in(self, workers: Iterable[int]) -> None:
        """Take in those of the given workers that are not in."""
        self.happens(H.IS_TAKEN_IN, *(each for each in workers if self[each] is not S.IN))
