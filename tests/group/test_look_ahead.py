"""Calls that are asked for ahead of their time: how long they wait, and what takes that back.

In virtual time, where a word to the scheduler and back takes ``2 * CONTROL_S``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.net.messages import Model
from anabranch.scheduler.stop_rules import StopRules
from anabranch.site.control import RoundsOver
from anabranch.site.round import ExchangeError

from ..every import every
from .virtual import CONTROL_S, alike, complete, run

ELEMENTS = 5000
MEAN = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS)
SUM = Terms(Op.SUM, Wire.FLOAT32, ELEMENTS)
CALLS = 4  # fewer than lead to a lease


async def exchange(group: AsyncGroup, terms: Terms = MEAN, **how: Any) -> float:
    """Exchange this site's index; return the first element of the result."""
    values = np.full(terms.elements, group.index, np.float32)
    await group.exchange(Flat(values), terms, **how)
    return float(values[0])


async def round_trips(
    group: AsyncGroup, call: Callable[[int], Coroutine[Any, Any, float]]
) -> list[int]:
    """Make calls with steps between; return how many words to and fro each waited for."""
    waited = []
    for number in range(CALLS):
        began_s = group.now_s()
        assert await call(number) == 0.5
        waited.append(round((group.now_s() - began_s) / (2 * CONTROL_S)))
        await asyncio.sleep(6 * CONTROL_S)  # a step
    return waited


@pytest.mark.parametrize(("on_loss", "settling"), [("abort", 0), ("complete", 1)])
def test_a_call_that_was_asked_for_ahead_waits_for_no_plan(
    on_loss: Literal["abort", "complete"], settling: int
) -> None:
    """Where others can do without a site, all wait to hear that each has the result."""

    async def program(group: AsyncGroup, more: bool) -> list[int]:
        def call(number: int) -> Coroutine[Any, Any, float]:
            return exchange(group, more=more and number < CALLS - 1)

        return await round_trips(group, call)

    service = Service(complete(2), awareness=None, on_loss=on_loss)
    for more, waited in ((False, [1] * CALLS), (True, [1] + [0] * (CALLS - 1))):
        expected = [each + settling for each in waited]
        assert run(*[partial(program, more=more)] * 2, service=service) == [expected] * 2


def test_a_call_is_asked_for_ahead_by_itself() -> None:
    async def program(group: AsyncGroup) -> list[int]:
        async def call(number: int) -> float:
            mean = await exchange(group)
            if number < CALLS - 1:
                group.agent.ask_ahead(MEAN)
            return mean

        return await round_trips(group, call)

    assert alike(2, program) == [[2] + [1] * (CALLS - 1)] * 2


OTHERS = [
    lambda group: exchange(group, SUM),
    lambda group: exchange(group, Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS - 1)),
    lambda group: group.agent.gather(b""),
    lambda group: group.agent.admit(),
]


@pytest.mark.parametrize("on_loss", ["abort", "complete"])
@pytest.mark.parametrize("other", OTHERS[:3])
@pytest.mark.parametrize("who", [(0,), (1,), (0, 1, 2)])
def test_another_call_than_was_asked_for_ahead_takes_that_back(
    who: tuple[int, ...],
    other: Callable[[AsyncGroup], Coroutine[Any, Any, Any]],
    on_loss: Literal["abort", "complete"],
) -> None:
    """Whichever sites had asked, and in whichever order they make the call."""

    async def program(group: AsyncGroup) -> float:
        await exchange(group, more=group.index in who)
        await asyncio.sleep(CONTROL_S * (4 + 3 * group.index))  # it is granted by now
        await other(group)
        await exchange(group, more=group.index in who)  # taken back before it is granted
        await other(group)
        mean = await exchange(group)
        return mean + await exchange(group, SUM)

    service = Service(complete(3), awareness=None, on_loss=on_loss)
    assert run(*[program] * 3, service=service) == [4.0] * 3


def test_sites_are_let_in_between_a_call_and_one_that_was_asked_for_ahead() -> None:
    async def program(group: AsyncGroup) -> float:
        await exchange(group, more=True)
        await asyncio.sleep(4 * CONTROL_S)
        await group.agent.admit()
        return await exchange(group)

    assert alike(3, program) == [1.0] * 3


def test_a_large_call_of_some_members_gets_the_room_of_one_that_was_asked_for_ahead() -> None:
    """What is granted takes room, and its call comes after the one that waits for it."""

    async def program(group: AsyncGroup) -> float:
        channel = await group.agent.subgroup((0, 1), "beside")
        await exchange(group, more=True)
        await asyncio.sleep(4 * CONTROL_S)
        await exchange(group, channel=channel)
        mean = await exchange(group)
        return mean + await exchange(group, channel=channel)

    service = Service(complete(2), awareness=None, under_way_bytes=4 * ELEMENTS)
    assert run(program, program, service=service) == [1.0, 1.0]


def test_a_call_that_one_site_asked_for_ahead_and_others_make_with_other_terms_names_both() -> None:
    async def program(group: AsyncGroup) -> float:
        await exchange(group, more=group.index == 0)
        await asyncio.sleep(4 * CONTROL_S * (1 + group.index))
        with pytest.raises(ExchangeError, match=r"site 0 \(s0\) .* site 1 \(s1\)"):
            await exchange(group, SUM if group.index else MEAN)
        return await exchange(group)

    assert alike(2, program) == [0.5, 0.5]


def test_a_mean_of_models_is_called_for_after_a_site_took_back_that_it_would_be_next() -> None:
    """Whose request was the first is named where two disagree, unless it was taken back."""

    async def program(group: AsyncGroup) -> float:
        await exchange(group, more=group.index == 0)
        await asyncio.sleep(4 * CONTROL_S * (1 + group.index))
        if group.index:
            await exchange(group, SUM)
        else:
            await exchange(group, SUM)
        return await exchange(group)

    assert alike(2, program) == [0.5, 0.5]


@pytest.mark.parametrize("others_begin_first", [False, True])
def test_what_no_member_can_use_fails_a_call_asked_for_ahead(
    others_begin_first: bool,
) -> None:
    async def program(group: AsyncGroup) -> float:
        await exchange(group, more=True)
        if others_begin_first == bool(group.index):
            await asyncio.sleep(10 * CONTROL_S)
        values = np.full(ELEMENTS, group.index, np.float32)
        unfit = "2 NaN" if group.index else ""
        with pytest.raises(ExchangeError, match=r"site 1 \(s1\) has 2 NaN"):
            await group.exchange(Flat(values), MEAN, unfit=unfit)
        assert set(values.tolist()) == {float(group.index)}
        return await exchange(group)

    assert alike(2, program) == [0.5, 0.5]


def test_models_are_compared_beside_a_call_that_was_asked_for_ahead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def program(group: AsyncGroup) -> float:
        await exchange(group, more=True)
        model = Model(step=2, checksum=7 + group.index // 2, is_first=False)
        mean = await exchange(group, model=model)
        await group.agent.gather(b"")  # after which what was said is here
        return mean

    with caplog.at_level(logging.WARNING, "anabranch"):
        assert alike(3, program) == [1.0] * 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3  # each site says it once
    assert every(
        "the model of site 2 (s2) no longer equals that of site 0 (s0)" in each for each in said
    )


@pytest.mark.parametrize("on_loss", ["abort", "complete"])
def test_the_others_go_on_without_a_site_that_leaves_after_it_asked_ahead(
    on_loss: Literal["abort", "complete"],
) -> None:
    async def program(group: AsyncGroup) -> float:
        mean = await exchange(group, more=True)
        await asyncio.sleep(4 * CONTROL_S)
        if group.index == 2:
            return mean
        await asyncio.sleep(4 * CONTROL_S)
        if on_loss == "complete":
            return await exchange(group)
        with pytest.raises(ExchangeError, match=r"site 2 \(s2\) has left"):
            await exchange(group)
        return 0.5

    service = Service(complete(3), awareness=None, on_loss=on_loss)
    assert run(*[program] * 3, service=service) == [0.5, 0.5, 1.0]


def test_a_site_that_left_is_let_go_once_a_call_needs_it_and_not_as_one_is_asked_for_ahead() -> (
    None
):
    """Until then what the others say to one another may take its lanes."""

    async def program(group: AsyncGroup) -> float:
        mean = await exchange(group)
        if group.index == 2:
            return mean
        await asyncio.sleep(4 * CONTROL_S)
        group.agent.ask_ahead(MEAN)
        await asyncio.sleep(4 * CONTROL_S)
        assert group.agent._collectives.plan.members == {0, 1, 2}
        mean = await exchange(group)
        assert group.agent._collectives.plan.members == {0, 1}
        return mean

    assert alike(3, program) == [0.5, 0.5, 1.0]


def test_a_group_whose_sites_ask_for_one_more_and_leave_ends_in_good_order() -> None:
    async def program(group: AsyncGroup) -> float:
        return await exchange(group, more=True)

    assert alike(2, program) == [0.5, 0.5]


def test_sites_that_leave_give_back_the_room_of_what_they_asked_for_ahead() -> None:
    async def program(group: AsyncGroup) -> list[int] | None:
        leave = group.index < 2
        channel = await group.agent.subgroup((0, 1) if leave else (2, 3))
        if leave:
            await exchange(group, channel=channel, more=True)
            return None

        async def call(number: int) -> float:
            mean = await exchange(group, channel=channel)
            if number < CALLS - 1:
                group.agent.ask_ahead(MEAN, channel)
            return mean - 2

        await asyncio.sleep(20 * CONTROL_S)
        return await round_trips(group, call)

    service = Service(complete(4), awareness=None, under_way_bytes=4 * ELEMENTS)
    waited = [2] + [1] * (CALLS - 1)
    assert run(*[program] * 4, service=service) == [None, None, waited, waited]


@pytest.mark.parametrize("on_loss", ["abort", "complete"])
def test_a_call_that_its_channels_end_refuses_takes_back_nothing_elsewhere(
    on_loss: Literal["abort", "complete"],
) -> None:
    """The scheduler does not hear of it."""

    async def program(group: AsyncGroup) -> float:
        channel = await group.agent.subgroup((0, 1), "beside")
        await exchange(group)
        for _ in range(2):
            group.agent.ask_ahead(MEAN, channel)
            with pytest.raises(RoundsOver):
                await exchange(group)
        return await exchange(group, channel=channel)

    stop = StopRules(rounds=1)
    service = Service(complete(2), awareness=None, on_loss=on_loss, stop=stop)
    assert run(program, program, service=service) == [0.5, 0.5]
