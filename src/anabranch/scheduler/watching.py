"""What people and machines see of a run while it goes on: lines of progress, and metrics."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from anabranch.log.console import Console
from anabranch.net.addresses import show
from anabranch.net.http import serving_page
from anabranch.net.network import Address
from anabranch.scheduler.server import Scheduler

PATH = "/metrics"
"""Where the page of metrics is."""

PROGRESS_S = 10.0
"""How often a scheduler says how far its run is, if not asked otherwise."""

_LOOK_S = 0.5  # between looks at what the sites wait for


@dataclass(frozen=True)
class Watching:
    """How a run is watched.

    Args:
        progress_s: how often to say how far it is, seconds; None never.
        metrics: where Prometheus finds metrics, as all that reach it may; None nowhere.
    """

    progress_s: float | None = None
    metrics: Address | None = None


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

    Raises:
        LinkError: the address for metrics cannot be had.
    """
    async with AsyncExitStack() as stack:
        if watching.metrics is not None:
            # Not above: prometheus-client is an extra, and 15 MB of a scheduler without metrics.
            from anabranch.log.metrics import CONTENT_TYPE, exposition

            page = serving_page(
                watching.metrics, PATH, CONTENT_TYPE, lambda: exposition(scheduler.status())
            )
            console.metrics(show(await stack.enter_async_context(page)) + PATH)
        stack.push_async_callback(_ended, asyncio.create_task(_tell_waits(scheduler, console)))
        if watching.progress_s is not None:
            said = asyncio.create_task(_say_progress(scheduler, console, watching.progress_s))
            stack.push_async_callback(_ended, said)
        yield


async def _tell_waits(scheduler: Scheduler, console: Console) -> None:
    while True:
        await asyncio.sleep(_LOOK_S)
        for wait in scheduler.overview.tell_waits():
            console.awaited(wait)


async def _say_progress(scheduler: Scheduler, console: Console, every_s: float) -> None:
    loop = asyncio.get_running_loop()
    before, said_s = scheduler.status(), loop.time()
    while True:
        await asyncio.sleep(every_s)
        now, now_s = scheduler.status(), loop.time()
        # Until the run began there was nothing to be done.
        if console.progress(before, now, min(now_s - said_s, now.running_s or math.inf)):
            before, said_s = now, now_s


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
