"""Which sites the others wait for, at which call, since when, and when to say so. Pure.

A *stall* is what a scheduler sees at a moment: a call that some sites have made and others have
not. It becomes a `Wait` once it has a beginning: the first look that saw it. In a run that goes
well each look sees other calls, so that no wait grows old.

A wait is told once it is old enough, and again each time that it is twice as old. What is old
enough follows the run: sites of uneven speed wait at every call, and that is no news.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

LEAST_S = 5.0
"""No wait shorter than this is told."""
_KEPT = 8  # ended waits that say what is usual


@dataclass(frozen=True, slots=True)
class Stall:
    """Sites wait for another one.

    Args:
        key: tells this call from all others of the run.
        awaited: the site that has not made the call.
        waiting: the sites that have.
        what: the call in words, to follow "at".
    """

    key: Hashable
    awaited: int
    waiting: frozenset[int]
    what: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A stall, and for how long it has lasted, seconds."""

    stall: Stall
    seconds: float


class Waits:
    """Remembers since when sites are awaited, and how long waits usually are."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[Hashable, int], float] = {}
        self._ended: deque[float] = deque(maxlen=_KEPT)
        self._told_s: dict[tuple[Hashable, int], float] = {}  # how old each was when last told

    def look(self, stalls: Iterable[Stall], now_s: float) -> tuple[Wait, ...]:
        """Return the waits of this moment, the longest first.

        Args:
            stalls: all of them, as they are now.
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
        """Return those of the waits to tell now; they count as told."""
        usual_s = max(LEAST_S, 2 * max(self._ended, default=0.0))
        told = []
        for wait in waits:
            if not wait.stall.waiting:
                continue  # no site has joined yet: none is held up
            which = wait.stall.key, wait.stall.awaited
            if wait.seconds >= 2 * self._told_s.get(which, usual_s / 2):
                self._told_s[which] = wait.seconds
                told.append(wait)
        return tuple(told)
