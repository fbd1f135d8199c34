"""Calls that are asked for ahead of their time: how long they wait, and what is refused.

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

from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.net.messages import Model
from anabranch.site.arithmetic import Flat
from anabranch.site.collectives import ExchangeError
from anabranch.site.terms import Op, Terms, Wire

from ..every import every
from .virtual import CONTROL_S, alike, complete, run

ELEMENTS = 5000
MEAN = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS)
SUM = Terms(Op.SUM, Wire.FLOAT32, ELEMENTS)
CALLS = 5


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
def test_a_call_that_was_promised_waits_for_no_plan(
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


@pytest.mark.parametrize(
    "other",
    [
        lambda group: exchange(group, SUM),
        lambda group: exchange(group, Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS - 1)),
        lambda group: group.agent.gather(b""),
        lambda group: group.agent.admit(),
    ],
)
def test_another_call_than_was_promised_is_refused_here_and_harms_no_other(
    other: Callable[[AsyncGroup], Coroutine[Any, Any, Any]],
) -> None:
    async def program(group: AsyncGroup) -> float:
        await exchange(group, more=True)
        if group.index:
            with pytest.raises(ValueError, match="has promised"):
                await other(group)
        mean = await exchange(group)
        return mean + await exchange(group, SUM)

    assert alike(2, program) == [1.5, 1.5]


def test_no_call_of_other_members_comes_before_one_that_was_promised() -> None:
    """The one that was promised has its room, for which a large one could wait for ever."""

    async def program(group: AsyncGroup) -> float:
        channel = await group.agent.subgroup((0, 1), "beside")
        await exchange(group, more=True)
        with pytest.raises(ValueError, match="has promised"):
            await exchange(group, channel=channel)
        await exchange(group)
        return await exchange(group, channel=channel)

    assert alike(2, program) == [0.5, 0.5]


@pytest.mark.parametrize("others_begin_first", [False, True])
def test_what_no_member_can_use_fails_a_call_that_was_promised(others_begin_first: bool) -> None:
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


def test_models_are_compared_beside_a_call_that_was_promised(
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
    assert every("the model of site 2 (s2) is no more that of site 0 (s0)" in each for each in said)


def test_a_site_that_promises_a_call_and_leaves_fails_it_by_name_and_the_others_go_on() -> None:
    """The scheduler takes the call for made, and the others would wait for ever."""

    async def program(group: AsyncGroup) -> float:
        mean = await exchange(group, more=True)
        if group.index == 2:
            return mean
        with pytest.raises(ExchangeError, match=r"site 2 \(s2\) has left, and not made the call"):
            await exchange(group)
        return await exchange(group)

    assert alike(3, program) == [0.5, 0.5, 1.0]


def test_a_group_whose_sites_promise_one_more_and_leave_ends_in_good_order() -> None:
    async def program(group: AsyncGroup) -> float:
        return await exchange(group, more=True)

    assert alike(2, program) == [0.5, 0.5]
