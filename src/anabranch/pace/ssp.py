"""Stale synchronous parallel: the fastest may lead the slowest by so much (Ho et al., 2013)."""

from __future__ import annotations

from anabranch.pace._pace import NEVER_S, Step, Workers


class Ssp:
    """A worker that has pushed c updates goes on unless somebody has pushed fewer than c - lead.

    Updates become part of the model as they come. A worker that joins counts as having pushed as
    many as the slowest.

    Args:
        lead: how many iterations a worker may be ahead of the slowest, >= 0; with 0 all go on
            together, as under BSP.

    Raises:
        ValueError: a negative lead.
    """

    barrier = False
    due_s = NEVER_S

    def __init__(self, lead: int) -> None:
        if lead < 0:
            raise ValueError(f"a lead of {lead} iterations; give 0 or more")
        self._lead = lead
        self._workers = Workers()
        self._iterations: dict[int, int] = {}  # pushed by each worker

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Pace`."""
        self._workers.join(worker)
        self._iterations[worker] = min(self._iterations.values(), default=0)
        return self._let_go()

    def leave(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Pace`; whoever waited for the one that leaves may go on."""
        self._workers.leave(worker)
        del self._iterations[worker]
        return self._let_go()

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Pace`."""
        update = self._workers.push(worker)
        self._iterations[worker] += 1
        return (Step((update,)), *self._let_go())

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Pace`."""
        return ()

    def most_missed(self, workers: int) -> int:
        """Return ``(2 lead + 1) (workers - 1)``.

        A worker that pulls after c updates of its own has seen c - lead of everybody's at least.
        While it computes its next, the others may go on until they have pushed c + lead + 1.
        """
        return (2 * self._lead + 1) * (workers - 1)

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
