"""For which clients workers compute, where each worker stands for many. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.cohort import Registry
from anabranch.pace import Update


class Clients:
    """Who computes each update that is not settled.

    Args:
        registry: of all clients; those that are barred stand there.

    Attributes:
        registry: see above.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._of: dict[Update, int] = {}

    @property
    def welcome(self) -> int:
        """How many clients are registered and not barred."""
        return self.registry.registered - len(self.registry.barred)

    def draw(
        self, update: Update, now_s: float, unjudged: Collection[int], settled: Mapping[int, int]
    ) -> int:
        """Return the client for which a worker computes an update.

        A client whose update waits for its step, or to be judged, only if there is no other.

        Args:
            update: which.
            now_s: the time.
            unjudged: the clients whose updates are to be judged.
            settled: by worker, the latest of its updates that the pace was told of.
        """
        registry, busy = self.registry, {*self._of.values()}
        for taken in (busy.union(unjudged), busy):
            if len(taken | registry.barred) < registry.registered:
                break
        else:
            taken = self._computed_for(settled)
        client = self._of[update] = registry.draw(taken, now_s)
        return client

    def settle(self, update: Update) -> int | None:
        """Let the client of an update be free; return it, None if there was none."""
        return self._of.pop(update, None)

    def has_one(self, settled: Mapping[int, int]) -> bool:
        """Return whether there is a client that a worker may compute for; see ``draw``."""
        if self.welcome > len(self._of):  # as nearly always
            return True
        registry = self.registry
        return len(self._computed_for(settled) | registry.barred) < registry.registered

    def _computed_for(self, settled: Mapping[int, int]) -> set[int]:
        return {who for (site, k), who in self._of.items() if k > settled.get(site, 0)}
