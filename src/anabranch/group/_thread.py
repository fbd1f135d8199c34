"""An event loop in a separate thread of the process.

Python's threads share one lock. A thread that computes keeps it for the switch interval, 5 ms by
default, each time that the loop's thread wants it; and that thread wants it for every chunk. So the
interval is shorter while a call is under way. It is put back 20 ms after the last one. Put back
sooner, it would apply to a thread that waits for the lock between two calls, and delay the next.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

from anabranch.net.tcp import wait_closed

T = TypeVar("T")

_SHORT_S = 0.0001
_LINGER_S = 0.02  # after a call; the next one may come at once


def _closed() -> Exception:
    return RuntimeError("the event loop is closed")


class LoopThread:
    """A running event loop.

    Args:
        name: the name of its thread.
        closed: makes the error of calls that come once it is closed, or that its end cancels.
    """

    def __init__(self, name: str, closed: Callable[[], Exception] = _closed) -> None:
        self._loop = asyncio.new_event_loop()
        self._closed = closed
        self._submitting = threading.Lock()
        self._is_closing = False
        self._submitted: deque[tuple[Coroutine[Any, Any, Any], Future[Any]]] = deque()
        self._will_start = False
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
        """Start a coroutine in the loop; to cancel the future cancels the coroutine.

        Like ``asyncio.run_coroutine_threadsafe``, but the result is here a turn of the loop sooner.
        """
        future: Future[T] = Future()
        with self._submitting:
            if not self._is_closing:
                self._submitted.append((coroutine, future))
                if not self._will_start:  # else the loop starts it in the same turn as those before
                    self._will_start = True
                    self._loop.call_soon_threadsafe(self._start_all)
                return future
        coroutine.close()
        raise self._closed()

    def _start_all(self) -> None:
        self._will_start = False  # ahead of the last look, so that no submission is missed
        while self._submitted:
            self._start(*self._submitted.popleft())

    def _start(self, coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
        if future.cancelled():
            future.set_running_or_notify_cancel()
            coroutine.close()
            return
        task = self._loop.create_task(_hand_over(coroutine, future))

        def cancel(future: Future[T]) -> None:
            if future.cancelled():
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(cancel)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return its result; an interrupt cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            if self._is_closing and isinstance(error, CancelledError):
                raise self._closed() from None
            raise

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function in the loop after some seconds; at once if the loop is closed."""
        if self.is_current:
            self._loop.call_later(seconds, call)
            return
        try:
            self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call)
        except RuntimeError:  # the loop is closed
            call()

    def close(self) -> None:
        """End the loop and its thread, and all that still runs there."""
        if self._loop.is_closed():
            return
        with self._submitting:  # all that was submitted before has begun once `_cancel_all` runs
            self._is_closing = True
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        switching.put_back()  # the loop's timer for that is lost


async def _hand_over(coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
    """Run a coroutine, and hand its result to the future in the same turn of the loop."""
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


class _Switching:
    """Shortens the switch interval while calls of this process are under way, and shortly after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._ends = 0  # how often the number of calls under way fell to 0
        self._is_short = False
        self._usual_s = self._short_s = 0.0

    def begin(self) -> None:
        """Take note of a call, and shorten the interval for the first one."""
        with self._lock:
            self._calls += 1
            if self._calls == 1 and not self._stays_short():
                self._usual_s = sys.getswitchinterval()
                _set(min(self._usual_s, _SHORT_S))
                self._short_s = sys.getswitchinterval()
                self._is_short = True

    def end(self, later: Callable[[float, Callable[[], None]], None]) -> None:
        """Take note of a call's end; after the last one, put the interval back later.

        Args:
            later: calls a function after some seconds.
        """
        with self._lock:
            self._calls -= 1
            if self._calls:
                return
            self._ends += 1
            ends = self._ends
        later(_LINGER_S, lambda: self.put_back(ends))

    def put_back(self, ends: int | None = None) -> None:
        """Put the interval back, if no call is under way.

        Args:
            ends: the count of ends to act on; if it has changed, do nothing. None: act anyway.
        """
        with self._lock:
            if self._calls or ends not in {None, self._ends}:
                return
            if self._stays_short():
                _set(self._usual_s)
            self._is_short = False

    def forget_in_child(self) -> None:
        """Forget the calls, in a process that was just forked and has none."""
        self._lock = threading.Lock()  # a thread of the parent may have held it
        self._calls = 0
        self.put_back()

    def _stays_short(self) -> bool:
        """Return whether the interval is short, and the program has set no other one meanwhile."""
        return self._is_short and sys.getswitchinterval() == self._short_s


def _set(seconds: float) -> None:
    # Python rounds down to microseconds. Without the margin, each restore could lose one.
    sys.setswitchinterval(seconds + 1e-7)


switching = _Switching()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=switching.forget_in_child)
