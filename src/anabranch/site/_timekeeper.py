"""How a site keeps the scheduler's time: it asks its parent, and believes the quickest answers.

A root asks the scheduler, any other site its parent in a tree (NetStorm, section V), which answers
with what it takes the scheduler's time to be. Requests go out when something happens here anyway,
a chunk that leaves or comes or a round that ends, and never by a timer of their own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from anabranch.net.clocks import ClockSample, OffsetFilter
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import TimeReply, TimeRequest

# Asked one after the other when the run begins, while links are idle.
_FIRST_ANSWERS = 8
_NEVER_S = 60.0  # longer than the filter ever waits


class Timekeeper:
    """One site's idea of the scheduler's clock.

    Args:
        clock: this site's own, seconds.
        ask: sends a request to the parent or the scheduler.
    """

    def __init__(self, clock: Callable[[], float], ask: Callable[[TimeRequest], None]) -> None:
        self._clock = clock
        self._ask = ask
        self._filter = OffsetFilter()
        self._answers = 0
        self._asked: deque[float] = deque(maxlen=_FIRST_ANSWERS)  # what has not been answered
        self._due_s = -math.inf

    def begin(self) -> None:
        """Ask for the first time."""
        self._request()

    def remember(self) -> None:
        """Ask if it is time to; called when something happens."""
        now_s = self._clock()
        if now_s >= self._due_s or now_s < self._due_s - _NEVER_S:  # or the clock was set back
            self._request()

    def _request(self) -> None:
        now_s = self._clock()
        self._due_s = self._filter.next_s(now_s)
        self._asked.append(now_s)
        self._ask(TimeRequest(now_s))

    def unasked(self, request: TimeRequest) -> None:
        """Take note that a request could not be sent."""
        self._asked.remove(request.sent_s)

    def hear(self, reply: TimeReply) -> None:
        """Take an answer.

        Raises:
            OutOfPlaceMessage: this site did not ask that.
            MalformedMessage: times that cannot be.
        """
        if reply.sent_s not in self._asked:
            raise OutOfPlaceMessage("the time, which was not asked for")
        self._asked.remove(reply.sent_s)
        if not math.isfinite(reply.error_s):
            return  # who was asked does not know either, yet
        times_s = reply.sent_s, reply.received_s, reply.replied_s, self._clock(), reply.error_s
        try:
            self._filter.sample(ClockSample(*times_s))
        except ValueError as error:
            raise MalformedMessage(str(error)) from None
        self._answers += 1
        if self._answers < _FIRST_ANSWERS:
            self._request()

    def offset_s(self) -> float | None:
        """Return what to add to this site's clock to have the scheduler's; None while unknown."""
        now_s = self._clock()
        known = math.isfinite(self._filter.error_s(now_s))
        return self._filter.offset_s(now_s) if known else None

    def error_s(self) -> float:
        """Return how far off that may be, seconds; infinite while nothing is known."""
        return self._filter.error_s(self._clock())
