"""Bulk synchronous parallel: a worker proceeds when all workers have pushed (Valiant 1990)."""

from __future__ import annotations

from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.pace._pace import NEVER_S, Rule, Step, Update, Workers


class Bsp(Table, frozen=True, kw_only=True, tag_field="kind", tag="bsp"):
    """One barrier each iteration: all updates become part of the model in one step.

    A worker that joins computes an update for the iteration in progress, on the present model.
    """

    barrier: ClassVar[bool] = True

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule()

    def staleness_bound(self, workers: int) -> int:
        """Return 0: every worker computes on a model that contains all updates."""
        return 0


class _Rule:
    """The rule of one run."""

    due_s = NEVER_S

    def __init__(self) -> None:
        self._workers = Workers()
        self._in: dict[int, Update] = {}  # of the iteration in progress

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        self._workers.proceed(worker)
        return (Step(proceed=(worker,)),)

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.leave(worker)
        update = self._in.pop(worker, None)
        discarded = () if update is None else (Step(discard=(update,)),)
        return (*discarded, *self._pass_barrier())

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._in[worker] = self._workers.push(worker)
        return self._pass_barrier()

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        return ()

    def _pass_barrier(self) -> tuple[Step, ...]:
        if self._workers.computing or not self._in:
            return ()
        # By index and not by arrival, so that the sum has the same bits in any order of arrival.
        updates = tuple(self._in[worker] for worker in sorted(self._in))
        for worker, _ in updates:
            self._workers.proceed(worker)
        self._in = {}
        return (Step(updates, tuple(worker for worker, _ in updates)),)
