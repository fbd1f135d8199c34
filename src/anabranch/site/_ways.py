"""Chooses how a site tries to reach the scheduler again after its connection has ended. Pure.

For half a second the site only tries to connect directly. Then it alternates: for half a second it
asks neighbours for a pipe, then it tries once directly, since the scheduler may have been
restarted. It asks the neighbour first that it has not asked for the longest time, and each at most
once a second. So neighbours that are cut off too, and refuse at once, cost little time. A neighbour
carries pipes only while its own connection to the scheduler is direct (:func:`why_not`). So pipes
form no chain, and if the scheduler itself is gone, all neighbours refuse at once.

Each direct attempt may take twice as long as the one before. So may attempts through neighbours,
once all were asked. So a silent path costs little at first, and a slow one succeeds in the end.
Without neighbours each attempt may take the longest time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

DIRECT_S = 0.5
"""How long only direct attempts are made; also the timeout of the first one."""

_THROUGH_S = 1.0  # the timeout of the first attempt through a neighbour, over two or more hops
_ASKING_S = 0.5  # how long neighbours are asked before the next direct attempt
_ASK_AGAIN_S = 1.0  # the least interval between requests to one neighbour
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.2  # between direct attempts
MOST_PIPES = 32
"""The most pipes that a site carries at once; each uses some hundred kilobytes at most."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The next attempt to reach the scheduler.

    Attributes:
        through: the neighbour to ask for a pipe; None to connect directly.
        pause_s: how long to wait before the attempt.
        within_s: the attempt's timeout.
    """

    through: int | None
    pause_s: float
    within_s: float


class Ways:
    """The attempts of one site to reach the scheduler again.

    Args:
        now_s: when its connection ended.
        most_s: the longest timeout of an attempt.

    >>> ways = Ways(now_s=0.0, most_s=5.0)
    >>> ways.next(0.0, [4, 7])
    Attempt(through=None, pause_s=0.0, within_s=0.5)
    >>> ways.next(0.5, [4, 7])  # that one took all of its time
    Attempt(through=4, pause_s=0.0, within_s=1.0)
    >>> ways.next(0.6, [4, 7])  # it refused at once
    Attempt(through=7, pause_s=0.0, within_s=1.0)
    >>> ways.next(0.7, [4, 7])
    Attempt(through=None, pause_s=0.02, within_s=1.0)
    """

    def __init__(self, now_s: float, most_s: float) -> None:
        self._began_s = now_s
        self._most_s = most_s
        self._pause_s = 0.0
        self._direct_s, self._through_s = DIRECT_S, _THROUGH_S
        self._was_direct = False  # the latest attempt
        self._asks_until_s = -math.inf  # when the next direct attempt is due
        self._asked_s: dict[int, float] = {}  # the last request to each neighbour

    def next(self, now_s: float, neighbours: Sequence[int]) -> Attempt:
        """Return the next attempt.

        Args:
            now_s: the time.
            neighbours: the neighbours that may be asked now.
        """
        if self._was_direct:
            self._asks_until_s = now_s + _ASKING_S
        if now_s < self._asks_until_s and now_s - self._began_s >= DIRECT_S:
            due_s = now_s - _ASK_AGAIN_S
            least = min(neighbours, key=self._last_asked_s, default=None)
            if least is not None and self._last_asked_s(least) <= due_s:
                return self._ask(least, now_s)
        self._was_direct = True
        pause_s = self._pause_s
        self._pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        if not neighbours:  # a short timeout would save nothing
            return Attempt(None, pause_s, self._most_s)
        within_s, self._direct_s = self._direct_s, min(2 * self._direct_s, self._most_s)
        return Attempt(None, pause_s, within_s)

    def _ask(self, neighbour: int, now_s: float) -> Attempt:
        if neighbour in self._asked_s:  # the least recent one was asked: so were all
            self._through_s = min(2 * self._through_s, self._most_s)
        self._was_direct = False
        self._asked_s[neighbour] = now_s
        return Attempt(neighbour, 0.0, self._through_s)

    def _last_asked_s(self, neighbour: int) -> float:
        return self._asked_s.get(neighbour, -math.inf)


def why_not(source: int, carried: Collection[int], is_direct: bool) -> str | None:
    """Return why a site refuses a pipe to a neighbour now; None if it does not.

    Args:
        source: the neighbour.
        carried: the sites for which it carries pipes.
        is_direct: whether its own connection to the scheduler is direct.

    >>> why_not(2, [], is_direct=False)
    'it does not reach the scheduler directly, either'
    """
    if not is_direct:
        return "it does not reach the scheduler directly, either"
    if source not in carried and len(carried) >= MOST_PIPES:
        return f"it carries {len(carried)} pipes already"
    return None
