"""The pace protocol: a pace learns of workers and their updates, and permits workers to proceed.

A *worker* pulls the model, computes an update, pushes it, and asks to proceed. A pace decides two
things: when an update becomes part of the model, and when its worker may pull the next model and
compute. It returns both as *steps*, in order. It never touches a model, a clock or a connection. So
the same object paces processes and simulations, and decides alike when a log is replayed.

It has two parts: a *pace* is the parameters, a frozen value as in a scenario file; its *rule* holds
the state of one run.
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
        apply: updates that become part of the model together, in this order; empty where the model
            stays as it is.
        proceed: workers that may pull the model after this step, and compute.
        discard: updates that will never become part of the model.
        abandon: workers that compute on a model so old that their update would be discarded. They
            stop, push nothing, and ask to proceed; the rule gets a ``push`` for that.
        share: how far the model goes to the mean of the updates, in (0, 1]; None for the updates'
            part of all workers' weights.
    """

    apply: tuple[Update, ...] = ()
    proceed: tuple[int, ...] = ()
    discard: tuple[Update, ...] = ()
    abandon: tuple[int, ...] = ()
    share: float | None = None


class Pace(Protocol):
    """When workers may proceed: the parameters, a frozen value.

    Attributes:
        barrier: whether each step that changes the model applies all workers' updates together.
            Then sites may add them up on the way.
    """

    barrier: ClassVar[bool]

    def rule(self) -> Rule:
        """Return a new rule, for one run."""

    def staleness_bound(self, workers: int) -> int | None:
        """Return the most updates of others that an update may have missed.

        An update missed those that became part of the model after its worker pulled, in earlier
        steps than its own. None where there is no bound.

        Args:
            workers: number of workers in the run.
        """


def added_up(pace: Pace, workers: Sequence[int], ahead: int = 0) -> tuple[int, ...]:
    """Return the workers whose updates are added up on the way; none where each travels alone.

    Where a plan has groups, as a forest has, each group's updates are added up under any pace.

    Args:
        pace: under a barrier all workers' updates become part of the model together.
        workers: the sites that compute.
        ahead: how many updates a worker computes ahead; if any, its updates travel alone.
    """
    return tuple(workers) if pace.barrier and not ahead else ()


class Rule(Protocol):
    """A pace in one run; times never run backwards.

    Attributes:
        due_s: when to call ``look`` next; infinite where nothing depends on time alone.
    """

    due_s: float

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """Add a worker, which waits to begin.

        Raises:
            ValueError: it has joined already.
        """

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """Remove a worker; its waiting update is discarded.

        Args:
            worker: by index.
            now_s: the time.
            has_finished: whether it has made all its updates. Then the others' steps still count
                it, and go as far as before. Steps do not count a worker that is lost or barred.

        Raises:
            ValueError: it has not joined.
        """

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """Record that all of a worker's update has come, and that the worker asks to proceed.

        Args:
            worker: by index.
            now_s: the time.
            compute_s: how long it computed; 0 where that is unknown.

        Raises:
            ValueError: it has not joined, or has had no permission since its last update.
        """

    def look(self, now_s: float) -> tuple[Step, ...]:
        """Return the steps that have become due; harmless at any time."""


class Workers:
    """The workers that have joined, and which of them compute: state that every rule needs.

    Attributes:
        computing: workers that have a permission and have not pushed the update.
        waiting: workers that wait to proceed, in the order in which they began to wait.
    """

    def __init__(self) -> None:
        self.computing: set[int] = set()
        self.waiting: dict[int, None] = {}
        self._pushed: dict[int, int] = {}  # stays when a worker leaves: no two updates share a name

    def __contains__(self, worker: int) -> bool:
        return worker in self.computing or worker in self.waiting

    def __len__(self) -> int:
        return len(self.computing) + len(self.waiting)

    def join(self, worker: int) -> None:
        """Add a worker to those that wait."""
        if worker in self:
            raise ValueError(f"worker {worker} joins, but has joined already")
        self.waiting[worker] = None

    def leave(self, worker: int) -> None:
        """Forget a worker."""
        if worker not in self:
            raise ValueError(f"worker {worker} leaves, but has not joined")
        self.computing.discard(worker)
        self.waiting.pop(worker, None)

    def push(self, worker: int) -> Update:
        """Add a worker to those that wait, and return its update's name."""
        if worker not in self.computing:
            raise ValueError(f"worker {worker} pushes an update that was not permitted")
        self.computing.remove(worker)
        self.waiting[worker] = None
        self._pushed[worker] = self._pushed.get(worker, 0) + 1
        return worker, self._pushed[worker]

    def proceed(self, worker: int) -> None:
        """Move a worker from those that wait to those that compute."""
        del self.waiting[worker]
        self.computing.add(worker)
