"""The thread of an event loop: what is submitted returns, fails or is cancelled as awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait

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


def test_a_closed_loop_takes_no_calls_and_cancels_those_that_it_has_not_started() -> None:
    thread = LoopThread("test")
    thread.close()
    # Another thread has submitted a call, in the moment in which this one finds the loop closed.
    other: Future[None] = Future()
    thread._submitted.append((asyncio.sleep(0), other))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="closed"):
            thread.submit(asyncio.sleep(0))
    assert other.cancelled()
