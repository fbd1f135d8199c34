"""How a site's speed changes during a run."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import pairwise

from anabranch._typed_toml import Table
from anabranch.fleet._errors import ComputeError


class Slowdowns(Table, frozen=True, kw_only=True):
    """A site's slowdown factor over time: piecewise constant.

    While the factor is 4, a second of work takes 4 seconds.

    Args:
        starts_s: when each piece begins, seconds since the run began, rising, the first 0.
        factors: the factor of each piece, positive; the last lasts for ever. Below 1 is faster.

    Raises:
        ComputeError: no piece, not one factor for each start, starts that do not rise from 0, or
            a factor that is not finite and positive.

    >>> Slowdowns(starts_s=(0.0, 60.0, 120.0), factors=(1.0, 4.0, 1.0)).takes_s(50.0, 12.0)
    18.0
    """

    starts_s: tuple[float, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts_s or len(self.starts_s) != len(self.factors):
            raise ComputeError(
                f"slowdowns have {len(self.starts_s)} start times and {len(self.factors)} "
                "factors; give the same number of each, at least one"
            )
        if self.starts_s[0] != 0:
            raise ComputeError(
                f"slowdowns start at {self.starts_s[0]:g} s; say the factor from 0 s on"
            )
        for before_s, start_s in pairwise(self.starts_s):
            if not before_s < start_s < math.inf:
                raise ComputeError(
                    f"slowdowns have start {start_s:g} s after {before_s:g} s; give finite start "
                    "times that rise"
                )
        for factor in self.factors:
            if not 0 < factor < math.inf:
                raise ComputeError(
                    f"slowdowns hold factor {factor:g}, which must be finite and > 0; model a "
                    "site that stands still as a pause fault"
                )

    def takes_s(self, start_s: float, work_s: float) -> float:
        """Return the seconds that work takes from a moment on, integrated exactly.

        Args:
            start_s: when it begins, seconds since the run began.
            work_s: seconds of work at nominal speed. Multiply a further factor into it, such as a
                fault's, that holds throughout. Where such a factor changes at a moment in between,
                subtract the ``work_s(start_s, moment)`` done and call again.
        """
        passed_s, left_s = 0.0, work_s
        for piece in range(self._piece(start_s), len(self.factors) - 1):
            span_s = self.starts_s[piece + 1] - start_s
            if passed_s + left_s * self.factors[piece] <= span_s:
                return passed_s + left_s * self.factors[piece]
            left_s = max(0.0, left_s - (span_s - passed_s) / self.factors[piece])
            passed_s = span_s
        return passed_s + left_s * self.factors[-1]

    def work_s(self, start_s: float, end_s: float) -> float:
        """Return the work done between two moments, in seconds at nominal speed.

        The inverse of ``takes_s``: ``work_s(start_s, start_s + takes_s(start_s, w))`` is ``w``.
        """
        done_s = 0.0
        for piece in range(self._piece(start_s), self._piece(end_s) + 1):
            last = piece + 1 == len(self.factors)
            until_s = end_s if last else min(end_s, self.starts_s[piece + 1])
            done_s += (until_s - start_s) / self.factors[piece]
            start_s = until_s
        return done_s

    def _piece(self, at_s: float) -> int:
        return max(0, bisect_right(self.starts_s, at_s) - 1)


STEADY = Slowdowns(starts_s=(0.0,), factors=(1.0,))
