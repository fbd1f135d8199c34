"""Asynchronous parallel: each worker proceeds at once (Dean et al., NIPS 2012)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from anabranch._typed_toml import Table
from anabranch.pace._pace import NEVER_S, Rule, Step, Workers


class Asp(Table, frozen=True, kw_only=True, tag_field="kind", tag="asp"):
    """No coordination: an update becomes part of the model when it comes, however stale it is.

    Args:
        share: how far each update moves the model, in (0, 1]: the mixing weight of FedAsync (Xie et
            al., 2019), which takes 0.6. The merge rule ``staleness`` lowers it. None for one
            worker's part of all workers.
    """

    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    barrier: ClassVar[bool] = False

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self.share)

    def staleness_bound(self, workers: int) -> None:
        """Return None: there is no bound."""


class _Rule:
    """The rule of one run."""

    due_s = NEVER_S

    def __init__(self, share: float | None) -> None:
        self._share = share
        self._workers = Workers()

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        self._workers.proceed(worker)
        return (Step(proceed=(worker,)),)

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.leave(worker)
        return ()

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        update = self._workers.push(worker)
        self._workers.proceed(worker)
        return (Step((update,), (worker,), share=self._share),)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        return ()
