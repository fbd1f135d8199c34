"""Bursts measure the links of a group whose network is not known, before its first exchange."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.group.group_file import complete as named
from anabranch.log import events
from anabranch.net.errors import MalformedMessage
from anabranch.net.messages import BurstChunk, LinkRate
from anabranch.overlay import Link, Overlay
from anabranch.scheduler._awaited_bursts import AwaitedBursts
from anabranch.scheduler.awareness import Passive
from anabranch.site._bursts import Bursts
from anabranch.site.neighbourhood import DataPlaneConfig, Neighbourhood
from anabranch_lab.sim.loop import run_virtually

from ..every import every
from .virtual import Log, as_told, run

NAMES = ["s0", "s1", "s2", "s3"]
ELEMENTS = 1_000_000


def truth() -> Overlay:
    """Return four sites, whose links differ in rate and latency."""
    overlay = named(NAMES, 1e8)
    rates = 1e7, 5e7, 1e8, 2e8
    links = [
        replace(link, rate_bps=rates[(place * 7) % 4], latency_s=0.005 * (1 + link.source % 2))
        for place, link in enumerate(overlay.links)
    ]
    return replace(overlay, links=tuple(links))


async def one_mean(group: AsyncGroup) -> None:
    buffer = np.full(ELEMENTS, group.index, np.float32)
    await group.exchange(Flat(buffer), Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS))
    assert buffer[0] in (0.5, 1.5), "the mean of two sites, or of four"
    assert every(buffer == buffer[0])


def measured(log: Log) -> dict[tuple[int, int], events.LinkMeasured]:
    """Return the first measurement of each link."""
    found: dict[tuple[int, int], events.LinkMeasured] = {}
    for event in log.events:
        if isinstance(event, events.LinkMeasured):
            found.setdefault((event.source, event.target), event)
    return found


def first_exchange(start: str) -> tuple[Log, float]:
    log, service = Log(), Service(named(NAMES, None), awareness=Passive(start=start))  # type: ignore[arg-type]
    run(*[one_mean] * 4, service=service, start=as_told, truth=truth(), log=log)
    began = min(event.at_s for event in log.events if isinstance(event, events.RoundBegan))
    ended = max(event.at_s for event in log.events if isinstance(event, events.RoundDone))
    return log, ended - began


def test_the_first_plan_is_for_the_links_as_they_are() -> None:
    log, took_s = first_exchange("burst")
    found = measured(log)
    for link in truth().links:
        first = found[link.source, link.target]
        assert first.rate_bps == pytest.approx(link.rate_bps, rel=0.05)
        back = truth().link(link.target, link.source)
        assert isinstance(back, Link)
        mean_s = (link.latency_s + back.latency_s) / 2  # only both together can be known
        assert first.latency_s == pytest.approx(mean_s, rel=0.1)
    began = [event for event in log.events if isinstance(event, events.RoundBegan)]
    assert every(each.at_s < began[0].at_s for each in found.values())
    _, of_equal_s = first_exchange("equal")
    assert took_s < 0.7 * of_equal_s


def test_a_burst_that_never_ends_holds_the_first_exchange_up_for_seconds_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send = Bursts._burst

    async def burst(self: Bursts, target: int) -> None:
        if self._config.site == 3:
            await asyncio.Event().wait()
        await send(self, target)

    monkeypatch.setattr(Bursts, "_burst", burst)
    log, _ = first_exchange("burst")
    began_s = min(event.at_s for event in log.events if isinstance(event, events.RoundBegan))
    assert 5 < began_s < 6
    assert {source for source, _ in measured(log)} >= {0, 1, 2}


def test_sites_that_have_not_joined_are_not_waited_for() -> None:
    service = Service(named(NAMES, None), awareness=Passive(start="burst"), begin_with=2)
    log = Log()
    run(*[one_mean] * 2, service=service, start=as_told, truth=truth(), log=log)
    began_s = min(event.at_s for event in log.events if isinstance(event, events.RoundBegan))
    assert began_s < 2


def test_filler_that_a_slow_link_has_not_carried_does_not_precede_the_first_exchange() -> None:
    overlay = named(NAMES[:2], 1e5)
    service = Service(named(NAMES[:2], None), awareness=Passive(start="burst"))

    async def mean(group: AsyncGroup) -> float:
        buffer = np.full(1000, group.index, np.float32)
        await group.exchange(Flat(buffer), Terms(Op.MEAN, Wire.FLOAT32, 1000))
        return group.now_s()

    ended_s = run(*[mean] * 2, service=service, start=as_told, truth=overlay)
    assert max(ended_s) < 8


def test_the_scheduler_awaits_a_site_that_stands_still_for_seconds_only() -> None:
    async def wait() -> float:
        loop = asyncio.get_running_loop()
        bursts = AwaitedBursts(lambda: over.append(loop.time()))
        bursts.begin({0, 1})
        bursts.over(0)
        await bursts.wait_until_over()
        return loop.time()

    over: list[float] = []
    assert 5 < run_virtually(wait()) < 10
    assert len(over) == 1


def test_what_a_neighbour_says_that_cannot_be_is_refused_or_ignored() -> None:
    async def play() -> None:
        bursts = Bursts(config, Neighbourhood(config), 1000, lanes, lambda *_: None, found)
        chunk = BurstChunk(0, 0, 1, (1, 0), Op.COPY, round_trip_s=1e7)
        with pytest.raises(MalformedMessage, match="round trip of 10000000"):
            bursts.receive(1, chunk, 10)
        for _ in range(3):  # the last chunk, again and again
            for place in range(4):
                last = None if place < 3 else 0.1
                chunk = BurstChunk(0, 0, place, (1, 0), Op.COPY, round_trip_s=last)
                await asyncio.sleep(0.1)
                bursts.receive(1, chunk, 100).done()

    told: list[LinkRate] = []
    lanes: Any = None  # nothing is sent

    def found(rate: LinkRate, round_trip_s: float) -> None:
        told.append(rate)

    overlay = named(NAMES[:2], 1e6)
    addresses = {site: (name, 1) for site, name in enumerate(NAMES[:2])}
    config = DataPlaneConfig(0, overlay, addresses, {0: 1, 1: 1}, b"", {1: b""}, 64, 64, 64)
    run_virtually(play())
    assert [(rate.source, rate.chunks, rate.latency_s) for rate in told] == [(1, 4, 0.05)]


async def leaves(group: AsyncGroup) -> None:
    return None


@pytest.mark.parametrize("stay", [0, 2, 3])
def test_a_site_may_leave_while_bursts_are_on_their_way(stay: int) -> None:
    async def mean(group: AsyncGroup) -> float:
        buffer = np.full(ELEMENTS, group.index, np.float32)
        await asyncio.sleep(0.5)  # a call that begins without a site that has left
        began_s = group.now_s()
        await group.exchange(Flat(buffer), Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS))
        assert every(buffer == sum(range(stay)) / stay)
        return group.now_s() - began_s

    service = Service(named(NAMES, None), awareness=Passive(start="burst"))
    programs = [*[mean] * stay, *[leaves] * (4 - stay)]
    took_s = run(*programs, service=service, start=as_told, truth=truth())
    assert max(took_s[:stay], default=0.0) < 5, "no site waits for the bursts of one that has left"
