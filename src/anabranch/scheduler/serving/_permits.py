"""The contents of a permission: which update, how large a batch, for which client. Pure.

A worker that may proceed gets permissions for as many updates as are left and as it may have under
way. Each says whether the worker pulls the model, how many samples its batch has, and, if workers
stand for clients, the client. Without a free client there is no permission. A client is free again
once its update is settled, so updates are settled before clients are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.pace import Load, Update
from anabranch.scheduler._clients import Clients
from anabranch.scheduler._outliers import Outliers
from anabranch.scheduler.decisions import Permission
from anabranch.scheduler.serving._updates import Updates


class Permits:
    """Writes permissions.

    Args:
        updates: of all workers.
        load: sizes the batches.
        clients: that workers stand for; None if each stands for itself.
        outliers: judges updates; None if the merge rule has no filter.
        look_every_s: the interval of evaluations, seconds: the first worker that pulls the model in
            each interval evaluates it. None for no evaluations by permissions.
    """

    def __init__(
        self,
        updates: Updates,
        load: Load,
        clients: Clients | None,
        outliers: Outliers | None,
        look_every_s: float | None,
    ) -> None:
        self._updates = updates
        self._load = load
        self._clients = clients
        self._outliers = outliers
        self._look_every_s = look_every_s
        self._look_s = 0.0  # when a worker is to evaluate the model next

    @property
    def has_client(self) -> bool:
        """Whether a client is free, if workers stand for clients."""
        return self._clients is None or self._clients.has_one(self._updates.settled)

    def permit(self, worker: int, version: int, now_s: float) -> list[Permission]:
        """Return a worker's permissions after a step of the model.

        Args:
            worker: the worker.
            version: of the model.
            now_s: the time.
        """
        permissions = []
        for number in self._updates.to_begin(worker):
            if not self.has_client:
                break
            update = worker, number
            pulls = self._updates.begin(update, version, now_s)
            client = self._draw(update, now_s)
            samples = self._load.samples(worker)
            looks = pulls and self._looks(version, now_s)
            permissions.append(Permission(worker, number, samples, pulls, client, looks))
        return permissions

    def _draw(self, update: Update, now_s: float) -> int | None:
        if self._clients is None:
            return None
        unjudged = {} if self._outliers is None else self._outliers.unjudged
        return self._clients.draw(update, now_s, unjudged.values(), self._updates.settled)

    def _looks(self, version: int, now_s: float) -> bool:
        """Return whether it is time to evaluate the model; if so, set the next time."""
        if self._look_every_s is None or now_s < self._look_s or not version:
            return False
        self._look_s = (now_s // self._look_every_s + 1) * self._look_every_s
        return True

    def settle(self, applied: Sequence[Update], discarded: Sequence[Update]) -> None:
        """Free the clients of settled updates, and queue the applied ones for judgement."""
        clients, outliers = self._clients, self._outliers
        if clients is not None:
            for update in discarded:
                clients.settle(update)
        for update in applied:
            client = None if clients is None else clients.settle(update)
            if outliers is not None:
                outliers.unjudged[update] = update[0] if client is None else client
        if outliers is not None:
            outliers.merged(applied)
