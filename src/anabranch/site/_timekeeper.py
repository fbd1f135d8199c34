"""Keeps the scheduler's time at a site, which asks its parent; the quickest answers count.

A root asks the scheduler. Any other site asks its parent in a tree (NetStorm, section V), which
answers with its own estimate of the scheduler's time. A site sends requests only at other events: a
chunk leaves or arrives, or a round ends. It has no timer for them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from anabranch.net.clocks import ClockSample, OffsetFilter
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import TimeReply, TimeRequest

# Requests sent one after the other when the run begins, while links are idle.
_FIRST_ANSWERS = 8
_NEVER_S = 60.0  # longer than any interval of the filter


class Timekeeper:
    """One site's estimate of the scheduler's clock.

    Args:
        clock: returns the site's time, seconds.
        ask: sends a request to the parent or the scheduler.
    """

    def __init__(self, clock: Callable[[], float], ask: Callable[[TimeRequest], None]) -> None:
        self._clock = clock
        self._ask = ask
        self._filter = OffsetFilter()
        self._answers = 0
        self._asked: deque[float] = deque(maxlen=_FIRST_ANSWERS)  # times of unanswered requests
        self._due_s = -math.inf

    def begin(self) -> None:
        """Send the first request."""
        self._request()

    def remember(self) -> None:
        """Send a request if one is due; called at other events."""
        now_s = self._clock()
        # A due time that is too far ahead shows that the clock was set back.
        if now_s >= self._due_s or now_s < self._due_s - _NEVER_S:
            self._request()

    def _request(self) -> None:
        now_s = self._clock()
        self._due_s = self._filter.next_s(now_s)
        self._asked.append(now_s)
        self._ask(TimeRequest(now_s))

    def unasked(self, request: TimeRequest) -> None:
        """Forget a request that could not be sent."""
        self._asked.remove(request.sent_s)

    def hear(self, reply: TimeReply) -> None:
        """Add an answer.

        Raises:
            OutOfPlaceMessage: this site has no such request.
            MalformedMessage: the times are impossible.
        """
        if reply.sent_s not in self._asked:
            raise OutOfPlaceMessage("the time, which was not asked for")
        self._asked.remove(reply.sent_s)
        if not math.isfinite(reply.error_s):
            return  # the parent does not know the time yet
        times_s = reply.sent_s, reply.received_s, reply.replied_s, self._clock(), reply.error_s
        try:
            self._filter.sample(ClockSample(*times_s))
        except ValueError as error:
            raise MalformedMessage(str(error)) from None
        self._answers += 1
        if self._answers < _FIRST_ANSWERS:
            self._request()

    def offset_s(self) -> float | None:
        """Return the scheduler's clock minus this site's, seconds; None while unknown."""
        return self._filter.offset_s(self._clock()) if self._filter.is_known else None

    def error_s(self) -> float:
        """Return a bound on the error of ``offset_s``, seconds; infinite while unknown."""
        return self._filter.error_s(self._clock())
