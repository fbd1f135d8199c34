"""An event loop in a separate thread of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from anabranch.net.tcp import wait_closed

T = TypeVar("T")


class LoopThread:
    """A running event loop.

    Args:
        name: the name of its thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop; to cancel the future cancels the coroutine."""
        future: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._start, coroutine, future)
        return future

    def _start(self, coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
        if future.cancelled():
            coroutine.close()
            return
        task = self._loop.create_task(_run(coroutine, future))

        def cancel(future: Future[T]) -> None:
            if future.cancelled() and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(cancel)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return its result; an interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and its thread, and all that still runs there."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _run(coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
    """Run a coroutine, and hand its result over in the same turn of the loop."""
    try:
        result = await coroutine
    except asyncio.CancelledError:
        future.cancel()
        future.set_running_or_notify_cancel()
        raise
    except BaseException as error:
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        if future.set_running_or_notify_cancel():  # else its waiter has given up meanwhile
            future.set_result(result)


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
    await wait_closed()
