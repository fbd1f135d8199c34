"""What a pace is: told which workers are there and whose updates came, it lets workers proceed.

A *worker* pulls the model, computes an update, pushes it, and asks to go on. A pace decides two
things: when an update becomes part of the model, and when its worker may pull the next model and
compute. Both are said in *steps*, in order. It never touches a model, a clock or a connection, so
that the same object paces processes and simulations, and decides alike when a log is played to it
again.

Two objects do it: a *pace* is the parameters, a frozen value that scenario files spell; its *rule*
follows one run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

NEVER_S = math.inf
Update = tuple[int, int]  # (worker, how many updates it has pushed with this one)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the model, and what follows from it.

    Args:
        apply: updates that become part of the model together, in this order; none, and the model
            stays as it is.
        proceed: workers that may pull the model as it then is, and compute.
        discard: updates that will never become part of the model.
        abandon: workers that compute on a model so old that their update will be discarded whenever
            it comes: they stop, push nothing, and ask to go on, which the rule is told as a push.
        share: how far the model goes to the mean of the updates, in (0, 1]; None for their weights'
            part of all workers'.
    """

    apply: tuple[Update, ...] = ()
    proceed: tuple[int, ...] = ()
    discard: tuple[Update, ...] = ()
    abandon: tuple[int, ...] = ()
    share: float | None = None


class Pace(Protocol):
    """When may a participant proceed? The parameters, a frozen value.

    Attributes:
        barrier: whether all workers' updates become part of the model in one step, and none
            otherwise: then they may be added up before they come.
    """

    barrier: ClassVar[bool]

    def rule(self) -> Rule:
        """Return what follows a run, fresh."""

    def staleness_bound(self, workers: int) -> int | None:
        """Return how many updates of others, at most, one may have missed.

        Those are the updates that became part of the model after its worker pulled, in earlier
        steps than its own. None where there is no bound.

        Args:
            workers: how many take part.
        """


def added_up(pace: Pace, workers: Sequence[int], ahead: int = 0) -> tuple[int, ...]:
    """Return the workers whose updates are added up on their way; none where each travels alone.

    Where a plan has groups, as a forest's has, those of each group are added up, whatever the pace.

    Args:
        pace: under a barrier all workers' updates become part of the model together.
        workers: the sites that compute.
        ahead: how many updates a worker computes ahead: one that does so pushes alone.
    """
    return tuple(workers) if pace.barrier and not ahead else ()


class Rule(Protocol):
    """A pace in one run; times never run backwards.

    Attributes:
        due_s: when to call ``look`` next; infinite where nothing depends on time alone.
    """

    due_s: float

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """Take a worker in, which waits to begin.

        Raises:
            ValueError: it is here already.
        """

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """Let a worker go; an update of it that waits is discarded.

        Args:
            worker: which.
            now_s: the time.
            has_finished: whether it has made all its updates. The others' steps then go no further
                than they did with it; without one that is lost or barred, they go all the way.

        Raises:
            ValueError: it is not here.
        """

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """Take note that all of a worker's update has come, and that it asks to go on.

        Args:
            worker: whose.
            now_s: the time.
            compute_s: how long it computed; 0 where that is not known.

        Raises:
            ValueError: it is not here, or has had no permission since its last update.
        """

    def look(self, now_s: float) -> tuple[Step, ...]:
        """Decide what has become due; harmless at any time."""


class Workers:
    """Which workers take part, and which compute: what every rule has to know.

    Attributes:
        computing: those that were permitted an update and have not pushed it.
        waiting: those that wait to go on, in the order in which they began to.
    """

    def __init__(self) -> None:
        self.computing: set[int] = set()
        self.waiting: dict[int, None] = {}
        self._pushed: dict[int, int] = {}  # outlives leaving, so that no update has another's name

    def __contains__(self, worker: int) -> bool:
        return worker in self.computing or worker in self.waiting

    def __len__(self) -> int:
        return len(self.computing) + len(self.waiting)

    def join(self, worker: int) -> None:
        """Let a worker wait to begin."""
        if worker in self:
            raise ValueError(f"worker {worker} joins, but takes part already")
        self.waiting[worker] = None

    def leave(self, worker: int) -> None:
        """Forget a worker."""
        if worker not in self:
            raise ValueError(f"worker {worker} leaves, but does not take part")
        self.computing.discard(worker)
        self.waiting.pop(worker, None)

    def push(self, worker: int) -> Update:
        """Let a worker wait, and name its update."""
        if worker not in self.computing:
            raise ValueError(f"worker {worker} pushes an update that was not permitted")
        self.computing.remove(worker)
        self.waiting[worker] = None
        self._pushed[worker] = self._pushed.get(worker, 0) + 1
        return worker, self._pushed[worker]

    def proceed(self, worker: int) -> None:
        """Let a worker compute."""
        del self.waiting[worker]
        self.computing.add(worker)
