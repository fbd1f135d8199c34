"""Which way a site tries to the scheduler once its connection has ended. Pure.

For half a second the site tries the direct way alone. Then it takes turns: for half a second the
neighbours, each that was asked the longest ago, and once the direct way, since a scheduler may be
restarted. So neighbours that refuse at once, as they are cut off too, take no time from one that
does not. It asks a neighbour at most once a second. A neighbour carries pipes only while its own
connection leads to the scheduler directly (:func:`why_not`), so pipes form no chain, and where the
scheduler itself is gone neighbours refuse at once.

Each direct attempt may take twice as long as the one before, and so may attempts through
neighbours once all were asked: a silent way costs little at first, and a slow one succeeds in the
end. Without neighbours each attempt may take the longest time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

DIRECT_S = 0.5
"""How long the direct way alone is tried; also how long its first attempt may take."""

_THROUGH_S = 1.0  # that the first attempt through a neighbour may take, of two hops and more
_ASKING_S = 0.5  # how long neighbours are asked before the direct way is tried again
_ASK_AGAIN_S = 1.0  # before the same neighbour is asked again
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.2  # before the direct way is tried again
MOST_PIPES = 32
"""That a site carries at once; each takes some hundred kilobytes of memory at most."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What to try next.

    Attributes:
        through: the neighbour to ask; None for the direct way.
        pause_s: how long to wait before.
        within_s: how long it may take.
    """

    through: int | None
    pause_s: float
    within_s: float


class Ways:
    """The attempts of one site to reach the scheduler again.

    Args:
        now_s: when its connection ended.
        most_s: the longest that an attempt may take.

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
        self._asks_until_s = -math.inf  # and tries the direct way then
        self._asked_s: dict[int, float] = {}  # when each neighbour was asked last

    def next(self, now_s: float, neighbours: Sequence[int]) -> Attempt:
        """Return what to try next.

        Args:
            now_s: the time.
            neighbours: those that may be asked now.
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
        if not neighbours:  # there is nothing to hasten to
            return Attempt(None, pause_s, self._most_s)
        within_s, self._direct_s = self._direct_s, min(2 * self._direct_s, self._most_s)
        return Attempt(None, pause_s, within_s)

    def _ask(self, neighbour: int, now_s: float) -> Attempt:
        if neighbour in self._asked_s:  # and so each that may be asked
            self._through_s = min(2 * self._through_s, self._most_s)
        self._was_direct = False
        self._asked_s[neighbour] = now_s
        return Attempt(neighbour, 0.0, self._through_s)

    def _last_asked_s(self, neighbour: int) -> float:
        return self._asked_s.get(neighbour, -math.inf)


def why_not(source: int, carried: Collection[int], is_direct: bool) -> str | None:
    """Return why a site carries no pipe for a neighbour now; None where it does.

    Args:
        source: the neighbour.
        carried: the sites whose pipes it carries.
        is_direct: whether it has a connection to the scheduler that no pipe carries.

    >>> why_not(2, [], is_direct=False)
    'it does not reach the scheduler directly, either'
    """
    if not is_direct:
        return "it does not reach the scheduler directly, either"
    if source not in carried and len(carried) >= MOST_PIPES:
        return f"it carries {len(carried)} pipes already"
    return None
