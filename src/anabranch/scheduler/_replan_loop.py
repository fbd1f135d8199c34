"""Compares plans again during a run: one look at a time, with pauses between.

::

    idle ──a message of a site arrives──▶ due ──the pause is over──▶ looking ──▶ idle
      │                                                                │
      └──close()──▶ closed ◀──close(), or the look failed──────────────┘

A *look* asks the run's awareness what to expect of the network, and whether another plan makes a
round shorter. Planning takes up to seconds, so it runs in a thread while rounds continue. The
result comes back to the loop through ``found``. The pause before a look is at least the run's
``update_time_s``, and at least ``_REST`` times as long as the last look took.

No timer starts a look. A message of a site does (``look_in_time``), so a run in which nothing
happens is not planned again.

What must never happen: two looks at once, since both would change the policy's plan; a scheduler
that spends most of its time on plans; or, after a loss, a plan for the network before it. After a
loss, ``_planning`` closes this loop and begins another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.scheduler._policy import Replan
from anabranch.scheduler.awareness import Awareness

_REST = 20.0  # the pause before a look is at least this many times as long as the look before


class ReplanLoop:
    """Asks a run's awareness for better plans, from the run's start on.

    Args:
        awareness: has the belief of the network, and compares plans.
        size_bytes: of the flat buffer that sites exchange.
        started_s: when the run began, by the loop's clock.
        found: called after each look, with a better plan or None, and with the auxiliary paths that
            are best now.
        failed: called with the reason if a look fails; no further look follows.

    Attributes:
        size_bytes: see above; while it is 0, the size is unknown and no look begins.
    """

    def __init__(
        self,
        awareness: Awareness,
        size_bytes: int,
        started_s: float,
        found: Callable[[Replan | None, tuple[tuple[int, ...], ...]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._awareness = awareness
        self.size_bytes = size_bytes
        self._found = found
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._started_s = self._looked_s = started_s
        self._looked_for_s = 0.0  # how long the last look took
        self._look: asyncio.Task[None] | None = None  # the look that is due or under way
        self._is_over = False

    def look_in_time(self) -> None:
        """Make the next look due, unless one is; called for each message of a site."""
        if self._look is not None or self._is_over or not self.size_bytes:
            return
        # With many sites a look takes seconds, and must not take most of the scheduler's time.
        pause_s = max(self._awareness.update_time_s, _REST * self._looked_for_s)
        due_s = max(0.0, self._looked_s + pause_s - self._loop.time())
        self._look = self._loop.create_task(self._look_after(due_s), name="look at plans")

    def close(self) -> None:
        """Begin no further look, and drop the result of the one under way."""
        self._is_over = True
        if self._look is not None:
            self._look.cancel()

    async def _look_after(self, due_s: float) -> None:
        """Look after a pause, in a thread, since rounds continue meanwhile."""
        awareness, size_bytes = self._awareness, self.size_bytes
        try:
            await asyncio.sleep(due_s)
            began_s = self._loop.time()
            expected = awareness.expectation(size_bytes, began_s - self._started_s)
            replan = await self._loop.run_in_executor(
                None, awareness.consider, expected, size_bytes
            )
            paths = await self._loop.run_in_executor(None, awareness.auxiliary, expected)
            self._looked_s = self._loop.time()
            self._looked_for_s = self._looked_s - began_s
        except Exception as error:  # any: no other code awaits this task, and the run must end
            self._is_over = True
            self._failed(f"the scheduler failed to plan: {type(error).__name__}: {error}")
            return
        finally:
            self._look = None
        self._found(replan, paths)
