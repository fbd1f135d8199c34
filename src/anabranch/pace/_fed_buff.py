"""FedBuff: a step takes the first few updates to come; no worker waits (Nguyen et al., 2022)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from anabranch._typed_toml import Positive, Table
from anabranch.pace._pace import NEVER_S, Rule, Step, Update, Workers


class FedBuff(Table, frozen=True, kw_only=True, tag_field="kind", tag="fedbuff"):
    """Updates wait in a buffer until it is full, and then become part of the model in one step.

    A worker proceeds with the present model as soon as its update has come. The merge rule makes
    late updates weigh less: the paper's is ``staleness`` with ``a = 0.5``.

    Args:
        size: updates of a step; the paper's K. Capped at the number of workers, also those that
            have made all their updates; the last workers thus have several updates in a step.
        share: how far a step goes to the mean of its updates, in (0, 1]; the paper's server
            learning rate.
    """

    size: Positive = 10
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0
    barrier: ClassVar[bool] = False

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self)

    def staleness_bound(self, workers: int) -> None:
        """Return None: there is no bound."""


class _Rule:
    """The rule of one run."""

    due_s = NEVER_S

    def __init__(self, pace: FedBuff) -> None:
        self._pace = pace
        self._workers = Workers()
        self._finished = 0  # workers that have made all their updates
        self._buffer: list[Update] = []

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        self._workers.proceed(worker)
        return (Step(proceed=(worker,)),)

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; the worker's updates stay in the buffer."""
        self._workers.leave(worker)
        self._finished += has_finished
        return self._step(())

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._buffer.append(self._workers.push(worker))
        self._workers.proceed(worker)
        return self._step((worker,)) or (Step(proceed=(worker,)),)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        return ()

    def _step(self, proceed: tuple[int, ...]) -> tuple[Step, ...]:
        """Take a step if the buffer is full, or a smaller one if no worker is left to fill it."""
        whole = min(self._pace.size, len(self._workers) + self._finished)
        if not self._buffer or (len(self._buffer) < whole and len(self._workers)):
            return ()
        share = self._pace.share * min(1.0, len(self._buffer) / max(1, whole))
        updates, self._buffer = tuple(self._buffer), []
        return (Step(updates, proceed, share=share),)
