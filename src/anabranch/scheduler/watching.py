"""Shows a run to people and monitors: lines of progress, waits, and metrics."""

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
"""The path of the page of metrics."""

PROGRESS_S = 10.0
"""The default interval between lines of progress, seconds."""

_LOOK_S = 0.5  # interval between looks at waits


@dataclass(frozen=True)
class Watching:
    """How a run is watched.

    Args:
        progress_s: the interval between lines of progress, seconds; None for no lines.
        metrics: the address of the metrics page, for Prometheus and any other process that reaches
            it; None for no page.
    """

    progress_s: float | None = None
    metrics: Address | None = None


UNWATCHED = Watching()


@asynccontextmanager
async def watched(
    scheduler: Scheduler, console: Console, watching: Watching
) -> AsyncIterator[None]:
    """Watch a run until the block ends.

    Args:
        scheduler: of the run.
        console: prints the lines.
        watching: what to show.

    Raises:
        LinkError: the address for metrics is not available.
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
        # The time before the run began does not count as time without progress.
        if console.progress(before, now, min(now_s - said_s, now.running_s or math.inf)):
            before, said_s = now, now_s


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
