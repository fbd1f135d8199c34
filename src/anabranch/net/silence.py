"""When a connection has been silent for too long: an adaptive failure detector. Pure.

Each end of a connection sends at least a heartbeat every 0.3 s, on lanes every 0.1 s. So a stopped
process, a lost host and a network that drops everything are all silent. The silence that is allowed
depends on earlier gaps: a busy interpreter, or a machine with more processes than cores, makes gaps
of its own.

A healthy process is silent while one call of C code or of the standard library holds the
interpreter's lock. Its kernel still acknowledges data; that of a lost or unreachable machine does
not. A silent peer whose kernel answers *stands still*. It is allowed a longer silence.
"""

from __future__ import annotations

from collections import deque
from heapq import nlargest

HEARTBEAT_S = 0.3
LANE_HEARTBEAT_S = 0.1
"""Between neighbours: shorter, because plans can avoid a silent lane at once."""

STILLNESS_S = 15.0
"""The least silence after which a peer is lost, while its kernel answers."""

_REMEMBERED_S = 120.0  # for how long gaps count
_TIMES = 6.0  # a peer is lost after so many times its longest gap; stalls of five times occur
# A silence is unusual after so many times the longest gap, and at least so many heartbeats.
_UNUSUAL_TIMES, _UNUSUAL_BEATS = 3.0, 4.0


class Unanswered:
    """Measures for how long a peer's kernel has not acknowledged outstanding data.

    >>> unanswered = Unanswered()
    >>> unanswered.look(1.0, waits=True, acked_s=0.9), unanswered.look(2.0, waits=True, acked_s=1.7)
    (0.0, 0.3)
    >>> unanswered.look(3.0, waits=False, acked_s=2.9), unanswered.look(5.0, True, acked_s=2.9)
    (0.0, 0.0)
    """

    def __init__(self) -> None:
        self._since_s: float | None = None

    def look(self, now_s: float, waits: bool, acked_s: float) -> float:
        """Return that time in seconds, 0 if all data is acknowledged.

        Args:
            now_s: the time.
            waits: whether any data that was sent is not acknowledged.
            acked_s: the time of the latest acknowledgment.
        """
        if not waits:
            self._since_s = None
            return 0.0
        # Not since the latest acknowledgment: the data may have been sent long after that.
        self._since_s = now_s if self._since_s is None else max(self._since_s, acked_s)
        return round(now_s - self._since_s, 3)  # as the kernel counts


def answers(silent_s: float, most_s: float, unanswered_s: float) -> bool:
    """Return whether a silent peer's kernel answers.

    Acknowledgments may be lost, too. So the kernel counts as answering until none has arrived for
    the longest allowed silence, or for half of this silence.

    Args:
        silent_s: for how long the peer has been silent.
        most_s: the longest allowed silence.
        unanswered_s: for how long its kernel has acknowledged nothing.

    >>> answers(silent_s=2.1, most_s=2.0, unanswered_s=0.3)  # its interpreter's lock is held
    True
    >>> answers(silent_s=2.1, most_s=2.0, unanswered_s=2.0)  # the link, or its machine, is gone
    False
    >>> answers(silent_s=9.0, most_s=2.0, unanswered_s=2.1)  # now that is so, too
    False
    """
    return unanswered_s <= min(most_s, silent_s / 2)


def is_way_down(silent_s: float, unanswered_s: float | None, heartbeat_s: float) -> bool:
    """Return whether the network to a peer drops all data, in one direction or in both.

    False for a process that stands still, since its kernel answers.

    Args:
        silent_s: for how long the peer has been silent.
        unanswered_s: for how long its kernel has acknowledged nothing; None if unknown.
        heartbeat_s: the interval of heartbeats.

    >>> is_way_down(silent_s=1.3, unanswered_s=0.9, heartbeat_s=0.3)  # both directions, or back
    True
    >>> is_way_down(silent_s=0.1, unanswered_s=1.3, heartbeat_s=0.3)  # the direction there
    True
    >>> is_way_down(silent_s=5.0, unanswered_s=0.2, heartbeat_s=0.3)  # the peer stands still
    False
    """
    if unanswered_s is None:
        return False
    least_s = _UNUSUAL_BEATS * heartbeat_s
    return unanswered_s > least_s or (silent_s > least_s and unanswered_s >= least_s / 2)


class Silence:
    """Measures a peer's silence, and decides whether it is unusual, or too long.

    A silence is too long at six times the peer's longest gap of the last two minutes, without the
    single longest one, since one stall is an exception. So a healthy peer is lost only if, after
    gaps of up to ``g``, it makes one of ``6 g`` and at least ``least_s``. A peer that is really
    gone is noticed within that time and one heartbeat. Three times the longest gap is unusual:
    reason enough to look for another path.

    Args:
        least_s: the least silence that is too long; may be changed.
        now_s: the time.
        heartbeat_s: the interval of heartbeats, and of calls of ``look``.

    >>> silence = Silence(least_s=1.0, now_s=0.0)
    >>> for beat in range(1, 60):
    ...     silence.heard(0.3 * beat)
    ...     silent_s = silence.look(0.3 * beat + 0.1)
    >>> [silence.look(0.3 * beat + 0.1) > silence.most_s for beat in range(60, 66)]
    [False, False, False, False, False, True]
    """

    def __init__(self, least_s: float, now_s: float, heartbeat_s: float = HEARTBEAT_S) -> None:
        self.least_s = least_s
        self._heartbeat_s = heartbeat_s
        self._heard_s = self._looked_s = now_s
        self._gap_s = 0.0  # the longest since the last look
        self._gaps_s: deque[float] = deque()
        self._most_gaps = round(_REMEMBERED_S / heartbeat_s)
        self._usual_s = 0.0  # the longest gap but one

    def heard(self, now_s: float) -> None:
        """Note that data has arrived."""
        self._gap_s = max(self._gap_s, now_s - self._heard_s)
        self._heard_s = now_s

    def flowed(self, until_s: float) -> None:
        """Note that data arrived without a gap until then, unnoticed by ``heard``."""
        self._heard_s = max(self._heard_s, until_s)

    def look(self, now_s: float) -> float:
        """Return for how long the peer has been silent; call it once a heartbeat.

        If the call is late, this process stood still, and data may have arrived unnoticed. The
        silence then begins now.
        """
        late_s = now_s - self._looked_s - self._heartbeat_s
        self._looked_s = now_s
        if late_s > self._heartbeat_s:
            self._heard_s = now_s
            return 0.0
        if self._gap_s:
            self._remember(self._gap_s)
            self._gap_s = 0.0
        return now_s - self._heard_s

    def _remember(self, gap_s: float) -> None:
        self._gaps_s.append(gap_s)
        forgotten_s = self._gaps_s.popleft() if len(self._gaps_s) > self._most_gaps else 0.0
        if max(gap_s, forgotten_s) >= self._usual_s:
            longest_s = nlargest(2, self._gaps_s)
            self._usual_s = longest_s[1] if len(longest_s) == 2 else 0.0

    @property
    def most_s(self) -> float:
        """The longest allowed silence."""
        return max(self.least_s, _TIMES * self._usual_s)

    def is_unusual(self, silent_s: float, unanswered_s: float | None) -> bool:
        """Return whether a silence is longer than those of a healthy peer.

        A busy process makes gaps, but its kernel makes none. So if that has acknowledged nothing
        for two heartbeats, earlier gaps do not count.

        Args:
            silent_s: for how long the peer has been silent.
            unanswered_s: for how long its kernel has acknowledged nothing; None if unknown.
        """
        least_s = _UNUSUAL_BEATS * self._heartbeat_s
        if unanswered_s is not None and unanswered_s >= least_s / 2:
            return silent_s > least_s
        return silent_s > max(least_s, _UNUSUAL_TIMES * self._usual_s)
