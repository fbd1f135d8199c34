"""When a connection has been silent for too long: an adaptive failure detector. Pure.

Each end of a connection sends something every 0.3 s, a heartbeat if there is nothing else; so a
process that is stopped, a host that is gone and a network that drops everything are all silent.
How long a peer may be depends on how long it has been before: an interpreter that computes without
a pause, or a machine with more processes than cores, makes gaps of its own.
"""

from __future__ import annotations

from collections import deque

HEARTBEAT_S = 0.3
_REMEMBERED = 400  # heartbeats: two minutes
_TIMES = 6.0  # the longest gaps there were; stalls of five times the usual are not silence


class Silence:
    """How long a peer is silent, and whether that is too long.

    A peer is given up when it is silent for six times as long as its longest gap of the last two
    minutes, of which one is left out: a single stall is an exception. So it is false where a peer
    that has made gaps of up to ``g`` makes one of ``6 g``, and ``least_s`` at least; and what is
    really gone is missed within that time and one heartbeat.

    Args:
        least_s: no silence of less is too long.
        now_s: the time.

    >>> silence = Silence(least_s=1.0, now_s=0.0)
    >>> for beat in range(1, 60):
    ...     silence.heard(0.3 * beat)
    ...     too_long = silence.look(0.3 * beat + 0.1)
    >>> [silence.look(0.3 * beat + 0.1) is None for beat in range(60, 66)]
    [True, True, True, True, True, False]
    """

    def __init__(self, least_s: float, now_s: float) -> None:
        self._least_s = least_s
        self._heard_s = self._looked_s = now_s
        self._gap_s = 0.0  # the longest since the last look
        self._gaps_s: deque[float] = deque(maxlen=_REMEMBERED)

    def heard(self, now_s: float) -> None:
        """Take note that something has come."""
        self._gap_s = max(self._gap_s, now_s - self._heard_s)
        self._heard_s = now_s

    def look(self, now_s: float) -> float | None:
        """Return how long the peer has been silent, if that is too long.

        To be called once a heartbeat. Where that comes late, it was this side that stood still,
        and the peer may have spoken meanwhile.
        """
        late_s = now_s - self._looked_s - HEARTBEAT_S
        self._looked_s = now_s
        if late_s > HEARTBEAT_S:
            self._heard_s = now_s
            return None
        if self._gap_s:
            self._gaps_s.append(self._gap_s)
            self._gap_s = 0.0
        silent_s = now_s - self._heard_s
        return silent_s if silent_s > self.most_s else None

    @property
    def most_s(self) -> float:
        """The longest that it may be silent."""
        gaps_s = sorted(self._gaps_s)[-2:]
        usual_s = gaps_s[0] if len(gaps_s) == 2 else 0.0
        return max(self._least_s, _TIMES * usual_s)
