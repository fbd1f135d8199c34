"""A site's reports of its progress with an exchange, and when it sends them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from anabranch.exchange.exchange import Exchange
from anabranch.net.messages import Progress
from anabranch.site.channel import between_reports_s

_REPORTS_A_WINDOW = 8  # the most while one window of chunks is finished


def is_enough_to_report(held: int, told: int, dealt: int, window: int) -> bool:
    """Return whether enough chunks are finished for a report; the scheduler then deals more.

    Args:
        held: the number of chunks finished here.
        told: that number in the last report.
        dealt: the number of chunks with a tree. When all are finished, this report is the last
            chance to ask for more.
        window: the number of chunks in progress at once.

    >>> [is_enough_to_report(held, 10, 200, window=64) for held in (11, 17, 18)]
    [False, False, True]
    >>> is_enough_to_report(11, 10, 11, window=64)
    True
    """
    return held == dealt or held - told >= max(1, window // _REPORTS_A_WINDOW)


class Reports:
    """A site's reports of its progress with one exchange.

    Args:
        loop: tells the time.
        post: sends a message to the scheduler.
        window: the number of chunks in progress at once.
        round_trip_s: to the scheduler and back.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        post: Callable[[Progress], None],
        window: int,
        round_trip_s: float,
    ) -> None:
        self._loop = loop
        self._post = post
        self._window = window
        self._between_s = between_reports_s(round_trip_s)
        self._told = 0  # chunks finished here, by the last report
        self._told_s = -math.inf
        self._next: asyncio.TimerHandle | None = None

    def advanced(self, exchange: Exchange) -> None:
        """Take note of a finished chunk; report now, or once enough time has passed."""
        held, dealt = exchange.spread.held, exchange.dealt
        if exchange.all_dealt or not is_enough_to_report(held, self._told, dealt, self._window):
            return
        due_s = self._told_s + self._between_s
        if held == dealt or self._loop.time() >= due_s:
            self._report(exchange)
        elif self._next is None:
            self._next = self._loop.call_at(due_s, self._report, exchange)

    def stop(self) -> None:
        """Report no more."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def _report(self, exchange: Exchange) -> None:
        self.stop()
        if exchange.all_dealt:  # meanwhile
            return
        self._told, self._told_s = exchange.spread.held, self._loop.time()
        self._post(Progress(exchange.number, tuple(exchange.spread.held_by_tree)))
