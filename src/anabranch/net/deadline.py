"""Deadlines that count only the time in which this process ran.

A timer blames another: a site that does not come back, a peer that does not answer. Where this
process stood still (a stopped process, a suspended machine, an interpreter that was busy), the
answer may have come meanwhile, and nothing has read it. An event loop runs overdue timers before
it reads, so a plain ``call_later`` would blame a peer that has long answered. Each timer of
an event loop that blames another is therefore one of these.

A deadline looks at the clock every 0.3 s. A look that comes late shows a standstill: the deadline
moves by as long as that, and at least as long again, at most its whole time, is left after it.
:mod:`anabranch.net.silence` judges heartbeats by the same rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from anabranch.net.silence import HEARTBEAT_S

_LOOK_S = HEARTBEAT_S


class AwakeTime:
    """When a time has passed in which this process ran. Pure.

    Args:
        due_s: when it has passed, unless the process stands still meanwhile.
        now_s: the time.

    Attributes:
        due_s: when the time is over, as far as the last look knows.
        look_s: when ``look`` is to be called next.

    >>> six_seconds = AwakeTime(due_s=6.0, now_s=0.0)
    >>> six_seconds.look(0.3), six_seconds.look(8.5)  # the process stood still
    (False, False)
    >>> six_seconds.due_s
    14.5
    """

    def __init__(self, due_s: float, now_s: float) -> None:
        self.due_s = due_s
        self._delay_s = due_s - now_s
        self._plan(now_s)

    def look(self, now_s: float) -> bool:
        """Return whether the time is over; to be called at ``look_s``."""
        late_s = now_s - self.look_s
        if late_s > _LOOK_S:
            left_s = max(self.due_s - self.look_s, min(self._delay_s, late_s))
            self.due_s = now_s + left_s
        self._plan(now_s)
        return now_s >= self.due_s

    def _plan(self, now_s: float) -> None:
        self.look_s = min(now_s + _LOOK_S, self.due_s)


class Deadline:
    """Calls back once a moment has come, later by as long as this process stood still.

    Args:
        due_s: when, by the running loop's clock.
        act: what to call, with ``args``.
    """

    def __init__(self, due_s: float, act: Callable[..., object], *args: object) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = AwakeTime(due_s, self._loop.time())
        self._act, self._args = act, args
        self._timer = self._loop.call_at(self._time.look_s, self._look)

    def _look(self) -> None:
        # A timer may ring a little early; the deadline is told the moment that it asked for.
        now_s = max(self._loop.time(), self._time.look_s)
        if self._time.look(now_s):
            self._act(*self._args)
        else:
            self._timer = self._loop.call_at(self._time.look_s, self._look)

    def cancel(self) -> None:
        """Do not call back."""
        self._timer.cancel()


def after(delay_s: float, act: Callable[..., object], *args: object) -> Deadline:
    """Call back after so many seconds in which this process ran; see `Deadline`."""
    return Deadline(asyncio.get_running_loop().time() + delay_s, act, *args)


@asynccontextmanager
async def within(delay_s: float) -> AsyncIterator[None]:
    """Bound what is awaited inside, as :func:`asyncio.timeout` does, by a `Deadline`.

    Raises:
        TimeoutError: the time is over.
    """
    async with asyncio.timeout(None) as scope:
        deadline = after(delay_s, lambda: scope.reschedule(0.0))
        try:
            yield
        finally:
            deadline.cancel()
