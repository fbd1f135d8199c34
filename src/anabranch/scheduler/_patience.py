"""How long a broken connection may take to come back, from how long rounds take. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from anabranch.net.session import patience_s

_REMEMBERED = 16
_NEEDED_TO_DOUBT = 3  # rounds, before the longest of them may be an exception


class RoundTimes:
    """How long the latest rounds, or iterations, have taken.

    A site that computes in its only thread answers nothing for as long as a round may take. But a
    single stall is no reason to wait so long for ever: the longest of the latest rounds is left
    out, and all are forgotten in time.

    >>> times = RoundTimes()
    >>> for number in range(10):
    ...     times.add(number, 12.0 if number == 4 else 0.5)
    >>> times.patience_s
    5.0
    """

    def __init__(self) -> None:
        self._longest_s: dict[Hashable, float] = {}

    def add(self, which: Hashable, seconds: float) -> None:
        """Take note of what a round took at a site; the latest to be named first are remembered."""
        self._longest_s[which] = max(self._longest_s.get(which, 0.0), seconds)
        if len(self._longest_s) > _REMEMBERED:
            del self._longest_s[next(iter(self._longest_s))]

    @property
    def patience_s(self) -> float:
        """How long a connection may be gone; see :func:`anabranch.net.session.patience_s`."""
        latest_s = sorted(self._longest_s.values(), reverse=True)
        if len(latest_s) >= _NEEDED_TO_DOUBT:
            del latest_s[0]
        return patience_s(latest_s[0] if latest_s else 0.0)
