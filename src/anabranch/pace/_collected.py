"""Updates of a round, collected until enough have come: shared by FedAvg and FL-R²SP."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated, Literal

from msgspec import Meta

from anabranch.pace._pace import NEVER_S, Update
from anabranch.pace._usual import Average

LateAfter = Annotated[float, Meta(ge=1, le=1e6)] | Literal["never"]
"""After how many times its usual time a round with too few updates ends with those it has."""
LATE_AFTER = 3.0
_MOST_DOUBLINGS = 30  # of the time after which a round is late
# Rounds that take this many times their usual time after waits in vain have become slower.
_SLOWER = 3.0
_FEW = 0.5  # the part of the wanted updates below which a round ended too early
_NOT_KNOWN = Average(1.0)
_ROUNDING = 1e-9  # a fraction of the workers may miss a whole number by this much


class Collected:
    """The updates of a round that have come, and whether they are enough.

    Args:
        fraction: of the round's workers; that many updates end it.
        smoothing: weight of the latest round's time in the moving average.
        deadline_s: the longest a round lasts, seconds; None for no such bound.
        late_after: once a usual time is known, a round lasts at most this many times that (at least
            ten times, where only the first is known). That bound doubles after each round that
            ended with less than half of the updates it needs. ``never``: it has no such bound.

    Attributes:
        began_s: when the round began.
        enough_s: when enough updates had come; None where they have not.
        is_timed: whether the round's time counts; not where workers came from other rounds.
        usual: how long a round usually takes until enough updates have come.
    """

    def __init__(
        self,
        fraction: float,
        smoothing: float,
        deadline_s: float | None = None,
        late_after: float | Literal["never"] = LATE_AFTER,
    ) -> None:
        self._longest_s = NEVER_S if deadline_s is None else deadline_s
        self._late_after = late_after
        self._in_vain = 0  # waits in a row that were too short
        self._wanted = 0
        self._fraction = fraction
        self._in: dict[int, Update] = {}
        self.is_timed = True
        self.enough_s: float | None = None
        self.began_s = 0.0
        self.usual = Average(smoothing)

    def __len__(self) -> int:
        return len(self._in)

    def __contains__(self, worker: int) -> bool:
        return worker in self._in

    def __iter__(self) -> Iterator[int]:
        return iter(self._in)

    def add(self, worker: int, update: Update) -> None:
        """Take an update."""
        self._in[worker] = update

    def remove(self, worker: int) -> tuple[Update, ...]:
        """Remove a worker's update, and return it if it has come."""
        update = self._in.pop(worker, None)
        if not self._in:
            self.enough_s = None
        return () if update is None else (update,)

    def is_enough(self, taking_part: int, still_computing: int, now_s: float) -> bool:
        """Return whether enough updates have come, or no worker is left to wait for.

        Args:
            taking_part: number of workers in the round, also those whose updates have come.
            still_computing: how many of them compute an update of this round.
            now_s: the time.
        """
        self._wanted = part_of(self._fraction, taking_part)
        enough = bool(self._in) and (len(self._in) >= self._wanted or not still_computing)
        if enough and self.enough_s is None:
            self.enough_s = now_s
        if not enough:
            self.enough_s = None
        return enough

    def wait_anew(self, now_s: float, has_given_up: bool) -> None:
        """Begin the wait for the round again, as no update has come.

        Args:
            now_s: the time.
            has_given_up: whether workers were told to abandon their updates. Then the wait is twice
                as long: all workers may have become slower, and only a finished round shows that.
        """
        self.began_s = now_s
        self._in_vain += has_given_up

    def late_s(self, otherwise: Average = _NOT_KNOWN) -> float:
        """Return the time at which the wait for the round ends.

        Args:
            otherwise: the usual time of such rounds, where this one's is unknown.
        """
        usual = self.usual if self.usual.usual_s else otherwise
        late_s = usual.late_after_s(self._late_after) * 2.0 ** min(self._in_vain, _MOST_DOUBLINGS)
        return self.began_s + min(self._longest_s, late_s)

    def part(self, workers: int) -> float:
        """Return the part of a whole round's updates that has come, in [0, 1].

        Args:
            workers: how many compute in a whole round, which ends with the fraction of them.
        """
        return min(1.0, len(self._in) / part_of(self._fraction, workers))

    @property
    def took_s(self) -> float | None:
        """Seconds until enough updates had come; None where they have not, or it is not timed."""
        if self.enough_s is None or not self.is_timed:
            return None
        return self.enough_s - self.began_s

    def end(self, now_s: float) -> tuple[Update, ...]:
        """Return the updates by their workers' index, and begin the next round."""
        took_s = self.took_s
        if took_s is not None and self._in_vain and took_s > _SLOWER * self.usual.usual_s:
            self.usual.usual_s = took_s  # rounds have become slower: forget the old average
        elif took_s is not None:
            self.usual.took(took_s)
        is_few = self.enough_s is None and len(self._in) < _FEW * self._wanted
        self._in_vain = self._in_vain + 1 if is_few else 0
        updates = tuple(self._in[worker] for worker in sorted(self._in))
        self._in, self.enough_s, self.began_s, self.is_timed = {}, None, now_s, True
        return updates


def part_of(fraction: float, workers: int) -> int:
    """Return a fraction of some workers, rounded up to a whole number, at least one.

    >>> part_of(0.07, 100), 0.07 * 100
    (7, 7.000000000000001)
    """
    return max(1, math.ceil(fraction * workers - _ROUNDING))


def check_fraction(name: str, value: float) -> None:
    """Check a part of the workers.

    Raises:
        ValueError: it is outside (0, 1]; names it.
    """
    if not 0 < value <= 1:
        raise ValueError(f"{name} is {value!r}, must be in (0, 1]")


def who_computes(
    workers: Iterable[int], computing: Collection[int], late: Collection[int]
) -> list[int]:
    """Return the workers that compute an update of the round in progress."""
    return [worker for worker in workers if worker in computing and worker not in late]
