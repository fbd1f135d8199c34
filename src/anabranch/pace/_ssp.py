"""Stale synchronous parallel: a bound on the fastest worker's lead (Ho et al., 2013)."""

from __future__ import annotations

from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.pace._pace import NEVER_S, Rule, Step, Workers


class Ssp(Table, frozen=True, kw_only=True, tag_field="kind", tag="ssp"):
    """A worker that has pushed c updates proceeds when all have pushed c - lead or more.

    Updates become part of the model as they come. A worker that joins counts as having pushed as
    many as the slowest worker.

    Args:
        lead: how many iterations a worker may be ahead of the slowest, >= 0; with 0 all proceed
            together, as under BSP.

    Raises:
        ValueError: a negative lead.
    """

    lead: int
    barrier: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.lead < 0:
            raise ValueError(f"a lead of {self.lead} iterations; give 0 or more")

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self.lead)

    def staleness_bound(self, workers: int) -> int:
        """Return ``(2 lead + 1) (workers - 1)``.

        A worker that has pushed c updates and pulls has seen at least c - lead of each other
        worker's. While it computes its next update, the others may push up to c + lead + 1.
        """
        return (2 * self.lead + 1) * (workers - 1)


class _Rule:
    """The rule of one run."""

    due_s = NEVER_S

    def __init__(self, lead: int) -> None:
        self._lead = lead
        self._workers = Workers()
        self._iterations: dict[int, int] = {}  # pushed by each worker

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        self._iterations[worker] = min(self._iterations.values(), default=0)
        return self._let_go()

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; workers that waited for it may proceed."""
        self._workers.leave(worker)
        del self._iterations[worker]
        return self._let_go()

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        update = self._workers.push(worker)
        self._iterations[worker] += 1
        return (Step((update,)), *self._let_go())

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        return ()

    def _let_go(self) -> tuple[Step, ...]:
        slowest = min(self._iterations.values(), default=0)
        ready = tuple(
            worker
            for worker in self._workers.waiting
            if self._iterations[worker] - slowest <= self._lead
        )
        for worker in ready:
            self._workers.proceed(worker)
        return (Step(proceed=ready),) if ready else ()
