"""Predicts how much of a measured rate's deviation lasts for a round. Pure.

A plan made for the present rates is used for a round, during which the rates may change. The more
exactly a plan fits rates that do not last, the worse it performs: it gives nearly all data to links
that are no longer fast.

A link's *deviation* is the ratio of its rate to the typical one, as a logarithm. The best guess of
a later deviation is a part of the present one: the part that usually lasts so long. It is the slope
of a linear regression of later deviations on earlier ones, over all links together. (If the spread
does not change, the slope is the autocorrelation.) A steady network, however uneven, keeps all of
its deviations, and is expected as measured.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

_REMEMBERED = 64  # looks


class RateForecast:
    """Learns from looks at the measured rates, taken at about even intervals.

    Args:
        links: the number of links; looks number them from 0.

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
        """Add a look at the rates of recently measured links.

        Args:
            rates_bps: by measured link, > 0.
            now_s: the time, later than that of the last look.
        """
        logs = np.full(self._links, np.nan)
        for link, rate_bps in rates_bps.items():
            logs[link] = math.log(rate_bps)
        self._looks.append((now_s, logs))

    def kept(self, ahead_s: float) -> float:
        """Return the part of a deviation that lasts for ``ahead_s``, in [0, 1]; 1.0 if unknown.

        If looks are farther apart than ``ahead_s``, the decay is assumed to be even over time.
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
        # A prior, as if each link had once kept all of its deviation: few looks then change little.
        prior = self._links * spread / int(both.sum())
        slope = (float((before[both] * after[both]).sum()) + prior) / (spread + prior)
        held = min(max(slope, 0.0), 1.0)
        return float(held ** (ahead_s / (steps * every_s))) if held else 0.0
