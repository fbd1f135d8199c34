"""Draws the client of the next update."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from anabranch.cohort._clients import Clients

_TRIES = 64  # random draws before a search through all clients


class Registry:
    """The registered clients of one run. It has no clock and no list of workers.

    It draws evenly among the clients that are awake, not busy and not barred. If all that are
    neither busy nor barred are asleep, it takes the one that wakes first.

    Args:
        clients: the scenario's table.
        seed: of the run.

    Attributes:
        barred: clients that are not drawn.
    """

    def __init__(self, clients: Clients, seed: int) -> None:
        self._clients = clients
        self._seed = seed
        self._draw = np.random.default_rng((seed, 0xC11E))
        # For each client that a draw has tried: its further spells, the end of the present spell,
        # and whether it is awake in it. So a client's past spells are drawn only once.
        self._spells: dict[int, tuple[Iterator[tuple[float, bool]], float, bool]] = {}
        self.barred: set[int] = set()

    @property
    def registered(self) -> int:
        """The number of clients."""
        return self._clients.registered

    def draw(self, busy: Collection[int], now_s: float) -> int:
        """Return the client that computes the next update.

        Args:
            busy: clients that compute already. At least one client must be neither busy nor barred.
            now_s: the time, seconds since the run began; never earlier than in the last call.
        """
        for _ in range(_TRIES):
            client = int(self._draw.integers(self._clients.registered))
            is_free = client not in busy and client not in self.barred
            if is_free and self._back_s(client, now_s) <= now_s:
                return client
        out = self.barred.union(busy)
        free = [each for each in range(self._clients.registered) if each not in out]
        by_time = [(self._back_s(each, now_s), each) for each in free]
        there = [each for back_s, each in by_time if back_s <= now_s]
        return there[int(self._draw.integers(len(there)))] if there else min(by_time)[1]

    def _back_s(self, client: int, now_s: float) -> float:
        """Return the first moment from now on at which a client is awake."""
        found = self._spells.get(client)
        if found is None:
            to_come = self._clients.spells(self._seed, client)
            found = (to_come, *next(to_come))
        to_come, until_s, is_there = found
        while until_s <= now_s:
            until_s, is_there = next(to_come)
        self._spells[client] = to_come, until_s, is_there
        return now_s if is_there else until_s
