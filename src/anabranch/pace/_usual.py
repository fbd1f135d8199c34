"""How long a worker usually takes, and when it is late by its own standards."""

from __future__ import annotations

from dataclasses import dataclass

# Weight of the latest iteration time in the moving averages. The paper's 0.1 (given for FL) takes
# twenty iterations to forget the first, when all workers push at once.
_SMOOTHING = 0.25
# A worker is given up when it takes longer than usual by so many of its usual deviations, and by
# so much of its usual time at least.
_DEVIATIONS = 4.0
_LEAST_LATE = 0.5


@dataclass(slots=True)
class Usual:
    """How long a worker computes, pulls and pushes, seconds; moving averages.

    An iteration that was given up counts as late and not for how long it hung, unless the one
    before was late too: one hang is an exception, two in a row are another speed.

    >>> worker = Usual(1.0)
    >>> worker.took(30.0)
    >>> worker.usual_s
    1.125
    """

    usual_s: float
    deviation_s: float = 0.0
    was_late: bool = False

    def took(self, seconds: float) -> None:
        """Take note of an iteration."""
        is_late = seconds > self.late_s
        if is_late and not self.was_late:
            seconds = self.late_s
        self.was_late = is_late
        off_s = seconds - self.usual_s
        self.usual_s += _SMOOTHING * off_s
        self.deviation_s += _SMOOTHING * (abs(off_s) - self.deviation_s)

    @property
    def late_s(self) -> float:
        """How long an iteration takes when it is given up."""
        return self.usual_s + max(_DEVIATIONS * self.deviation_s, _LEAST_LATE * self.usual_s)
