"""What a site says of its calls to a scheduler that was restarted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from anabranch.exchange.terms import Op, Terms, Wire, signature_of
from anabranch.net.messages import (
    Gathered,
    Grant,
    OpenExchange,
    OpenGathering,
    Repair,
    Settled,
    encode,
)
from anabranch.overlay import internet2_9
from anabranch.plan import Plan, dumps, restrict, star
from anabranch.site.channel import Channel, Channels, Gathering, RequestedExchange
from anabranch_lab.sim.loop import run_virtually

PLAN = star(internet2_9())
SIGNATURE = signature_of(Terms(Op.MEAN, Wire.FLOAT32, 100))


def asked(place: int) -> RequestedExchange:
    granted: asyncio.Future[tuple[Grant, Plan]] = asyncio.get_running_loop().create_future()
    return RequestedExchange(0.0, place, SIGNATURE, False, granted)


def test_exchanges_that_were_asked_for_or_granted_are_told_and_those_that_failed_are_not() -> None:
    async def play() -> None:
        channel = Channel(PLAN, number=4, waiting={number: asked(number) for number in range(1, 5)})
        channel.waiting[2].granted.set_result((Grant(7, 2, 31, 1, "", 64), PLAN))
        channel.waiting[3].granted.set_exception(ValueError())
        channel.waiting[3].granted.exception()
        channel.waiting[4].granted.cancel()
        channel.interrupted[2] = 5
        told = channel.snapshot(7, 0)
        assert (told.channel, told.version, told.asked, told.gathered) == (7, PLAN.version, 4, 0)
        assert told.exchanges == (
            OpenExchange(1, SIGNATURE, 1, 0, 0, 0, ()),
            OpenExchange(2, SIGNATURE, 2, 31, 64, 5, (31,)),
        )

    run_virtually(play())


def test_gatherings_and_the_latest_answers_are_told() -> None:
    async def play() -> None:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        channel = Channel(PLAN, number=1, gathered=2)
        channel.gathering[2] = Gathering(3, b"value", False, "barrier", answered)
        settled, gathered = Settled(0, 1, (0, 1), ()), Gathered(0, 1, (b"a", b"b"))
        channel.ended.append(settled)
        channel.answers[1] = gathered
        told = channel.snapshot(0, 0)
        assert told.gatherings == (OpenGathering(2, 3, b"value", False, "barrier"),)
        assert told.answers == (encode(settled), encode(gathered))
        assert channel.calls_made == 3
        assert channel.heard == 1

    run_virtually(play())


def test_interruptions_of_what_was_not_granted_are_forgotten() -> None:
    async def play() -> None:
        channel = Channel(PLAN, number=2, waiting={1: asked(1), 2: asked(2)})
        channel.waiting[1].granted.set_result((Grant(0, 1, 31, 1, "", 64), PLAN))
        repairs = {number: Repair(0, number, 1, 1, "", ()) for number in (1, 2, 3)}
        channel.interrupted = dict.fromkeys((1, 2, 3), 1)
        channel.repairs = {number: (repair, PLAN) for number, repair in repairs.items()}
        forgotten = channel.forget_interruptions()
        assert sorted(each.number for each in forgotten) == [2, 3]
        assert channel.interrupted == {1: 1}
        assert channel.repairs == {1: (repairs[1], PLAN)}

    run_virtually(play())


def test_a_subgroup_goes_by_its_own_plan_of_the_version_that_all_sites_have() -> None:
    """What is said of it may come before that plan: until then it goes by that of all sites."""
    planned: list[Plan] = []
    channels = Channels(planned.append)
    channels.begin(PLAN)
    pair = restrict(PLAN, [0, 1])
    assert channels.of(1).plan is PLAN
    assert channels.take(1, dumps(pair)) == channels[1].plan == pair
    assert (pair.version, channels.plan, planned) == (PLAN.version, PLAN, [])


def test_a_plan_that_comes_late_is_kept_and_is_not_the_latest() -> None:
    planned: list[Plan] = []
    channels = Channels(planned.append)
    channels.begin(replace(PLAN, version=3))
    late = replace(PLAN, version=2)
    assert channels.plan_of(0, 2, dumps(late)) == late
    assert channels.plan_of(0, 2, "") == late
    assert (channels.plan.version, planned) == (3, [])
    newer = replace(PLAN, version=4)
    assert channels.plan_of(0, 4, dumps(newer)) == newer
    assert (channels.plan, planned) == (newer, [newer])
