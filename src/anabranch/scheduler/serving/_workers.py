"""The life of each worker in the pace's books. Pure.

A worker is at one stage at a time, and :data:`TABLE` has every change that there is: what happens
to a worker at a stage takes it to the next one, and what the table lacks cannot happen.

- **A worker is in** while it computes or may be let compute, until it has made all its updates or
  is lost. Both put it out; a worker with updates left may come back, as another process.
- **A worker that is back** is in at once where it moves alone. In a group that adds up, all workers
  make the same update at a time: it *returns*, and is in from the group's next update on. If its
  group exists no more it is *homeless* until groups are formed that have it.
- **An outlier is barred** where workers stand for themselves: it leaves the pace. Once the judge
  lets it in again it is *recalled*, and is in as soon as it has asked to go on after each update
  that it abandoned. If it is lost while it is barred, it comes back barred.
- **A worker is idle** where workers stand for clients and too many clients are barred: it leaves
  the pace until a client is free.
- **A run that stops** takes no worker in any more. One that is back by then is *late*, and gets the
  last model with its group.

Whether the pace lets a worker compute at the moment is its group's stage (`groups`), and which of
its updates are under way is known to `updates`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum

from anabranch.scheduler._stages import Stages


class Stage(Enum):
    """How far a worker is in its life."""

    OUT = "out"
    IN = "in"
    IDLE = "idle"
    BARRED = "barred"
    RECALLED = "recalled"
    RETURNING = "returning"
    HOMELESS = "homeless"
    LATE = "late"


class Happens(Enum):
    """What can happen to a worker."""

    IS_TAKEN_IN = "is taken in"
    HAS_FINISHED = "has made all its updates"
    IS_LOST = "is lost"
    IS_BARRED = "is barred"
    IS_RECALLED = "is to be let in again"
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
"""What each thing that happens to a worker at a stage makes of it."""

MEMBERS = (S.IN, S.IDLE, S.BARRED, S.RECALLED)
"""Stages of workers that are members of a group."""

BESIDE_THE_PACE = (S.IDLE, S.BARRED, S.RECALLED)
"""Stages of members that are out of the pace."""


class Workers(Stages[Stage, Happens]):
    """The stages of all workers, which are in at first.

    Args:
        workers: which sites compute.
    """

    def __init__(self, workers: Iterable[int]) -> None:
        super().__init__("worker", TABLE, workers, Stage.IN)

    def __getitem__(self, worker: int) -> Stage:
        """Return the stage of a site; one that computes nothing is out."""
        return self._stages.get(worker, Stage.OUT)

    @property
    def all(self) -> Collection[int]:
        """Which sites compute, whatever their stage."""
        return self._stages.keys()

    def is_member(self, worker: int) -> bool:
        """Return whether a worker is a member of a group."""
        return self[worker] in MEMBERS

    def take_in(self, workers: Iterable[int]) -> None:
        """Take in those of some workers that are not in."""
        self.happens(H.IS_TAKEN_IN, *(each for each in workers if self[each] is not S.IN))
