from __future__ import annotations

import asyncio
import threading

import pytest

from anabranch_lab.sim.loop import Deadlock, VirtualLoop, run_virtually


def test_a_year_passes_at_once() -> None:
    async def sleep() -> float:
        await asyncio.sleep(365 * 86400.0)
        return asyncio.get_running_loop().time()

    assert run_virtually(sleep()) == 365 * 86400.0


def test_equal_times_are_first_in_first_out_whatever_scheduled_them() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen: list[str] = []
        loop.call_at(1.0, seen.append, "timer")
        loop.at(1.0, seen.append, "raw")
        loop.call_later(1.0, seen.append, "later")
        loop.call_at(0.5, lambda: loop.call_at(1.0, seen.append, "scheduled afterwards"))
        await asyncio.sleep(2.0)
        return seen

    assert run_virtually(main()) == ["timer", "raw", "later", "scheduled afterwards"]


def test_what_is_due_runs_before_what_it_makes_ready() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        seen: list[str] = []
        loop.call_at(1.0, lambda: loop.call_soon(seen.append, "made ready"))
        loop.call_at(1.0, seen.append, "due")
        await asyncio.sleep(2.0)
        return seen

    assert run_virtually(main()) == ["due", "made ready"]


def test_a_timer_in_the_past_runs_now_and_after_what_is_ready() -> None:
    async def main() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(5.0)
        seen: list[str] = []
        loop.call_at(1.0, seen.append, "late")
        loop.call_soon(seen.append, "soon")
        await asyncio.sleep(0.1)
        return seen, loop.time()

    assert run_virtually(main()) == (["soon", "late"], 5.1)


def test_what_is_made_ready_runs_before_a_timer_set_later_for_the_same_instant() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        seen: list[str] = []

        def due() -> None:
            loop.call_soon(seen.append, "first")
            loop.call_at(1.0, seen.append, "second")

        loop.call_at(1.0, due)
        await asyncio.sleep(2.0)
        return seen

    assert run_virtually(main()) == ["first", "second"]


def test_a_cancelled_timer_does_nothing() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        seen: list[str] = []
        loop.call_at(1.0, seen.append, "cancelled").cancel()
        await asyncio.sleep(2.0)
        return seen

    assert run_virtually(main()) == []


def test_the_end_of_an_instant_comes_after_all_that_happens_in_it() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen: list[str] = []
        loop.at_end_of_instant(lambda: seen.append(f"end at {loop.time()}"))
        loop.call_soon(loop.call_soon, seen.append, "twice removed")
        loop.at(1.0, seen.append, "next instant")
        await asyncio.sleep(2.0)
        return seen

    assert run_virtually(main()) == ["twice removed", "end at 0.0", "next instant"]


def test_the_end_of_an_instant_waits_for_what_is_due_in_it() -> None:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        seen: list[str] = []
        loop.at_end_of_instant(lambda: seen.append("end"))
        loop.call_later(0.0, seen.append, "due now")
        loop.at(0.0, seen.append, "due now too")
        await asyncio.sleep(1.0)
        return seen

    assert run_virtually(main()) == ["due now", "due now too", "end"]


@pytest.mark.parametrize("how", ["call_soon", "call_later", "at"])
def test_a_callback_that_raises_ends_the_run(how: str) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        match how:
            case "call_soon":
                loop.call_soon(lambda: 1 // 0)
            case "call_later":
                loop.call_later(1.0, lambda: 1 // 0)
            case _:
                loop.at(1.0, lambda: 1 // 0)
        await asyncio.sleep(2.0)

    with pytest.raises(ZeroDivisionError):
        run_virtually(main())


def test_a_deadlock_names_who_waits_and_where() -> None:
    async def for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.explain.append(lambda: ["the link is cut"])
        await asyncio.gather(asyncio.create_task(for_ever(), name="site Oslo"))

    with pytest.raises(Deadlock, match=r"the link is cut; site Oslo waits in .*for_ever$"):
        run_virtually(main())


def test_a_deadlock_groups_who_waits_in_the_same_place_and_leaves_out_who_has_no_name() -> None:
    class Site:
        async def starve(self) -> None:
            await asyncio.wait_for(asyncio.Event().wait(), None)

        async def thirst(self) -> None:
            await asyncio.Event().wait()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.explain.append(lambda: ["b is cut", "c is cut"])
        site = Site()
        named = [loop.create_task(site.starve(), name=name) for name in "gfdcbea"]
        named += [loop.create_task(site.thirst(), name=name) for name in "yx"]
        await asyncio.sleep(2.5)
        await asyncio.gather(*named, site.starve())  # the last has no name, as main has none

    with pytest.raises(Deadlock) as caught:
        run_virtually(main())
    where = main.__qualname__.replace("main", "Site")
    assert str(caught.value) == (
        "nothing can happen any more: b is cut; c is cut; "
        f"x, y wait in {where}.thirst; a, b, c, d, e and 2 more wait in {where}.starve"
    )


def test_time_does_not_move_for_a_cancelled_timer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_at(100.0, print).cancel()
        try:
            await asyncio.Event().wait()
        finally:
            assert loop.time() == 0.0

    with pytest.raises(Deadlock, match="nothing can happen any more"):
        run_virtually(main())


def test_tasks_end_in_order_after_a_deadlock() -> None:
    ended: list[int] = []

    async def patient(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def main() -> None:
        await asyncio.gather(*(patient(i) for i in range(3)))

    with pytest.raises(Deadlock):
        run_virtually(main())
    assert sorted(ended) == [0, 1, 2]


@pytest.mark.parametrize("how", ["call_soon_threadsafe", "call_soon", "call_later", "future"])
def test_a_call_from_another_thread_is_an_error_there(how: str) -> None:
    async def main() -> list[BaseException]:
        loop = asyncio.get_running_loop()
        caught: list[BaseException] = []
        future = loop.create_future()
        future.add_done_callback(lambda done: None)

        def call_in() -> None:
            try:
                match how:
                    case "call_later":
                        loop.call_later(1.0, print)
                    case "future":
                        future.set_result(None)
                    case _:
                        getattr(loop, how)(print)
            except RuntimeError as error:
                caught.append(error)

        thread = threading.Thread(target=call_in, name="intruder")
        thread.start()
        thread.join()
        return caught

    (error,) = run_virtually(main())
    assert "intruder calls into a simulation" in str(error)


def test_an_interruption_is_not_a_deadlock() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        comes: asyncio.Future[None] = loop.create_future()
        waits = loop.create_task(asyncio.wait_for(comes, None))
        await asyncio.sleep(0)
        comes.set_result(None)
        loop._ready.clear()  # an interruption between taking a callback and running it loses it
        assert not waits.done()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_virtually(main())


def test_the_executor_works_in_place_and_takes_no_time() -> None:
    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        thread = await loop.run_in_executor(None, threading.get_ident)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)
        return thread, loop.time()

    assert run_virtually(main()) == (threading.get_ident(), 0.0)


def test_real_sockets_are_refused() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)

    with pytest.raises(RuntimeError, match="a simulation has no sockets"):
        run_virtually(main())


def test_time_outs_are_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1000.0)
        async with asyncio.timeout(50.0):
            await asyncio.sleep(49.0)
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 1049.0
