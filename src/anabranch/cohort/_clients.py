"""A scenario's ``[clients]``, and when each client is there.

Every draw depends on the seed, the client and a number alone, so it is the same in whichever world,
at whichever worker and in whatever order things happen.
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

# Shorter times than these would have to be drawn for minutes until a run's hours are over.
_Mean = Annotated[float, Meta(ge=0.1, le=sys.float_info.max)]
_Registered = Annotated[int, Meta(ge=1, le=10_000_000)]


class Away(Table, frozen=True, kw_only=True):
    """Clients sleep and wake, each by itself, for times that are exponentially distributed.

    Args:
        awake_s: how long one is there, mean, seconds; 0.1 at least.
        asleep_s: how long it is away, mean, seconds.
    """

    awake_s: _Mean
    asleep_s: _Mean


class Clients(Table, frozen=True, kw_only=True):
    """Who is registered: more clients than workers that are connected.

    Args:
        registered: how many.
        away: how they come and go; None where all are always there. Only those who are there are
            drawn, as long as there are any; one that goes meanwhile returns its update when it is
            back.
        vanish: which part of what clients are given never comes back, in [0, 1). The pace has to
            give such up: ``give_up_after`` and ``deadline_s``.
    """

    registered: _Registered
    away: Away | None = None
    vanish: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    def back_s(self, seed: int, client: int, at_s: float) -> float:
        """Return the first moment from one on at which a client is there, seconds.

        Args:
            seed: of the run.
            client: which, from 0.
            at_s: the moment, seconds since the run began.

        >>> clients = Clients(registered=2, away=Away(awake_s=60, asleep_s=30))
        >>> [round(clients.back_s(4, 1, at_s)) for at_s in (0.0, 50.0, 100.0)]
        [0, 50, 163]
        """
        for until_s, is_awake in self.spells(seed, client):
            if at_s < until_s:
                return at_s if is_awake else until_s
        raise AssertionError("spells have no end")

    def spells(self, seed: int, client: int) -> Iterator[tuple[float, bool]]:
        """Yield until when a client is there, then until when it is away, and so on.

        Args:
            seed: of the run.
            client: which, from 0.

        Yields:
            (seconds since the run began, whether it is there until then); the first of either kind.
        """
        if self.away is None:
            yield math.inf, True
            return
        # It is in the middle of something when the run begins: awake with the part of the time
        # that it is, for as long as any such time is from any moment on.
        part = self.away.awake_s / (self.away.awake_s + self.away.asleep_s)
        is_awake = drawn_share("first", seed, client, 0) < part
        end_s = 0.0
        for number in count(1):
            mean_s = self.away.awake_s if is_awake else self.away.asleep_s
            end_s -= mean_s * math.log(drawn_share("away", seed, client, number))
            yield end_s, is_awake
            is_awake = not is_awake

    def returns_s(self, seed: int, client: int, update: int, done_s: float) -> float:
        """Return when a client returns an update that is computed by a moment; infinite for never.

        Args:
            seed, client: see ``back_s``.
            update: a number that tells its updates apart.
            done_s: the moment, seconds since the run began.
        """
        if self.vanish and drawn_share("vanish", seed, client, update) < self.vanish:
            return math.inf
        return self.back_s(seed, client, done_s)
