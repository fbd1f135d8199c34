"""The usual time of a worker or a round, and the time after which it is late.

The first iteration is unlike all others: its worker has the model already, and its process may be
warm or cold. Its time is used until a second is known, and then forgotten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

# Weight of the latest iteration time in the moving averages; the paper has 0.1 (given for FL).
_SMOOTHING = 0.25
# A worker is late when it takes longer than usual by this many of its usual deviations, and by at
# least this part of its usual time.
_DEVIATIONS = 4.0
_LEAST_LATE = 0.5
# While only a first time is known, a worker or round is late after this many times it.
UNKNOWN = 10.0


@dataclass(slots=True)
class Average:
    """A moving average of times, in seconds; the second time replaces the first.

    Args:
        smoothing: weight of the latest time.

    Attributes:
        usual_s: the average; 0 where no time is known.
        is_known: whether more than a first time is known.

    >>> round_s = Average(0.1)
    >>> for took_s in (1.0, 4.0, 5.0):
    ...     round_s.took(took_s)
    >>> round_s.usual_s, round_s.late_after_s(3.0)
    (4.1, 12.299999999999999)
    """

    smoothing: float
    usual_s: float = 0.0
    is_known: bool = False

    def took(self, seconds: float) -> None:
        """Record a time."""
        if not self.usual_s:
            self.took_first(seconds)
        elif not self.is_known:
            self.usual_s, self.is_known = seconds, True
        else:
            self.usual_s += self.smoothing * (seconds - self.usual_s)

    def took_first(self, seconds: float) -> None:
        """Record a first time; where groups take turns, each has one."""
        if not self.is_known:
            self.usual_s = seconds

    def late_after_s(self, times: float | Literal["never"]) -> float:
        """Return ``times`` the average; at least ``UNKNOWN`` times where only a first is known.

        It is infinite where no time is known, or where ``times`` is ``never``.
        """
        if times == "never" or not self.usual_s:
            return math.inf
        return (times if self.is_known else max(times, UNKNOWN)) * self.usual_s


@dataclass(slots=True)
class Usual:
    """A worker's usual time to pull, compute and push, seconds; moving averages.

    A late iteration counts with the time at which it became late, and not with all of its time. If
    the iteration before was late too, it counts in full: one hang is an exception, two in a row are
    a new speed. The second time replaces the first.

    >>> worker = Usual(1.0)
    >>> worker.took(4.0)
    >>> worker.took(30.0)
    >>> worker.usual_s
    4.5
    """

    usual_s: float
    deviation_s: float = 0.0
    was_late: bool = False
    is_first: bool = True

    def took(self, seconds: float) -> None:
        """Record an iteration's time."""
        is_late = seconds > self.late_s
        if is_late and not self.was_late:
            seconds = self.late_s
        self.was_late = is_late
        if self.is_first:
            self.usual_s, self.is_first = seconds, False
            return
        off_s = seconds - self.usual_s
        self.usual_s += _SMOOTHING * off_s
        self.deviation_s += _SMOOTHING * (abs(off_s) - self.deviation_s)

    @property
    def late_s(self) -> float:
        """Seconds after which an iteration is late."""
        if self.is_first:
            return UNKNOWN * self.usual_s
        return self.usual_s + max(_DEVIATIONS * self.deviation_s, _LEAST_LATE * self.usual_s)
