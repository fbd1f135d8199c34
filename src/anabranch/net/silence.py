"""When a connection has been silent for too long: an adaptive failure detector. Pure.

Each end of a connection sends something every 0.3 s, on lanes every 0.1 s, a heartbeat if there is
nothing else; so a process that is stopped, a host that is gone and a network that drops everything
are all silent. How long a peer may be depends on how long it has been before: an interpreter that
computes without a pause, or a machine with more processes than cores, makes gaps of its own.

An interpreter whose lock is held, by one call of C code or of the standard library, says nothing
for as long as that takes, and the process is healthy. Its kernel goes on acknowledging what is
sent to it, which a machine that is gone does not, nor one that no way leads to any more. So a peer
that says nothing, and whose kernel answers, is borne with for longer: it *stands still*.
"""

from __future__ import annotations

from collections import deque
from heapq import nlargest

HEARTBEAT_S = 0.3
LANE_HEARTBEAT_S = 0.1
"""Between neighbours: a lane that is silent for a moment can be gone round at once."""

STILLNESS_S = 15.0
"""How long a peer that says nothing is borne with at least, while its kernel answers."""

_REMEMBERED_S = 120.0
_TIMES = 6.0  # the longest gaps there were; stalls of five times the usual are not silence
# What is unusual: so many times the longest gaps there were, and so many heartbeats at least.
_UNUSUAL_TIMES, _UNUSUAL_BEATS = 3.0, 4.0


class Unanswered:
    """For how long a peer's kernel has acknowledged nothing of what was sent to it.

    >>> unanswered = Unanswered()
    >>> unanswered.look(1.0, waits=True, acked_s=0.9), unanswered.look(2.0, waits=True, acked_s=1.7)
    (0.0, 0.3)
    >>> unanswered.look(3.0, waits=False, acked_s=2.9), unanswered.look(5.0, True, acked_s=2.9)
    (0.0, 0.0)
    """

    def __init__(self) -> None:
        self._since_s: float | None = None

    def look(self, now_s: float, waits: bool, acked_s: float) -> float:
        """Return for how long, by now.

        Args:
            now_s: the time.
            waits: whether something that was sent has not been acknowledged.
            acked_s: when the latest acknowledgment came.
        """
        if not waits:
            self._since_s = None
            return 0.0
        # What waits may have been sent just now, and long after the latest acknowledgment.
        self._since_s = now_s if self._since_s is None else max(self._since_s, acked_s)
        return round(now_s - self._since_s, 3)  # as the kernel counts


def answers(silent_s: float, most_s: float, unanswered_s: float) -> bool:
    """Return whether a silent peer's kernel answers.

    Acknowledgments are lost, too: it is taken to answer until they lack for as long as the peer may
    be silent, or for half of its silence.

    Args:
        silent_s: for how long the peer has said nothing.
        most_s: for how long it may.
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
    """Return whether nothing crosses the way to a peer, in one direction or in both.

    A process that stands still is no reason, as its kernel answers.

    Args:
        silent_s: for how long the peer has said nothing.
        unanswered_s: for how long its kernel has acknowledged nothing; None where that is not
            known.
        heartbeat_s: the longest that either end says nothing.

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
    """How long a peer is silent, and whether that is unusual, or too long.

    A peer is given up when it is silent for six times as long as its longest gap of the last two
    minutes, of which one is left out: a single stall is an exception. So it is false where a peer
    that has made gaps of up to ``g`` makes one of ``6 g``, and ``least_s`` at least; and what is
    really gone is missed within that time and one heartbeat. Three times the longest gap is
    unusual: enough to look for a way round, if that costs nothing but the looking.

    Args:
        least_s: no silence of less is too long; may be changed.
        now_s: the time.
        heartbeat_s: the longest that a peer says nothing unless something is wrong; how often
            ``look`` is called.

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
        """Take note that something has come."""
        self._gap_s = max(self._gap_s, now_s - self._heard_s)
        self._heard_s = now_s

    def flowed(self, until_s: float) -> None:
        """Take note that data came until then without a gap, though it was not looked at."""
        self._heard_s = max(self._heard_s, until_s)

    def look(self, now_s: float) -> float:
        """Return how long the peer has been silent; to be called once a heartbeat.

        Where that comes late, it was this side that stood still, and the peer may have spoken
        meanwhile: the silence begins now.
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
        """The longest that it may be silent."""
        return max(self.least_s, _TIMES * self._usual_s)

    def is_unusual(self, silent_s: float, unanswered_s: float | None) -> bool:
        """Return whether a silence is longer than any is while nothing is wrong.

        A busy process makes gaps of its own, its kernel makes none: where that has acknowledged
        nothing for two heartbeats, the usual gaps say nothing.

        Args:
            silent_s: for how long the peer has said nothing.
            unanswered_s: for how long its kernel has acknowledged nothing; None where that is not
                known.
        """
        least_s = _UNUSUAL_BEATS * self._heartbeat_s
        if unanswered_s is not None and unanswered_s >= least_s / 2:
            return silent_s > least_s
        return silent_s > max(least_s, _UNUSUAL_TIMES * self._usual_s)
