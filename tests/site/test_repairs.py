"""Exchanges that are interrupted, at moments that are hard to hit, and what else a loss leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group.tensors import Tensors
from anabranch.log import events
from anabranch.net.errors import RunAborted
from anabranch.net.messages import (
    Departed,
    ExchangeFailed,
    Interrupt,
    Message,
    Repair,
    Shutdown,
)
from anabranch.net.session import Session
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Auxiliary, Packed, Plan, with_auxiliary
from anabranch.scheduler.losses import Repairs
from anabranch.site._call import Call
from anabranch.site.agent import SiteAgent
from anabranch.site.round import ExchangeError, Round
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork
from tests.site.cluster import Cluster, Floats, all_reduce, simulated

_LATE_S = 9.0  # by then the scheduler gives up a site whose lanes are whole


def plan_of(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    plan = Packed().plan(overlay, version=version)
    return with_auxiliary(plan, overlay, Auxiliary(primary_busy_bound=1).paths)


async def begin(
    size: int, least_sites: int = 2, retries: bool = False, control_latency_s: float = 0.0
) -> tuple[SimulatedNetwork, Cluster]:
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    links = tuple(Link(a, b, 1e6, latency_s=0.001) for a, b in pairs)
    overlay = Overlay("full", tuple(Site(f"s{site}") for site in range(size)), links)
    network = simulated(overlay, control_latency_s=control_latency_s)
    network.begin()
    repairs = Repairs(plan_of, least_sites, retries=retries)
    return network, await Cluster.start(network, overlay, plan_of(overlay), repairs=repairs)


def powers(site: int, elements: int = 100) -> Floats:
    return np.full(elements, 2.0**site, np.float32)


def call(cluster: Cluster, site: int, elements: int) -> tuple[Floats, asyncio.Task[Round]]:
    buffer = powers(site, elements)
    return buffer, asyncio.create_task(all_reduce(cluster.agents[site], buffer))


def late(agent: SiteAgent, first: type, after: type) -> None:
    """Let the first message of one kind be heard right before the next of another."""
    hear = agent._during
    kept: list[Any] = []

    def during(message: Any) -> None:
        if isinstance(message, first) and not kept:
            kept.append(message)
            return
        if isinstance(message, after) and kept and kept[0] is not None:
            hear(kept[0])
            kept[0] = None
        hear(message)

    agent._scheduler._told = during


def check(buffer: Floats, done: Round, elements: int) -> None:
    covered = 0
    for each in done.contributions:
        assert each.start == covered
        covered = each.stop
        mean = sum(2.0**site for site in each.sites) / len(each.sites)
        np.testing.assert_allclose(buffer[each.start : each.stop], mean, rtol=1e-6)
    assert covered in (0, elements)


def virtually(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtually
async def test_a_repair_may_be_interrupted_before_it_begins() -> None:
    network, cluster = await begin(4)
    late(cluster.agents[0], Repair, Interrupt)
    calls = [call(cluster, site, 20_000) for site in range(4)]
    await asyncio.sleep(0.3)
    for lost in (3, 2):
        network.kill(lost)
        calls[lost][1].cancel()
        await asyncio.sleep(1.5)
    for buffer, task in calls[:2]:
        done = await task
        assert done.members == (0, 1)
        check(buffer, done, 20_000)


@virtually
async def test_an_exchange_may_be_interrupted_before_its_task_runs() -> None:
    network, cluster = await begin(4)
    agent = cluster.agents[0]
    heard = asyncio.Event()
    hear, take_part = agent._during, Call._run_part

    def during(message: Any) -> None:
        hear(message)
        if isinstance(message, Interrupt):
            heard.set()

    async def take_part_later(each: Call, *arguments: Any) -> Any:
        if each._exchanging is agent._collectives._exchanging:
            await heard.wait()
        return await take_part(each, *arguments)

    agent._scheduler._told = during
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Call, "_run_part", take_part_later)
        calls = [call(cluster, site, 2_000) for site in range(4)]
        await asyncio.sleep(0.3)
        network.kill(3)
        calls[3][1].cancel()
        for buffer, task in calls[:3]:
            check(buffer, await task, 2_000)


@virtually
async def test_a_repair_may_fail_before_it_begins() -> None:
    network, cluster = await begin(4)
    late(cluster.agents[0], Repair, ExchangeFailed)
    calls = [call(cluster, site, 2_000) for site in (0, 1, 3)]
    await asyncio.sleep(0.3)
    network.kill(3)
    calls[2][1].cancel()
    await asyncio.sleep(2.0)
    with pytest.raises(ExchangeError, match="77 elements"):
        await all_reduce(cluster.agents[2], powers(2, 77))
    for _, task in calls[:2]:
        with pytest.raises(ExchangeError, match="77 elements"):
            await task
    for agent in cluster.agents[:3]:
        assert agent._collectives._exchanging is not None
        exchanges = agent._collectives._exchanging._exchanges
        assert exchanges.room.left == exchanges.room.elements
        assert not exchanges.active
        assert not agent._collectives._channels[0].repairs
        assert not agent._collectives._channels[0].interrupted


@pytest.mark.parametrize("own", [np.float16, np.float32])
def test_halves_are_spread_bit_for_bit(own: type) -> None:
    async def go() -> None:
        network, cluster = await begin(4)
        given = [((np.arange(4_000) % 999) / 64 + site).astype(own) for site in range(4)]
        terms = Terms(Op.MAX, Wire.FLOAT16, 4_000)
        agents = zip(cluster.agents, given, strict=True)
        calls = [agent.exchange(Tensors([array[:9], array[9:]]), terms) for agent, array in agents]
        tasks = [asyncio.create_task(each) for each in calls]
        await asyncio.sleep(0.03)
        network.kill(3)
        tasks[3].cancel()
        for task, array in zip(tasks[:3], given, strict=False):
            for each in (await task).contributions:
                expected = np.arange(each.start, each.stop) % 999 / 64 + each.sites[-1]
                assert (array[each.start : each.stop] == expected).all()
        (repaired,) = cluster.witness.of(events.ExchangeRepaired)
        assert repaired.spread_elements > 0

    run_virtually(go())


@virtually
async def test_a_member_may_not_know_of_the_subgroup_yet() -> None:
    network, cluster = await begin(4)
    channel = await cluster.agents[0].subgroup((0, 1, 2))
    buffers = [powers(site) for site in range(4)]
    first = asyncio.create_task(all_reduce(cluster.agents[0], buffers[0], channel=channel))
    await asyncio.sleep(0.2)
    network.kill(3)
    await asyncio.sleep(_LATE_S)
    for site in (1, 2):
        assert await cluster.agents[site].subgroup((0, 1, 2)) == channel
    others = (all_reduce(cluster.agents[site], buffers[site], channel=channel) for site in (1, 2))
    await asyncio.gather(first, *others)
    assert {float(buffer[0]) for buffer in buffers[:3]} == {np.float32(7 / 3)}


@virtually
async def test_those_who_are_left_make_subgroups() -> None:
    network, cluster = await begin(4)
    network.kill(0)
    await asyncio.sleep(_LATE_S)
    asked = (cluster.agents[site].subgroup((1, 2, 3)) for site in (1, 2, 3))
    assert await asyncio.gather(*asked) == [1, 1, 1]


@virtually
async def test_links_that_both_ends_call_silent_are_gone_round_at_once_and_used_again() -> None:
    network, cluster = await begin(3)
    await cluster.all_reduce([powers(site) for site in range(3)])
    calls = [call(cluster, site, 20_000) for site in range(3)]
    await asyncio.sleep(0.1)
    network.hush(0, 1, are_silent=True)
    for buffer, task in calls:
        done = await asyncio.wait_for(task, 2.0)  # connections stay for longer
        assert done.members == (0, 1, 2)
        check(buffer, done, 20_000)
    assert cluster.witness.of(events.PlanIssued)[-1].why == (
        "nothing crosses the links between site 0 (s0) and site 1 (s1)"
    )
    network.hush(0, 1, are_silent=False)
    await asyncio.sleep(60.0)
    assert "reach each other again" in cluster.witness.of(events.PlanIssued)[-1].why
    await cluster.all_reduce([powers(site) for site in range(3)])


@virtually
async def test_a_site_is_lost_at_once_that_neither_a_neighbour_nor_the_scheduler_hears() -> None:
    network, cluster = await begin(3)
    await cluster.all_reduce([powers(site) for site in range(3)])
    loop, run = asyncio.get_running_loop(), cluster.scheduler._run
    for end in [*network._ends]:
        if end.host is network.scheduler and end.peer_host is network.sites[2]:
            end.notice(is_silent=True)
    assert run.silent == {2}
    calls = [call(cluster, site, 2_000) for site in range(2)]
    began_s = loop.time()
    network.sever(0, 2)
    for buffer, task in calls:
        done = await task
        assert done.members == (0, 1)
        check(buffer, done, 2_000)
    assert loop.time() - began_s < 0.5  # less than other causes are waited for
    why = "site 2 (s2) died: neither site 0 (s0) nor the scheduler hears from it"
    [lost] = cluster.witness.of(events.SiteLost)
    assert lost.detail.startswith(f"{why}: ")  # and then what the neighbour saw
    assert "s2" in lost.detail.removeprefix(why)
    with pytest.raises(RunAborted):
        await all_reduce(cluster.agents[2], powers(2))


@virtually
async def test_links_are_not_gone_round_where_that_would_leave_a_site_out() -> None:
    network, cluster = await begin(2)
    calls = [call(cluster, site, 20_000) for site in range(2)]
    await asyncio.sleep(0.1)
    network.hush(0, 1, are_silent=True)
    await asyncio.sleep(1.0)
    network.hush(0, 1, are_silent=False)
    for buffer, task in calls:
        check(buffer, await task, 20_000)
    assert not cluster.witness.of(events.ExchangeRepaired)


@virtually
async def test_what_one_end_alone_calls_silent_is_not_gone_round() -> None:
    _, cluster = await begin(3)
    for site in range(3):
        cluster.agents[0].silent(1, 0, site != 1)
    cluster.agents[0].silent(1, 0, False)
    cluster.agents[1].silent(0, 0, True)
    await cluster.all_reduce([powers(site) for site in range(3)])
    assert not cluster.witness.of(events.PlanIssued)


@virtually
async def test_a_pair_that_was_cut_may_lose_the_scheduler_for_a_moment_later() -> None:
    network, cluster = await begin(3)
    await cluster.all_reduce([powers(site) for site in range(3)])
    network.sever(0, 1)
    await asyncio.sleep(60.0)
    network.disconnect(0)
    await asyncio.sleep(0.1)
    network.reconnect(0)
    await asyncio.sleep(_LATE_S)
    assert not cluster.scheduler.lost
    await cluster.all_reduce([powers(site) for site in range(3)])


@virtually
async def test_one_that_has_left_may_be_cut_off_while_it_is_let_go() -> None:
    network, cluster = await begin(3)
    await cluster.all_reduce([powers(site) for site in range(3)])
    leaving = asyncio.create_task(cluster.agents[2].leave())
    await asyncio.sleep(0.1)
    network.kill(2)
    await asyncio.sleep(0.1)
    await asyncio.gather(*(all_reduce(cluster.agents[site], powers(site)) for site in (0, 1)))
    await asyncio.sleep(_LATE_S)  # nothing is given up that is gone
    leaving.cancel()
    assert cluster.scheduler.lost == {2}


@virtually
async def test_the_last_site_ends_the_run() -> None:
    network, cluster = await begin(2, least_sites=1)
    network.kill(1)
    await asyncio.sleep(_LATE_S)
    await all_reduce(cluster.agents[0], powers(0))
    network.kill(0)
    with pytest.raises(RunAborted, match="site 0"):
        await cluster.scheduler.finished()


@pytest.mark.parametrize("at_s", [0.03, 0.1, 0.2, 0.3])
def test_where_it_is_begun_again_a_result_has_the_contributions_of_one_set(at_s: float) -> None:
    async def go() -> None:
        network, cluster = await begin(4, retries=True)
        calls = [call(cluster, site, 20_000) for site in range(4)]
        await asyncio.sleep(at_s)
        network.kill(3)
        calls[3][1].cancel()
        for buffer, task in calls[:3]:
            done = await task
            assert (done.members, done.contributions) == ((0, 1, 2), ())  # all members', no other's
            assert (buffer == np.float32(7 / 3)).all()
        (repaired,) = cluster.witness.of(events.ExchangeRepaired)
        assert (repaired.reduced_elements, repaired.spread_elements) == (20_000, 0)

    run_virtually(go())


@virtually
async def test_tensors_of_a_call_that_fails_are_as_they_were_where_it_may_be_begun_again() -> None:
    network, cluster = await begin(4, retries=True)
    calls = [call(cluster, site, 20_000) for site in (0, 1, 3)]
    await asyncio.sleep(0.3)
    network.kill(3)
    calls[2][1].cancel()
    await asyncio.sleep(2.0)
    with pytest.raises(ExchangeError, match="77 elements"):
        await all_reduce(cluster.agents[2], powers(2, 77))
    for site, (buffer, task) in enumerate(calls[:2]):
        with pytest.raises(ExchangeError, match="77 elements"):
            await task
        assert (buffer == powers(site, 20_000)).all()


def test_a_site_that_is_let_go_is_told_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would never be known to have heard that, and the end waited for it in vain."""
    said: dict[Session, list[type[Message]]] = {}
    post = Session.post

    def heard(session: Session, message: Message) -> None:
        said.setdefault(session, []).append(type(message))
        post(session, message)

    async def play() -> None:
        _, cluster = await begin(3, control_latency_s=0.01)
        groups = [(0, 1), (0, 1, 2), (0, 1, 2)]
        asked = [agent.subgroup(each) for agent, each in zip(cluster.agents, groups, strict=True)]
        channels = await asyncio.gather(*asked)
        calls = [
            all_reduce(agent, np.ones(10, np.float32), channel=channel)
            for agent, channel in zip(cluster.agents, channels, strict=True)
        ]
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ExchangeError)
        await cluster.leave()  # the first to leave is let go before the others

    monkeypatch.setattr(Session, "post", heard)
    run_virtually(play())
    ends = [messages for messages in said.values() if {Shutdown, Departed} & {*messages}]
    assert len(ends) == 3
    for messages in ends:
        assert not {Shutdown, Departed} & {*messages[:-1]}
