"""Looks at plans again and again while a run goes on: when, and at what part of the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from anabranch.scheduler._policy import Replan
from anabranch.scheduler.awareness import Awareness

# How much longer than a look at plans the pause before the next is, at least.
_REST = 20.0


class ReplanLoop:
    """Asks a run's awareness for better plans, from the run's start on.

    Args:
        awareness: what is believed of the network, and the plan that follows.
        size_bytes: of the flat buffer that sites exchange.
        started_s: when the run began, on the loop's clock.
        found: called after each look with the plan to go on with, None where the one in force
            stays, and with the auxiliary paths that are best now.
        failed: called with the reason where a look failed, which is then the last.

    Attributes:
        size_bytes: see above; 0 where it is not known yet, and then nothing is looked at.
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
        self._look: asyncio.Task[None] | None = None  # that is due, or goes on
        self._is_over = False

    def look_in_time(self) -> None:
        """See that plans are looked at, as often as they should be while anything happens."""
        if self._look is not None or self._is_over or not self.size_bytes:
            return
        # Looking at plans must not become what the scheduler does most of the time.
        pause_s = max(self._awareness.update_time_s, _REST * self._looked_for_s)
        due_s = max(0.0, self._looked_s + pause_s - self._loop.time())
        self._look = self._loop.create_task(self._look_after(due_s), name="look at plans")

    def close(self) -> None:
        """Look no more."""
        self._is_over = True
        if self._look is not None:
            self._look.cancel()

    async def _look_after(self, due_s: float) -> None:
        """Plan again if that is better; in a thread, for rounds go on meanwhile."""
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
        except Exception as error:  # nothing else would hear of it
            self._is_over = True
            self._failed(f"the scheduler failed to plan: {type(error).__name__}: {error}")
            return
        finally:
            self._look = None
        self._found(replan, paths)
