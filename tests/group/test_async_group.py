"""A site's part in a group, in an event loop: here in virtual time, with no thread and no clock."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.group.hand_over import Offer
from anabranch.net.errors import RunAborted
from anabranch.scheduler.stop_rules import StopRules
from anabranch.site.control import RoundsOver
from tests.group.virtual import alike, complete, run


def mean(elements: int) -> Terms:
    return Terms(Op.MEAN, Wire.FLOAT32, elements)


def test_sites_exchange_gather_and_leave_in_one_event_loop() -> None:
    async def program(group: AsyncGroup) -> tuple[float, tuple[int, ...], int, tuple[str, ...]]:
        values = np.full(5000, group.index, np.float32)
        done = await group.exchange(Flat(values), mean(5000))
        gathered = await group.agent.gather(b"%d" % group.index)
        return float(values[-1]), done.members, len(gathered.values), group.names

    assert alike(3, program) == [(1.0, (0, 1, 2), 3, ("s0", "s1", "s2"))] * 3


def test_the_state_of_training_is_handed_over_by_the_one_hand_over() -> None:
    async def program(group: AsyncGroup) -> float | None:
        admitted = await group.agent.admit()
        state = {"weights": np.full(3000, 7 + group.index, np.float32)}
        is_holder = group.index in admitted.holders
        handed = await group.hand_over(
            admitted, Offer(state, admitted.follows) if is_holder else None
        )
        return None if handed.state is None else float(handed.state["weights"][0])

    assert alike(3, program) == [None, 7.0, 7.0]


@pytest.mark.parametrize("on_loss", ["complete", "abort"])
def test_a_subgroup_that_is_first_made_once_the_time_is_over_ends_too(on_loss: Any) -> None:
    async def program(group: AsyncGroup) -> tuple[int, float]:
        value = np.full(10, group.index, np.float32)
        await group.exchange(Flat(value), mean(10))
        await asyncio.sleep(60.0 + group.index)
        if group.index > 1:
            return 0, 0.0
        pair = await group.agent.subgroup((0, 1))
        for calls in range(9):
            value[:] = group.index
            try:
                done = await group.exchange(Flat(value), mean(10), channel=pair)
            except RoundsOver:
                return calls, float(value[0])
            if done.is_last:
                return calls + 1, float(value[0])
        raise AssertionError("the subgroup goes on for ever")

    service = Service(complete(3), awareness=None, stop=StopRules(after_s=50.0), on_loss=on_loss)
    found = run(program, program, program, service=service)
    assert found == [(1, 0.5), (1, 0.5), (0, 0.0)]


def test_time_is_the_loops() -> None:
    async def program(group: AsyncGroup) -> float:
        before_s = group.now_s()
        await asyncio.sleep(1000.0)
        return group.now_s() - before_s

    assert alike(2, program) == [1000.0, 1000.0]


def test_what_a_program_raises_ends_its_part_and_is_said_to_the_others() -> None:
    async def program(group: AsyncGroup) -> Any:
        if group.index:
            error = ValueError("no data here")
            await group.fail(error)
            raise error
        await group.agent.ended_early()

    with pytest.raises((RunAborted, ValueError), match="no data here"):
        alike(2, program)


def test_a_subgroup_is_refused_each_time_that_it_is_asked_for_once_the_run_has_ended() -> None:
    refused: list[int] = []

    async def program(group: AsyncGroup) -> None:
        if group.index:
            await group.fail(ValueError("no data here"))
            return
        with pytest.raises(RunAborted):
            await group.agent.ended_early()
        for _ in range(2):
            with pytest.raises(RunAborted):
                await group.agent.subgroup((0, 1))
            refused.append(group.index)

    with pytest.raises(RunAborted, match="no data here"):
        alike(2, program)
    assert refused == [0, 0]
