"""The clients for which workers compute, where each worker stands for many. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.cohort import Registry
from anabranch.pace import Update


class Clients:
    """The clients of the updates that are not settled.

    Args:
        registry: of all clients; it has the barred ones, too.

    Attributes:
        registry: see above.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._of: dict[Update, int] = {}  # the client of each update that is not settled

    @property
    def welcome(self) -> int:
        """The number of registered clients that are not barred."""
        return self.registry.registered - len(self.registry.barred)

    def draw(
        self, update: Update, now_s: float, unjudged: Collection[int], settled: Mapping[int, int]
    ) -> int:
        """Draw a client for an update.

        A client with an update that waits for its step or for a verdict is drawn only if no other
        client is free.

        Args:
            update: the update.
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
        """Free the client of an update and return it; None if the update has none."""
        return self._of.pop(update, None)

    def has_one(self, settled: Mapping[int, int]) -> bool:
        """Return whether a client is free; see ``draw``."""
        if self.welcome > len(self._of):  # the usual case, and cheap
            return True
        registry = self.registry
        return len(self._computed_for(settled) | registry.barred) < registry.registered

    def _computed_for(self, settled: Mapping[int, int]) -> set[int]:
        return {client for (site, k), client in self._of.items() if k > settled.get(site, 0)}
