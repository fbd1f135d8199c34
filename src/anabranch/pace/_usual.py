"""How long workers and rounds usually take, and when one is late by its own standards.

The first iteration is unlike all others: it begins with a model that is there already, and a
process that is warm or cold. What it took is used until the second is known, and then forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass

# Weight of the latest iteration time in the moving averages; the paper has 0.1 (given for FL).
_SMOOTHING = 0.25
# A worker is given up when it takes longer than usual by so many of its usual deviations, and by
# so much of its usual time at least.
_DEVIATIONS = 4.0
_LEAST_LATE = 0.5
# As long as only a first iteration is known, one is late after so many times what that took.
UNKNOWN = 10.0


@dataclass(slots=True)
class Average:
    """A moving average of times, in seconds, in which the second replaces the first.

    Args:
        smoothing: weight of the latest.

    Attributes:
        usual_s: the average; 0 where nothing is known.
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
        """Take note of a time."""
        if not self.usual_s:
            self.took_first(seconds)
        elif not self.is_known:
            self.usual_s, self.is_known = seconds, True
        else:
            self.usual_s += self.smoothing * (seconds - self.usual_s)

    def took_first(self, seconds: float) -> None:
        """Take note of a first time, of which there are several where groups take turns."""
        if not self.is_known:
            self.usual_s = seconds

    def late_after_s(self, times: float) -> float:
        """Return so many times the average; more where only a first time is known."""
        return (times if self.is_known else max(times, UNKNOWN)) * self.usual_s


@dataclass(slots=True)
class Usual:
    """How long a worker computes, pulls and pushes, seconds; moving averages.

    An iteration that was given up counts as late and not for how long it hung, unless the one
    before was late too: one hang is an exception, two in a row are another speed. The second
    replaces the first.

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
        """Take note of an iteration."""
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
        """How long an iteration takes when it is given up."""
        if self.is_first:
            return UNKNOWN * self.usual_s
        return self.usual_s + max(_DEVIATIONS * self.deviation_s, _LEAST_LATE * self.usual_s)
