"""A site's life, as the scheduler sees it: what ends with its cause, and what harms no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import pytest

from anabranch.log import events
from anabranch.net.errors import MalformedMessage, RunAborted
from anabranch.net.messages import Abort, CutOff, Failed
from anabranch.overlay import Overlay, random_complete
from anabranch.plan import Packed, Plan, star
from anabranch.scheduler.losses import Repairs, or_packed
from anabranch.scheduler.membership._life import Stage
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import Transport
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork

from ..site.cluster import TOKEN, Cluster, Witness, all_reduce, make_agent, simulated

OVERLAY = random_complete(5, 0)
PLAN = star(OVERLAY, hub=0)
EVERYONE = range(OVERLAY.size)
FAULTY = 3
OTHERS = [site for site in EVERYONE if site != FAULTY]
HOUR_S = 3600.0


def packed(overlay: Overlay, version: int, previous: Plan | None) -> Plan:
    return Packed().plan(overlay, version=version)


def repairs() -> Repairs:
    return Repairs(or_packed(packed))


def lived(life: Callable[[SimulatedNetwork, Cluster], Awaitable[None]]) -> Cluster:
    """Let five sites all-reduce twice, and then something happen; return what was made of it."""

    async def scenario() -> Cluster:
        network = simulated(OVERLAY)
        cluster = await Cluster.start(network, OVERLAY, PLAN, repairs=repairs())
        await rounds(cluster, EVERYONE, 2)
        await life(network, cluster)
        return cluster

    return run_virtually(scenario())


async def rounds(cluster: Cluster, sites: Sequence[int], count: int = 1) -> None:
    for _ in range(count):
        buffers = {site: np.full(1000, site, np.float32) for site in sites}
        calls = (all_reduce(cluster.agents[site], each) for site, each in buffers.items())
        await asyncio.gather(*calls)
        for each in buffers.values():
            assert each[0] == pytest.approx(np.mean([*sites]))


def lost(cluster: Cluster) -> list[int]:
    return [each.site for each in cluster.witness.of(events.SiteLost)]


@pytest.mark.parametrize("is_accused", [False, True])
def test_a_site_survives_a_short_break_though_a_lost_one_accused_it_an_hour_ago(is_accused):
    async def life(network: SimulatedNetwork, cluster: Cluster) -> None:
        if is_accused:
            cluster.agents[FAULTY]._scheduler.post(CutOff(1, "the lane is silent", 0))
            await asyncio.sleep(0.1)
        network.kill(FAULTY)
        await rounds(cluster, OTHERS, 3)
        await asyncio.sleep(HOUR_S)
        network.disconnect(1)
        await asyncio.sleep(0.2)
        network.reconnect(1)
        await asyncio.sleep(5.0)
        await rounds(cluster, OTHERS)

    cluster = lived(life)
    assert lost(cluster) == [FAULTY]
    run = cluster.scheduler._run
    assert not any(
        site in kept for kept in (run.accused, run.silent, run.missing) for site in EVERYONE
    )


def test_an_abort_ends_with_the_site_that_asked_for_it():
    async def life(network: SimulatedNetwork, cluster: Cluster) -> None:
        cluster.agents[FAULTY]._scheduler.post(Abort("its data plane failed"))
        await asyncio.sleep(0.01)
        network.kill(FAULTY)
        await rounds(cluster, OTHERS, 3)
        await asyncio.sleep(HOUR_S)
        await rounds(cluster, OTHERS)

    assert lost(lived(life)) == [FAULTY]


def test_an_abort_of_a_site_that_is_there_ends_the_run():
    async def life(network: SimulatedNetwork, cluster: Cluster) -> None:
        cluster.agents[FAULTY]._scheduler.post(Abort("its data plane failed"))
        await asyncio.sleep(5.0)

    cluster = lived(life)
    with pytest.raises(RunAborted, match="its data plane failed"):
        cluster.scheduler._run.end.result()


@pytest.mark.parametrize("what", ["message", "frame"])
def test_what_breaks_the_protocol_costs_its_sender_alone(what):
    async def life(network: SimulatedNetwork, cluster: Cluster) -> None:
        agent = cluster.agents[FAULTY]
        if what == "message":
            agent._scheduler.post(CutOff(77, "no such site", 0))
        else:
            connection = cluster.scheduler._run.sessions[FAULTY].connection
            assert connection is not None
            error = MalformedMessage("a frame of 1 TiB")
            cluster.scheduler.presence.closed(FAULTY, connection, error)
        await rounds(cluster, OTHERS, 3)
        if what == "message":
            with pytest.raises(RunAborted, match=r"refused this site: .* to site 77"):
                await agent.ended_early()

    cluster = lived(life)
    assert lost(cluster) == [FAULTY]
    (event,) = cluster.witness.of(events.SiteLost)
    assert "broke the protocol" in event.detail


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_site_that_has_left_cannot_die(comes_back):
    async def life(network: SimulatedNetwork, cluster: Cluster) -> None:
        leaving = asyncio.ensure_future(cluster.agents[FAULTY].leave())
        await asyncio.sleep(0.5)
        if comes_back:  # a neighbour says that it is gone, so nothing waits for it
            cluster.agents[1]._scheduler.post(CutOff(FAULTY, "the lane has ended", 0))
            await asyncio.sleep(0.1)
            network.disconnect(FAULTY)
            await asyncio.sleep(3.0)
            network.reconnect(FAULTY)
        else:
            network.kill(FAULTY)
            await asyncio.sleep(60.0)
        await rounds(cluster, OTHERS, 3)
        if comes_back:
            assert await leaving
        else:
            leaving.cancel()
        ends = [cluster.agents[site].leave() for site in OTHERS]
        await asyncio.gather(*ends)
        assert cluster.scheduler.is_over

    cluster = lived(life)
    assert not lost(cluster)
    assert [each.site for each in cluster.witness.of(events.SiteLeft)] == [FAULTY]
    cluster.scheduler._run.end.result()


def test_what_a_site_says_that_has_left_and_is_done_without_counts_for_nothing():
    async def life(network: SimulatedNetwork, cluster: Cluster) -> None:
        leaving = asyncio.ensure_future(cluster.agents[FAULTY].leave())
        await asyncio.sleep(0.5)
        network.disconnect(FAULTY)
        cluster.agents[1]._scheduler.post(CutOff(FAULTY, "the lane has ended", 0))
        await asyncio.sleep(0.6)
        assert cluster.scheduler._run.lives[FAULTY] == Stage.GONE
        for message in (Failed("once"), Failed("twice"), Abort("thrice")):
            cluster.scheduler.hear(FAULTY, message)
        await asyncio.sleep(5.0)
        await rounds(cluster, OTHERS)
        leaving.cancel()

    assert not lost(lived(life))


@pytest.mark.parametrize("is_ready", [False, True])
def test_a_site_that_dies_before_the_start_costs_no_other(is_ready):
    async def scenario() -> None:
        ports, witness = simulated(OVERLAY), Witness()
        scheduler = Scheduler(
            ports.control(None),
            OVERLAY,
            PLAN,
            TOKEN,
            "work",
            lambda plan, elements: 64,
            witness,
            repairs=repairs(),
        )
        at = await scheduler.listen(("127.0.0.1", 0))
        agents = [make_agent(ports, i, site.name) for i, site in enumerate(OVERLAY.sites)]
        await asyncio.gather(*(agent.join(at) for agent in agents))

        async def start(site: int) -> None:
            await agents[site].start(Transport(64, 64, 64), ports.lanes(site))

        dying = asyncio.ensure_future(start(FAULTY)) if is_ready else None
        starting = [asyncio.ensure_future(start(site)) for site in OTHERS[1:]]
        await asyncio.sleep(0.1)
        ports.kill(FAULTY)
        await asyncio.sleep(10.0)  # it is given up before the last is ready
        await asyncio.gather(start(OTHERS[0]), *starting)
        if dying is not None:
            dying.cancel()
        buffers = {site: np.full(1000, site, np.float32) for site in OTHERS}
        await asyncio.gather(*(all_reduce(agents[site], buffers[site]) for site in OTHERS))
        for each in buffers.values():
            assert each[0] == np.mean(OTHERS)
        (gone,) = witness.of(events.SiteLost)
        assert gone.site == FAULTY
        assert gone.goes_on
        await asyncio.gather(*(agents[site].leave() for site in OTHERS))

    run_virtually(scenario())
