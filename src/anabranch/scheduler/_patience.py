"""How long to wait for a broken connection, from the durations of rounds. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from anabranch.net.session import patience_s

_REMEMBERED = 16  # rounds
_NEEDED_TO_DOUBT = 3  # rounds, from which on the longest one counts as an exception


class RoundTimes:
    """The durations of the latest rounds, or iterations.

    A site that computes in its only thread may answer nothing for a whole round. But a single stall
    is no reason for such patience ever after. So the longest of the latest rounds is left out, and
    old rounds are forgotten.

    >>> times = RoundTimes()
    >>> for number in range(10):
    ...     times.add(number, 12.0 if number == 4 else 0.5)
    >>> times.patience_s
    5.0
    """

    def __init__(self) -> None:
        self._longest_s: dict[Hashable, float] = {}

    def add(self, which: Hashable, seconds: float) -> None:
        """Note the duration of a round at a site; the rounds reported first are dropped."""
        self._longest_s[which] = max(self._longest_s.get(which, 0.0), seconds)
        if len(self._longest_s) > _REMEMBERED:
            del self._longest_s[next(iter(self._longest_s))]

    @property
    def patience_s(self) -> float:
        """How long a connection may be broken; see :func:`anabranch.net.session.patience_s`."""
        latest_s = sorted(self._longest_s.values(), reverse=True)
        if len(latest_s) >= _NEEDED_TO_DOUBT:
            del latest_s[0]
        return patience_s(latest_s[0] if latest_s else 0.0)
