"""Updates that are collected until enough are in: what rounds of clients have in common."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from anabranch.pace._pace import NEVER_S, Update
from anabranch.pace._usual import Average

# A round that has not its number, since workers hang, ends so much later than rounds usually do.
_DEADLINE = 3.0
_MOST_DOUBLINGS = 30  # of that
_FEW = 0.5  # of its number: with fewer, a round ended too early
_NOT_KNOWN = Average(1.0)
_ROUNDING = 1e-9  # by which a fraction of a number of workers may miss a whole number


class Collected:
    """The updates of a round that have come, and when it is enough.

    Args:
        fraction: of the workers that take part in it; so many updates end it.
        smoothing: weight of the latest round's time in the moving average.
        deadline_s: how long it is waited for at most; it is three times what it usually takes, once
            that is known (ten times, where only the first is), and twice as long after each that
            ended with less than half of its number.

    Attributes:
        began_s: when the round began.
        enough_s: when enough were in; None where that is not so.
        is_timed: whether it says how long rounds take: not where workers of other rounds came in.
        usual: how long it usually takes until enough are in.
    """

    def __init__(self, fraction: float, smoothing: float, deadline_s: float | None = None) -> None:
        self._deadline_s = deadline_s
        self._in_vain = 0  # how often it was waited for too short since it had its number
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
        """Forget a worker's update; return it, if there is one."""
        update = self._in.pop(worker, None)
        if not self._in:
            self.enough_s = None
        return () if update is None else (update,)

    def is_enough(self, taking_part: int, still_computing: int, now_s: float) -> bool:
        """Return whether the round has its number, or no worker is left to wait for.

        Args:
            taking_part: how many workers do, those whose updates are in among them.
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
        """Wait for it once more, as nothing has come.

        Args:
            now_s: the time.
            has_given_up: whether workers were given up for it. Then it is waited for twice as long:
                all may have become slower than is usual, which only rounds that end can tell.
        """
        self.began_s = now_s
        self._in_vain += has_given_up

    def late_s(self, otherwise: Average = _NOT_KNOWN) -> float:
        """Return when it is no longer waited for.

        Args:
            otherwise: how long such rounds take, where this one's time is not known.
        """
        usual = self.usual if self.usual.usual_s else otherwise
        longest_s = NEVER_S if self._deadline_s is None else self._deadline_s
        late_s = usual.late_after_s(_DEADLINE) * 2.0 ** min(self._in_vain, _MOST_DOUBLINGS)
        return self.began_s + min(longest_s, late_s or NEVER_S)

    def part(self, workers: int) -> float:
        """Return how much of a whole round's updates are in, in [0, 1].

        Args:
            workers: how many compute in a whole round, which ends with the fraction of them.
        """
        return min(1.0, len(self._in) / part_of(self._fraction, workers))

    @property
    def took_s(self) -> float | None:
        """How long it took until enough were in, seconds; None where it is not so, or not known."""
        if self.enough_s is None or not self.is_timed:
            return None
        return self.enough_s - self.began_s

    def end(self, now_s: float) -> tuple[Update, ...]:
        """Return the updates by their workers' index, and begin the next round."""
        took_s = self.took_s
        if took_s is not None and self._in_vain and took_s > _DEADLINE * self.usual.usual_s:
            self.usual.usual_s = took_s  # rounds take another time now
        elif took_s is not None:
            self.usual.took(took_s)
        is_few = self.enough_s is None and len(self._in) < _FEW * self._wanted
        self._in_vain = self._in_vain + 1 if is_few else 0
        updates = tuple(self._in[worker] for worker in sorted(self._in))
        self._in, self.enough_s, self.began_s, self.is_timed = {}, None, now_s, True
        return updates


def part_of(fraction: float, workers: int) -> int:
    """Return how many are a fraction of some workers, rounded up; one at least.

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
    """Return the workers that compute an update of the round that goes on."""
    return [worker for worker in workers if worker in computing and worker not in late]
