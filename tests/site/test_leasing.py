"""Exchanges that begin under a lease: no call waits for the scheduler; disagreement is named."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.messages import ExchangeFailed
from anabranch.overlay import Link, Overlay, Site
from anabranch.scheduler.losses import Repairs
from anabranch.site.agent import SiteAgent
from anabranch.site.round import ExchangeError, Round
from anabranch_lab.sim.network import SimulatedNetwork
from tests.site.cluster import Cluster, Floats, simulated
from tests.site.test_repairs import powers, virtually
from tests.site.test_returning import plan_of

_FAR_S = 0.030  # one way to the scheduler
_NEAR_S = 0.005  # between sites


async def begin(repairs: bool = True) -> tuple[SimulatedNetwork, Cluster]:
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    links = tuple(Link(*pair, 1e9, latency_s=_NEAR_S) for pair in pairs)
    overlay = Overlay("three", tuple(Site(f"s{site}") for site in range(3)), links)
    network = simulated(overlay, control_latency_s=_FAR_S)
    network.begin()
    cluster = await Cluster.start(
        network,
        overlay,
        plan_of(overlay),
        repairs=Repairs(plan_of, returns_early=True) if repairs else None,
        leases=True,
    )
    cluster.scheduler.channels.books.tells_last = True
    return network, cluster


async def reduce_at(agent: SiteAgent, buffer: Floats, op: Op = Op.MEAN) -> Round:
    done = await agent.exchange(
        Flat(buffer), Terms(op, Wire.FLOAT32, len(buffer)), returns_early=True
    )
    if done.settlement is None:
        await agent.round_ended(done, None)
    return done


async def reduce_all(cluster: Cluster, elements: int = 4) -> float:
    """Reduce at all sites; return the seconds that it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    buffers = [powers(site, elements) for site in range(3)]
    await asyncio.gather(*map(reduce_at, cluster.agents, buffers))
    for buffer in buffers:
        np.testing.assert_array_equal(buffer, np.full(elements, 7 / 3, np.float32))
    return loop.time() - began_s


@pytest.mark.parametrize("repairs", [True, False])
def test_calls_in_a_row_wait_for_the_exchange_alone(repairs: bool) -> None:
    async def calls() -> None:
        _, cluster = await begin(repairs)
        took_s = [await reduce_all(cluster) for _ in range(60)]
        assert took_s[0] > 2 * _FAR_S
        assert max(took_s[-30:]) < 2 * _NEAR_S + 0.001
        assert await reduce_all(cluster, elements=5) > 2 * _FAR_S, "this size is new"
        took_s = [await reduce_all(cluster, elements=4 + each % 2) for each in range(100)]
        assert max(took_s[-30:]) < 2 * _NEAR_S + 0.001

    virtually(calls)()


@virtually
async def test_leases_begin_after_a_few_calls_and_do_not_run_out() -> None:
    _, cluster = await begin()
    took_s = [await reduce_all(cluster) for _ in range(40)]
    assert max(took_s[5:]) < 2 * _NEAR_S + 0.001


@virtually
async def test_many_calls_at_once_keep_their_leases() -> None:
    _, cluster = await begin()
    loop = asyncio.get_running_loop()
    took_s = []
    for _ in range(40):
        began_s = loop.time()
        await asyncio.gather(*(reduce_all(cluster) for _ in range(10)))
        took_s.append(loop.time() - began_s)
    assert max(took_s[-20:]) < 2 * _FAR_S


@pytest.mark.parametrize("repairs", [True, False])
@pytest.mark.parametrize("late_s", [0.0, 0.006, 0.02])
def test_members_that_disagree_under_a_lease_are_named(late_s: float, repairs: bool) -> None:
    virtually(lambda: disagree(late_s, repairs))()


async def disagree(late_s: float, repairs: bool) -> None:
    """Let a member call for something else, perhaps after the others' data has arrived."""
    _, cluster = await begin(repairs)
    for _ in range(30):
        await reduce_all(cluster)
    buffers = [powers(site, 4) for site in range(3)]

    async def call(agent: SiteAgent, buffer: Floats, op: Op) -> Round:
        await asyncio.sleep(late_s if op == Op.SUM else 0.0)
        return await reduce_at(agent, buffer, op)

    ops = [Op.MEAN, Op.SUM, Op.MEAN]
    found = await asyncio.gather(*map(call, cluster.agents, buffers, ops), return_exceptions=True)
    for site, error in enumerate(found):
        assert isinstance(error, ExchangeError)
        assert "calls for a mean" in str(error)
        assert "calls for a sum" in str(error)
        np.testing.assert_array_equal(buffers[site], powers(site, 4))
    assert not cluster.witness.refusals
    await reduce_all(cluster)


@virtually
async def test_a_site_that_has_begun_alone_goes_on_with_those_that_are_left() -> None:
    network, cluster = await begin()
    for _ in range(30):
        await reduce_all(cluster)
    alone = powers(0, 4)
    call = asyncio.create_task(reduce_at(cluster.agents[0], alone))
    await asyncio.sleep(0)
    network.kill(2)
    await asyncio.sleep(8.0)
    other = powers(1, 4)
    done = await reduce_at(cluster.agents[1], other)
    assert (await call).members == done.members == (0, 1)
    np.testing.assert_array_equal(alone, np.full(4, 1.5, np.float32))
    np.testing.assert_array_equal(other, alone)


@virtually
async def test_a_call_that_fails_before_its_first_step_raises_that() -> None:
    _, cluster = await begin()
    for _ in range(30):
        await reduce_all(cluster)
    collectives = cluster.agents[0]._collectives
    state = collectives._channels[0]
    leased = state.leased(state.number + 1, 4)
    assert leased is not None
    buffer = powers(0, 4)
    call = asyncio.create_task(reduce_at(cluster.agents[0], buffer))
    failed = ExchangeFailed(0, state.number + 1, leased[0].exchange, "s1 has NaN")
    asyncio.get_running_loop().call_soon(collectives.hear, failed)
    with pytest.raises(ExchangeError, match="s1 has NaN"):
        await call
    np.testing.assert_array_equal(buffer, powers(0, 4))
    assert not cluster.scheduler.is_over


@pytest.mark.parametrize("late_s", [0.0, 0.02])
def test_calls_in_another_order_return_no_result_under_a_lease(late_s: float) -> None:
    virtually(lambda: call_in_other_orders(late_s))()


async def call_in_other_orders(late_s: float) -> None:
    """Let one member exchange and then gather, while the others gather and then exchange."""
    _, cluster = await begin()
    for _ in range(30):
        await reduce_all(cluster)
    buffers = [powers(site, 4) for site in range(3)]

    async def live(site: int) -> list[object]:
        agent = cluster.agents[site]
        exchange = asyncio.create_task(reduce_at(agent, buffers[site])) if not site else None
        await asyncio.sleep(0)
        gather = asyncio.create_task(agent.gather(b"", 0, "a test"))
        await asyncio.sleep(late_s if site == 2 else 0.0)
        exchange = exchange or asyncio.create_task(reduce_at(agent, buffers[site]))
        return [*await asyncio.gather(exchange, gather, return_exceptions=True)]

    for errors in await asyncio.gather(*map(live, range(3))):
        assert [type(each) for each in errors] == [ExchangeError] * 2
    for site, buffer in enumerate(buffers):
        np.testing.assert_array_equal(buffer, powers(site, 4))
