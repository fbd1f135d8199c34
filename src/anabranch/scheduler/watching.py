"""What people and machines see of a run while it goes on: lines of progress, and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from anabranch.record.console import Console
from anabranch.scheduler.server import Scheduler

PROGRESS_S = 10.0
"""How often a scheduler says how far its run is, if not asked otherwise."""


@dataclass(frozen=True)
class Watching:
    """How a run is watched.

    Args:
        progress_s: how often to say how far it is, seconds; None never.
    """

    progress_s: float | None = None


UNWATCHED = Watching()


@asynccontextmanager
async def watched(
    scheduler: Scheduler, console: Console, watching: Watching
) -> AsyncIterator[None]:
    """Watch a run while the block goes on.

    Args:
        scheduler: whose run.
        console: where to say how far it is.
        watching: how.
    """
    async with AsyncExitStack() as stack:
        if watching.progress_s is not None:
            said = asyncio.create_task(_say_progress(scheduler, console, watching.progress_s))
            stack.push_async_callback(_ended, said)
        yield


async def _say_progress(scheduler: Scheduler, console: Console, every_s: float) -> None:
    loop = asyncio.get_running_loop()
    before, said_s = scheduler.status(), loop.time()
    while True:
        await asyncio.sleep(every_s)
        now, now_s = scheduler.status(), loop.time()
        if console.progress(before, now, now_s - said_s):
            before, said_s = now, now_s


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
