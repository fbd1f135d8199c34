"""Limits the reports about refused, unauthenticated callers. Pure: no I/O, no clock."""

from __future__ import annotations

from anabranch.net.errors import PeerError

_MOST_AT_ONCE = 20
_EVERY_S = 10.0


class RefusalLimit:
    """A token bucket: the first 20 refusals are reported, and from then on one in 10 s.

    Any process that reaches a listener can cause refusals at the rate of the network. Reports of
    them must not fill a disk or a terminal.
    """

    def __init__(self) -> None:
        self._left = float(_MOST_AT_ONCE)
        self._asked_s = 0.0
        self._unreported = 0

    def admit(self, error: PeerError, now_s: float) -> PeerError | None:
        """Return the error to report for a refusal; None for no report.

        The reported error tells how many refusals went unreported since the report before.

        >>> limit = RefusalLimit()
        >>> reported = [limit.admit(PeerError("no token"), 0.0) for _ in range(25)]
        >>> reported.count(None)
        5
        >>> limit.admit(PeerError("no token"), 10.0)
        PeerError('no token (and 5 refusals before it)')
        """
        self._left = min(self._left + (now_s - self._asked_s) / _EVERY_S, _MOST_AT_ONCE)
        self._asked_s = now_s
        if self._left < 1:
            self._unreported += 1
            return None
        self._left -= 1
        unreported, self._unreported = self._unreported, 0
        if not unreported:
            return error
        return type(error)(f"{error} (and {unreported} refusals before it)")
