"""A scenario's ``[clients]``, and the times at which each client is awake.

Every draw depends on the seed, the client and a number alone. So it is the same in a simulation and
in a real run, at any worker and in any order of events.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import count
from typing import Annotated

from msgspec import Meta

from anabranch._typed_toml import Table
from anabranch.fleet import drawn_share

# With shorter means, the draws for a run of hours would take minutes.
_Mean = Annotated[float, Meta(ge=0.1, le=sys.float_info.max)]
_Registered = Annotated[int, Meta(ge=1, le=10_000_000)]


class Away(Table, frozen=True, kw_only=True):
    """Clients sleep and wake independently, for exponentially distributed times.

    Args:
        awake_s: mean seconds awake, at least 0.1.
        asleep_s: mean seconds asleep, at least 0.1.
    """

    awake_s: _Mean
    asleep_s: _Mean


class Clients(Table, frozen=True, kw_only=True):
    """The registered clients: more than the connected workers.

    Args:
        registered: number of clients.
        away: how they sleep and wake; None where all are always awake. A run draws awake clients
            while there are any. A client that falls asleep returns its update when it wakes.
        vanish: the part of the updates that never come back, in [0, 1). The pace must then set
            ``give_up_after`` and ``deadline_s``.
    """

    registered: _Registered
    away: Away | None = None
    vanish: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    def back_s(self, seed: int, client: int, at_s: float) -> float:
        """Return the first moment from ``at_s`` on at which a client is awake, seconds.

        Args:
            seed: of the run.
            client: by number, from 0.
            at_s: a moment, seconds since the run began.

        >>> clients = Clients(registered=2, away=Away(awake_s=60, asleep_s=30))
        >>> [round(clients.back_s(4, 1, at_s)) for at_s in (0.0, 50.0, 100.0)]
        [0, 50, 163]
        """
        for until_s, is_awake in self.spells(seed, client):
            if at_s < until_s:
                return at_s if is_awake else until_s
        raise AssertionError("spells have no end")

    def spells(self, seed: int, client: int) -> Iterator[tuple[float, bool]]:
        """Yield a client's spells awake and asleep, in turn.

        Args:
            seed: of the run.
            client: by number, from 0.

        Yields:
            (the spell's end in seconds since the run began, whether the client is awake in it). The
            first spell may be of either kind.
        """
        if self.away is None:
            yield math.inf, True
            return
        # The run begins in the middle of a spell. The client is awake with the probability of its
        # part of time awake, and the rest of an exponential spell has the same distribution.
        part = self.away.awake_s / (self.away.awake_s + self.away.asleep_s)
        is_awake = drawn_share("first", seed, client, 0) < part
        end_s = 0.0
        for number in count(1):
            mean_s = self.away.awake_s if is_awake else self.away.asleep_s
            end_s -= mean_s * math.log(drawn_share("away", seed, client, number))
            yield end_s, is_awake
            is_awake = not is_awake

    def returns_s(self, seed: int, client: int, update: int, done_s: float) -> float:
        """Return when a client returns a computed update, seconds; infinite for never.

        Args:
            seed, client: see ``back_s``.
            update: a number that tells the client's updates apart.
            done_s: when the update is computed, seconds since the run began.
        """
        if self.vanish and drawn_share("vanish", seed, client, update) < self.vanish:
            return math.inf
        return self.back_s(seed, client, done_s)
