"""How long what was measured holds: how much of it to believe for the length of a round. Pure.

A plan made for the rates of this moment is used for a round, and the rates may be others by then.
The more exactly a plan fits rates that do not last, the worse it does: it gives nearly all to links
that are no longer fast. The best guess of a rate some time ahead, from its deviation from the
typical rate now, is a part of that deviation: as much as is usually still there (linear regression
of the later deviation on the earlier, on a scale of ratios; its slope is the autocorrelation where
the spread does not change). It is learnt from the measurements themselves, over all links together.
A steady network, however uneven, keeps all of its deviations, and is believed as measured.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

_REMEMBERED = 64


class RateForecast:
    """Learns from looks at the measured rates, taken at about even distances.

    Args:
        links: how many there are; a look numbers them from 0.

    >>> steady = RateForecast(links=2)
    >>> for second in range(5):
    ...     steady.look({0: 1e6, 1: 9e6}, now_s=float(second))
    >>> steady.kept(2.0)
    1.0
    """

    def __init__(self, links: int) -> None:
        self._links = links
        self._looks: deque[tuple[float, _Floats]] = deque(maxlen=_REMEMBERED)

    def look(self, rates_bps: Mapping[int, float], now_s: float) -> None:
        """Take note of what links were just measured to carry; others are left out.

        Args:
            rates_bps: by link, > 0.
            now_s: when, later than the last look.
        """
        logs = np.full(self._links, np.nan)
        for link, rate_bps in rates_bps.items():
            logs[link] = math.log(rate_bps)
        self._looks.append((now_s, logs))

    def kept(self, ahead_s: float) -> float:
        """Return the part of a deviation that is still there after ``ahead_s``, in [0, 1].

        1.0 while nothing is known. Looks that are farther apart than asked for are taken to lose
        as much in each stretch of time.
        """
        if len(self._looks) < 2 or ahead_s <= 0:
            return 1.0
        every_s = (self._looks[-1][0] - self._looks[0][0]) / (len(self._looks) - 1)
        steps = min(max(1, round(ahead_s / every_s)), len(self._looks) - 1)
        logs = np.array([look for _, look in self._looks])
        typical = np.nanmedian(logs) if not np.isnan(logs).all() else 0.0
        before, after = logs[:-steps] - typical, logs[steps:] - typical
        both = ~(np.isnan(before) | np.isnan(after))
        spread = float((before[both] ** 2).sum())
        if spread == 0.0:
            return 1.0
        # As if each link had once been seen to keep all: with little seen, little is concluded.
        prior = self._links * spread / int(both.sum())
        slope = (float((before[both] * after[both]).sum()) + prior) / (spread + prior)
        held = min(max(slope, 0.0), 1.0)
        return float(held ** (ahead_s / (steps * every_s))) if held else 0.0
