"""The thread of an event loop: what is submitted returns, fails or is cancelled as awaited."""

from __future__ import annotations

import asyncio
import threading
from asyncio import Handle
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from typing import Any

import pytest

from anabranch.group._thread import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


def test_a_result_and_an_error_come_back(thread: LoopThread) -> None:
    async def works() -> int:
        await asyncio.sleep(0)
        return 7

    async def fails() -> int:
        raise ValueError("seven")

    assert thread.submit(works()).result(timeout=10) == 7
    with pytest.raises(ValueError, match="seven"):
        thread.run(fails())


def test_a_future_that_is_cancelled_cancels_what_runs(thread: LoopThread) -> None:
    began, ended = threading.Event(), threading.Event()

    async def waits() -> None:
        began.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    future = thread.submit(waits())
    assert began.wait(10)
    assert future.cancel()
    assert ended.wait(10)
    with pytest.raises(CancelledError):
        future.result()


def test_what_is_cancelled_before_its_turn_never_begins(thread: LoopThread) -> None:
    held, ran = threading.Event(), threading.Event()

    async def holds() -> None:
        held.wait(10)

    async def never() -> None:
        ran.set()

    first = thread.submit(holds())
    second = thread.submit(never())
    assert second.cancel()
    held.set()
    first.result(timeout=10)
    assert second in wait([second], timeout=10).done
    assert thread.submit(asyncio.sleep(0, "after")).result(timeout=10) == "after"
    assert not ran.is_set()


def test_the_end_of_the_loop_cancels_what_runs() -> None:
    thread = LoopThread("test")
    future = thread.submit(asyncio.sleep(3600))
    thread.close()
    with pytest.raises(CancelledError):
        future.result(timeout=10)


def test_what_several_threads_submit_at_once_runs_in_the_order_of_each(thread: LoopThread) -> None:
    ran: list[tuple[int, int]] = []

    async def note(who: int, number: int) -> int:
        ran.append((who, number))
        return number

    def submit(who: int) -> None:
        futures = [thread.submit(note(who, number)) for number in range(500)]
        assert [each.result(timeout=10) for each in futures] == [*range(500)]

    threads = [threading.Thread(target=submit, args=(who,)) for who in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for who in range(4):
        assert [number for each, number in ran if each == who] == [*range(500)]


def test_a_loop_that_ends_takes_no_calls() -> None:
    """Such a call would begin after the last look at what runs, and never end."""
    thread = LoopThread("test")
    cancelled, goes_on = threading.Event(), threading.Event()

    async def ends_late() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            cancelled.set()
            await asyncio.to_thread(goes_on.wait, 10)

    late = thread.submit(ends_late())
    thread.run(asyncio.sleep(0))
    closing = threading.Thread(target=thread.close)
    closing.start()
    try:
        assert cancelled.wait(10)
        with pytest.raises(RuntimeError, match="closed"):
            thread.submit(asyncio.sleep(3600)).result(timeout=10)
    finally:
        goes_on.set()
        closing.join()
    assert late.cancelled()


def test_a_loop_that_has_stopped_takes_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = LoopThread("test")
    schedule = thread._loop.call_soon_threadsafe

    def submit_between(call: Callable[..., None], *given: Any) -> Handle:
        scheduled = schedule(call, *given)
        if call == thread._loop.stop:
            thread._thread.join()
            with pytest.raises(RuntimeError, match="closed"):
                thread.submit(asyncio.sleep(0))
        return scheduled

    monkeypatch.setattr(thread._loop, "call_soon_threadsafe", submit_between)
    thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        thread.submit(asyncio.sleep(0))


def test_a_closed_loop_tells_its_own_error() -> None:
    thread = LoopThread("test", lambda: KeyError("left"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(thread.run, asyncio.sleep(3600))
        while not thread.run(running()):
            pass
        thread.close()
        with pytest.raises(KeyError, match="left"):
            waiting.result(timeout=10)
    with pytest.raises(KeyError, match="left"):
        thread.run(asyncio.sleep(0))


async def running() -> int:
    """Return how many other calls run in the loop."""
    return len(asyncio.all_tasks()) - 1
