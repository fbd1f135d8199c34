"""Which client comes next."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from anabranch.cohort._clients import Clients

_TRIES = 64  # before the clients are looked through one by one


class Registry:
    """The registered clients of one run. It has no clock and knows no worker.

    Clients are drawn evenly from those who are there, are busy with nothing and are not barred. If
    all of these are away, it is the one who is back first.

    Args:
        clients: see there.
        seed: of the run.

    Attributes:
        barred: clients that are not drawn.
    """

    def __init__(self, clients: Clients, seed: int) -> None:
        self._clients = clients
        self._seed = seed
        self._draw = np.random.default_rng((seed, 0xC11E))
        self.barred: set[int] = set()

    @property
    def registered(self) -> int:
        """How many there are."""
        return self._clients.registered

    def draw(self, busy: Collection[int], now_s: float) -> int:
        """Return the client that is to compute an update.

        Args:
            busy: who computes already; with those that are barred, fewer than are registered.
            now_s: the time, seconds since the run began.
        """
        for _ in range(_TRIES):
            client = int(self._draw.integers(self._clients.registered))
            is_free = client not in busy and client not in self.barred
            if is_free and self._clients.back_s(self._seed, client, now_s) <= now_s:
                return client
        out = self.barred.union(busy)
        free = [each for each in range(self._clients.registered) if each not in out]
        by_time = [(self._clients.back_s(self._seed, each, now_s), each) for each in free]
        there = [each for back_s, each in by_time if back_s <= now_s]
        return there[int(self._draw.integers(len(there)))] if there else min(by_time)[1]
