"""A simulated site's machine and clock."""

from __future__ import annotations

import asyncio

from anabranch.fleet import STEADY, Slowdowns
from anabranch_lab.sim.loop import VirtualLoop


class Machine:
    """A machine that works in virtual time, one piece at a time; faults may slow or stop it.

    Args:
        loop: keeps the time.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._slowdowns = STEADY  # of the work in hand
        self._factor = 1.0  # the faults in force multiply all times by it
        self._stopped = False
        self._began_s = 0.0  # the loop's time when the run began
        self._left_s = 0.0  # of the work in hand, at nominal speed, as of
        self._since_s = 0.0
        self._done: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin the run: slowdowns count from now."""
        self._began_s = self._loop.time()

    async def work(self, work_s: float, slowdowns: Slowdowns = STEADY) -> None:
        """Return when work that takes this long at nominal speed is done.

        Args:
            work_s: how long, seconds.
            slowdowns: how the speed changes from the beginning of the run on; those of the site, or
                of the client that it stands for.
        """
        assert self._done is None, "one piece at a time"
        self._slowdowns = slowdowns
        self._left_s, self._since_s = work_s, self._now_s()
        self._done = self._loop.create_future()
        self._plan()
        try:
            await self._done
        finally:
            self._done = None
            if self._alarm is not None:
                self._alarm.cancel()

    def slow(self, factor: float) -> None:
        """Make all work take ``factor`` times as long from now on."""
        self._catch_up()
        self._factor = factor
        self._plan()

    def stop(self) -> None:
        """Stop working until `go_on`."""
        self._catch_up()
        self._stopped = True
        self._plan()

    def go_on(self) -> None:
        """Continue to work."""
        self._catch_up()
        self._stopped = False
        self._plan()

    def _now_s(self) -> float:
        return self._loop.time() - self._began_s

    def _catch_up(self) -> None:
        """Subtract the work done since the last change."""
        now_s = self._now_s()
        if not self._stopped and self._done is not None:
            done_s = self._slowdowns.work_s(self._since_s, now_s) / self._factor
            self._left_s = max(0.0, self._left_s - done_s)
        self._since_s = now_s

    def _plan(self) -> None:
        """Set the alarm for the end of the work in hand."""
        if self._done is None:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if not self._stopped:
            takes_s = self._slowdowns.takes_s(self._since_s, self._left_s * self._factor)
            self._alarm = self._loop.call_later(takes_s, self._end)

    def _end(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


class Clock:
    """A site's clock, which may be wrong by an offset and by a drift.

    Args:
        loop: keeps the true time.

    >>> loop = VirtualLoop()
    >>> clock = Clock(loop)
    >>> clock.step(offset_s=-2.0, drift=0.0)
    >>> clock.now_s()
    -2.0
    >>> loop.close()
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._since_s = 0.0  # true time of the last step
        self._read_s = 0.0  # the clock's reading then
        self._drift = 0.0  # seconds gained a second

    def now_s(self) -> float:
        """Return the clock's reading, seconds."""
        passed_s = self._loop.time() - self._since_s
        return self._read_s + passed_s * (1.0 + self._drift)

    def step(self, offset_s: float, drift: float) -> None:
        """Jump by ``offset_s`` seconds, and gain ``drift`` more seconds a second from now on."""
        self._read_s, self._since_s = self.now_s() + offset_s, self._loop.time()
        self._drift += drift
