"""A simulated site's machine and clock, against what integration by hand says."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anabranch.fleet import Slowdowns
from anabranch_lab.sim.loop import Deadlock, VirtualLoop, run_virtually
from anabranch_lab.sim.machine import Clock, Machine

STEADY = Slowdowns(starts_s=(0.0,), factors=(1.0,))
STOP, GO_ON = 0.0, -1.0  # as entries of a script; anything else is a factor

Script = Sequence[tuple[float, float]]


def loop_of_test() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def act(machine: Machine, action: float) -> None:
    if action == STOP:
        machine.stop()
    elif action == GO_ON:
        machine.go_on()
    else:
        machine.slow(action)


def ends_s(
    works_s: Sequence[float], script: Script, slowdowns: Slowdowns = STEADY, begin_s: float = 0.0
) -> list[float]:
    """Do work, one piece after another from ``begin_s`` on; return when each is done.

    The times of the script and of the result count from then, too.
    """

    async def main() -> list[float]:
        loop = loop_of_test()
        machine = Machine(loop)
        await asyncio.sleep(begin_s)
        machine.begin()
        for at_s, action in script:
            loop.call_at(begin_s + at_s, act, machine, action)
        ends = []
        for work_s in works_s:
            await machine.work(work_s, slowdowns)
            ends.append(loop.time() - begin_s)
        return ends

    return run_virtually(main())


def integrated_s(
    works_s: Sequence[float], script: Script, slowdowns: Slowdowns = STEADY
) -> list[float]:
    """Return the same by walking through all moments at which the speed changes."""
    moments = sorted({*slowdowns.starts_s, *(at_s for at_s, _ in script)})
    factor, stopped, at_s, ends = 1.0, False, 0.0, []
    left = list(works_s)
    for moment_s, next_s in zip(moments, [*moments[1:], float("inf")], strict=True):
        for when_s, action in script:
            if when_s == moment_s:
                stopped = action == STOP or (stopped and action != GO_ON)
                factor = action if action not in (STOP, GO_ON) else factor
        table = slowdowns.factors[bisect_right(slowdowns.starts_s, moment_s) - 1]
        at_s = moment_s
        while left and not stopped and at_s + left[0] * factor * table <= next_s:
            at_s += left.pop(0) * factor * table
            ends.append(at_s)
        if left and not stopped:
            left[0] -= (next_s - at_s) / (factor * table)
    return ends


def test_work_takes_as_long_as_it_says() -> None:
    assert ends_s([1.5, 0.0, 2.0], []) == [1.5, 1.5, 3.5]


@pytest.mark.parametrize(
    ("script", "end_s"),
    [
        ([(4.0, 3.0)], 4 + 6 * 3),  # slower from 4 s on
        ([(4.0, 3.0), (10.0, 1.0)], 4 + 6 + 4),  # and back: two of six done meanwhile
        ([(4.0, 3.0), (10.0, 6.0)], 4 + 6 + 4 * 6),  # slower still
        ([(4.0, STOP), (9.0, GO_ON)], 15.0),
        ([(0.0, STOP), (9.0, GO_ON)], 19.0),
        ([(4.0, STOP), (5.0, 2.0), (9.0, GO_ON)], 9 + 6 * 2),  # slowed while it stands still
        ([(4.0, 2.0), (6.0, STOP), (8.0, 1.0), (9.0, GO_ON)], 9 + 5),
        ([(10.5, STOP)], 10.0),  # when it is done
        ([(11.0, 5.0)], 10.0),
    ],
)
def test_faults_stretch_the_work_in_hand(script: Script, end_s: float) -> None:
    assert ends_s([10.0], script) == pytest.approx([end_s], rel=1e-12)


def test_the_table_counts_from_the_beginning_of_the_run_and_multiplies_with_faults() -> None:
    table = Slowdowns(starts_s=(0.0, 10.0, 20.0), factors=(1.0, 4.0, 1.0))
    # 8 s until the table slows down at 10, 0.5 done by 12, 1 more by 20 at an eighth, 1 left.
    script = [(12.0, 2.0), (20.0, 1.0)]
    assert ends_s([2.0, 9.5], script, table, begin_s=100.0) == pytest.approx([2.0, 20.0])
    assert ends_s([2.0, 10.5], script, table, begin_s=100.0) == pytest.approx([2.0, 21.0])


def test_a_factor_set_while_there_is_nothing_to_do_holds_for_the_next_work() -> None:
    async def main() -> float:
        loop = loop_of_test()
        machine = Machine(loop)
        machine.begin()
        await machine.work(1.0)
        machine.slow(3.0)
        await asyncio.sleep(5.0)  # idle time does no work
        await machine.work(2.0)
        return loop.time()

    assert run_virtually(main()) == 12.0


# Odd ones: whether a stop at the very end of work comes before that end is nobody's business.
moments = st.integers(0, 6000).map(lambda n: n / 100 + 0.00314159)
factors = st.sampled_from([0.25, 1.0, 1.5, 4.0, 20.0])


@given(
    works_s=st.lists(st.floats(0.0, 20.0), min_size=1, max_size=5),
    script=st.lists(
        st.tuples(moments, st.one_of(factors, st.sampled_from([STOP, GO_ON]))), max_size=10
    ),
    starts_s=st.sets(moments, max_size=4),
    table=st.lists(factors, min_size=5, max_size=5),
    begin_s=st.sampled_from([0.0, 17.0]),
)
@example([10.0], [(5.0, STOP), (5.0, GO_ON)], {5.0}, [1.0, 2.0, 1.0, 1.0, 1.0], 0.0)
@settings(max_examples=150, deadline=None)
def test_any_script_over_any_table_is_integrated_exactly(
    works_s: list[float],
    script: list[tuple[float, float]],
    starts_s: set[float],
    table: list[float],
    begin_s: float,
) -> None:
    starts = sorted({0.0, *starts_s})
    slowdowns = Slowdowns(starts_s=tuple(starts), factors=tuple(table[: len(starts)]))
    script = [*sorted(script, key=lambda each: each[0]), (61.0, GO_ON)]  # or it might never end
    expected = integrated_s(works_s, script, slowdowns)
    assert ends_s(works_s, script, slowdowns, begin_s) == pytest.approx(expected, rel=1e-9)


def test_a_machine_that_stands_still_for_ever_never_ends() -> None:
    async def main() -> None:
        loop = loop_of_test()
        machine = Machine(loop)
        machine.begin()
        loop.call_at(0.5, machine.stop)
        await loop.create_task(machine.work(1.0), name="site Oslo")

    with pytest.raises(Deadlock, match=r"any more: site Oslo waits in Machine\.work$"):
        run_virtually(main())


def test_work_that_is_cancelled_leaves_the_machine_free() -> None:
    async def main() -> float:
        loop = loop_of_test()
        machine = Machine(loop)
        machine.begin()
        work = asyncio.ensure_future(machine.work(10.0))
        await asyncio.sleep(3.0)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await machine.work(2.0)
        return loop.time()

    assert run_virtually(main()) == 5.0


# --- clocks ---------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.floats(0.0, 100.0), st.floats(-1e3, 1e3), st.floats(-0.1, 0.1)), max_size=6
)


@given(steps=steps, then_s=st.floats(0.0, 1000.0))
@settings(max_examples=60, deadline=None)
def test_a_clock_is_wrong_by_all_its_jumps_and_by_what_it_has_gained_since_each(
    steps: list[tuple[float, float, float]], then_s: float
) -> None:
    async def main() -> tuple[float, float]:
        loop = loop_of_test()
        clock = Clock(loop)
        wrong_s, drifts = 0.0, []
        for wait_s, offset_s, drift in steps:
            await asyncio.sleep(wait_s)
            clock.step(offset_s, drift)
            wrong_s += offset_s
            drifts.append((loop.time(), drift))
        await asyncio.sleep(then_s)
        now_s = loop.time()
        gained_s = sum(drift * (now_s - since_s) for since_s, drift in drifts)
        return clock.now_s(), now_s + wrong_s + gained_s

    read_s, expected_s = run_virtually(main())
    assert read_s == pytest.approx(expected_s, rel=1e-9, abs=1e-9)


def test_a_clock_that_nobody_touches_is_right() -> None:
    async def main() -> None:
        loop = loop_of_test()
        clock = Clock(loop)
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert clock.now_s() == loop.time()

    run_virtually(main())


def test_a_clock_jumps_first_and_drifts_from_then_on() -> None:
    async def main() -> list[float]:
        clock = Clock(loop_of_test())
        read = []
        await asyncio.sleep(10.0)
        clock.step(offset_s=5.0, drift=0.5)
        read.append(clock.now_s())
        await asyncio.sleep(4.0)
        read.append(clock.now_s())
        clock.step(offset_s=-21.0, drift=-0.5)  # right again by now, and in step
        await asyncio.sleep(4.0)
        return [*read, clock.now_s()]

    assert run_virtually(main()) == [15.0, 21.0, 4.0]
