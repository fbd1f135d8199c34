"""Tracks which sites the others wait for, at which call and since when; reports long waits. Pure.

A *stall* is a call that some sites have made and others have not, at one moment. A *wait* is a
stall with a beginning: the first look that saw it. In a healthy run each look sees other calls, so
no wait grows old.

A wait is reported once it is old enough, and again each time its age has doubled. The least age
follows the usual length of waits: sites of uneven speed wait at every call, and that is no news.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

LEAST_S = 5.0
"""The least age at which a wait is reported, seconds."""
_KEPT = 8  # ended waits, from which the usual length follows


@dataclass(frozen=True, slots=True)
class Stall:
    """Sites wait for another site.

    Args:
        key: identifies the call in the run.
        awaited: the site that has not made the call.
        waiting: the sites that have made it.
        what: the call in words, to follow "at".
    """

    key: Hashable
    awaited: int
    waiting: frozenset[int]
    what: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A stall, and its age in seconds."""

    stall: Stall
    seconds: float


class Waits:
    """The beginnings of present waits, and the usual length of waits."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[Hashable, int], float] = {}
        self._ended: deque[float] = deque(maxlen=_KEPT)
        self._told_s: dict[tuple[Hashable, int], float] = {}  # age of each wait at its last report

    def look(self, stalls: Iterable[Stall], now_s: float) -> tuple[Wait, ...]:
        """Return the present waits, the oldest first.

        Args:
            stalls: all present stalls.
            now_s: the time, which never goes back.
        """
        now = {(stall.key, stall.awaited): stall for stall in stalls}
        for ended in self._since_s.keys() - now.keys():
            self._ended.append(now_s - self._since_s.pop(ended))
            self._told_s.pop(ended, None)
        waits = [
            Wait(stall, now_s - self._since_s.setdefault(which, now_s))
            for which, stall in now.items()
        ]
        return tuple(sorted(waits, key=lambda wait: -wait.seconds))

    def news(self, waits: Iterable[Wait]) -> tuple[Wait, ...]:
        """Return the waits to report now, which count as reported."""
        usual_s = max(LEAST_S, 2 * max(self._ended, default=0.0))
        told = []
        for wait in waits:
            if not wait.stall.waiting:
                continue  # no site has joined yet, so none waits
            which = wait.stall.key, wait.stall.awaited
            if wait.seconds >= 2 * self._told_s.get(which, usual_s / 2):
                self._told_s[which] = wait.seconds
                told.append(wait)
        return tuple(told)
