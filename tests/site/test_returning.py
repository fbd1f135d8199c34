"""Calls that return once their result is here, before every member is known to hold it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.compressed import Compressed
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group._present import Present
from anabranch.group._thread import LoopThread
from anabranch.log import events
from anabranch.net.errors import RunAborted
from anabranch.net.messages import AnyMessage, ExchangeEnded, Holding
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan
from anabranch.scheduler.losses import Repairs
from anabranch.site.agent import SiteAgent
from anabranch.site.round import Round
from anabranch_lab.sim.network import SimulatedNetwork
from tests.site.cluster import Cluster, Floats, simulated
from tests.site.test_repairs import powers, virtually

_FAR_S = 0.030  # one way to the scheduler


def flush() -> None:
    """Stand in for a site that has told all."""


def plan_of(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


async def begin(
    slow: tuple[int, int] | None = None, far_s: float = _FAR_S
) -> tuple[SimulatedNetwork, Cluster]:
    """Start three sites 5 ms apart; a slow link carries a 20th of what the others do."""
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    rates = {pair: 1e6 if pair != slow else 5e4 for pair in pairs}
    links = tuple(Link(*pair, rates[pair], latency_s=0.005) for pair in pairs)
    overlay = Overlay("three", tuple(Site(f"s{site}") for site in range(3)), links)
    network = simulated(overlay, control_latency_s=far_s)
    network.begin()
    believed = Overlay("three", overlay.sites, tuple(Link(*p, 1e6, latency_s=0.005) for p in pairs))
    repairs = Repairs(plan_of, returns_early=True)
    return network, await Cluster.start(network, overlay, plan_of(believed), repairs=repairs)


async def mean(
    agent: SiteAgent, buffer: Floats, returns_early: bool = True, wire: Wire = Wire.FLOAT32
) -> Round:
    given = (
        Compressed(buffer, np.zeros_like(buffer), 1.0, wire) if wire.has_blocks else Flat(buffer)
    )
    terms = Terms(Op.MEAN, wire, given.elements)
    done = await agent.exchange(given, terms, returns_early=returns_early)
    if done.settlement is None:
        await agent.round_ended(done, None)
    return done


@virtually
async def test_a_call_returns_once_its_result_is_here_and_is_settled_later() -> None:
    _, cluster = await begin()
    loop = asyncio.get_running_loop()
    took_s = []
    for returns_early in (True, False):
        began_s = loop.time()
        buffers = [powers(site, 4) for site in range(3)]
        done = await asyncio.gather(*map(mean, cluster.agents, buffers, [returns_early] * 3))
        took_s.append(loop.time() - began_s)
        assert [each.settlement is not None for each in done] == [returns_early] * 3
        for buffer in buffers:
            np.testing.assert_array_equal(buffer, np.full(4, 7 / 3, np.float32))
    deferred_s, waited_s = took_s
    assert 2 * _FAR_S < deferred_s < 2 * _FAR_S + 0.015
    assert waited_s == pytest.approx(deferred_s + 2 * _FAR_S, abs=0.001)
    await cluster.agents[0]._collectives.settled()
    await asyncio.sleep(2 * _FAR_S)
    assert not cluster.scheduler.channels.is_busy


@pytest.mark.parametrize("wire", [wire for wire in Wire if wire not in (Wire.SIZES, Wire.INT8)])
def test_whoever_returned_hands_the_result_on_though_its_program_has_other_data_now(
    wire: Wire,
) -> None:
    virtually(lambda: hand_on(wire))()


async def hand_on(wire: Wire) -> None:
    network, cluster = await begin(slow=(2, 1))
    elements = wire.elements_of(6000 * 4)
    buffers = [powers(site, elements) for site in range(3)]
    calls = [
        asyncio.create_task(mean(agent, buffer, wire=wire))
        for agent, buffer in zip(cluster.agents, buffers, strict=True)
    ]
    done = await calls[0]
    assert done.settlement is not None
    assert not calls[1].done()  # site 2 sends it the rest, slowly
    kept = buffers[0].copy()
    buffers[0].fill(np.nan)
    network.kill(2)
    calls[2].cancel()
    other = await calls[1]
    if wire != Wire.TOP2:  # which loses all but a few of these equal elements
        np.testing.assert_allclose(kept, np.full(elements, 7 / 3), rtol=2.0**-8)
    np.testing.assert_array_equal(buffers[1], kept)
    settled = await done.settlement
    assert settled.members == other.members == (0, 1)
    assert [each.sites for each in settled.contributions] == [(0, 1, 2)]
    assert np.isnan(buffers[0]).all()


def ends_heard(cluster: Cluster) -> Counter[str]:
    """Count, from now on, how the scheduler hears of the ends of exchanges."""
    heard: Counter[str] = Counter()
    hear = cluster.scheduler._hear

    def count(site: int, message: AnyMessage) -> None:
        heard["alone"] += isinstance(message, ExchangeEnded)
        heard["with what is held"] += isinstance(message, Holding) and message.ended is not None
        hear(site, message)

    cluster.scheduler._hear = count  # type: ignore[method-assign]
    return heard


@pytest.mark.parametrize("is_lost", [False, True])
def test_the_end_of_a_call_that_returned_early_is_told_once(is_lost: bool) -> None:
    virtually(lambda: tell_ends(is_lost))()


async def tell_ends(is_lost: bool) -> None:
    network, cluster = await begin(slow=(2, 1) if is_lost else None)
    heard = ends_heard(cluster)
    buffers = [powers(site, 6000) for site in range(3)]
    calls = [asyncio.create_task(mean(*each)) for each in zip(cluster.agents, buffers, strict=True)]
    if is_lost:
        await calls[0]
        network.kill(2)
        calls[2].cancel()
    done = await asyncio.gather(*calls[: 2 if is_lost else 3])
    for agent in cluster.agents[: len(done)]:
        await agent._collectives.settled()
    await asyncio.sleep(4 * _FAR_S)
    # Site 0 had told its end before the loss, which made that void.
    assert heard == (
        {"with what is held": 1, "alone": 2} if is_lost else {"with what is held": 3, "alone": 0}
    )
    assert not cluster.scheduler.channels.all.held.numbers
    assert len(cluster.witness.of(events.RoundDone)) == len(done)


@virtually
async def test_what_is_told_of_a_call_leaves_at_once_where_a_caller_waits_for_its_settlement() -> (
    None
):
    _, cluster = await begin()
    loop = asyncio.get_running_loop()

    async def settled_s(waits: bool) -> float:
        buffers = [powers(site, 4) for site in range(3)]
        done = await asyncio.gather(*map(mean, cluster.agents, buffers))
        began_s = loop.time()
        if waits:
            await asyncio.gather(*(agent._collectives.settled() for agent in cluster.agents))
        for each in done:
            assert each.settlement is not None
            await each.settlement
        return loop.time() - began_s

    assert await settled_s(waits=False) > 2 * _FAR_S + 0.009
    assert await settled_s(waits=True) < 2 * _FAR_S + 0.002


@virtually
async def test_an_interrupted_call_waits_until_it_is_settled() -> None:
    network, cluster = await begin(slow=(2, 1))
    buffers = [powers(site, 6000) for site in range(3)]
    calls = [asyncio.create_task(mean(*each)) for each in zip(cluster.agents, buffers, strict=True)]
    await asyncio.sleep(0.1)
    network.kill(2)
    calls[2].cancel()
    for call in calls[:2]:
        assert (await call).settlement is None
    np.testing.assert_array_equal(buffers[0], buffers[1])


@virtually
async def test_a_call_next_door_to_the_scheduler_waits_since_a_copy_takes_longer() -> None:
    _, cluster = await begin(far_s=0.0)
    buffers = [powers(site, 4) for site in range(3)]
    done = await asyncio.gather(*map(mean, cluster.agents, buffers))
    assert [each.settlement for each in done] == [None] * 3


def test_whoever_reads_the_members_waits_for_settlements_and_the_loop_does_not() -> None:
    thread = LoopThread("test")
    try:

        async def make() -> asyncio.Future[Round]:
            return asyncio.get_running_loop().create_future()

        future = thread.run(make())
        present = Present(thread, flush, (0, 1, 2))
        present.ended(0, Round(1, 1, 0.1, settlement=future))
        assert present.latest == (0, 1, 2)

        async def read() -> tuple[int, ...]:
            return present.sites

        assert thread.run(read()) == (0, 1, 2)

        async def settle() -> None:
            asyncio.get_running_loop().call_later(
                0.05, future.set_result, Round(1, 1, 0.1, members=(0, 2))
            )

        thread.run(settle())
        assert present.sites == (0, 2)
        present.admitted((0, 1, 2))
        present.ended(0, Round(2, 1, 0.1, members=(0, 2)))
        assert [*present.sites] == [0, 1, 2], "a call from before an admission knows no newcomer"
    finally:
        thread.close()


def test_reading_the_members_of_a_group_that_has_ended_raises_nothing() -> None:
    thread = LoopThread("test")
    try:

        async def fail() -> asyncio.Future[Round]:
            failed: asyncio.Future[Round] = asyncio.get_running_loop().create_future()
            failed.set_exception(RunAborted("the scheduler is gone"))
            return failed

        present = Present(thread, flush, (0, 1))
        present.ended(0, Round(1, 1, 0.1, settlement=thread.run(fail())))
        assert present.sites == (0, 1)
        with pytest.raises(RunAborted, match="the scheduler is gone"):
            present.settle()
    finally:
        thread.close()


def test_two_threads_that_settle_both_wait_for_all() -> None:
    thread = LoopThread("test")
    try:

        async def make() -> list[asyncio.Future[Round]]:
            return [asyncio.get_running_loop().create_future() for _ in range(2)]

        first, second = thread.run(make())
        present = Present(thread, flush, (0, 1, 2))
        for number, settlement in enumerate((first, second), 1):
            present.ended(0, Round(number, 1, 0.1, settlement=settlement))
        with ThreadPoolExecutor(2) as pool:
            settling = [pool.submit(present.settle) for _ in range(2)]

            async def settle(future: asyncio.Future[Round], *members: int) -> None:
                future.set_result(Round(1, 1, 0.1, members=members))

            thread.run(settle(first, 0, 1, 2))
            assert wait(settling, timeout=0.2).not_done == {*settling}
            thread.run(settle(second, 0, 1))
            for each in settling:
                each.result(5.0)
        assert present.latest == (0, 1)
    finally:
        thread.close()


others: list[threading.Thread] = []


class Meanwhile(tuple[int, ...]):
    """Members; the first look at them runs another thread, for as long as nothing holds it."""

    call: Callable[[], None] | None = None

    def __contains__(self, site: object) -> bool:
        call, self.call = self.call, None
        if call is not None:
            other = threading.Thread(target=call)
            other.start()
            other.join(0.2)
            others.append(other)
        return super().__contains__(site)


@pytest.mark.parametrize("settles", [False, True])
def test_what_two_threads_take_note_of_at_once_both_counts(settles: bool) -> None:
    """A thread looks at the members, and another one changes them before the first has done so."""
    thread = LoopThread("test")
    try:

        async def settled(done: Round) -> asyncio.Future[Round]:
            future: asyncio.Future[Round] = asyncio.get_running_loop().create_future()
            future.set_result(done)
            return future

        def lose(present: Present, members: Meanwhile) -> None:
            done = Round(1, 1, 0.1, members=members)
            if settles:
                done = Round(1, 1, 0.1, settlement=thread.run(settled(done)))
            present.ended(0, done)
            others.pop().join()

        present, members = Present(thread, flush, (0, 1, 2)), Meanwhile((0, 2))
        members.call = lambda: present.are_left(0, (0, 1))
        lose(present, members)
        assert present.latest == (0,), "a lost member is back"

        present, members = Present(thread, flush, (0, 1, 2)), Meanwhile((0, 2))
        members.call = lambda: present.admitted((0, 2, 3))
        lose(present, members)
        assert present.latest == (0, 2, 3), "a newcomer is gone"
    finally:
        thread.close()


def test_a_callback_in_the_loop_does_not_wait_for_a_settlement() -> None:
    thread = LoopThread("test")
    try:

        async def read() -> Round:
            future: asyncio.Future[Round] = asyncio.get_running_loop().create_future()
            return Present(thread, flush, (0, 1)).settled(Round(7, 1, 0.1, settlement=future))

        assert thread.run(read()).round == 7
    finally:
        thread.close()
