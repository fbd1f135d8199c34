from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import anabranch
from anabranch.net.deadline import AwakeTime, after, within
from anabranch_lab.sim.loop import VirtualLoop, process_of, run_virtually

from ..parsed import nodes


def fires_after_s(delay_s: float, *stalls: tuple[float, float]) -> float:
    """Return when a deadline fires, where its process stands still from each moment to another."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for begins_s, ends_s in stalls:
            loop.at(begins_s, loop.stand_still, "process")
            loop.at(ends_s, loop.go_on, "process")
        fired: asyncio.Future[float] = loop.create_future()
        before = process_of.set("process")
        after(delay_s, lambda: fired.set_result(loop.time()))
        process_of.reset(before)
        return await fired

    return run_virtually(main())


@pytest.mark.parametrize(
    ("delay_s", "stalls", "fires_s"),
    [
        (6.0, [], 6.0),
        (0.1, [], 0.1),
        # A stall of its whole time or more: all of it is granted again.
        (6.0, [(1.0, 9.0)], 15.0),
        (0.5, [(0.1, 9.0)], 9.5),
        # A short one counts as if it had not been.
        (6.0, [(1.1, 3.1)], 8.0 - 0.1),
        # A stall at the end: at least as long again is left.
        (6.0, [(5.95, 7.0)], 8.0),
        # Awake for a moment between two stalls.
        (6.0, [(1.0, 9.0), (9.08, 17.0)], 23.0),
        # An interval between two looks that is missed by less than a heartbeat is no stall.
        (6.0, [(1.1, 1.4)], 6.0),
    ],
)
def test_a_deadline_counts_only_the_time_in_which_its_process_ran(
    delay_s: float, stalls: list[tuple[float, float]], fires_s: float
) -> None:
    assert fires_after_s(delay_s, *stalls) == pytest.approx(fires_s)


def test_a_process_that_is_late_now_and_then_still_ends_its_deadlines() -> None:
    stalls = [(second + 0.1, second + 0.9) for second in range(0, 60, 2)]
    assert fires_after_s(6.0, *stalls) < 15.0


def test_a_moment_that_has_passed_is_due_at_once() -> None:
    time = AwakeTime(due_s=1.0, now_s=2.0)
    assert time.look_s == 1.0
    assert time.look(2.0)


def test_what_is_awaited_within_a_deadline_ends_with_it() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with within(6.0):
                await asyncio.sleep(7.0)
        async with within(6.0):
            await asyncio.sleep(1.0)
        return asyncio.get_running_loop().time()

    assert run_virtually(main()) == 7.0


def test_a_deadline_that_is_cancelled_does_not_call_back() -> None:
    async def main() -> list[str]:
        fired: list[str] = []
        deadline = after(6.0, fired.append, "fired")
        await asyncio.sleep(5.0)
        deadline.cancel()
        await asyncio.sleep(5.0)
        return fired

    assert run_virtually(main()) == []


# Timers that blame no other process; all others of these rooms are Deadlines.
BLAMES_NONE = {
    "net/deadline.py": "is what deadlines are made of",
    "net/http.py": "lets a slow reader of metrics go",
    "net/_liveness.py": "its heartbeat: Silence asks itself whether the process stood still",
    "net/shaping.py": "holds a link to its rate",
    "scheduler/_cut_links.py": "looks at a link again",
    "scheduler/_stopping.py": "ends a run whose time is over",
    "site/_gossiping.py": "makes a lane again",
    "site/control.py": "sends what waits for the next message",
    "site/serving.py": "ends at once, when it is told to",
    "site/_reporting.py": "tells the scheduler of progress",
    "site/_waiting.py": "says that this site waits",
}
TIMERS = {"call_later", "call_at", "timeout", "wait_for"}


def timers(path: Path) -> Iterator[str]:
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            bounded = node.func.attr == "wait" and any(k.arg == "timeout" for k in node.keywords)
            if node.func.attr in TIMERS or bounded:
                yield node.func.attr


def test_a_timer_that_blames_another_asks_first_whether_this_process_stood_still() -> None:
    source = Path(anabranch.__file__).parent
    found = {
        str(path.relative_to(source))
        for room in ("net", "scheduler", "site")
        for path in (source / room).glob("*.py")
        if any(timers(path))
    }
    assert found == BLAMES_NONE.keys()
