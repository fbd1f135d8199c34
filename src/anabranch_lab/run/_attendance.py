"""Which sites take part in a run's all-reduces: when others are let in, how one waits for it. Pure.

All sites make the same calls in the same order, so they have to let others in at the same place.
What they decide by is therefore alike at all of them: who was a member when an exchange was
settled, and how many exchanges ago that was.
"""

from __future__ import annotations

from collections.abc import Collection


class Attendance:
    """Which of the latest exchanges had all sites, and so before which exchange others are let in.

    That is before each that follows, by ``window``, one in which some site was missing. All sites
    have used the result of that one by then, and none has asked for more.

    Args:
        sites: how many the run has.
        window: how many exchanges later: as many as may be on their way at once, and one more where
            a site asks for the next exchange while one goes on.

    >>> attendance = Attendance(sites=3, window=2)
    >>> attendance.ended(4, members=[0, 2])
    >>> [attendance.lets_in_before(number) for number in (5, 6, 7)]
    [False, True, False]
    """

    def __init__(self, sites: int, window: int) -> None:
        self._sites = sites
        self._window = window
        self._incomplete: list[int] = []  # exchanges in which a site was missing, the latest ones
        self._let_in = 0  # the exchange before which others were let in last

    def ended(self, number: int, members: Collection[int]) -> None:
        """Take note of who had the result of an exchange once it was settled.

        Args:
            number: of the exchange, from 1.
            members: empty where a site that is lost ends the run.
        """
        self._incomplete = [each for each in self._incomplete if each > number - self._window]
        if members and len(members) < self._sites:
            self._incomplete.append(number)

    def lets_in_before(self, number: int) -> bool:
        """Return whether others are to be let in before an exchange, and have not been yet."""
        return number - self._window in self._incomplete and number != self._let_in

    def let_in(self, number: int) -> None:
        """Take note that this is done before an exchange."""
        self._let_in = number

    def state(self) -> list[int]:
        """Return what a site goes on from that is let in."""
        return [self._let_in, *self._incomplete]

    def load(self, state: list[int]) -> None:
        """Go on from another site's state."""
        self._let_in, *self._incomplete = state


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 60.0
_TRIES = 4  # while the time doubles that a site has been left out


class Absence:
    """How long a site that was left out of a run pauses between tries, and when it gives up.

    It tries again after a quarter of the time that it has been left out, and after a minute at
    most, so that it tries within a quarter more of what an outage took. While the scheduler takes
    it in, it waits as long as the run goes on. Otherwise it gives up once it was not taken in for
    as long as the run had gone on when it was left out, and no earlier than any broken connection
    is given up.

    Args:
        at_s: when it was left out.
        was_in_s: for how long the run had gone on by then.
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
        """Take note that the scheduler knows this site again, and it may wait to be let in."""
        self._taken_in_s = now_s

    def is_given_up(self, now_s: float) -> bool:
        """Return whether the run counts as over for this site."""
        return now_s - self._taken_in_s > self._longest_s
