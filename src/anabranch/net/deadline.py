"""Deadlines that count only the time in which this process ran.

A timer blames a peer, for example a site that does not answer or return. But this process may have
stood still: it was stopped, its machine was suspended, or its interpreter was busy. Then the answer
may have arrived unread. An event loop runs overdue timers before it reads, so a plain
``call_later`` would blame a peer that has answered. So every timer that blames a peer must be a
`Deadline`.

A deadline looks at the clock every 0.3 s. A look that is late shows a standstill. The deadline then
moves by the duration of the standstill. It also leaves at least that duration again, up to the
deadline's whole delay. :mod:`anabranch.net.silence` judges heartbeats by the same rule.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from anabranch.net.silence import HEARTBEAT_S

_LOOK_S = HEARTBEAT_S


class AwakeTime:
    """Measures a delay, without the time in which this process stood still. Pure.

    Args:
        due_s: when the delay is over, if the process never stands still.
        now_s: the time.

    Attributes:
        due_s: when the delay is over, as of the last look.
        look_s: when to call ``look`` next.

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
        """Return whether the delay is over; call it at ``look_s``."""
        late_s = now_s - self.look_s
        if late_s > _LOOK_S:
            left_s = max(self.due_s - self.look_s, min(self._delay_s, late_s))
            self.due_s = now_s + left_s
        self._plan(now_s)
        return now_s >= self.due_s

    def _plan(self, now_s: float) -> None:
        self.look_s = min(now_s + _LOOK_S, self.due_s)


class Deadline:
    """Calls back at a time, later by as long as this process stood still.

    Args:
        due_s: the time, by the running loop's clock.
        act: the callback, called with ``args``.
    """

    def __init__(self, due_s: float, act: Callable[..., object], *args: object) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = AwakeTime(due_s, self._loop.time())
        self._act, self._args = act, args
        self._timer = self._loop.call_at(self._time.look_s, self._look)

    def _look(self) -> None:
        # A loop may run a timer a little early: `look` then gets the time that it asked for.
        now_s = max(self._loop.time(), self._time.look_s)
        if self._time.look(now_s):
            self._act(*self._args)
        else:
            self._timer = self._loop.call_at(self._time.look_s, self._look)

    def cancel(self) -> None:
        """Cancel the callback."""
        self._timer.cancel()


def after(delay_s: float, act: Callable[..., object], *args: object) -> Deadline:
    """Call back after a delay in which this process ran; see `Deadline`."""
    return Deadline(asyncio.get_running_loop().time() + delay_s, act, *args)


@asynccontextmanager
async def within(delay_s: float) -> AsyncIterator[None]:
    """Like :func:`asyncio.timeout`, but with a `Deadline`.

    Raises:
        TimeoutError: the delay is over.
    """
    async with asyncio.timeout(None) as scope:
        deadline = after(delay_s, lambda: scope.reschedule(0.0))
        try:
            yield
        finally:
            deadline.cancel()
