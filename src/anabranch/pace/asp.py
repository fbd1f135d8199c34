"""Asynchronous parallel: everybody goes on at once (Dean et al., NIPS 2012)."""

from __future__ import annotations

from anabranch.pace._pace import NEVER_S, Step, Workers


class Asp:
    """No coordination: an update becomes part of the model when it comes, whatever it missed."""

    barrier = False
    due_s = NEVER_S

    def __init__(self) -> None:
        self._workers = Workers()

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Pace`."""
        self._workers.join(worker)
        self._workers.proceed(worker)
        return (Step(proceed=(worker,)),)

    def leave(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Pace`."""
        self._workers.leave(worker)
        return ()

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Pace`."""
        update = self._workers.push(worker)
        self._workers.proceed(worker)
        return (Step((update,), (worker,)),)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Pace`."""
        return ()

    def most_missed(self, workers: int) -> None:
        """Return None: there is no bound."""
