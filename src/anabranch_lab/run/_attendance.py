"""When the sites of a run admit others to their all-reduces, and how a site waits for it. Pure.

All sites make the same calls in the same order, so they have to admit others at the same place.
They therefore decide by data that is equal at all of them: the members of each settled exchange,
and how many exchanges ago it was.
"""

from __future__ import annotations

from collections.abc import Collection


class Attendance:
    """Which of the latest exchanges lacked a site, and so before which exchange to admit others.

    If exchange n lacked a site, the sites admit others before exchange n + ``window``. By then all
    sites have applied the result of exchange n, and no site has asked for a later exchange.

    Args:
        sites: how many the run has.
        window: how many exchanges may be on their way at once, and one more where a site asks for
            the next exchange during one.

    >>> attendance = Attendance(sites=3, window=2)
    >>> attendance.ended(4, members=[0, 2])
    >>> [attendance.lets_in_before(number) for number in (5, 6, 7)]
    [False, True, False]
    """

    def __init__(self, sites: int, window: int) -> None:
        self._sites = sites
        self._window = window
        self._incomplete: list[int] = []  # the latest exchanges that lacked a site
        self._let_in = 0  # the exchange before which others were admitted last

    def ended(self, number: int, members: Collection[int]) -> None:
        """Take note of the sites that have the result of a settled exchange.

        Args:
            number: of the exchange, from 1.
            members: these sites; empty where a lost site ends the run.
        """
        self._incomplete = [each for each in self._incomplete if each > number - self._window]
        if members and len(members) < self._sites:
            self._incomplete.append(number)

    def lets_in_before(self, number: int) -> bool:
        """Return whether to admit others before an exchange, if that is not done yet."""
        return number - self._window in self._incomplete and number != self._let_in

    def let_in(self, number: int) -> None:
        """Take note that others were admitted before an exchange."""
        self._let_in = number

    def state(self) -> list[int]:
        """Return the state for a site that is admitted."""
        return [self._let_in, *self._incomplete]

    def load(self, state: list[int]) -> None:
        """Load another site's state."""
        self._let_in, *self._incomplete = state


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 60.0
_TRIES = 4  # a pause is the time since the site was left out, divided by this


class Absence:
    """How long a site that was left out of a run pauses between tries, and when it gives up.

    A pause is a quarter of the time since the site was left out, and a minute at most. So the site
    tries again at most a quarter of an outage's length after the outage. While the scheduler
    accepts the site's joins, it tries as long as the run lasts. Otherwise it gives up after the
    larger of `was_in_s` and `patience_s` since the scheduler last accepted it.

    Args:
        at_s: when it was left out.
        was_in_s: how long the run had lasted by then.
        patience_s: how long a broken connection may take to come back.

    >>> absence = Absence(at_s=100.0, was_in_s=60.0, patience_s=5.0)
    >>> [absence.pause_s(now_s) for now_s in (100.0, 108.0, 1000.0)]
    [0.25, 2.0, 60.0]
    >>> [absence.is_given_up(now_s) for now_s in (159.0, 161.0)]
    [False, True]
    """

    def __init__(self, at_s: float, was_in_s: float, patience_s: float) -> None:
        self._at_s = at_s
        self._longest_s = max(was_in_s, patience_s)
        self._taken_in_s = at_s

    def pause_s(self, now_s: float) -> float:
        """Return how long to wait before the next try."""
        return min(max(_FIRST_PAUSE_S, (now_s - self._at_s) / _TRIES), _LONGEST_PAUSE_S)

    def taken_in(self, now_s: float) -> None:
        """Take note that the scheduler accepted this site, which may wait to be admitted."""
        self._taken_in_s = now_s

    def is_given_up(self, now_s: float) -> bool:
        """Return whether the run counts as over for this site."""
        return now_s - self._taken_in_s > self._longest_s
