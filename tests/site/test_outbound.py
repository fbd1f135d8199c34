"""Sites that take no connections take part like all others, over those that they make."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import permutations

import numpy as np
import pytest

from anabranch.net.errors import RunAborted, UnauthorisedPeer
from anabranch.net.identity import proven
from anabranch.net.messages import Offer
from anabranch.net.network import Connection
from anabranch.net.tcp import TcpNetwork, wait_closed
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan, Star
from anabranch.scheduler.server import Repairs
from anabranch.site.neighbourhood import LIMITS
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork
from tests.net.test_tcp import Ear
from tests.site.cluster import Cluster, Floats, Tcp, simulated
from tests.site.test_admission import asks, hand_on, let_in

_LATE_S = 9.0


def complete(size: int) -> Overlay:
    links = tuple(Link(a, b, 1e7, latency_s=0.001) for a, b in permutations(range(size), 2))
    return Overlay("full", tuple(Site(f"s{site}") for site in range(size)), links)


def planned(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


def powers(size: int) -> list[Floats]:
    return [np.full(5000, 2.0**site, np.float32) for site in range(size)]


async def begin(
    size: int, outbound_only: set[int], begin_with: int | None = None
) -> tuple[SimulatedNetwork, Cluster]:
    overlay = complete(size)
    network = simulated(overlay)
    network.begin()
    repairs = Repairs(planned, 2, begin_with)
    plan = planned(overlay)
    cluster = await Cluster.start(
        network, overlay, plan, repairs=repairs, outbound_only=outbound_only
    )
    return network, cluster


async def check(cluster: Cluster, size: int) -> None:
    buffers = powers(size)
    rounds = await cluster.all_reduce(buffers)
    for agent, done in zip(cluster.agents, rounds, strict=True):
        await agent.round_ended(done, None)
    for buffer in buffers:
        assert (buffer == buffers[0]).all()
        np.testing.assert_allclose(buffer, (2**size - 1) / size, rtol=1e-6)


async def come_back(cluster: Cluster, site: int) -> None:
    """Let a site that died join again, and be let in with the others' state."""
    others = [each for i, each in enumerate(cluster.agents) if i != site]
    await let_in(others)  # all of which have the state from then on
    new, waiting = await asks(cluster, site)
    told = await let_in(others)
    assert told.newcomers == (site,)
    assert await waiting == told
    cluster.agents[site] = new
    for buffer in await hand_on(cluster.agents, told):
        assert (buffer == np.arange(5000)).all()


def virtually(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.mark.parametrize("root", [0, 2])
@pytest.mark.parametrize("strands", [1, 3])
def test_over_tcp_it_reduces_and_receives_as_a_leaf_and_as_a_root(root: int, strands: int) -> None:
    async def go() -> None:
        overlay = complete(3)
        plan = Star(hub=overlay.sites[root].name).plan(overlay)
        cluster = await Cluster.start(Tcp(), overlay, plan, outbound_only={2}, strands=strands)
        for _ in range(2):
            await check(cluster, 3)
        assert not cluster.refusals
        assert cluster.agents[0].welcome.addresses[2][0] == "-"
        await cluster.leave()
        await wait_closed()

    asyncio.run(go())


def test_over_tcp_it_relays_between_sites_that_have_no_link() -> None:
    async def go() -> None:
        links = [Link(a, b, 1e8) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))]
        overlay = Overlay("chain", tuple(Site(name) for name in "abc"), tuple(links))
        plan = Star(hub="a").plan(overlay)
        cluster = await Cluster.start(Tcp(), overlay, plan, outbound_only={1})
        await check(cluster, 3)
        assert not cluster.refusals
        await cluster.leave()
        await wait_closed()

    asyncio.run(go())


def test_over_tcp_links_may_lead_one_way() -> None:
    async def go() -> None:
        links = [Link(0, 1, 1e8), Link(1, 2, 1e8), Link(2, 0, 1e8)]
        overlay = Overlay("round", tuple(Site(name) for name in "abc"), tuple(links))
        plan = Star(hub="a").plan(overlay)
        cluster = await Cluster.start(Tcp(), overlay, plan, outbound_only={1})
        await check(cluster, 3)
        assert not cluster.refusals
        await cluster.leave()
        await wait_closed()

    asyncio.run(go())


@virtually
async def test_a_cut_pair_of_which_one_takes_no_connections_heals() -> None:
    network, cluster = await begin(3, outbound_only={2})
    await check(cluster, 3)
    for other in (0, 1):
        network.sever(2, other)
        await asyncio.sleep(1.0)
        await check(cluster, 3)
        network.join(2, other)
        await asyncio.sleep(60.0)
        await check(cluster, 3)
    sent = cluster.agents[2].sent_bytes()
    assert sent[0] > 0
    assert sent[1] > 0
    assert not cluster.scheduler.lost


@virtually
async def test_one_that_takes_no_connections_dies_and_comes_back() -> None:
    network, cluster = await begin(3, outbound_only={2})
    await check(cluster, 3)
    network.kill(2)
    cluster.agents[2].close()
    await asyncio.sleep(_LATE_S)
    network.revive(2)
    await come_back(cluster, 2)
    await check(cluster, 3)


@virtually
async def test_a_neighbour_of_one_that_takes_no_connections_comes_back() -> None:
    network, cluster = await begin(3, outbound_only={2})
    await check(cluster, 3)
    network.kill(0)
    cluster.agents[0].close()
    await asyncio.sleep(_LATE_S)
    network.revive(0)
    await come_back(cluster, 0)
    await check(cluster, 3)


@virtually
async def test_two_that_take_no_connections_reach_each_other_through_a_third() -> None:
    network, cluster = await begin(4, outbound_only={1, 2})
    await check(cluster, 4)
    assert 2 not in cluster.agents[1].sent_bytes()
    network.kill(2)
    cluster.agents[2].close()
    await asyncio.sleep(_LATE_S)
    network.revive(2)
    await come_back(cluster, 2)
    await check(cluster, 4)
    assert 2 not in cluster.agents[1].sent_bytes()


@virtually
async def test_where_nothing_is_repaired_two_that_take_no_connections_must_not_be_linked() -> None:
    overlay = complete(3)
    network = simulated(overlay)
    network.begin()
    plan = Star(hub="s0").plan(overlay)
    with pytest.raises(RunAborted, match=r"takes no connections, and neither does 's[12]'"):
        await Cluster.start(network, overlay, plan, outbound_only={1, 2})


@pytest.mark.parametrize("begin_with", [None, 2, 3])
def test_sites_that_reach_one_another_nowhere_are_told_so(begin_with: int | None) -> None:
    async def go() -> None:
        with pytest.raises(RunAborted, match="too few sites reach one another: neither of site 0"):
            await begin(3, {0, 1, 2}, begin_with)

    run_virtually(go())


def test_an_offer_must_be_proven_and_is_taken_once() -> None:
    async def go() -> None:
        overlay = complete(3)
        plan = Star(hub="s0").plan(overlay)
        cluster = await Cluster.start(Tcp(), overlay, plan, outbound_only={2})
        await check(cluster, 3)
        address = cluster.agents[0].welcome.addresses[0]
        opened = list[Connection]()
        own = cluster.agents[2].welcome.lane_secrets[0]
        # The lane has taken what site 2 offered, so one more waits; and a third is too many.
        for secret, strand, is_refused in ((b"other", 0, True), (own, 0, False), (own, 0, True)):
            ear = Ear()
            connection = await TcpNetwork(LIMITS).connect(address, ear)
            offer = Offer(b"", 2, 0, strand)
            await connection.send(proven(offer, secret, connection.their_challenge))
            if is_refused:
                await ear.closed
                assert isinstance(cluster.refusals[-1], UnauthorisedPeer)
            opened.append(connection)
        await check(cluster, 3)
        await cluster.leave()
        for connection in opened:
            connection.close()
        await wait_closed()

    asyncio.run(go())
