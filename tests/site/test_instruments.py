"""Sites whose clocks are wrong come to know the scheduler's time while they exchange."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from anabranch.net.messages import TimeRequest
from anabranch.net.throughput import BusyPeriodEstimator
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Plan, fapt, star
from anabranch.scheduler.server import Scheduler
from anabranch.site._instruments import parent_to_ask
from anabranch.site.agent import SiteAgent, Transport
from anabranch.site.meter import Meter
from anabranch_lab.sim.loop import VirtualLoop, run_virtually
from anabranch_lab.sim.machine import Clock
from anabranch_lab.sim.network import SimulatedNetwork

from .cluster import TOKEN, Cluster, Witness, all_reduce, simulated
from .test_all_reduce import TRIANGLE

LATENCY_S = 0.04
CHAIN = Overlay(
    "chain",
    tuple(Site(name) for name in "abcd"),
    tuple(
        Link(i, j, 4e6, latency_s=LATENCY_S) for i in range(4) for j in (i - 1, i + 1) if 0 <= j < 4
    ),
)
OFFSETS_S, DRIFTS = (0.0, -7.0, 3.0, 400.0), (0.0, 1e-4, -1e-4, 5e-5)


@pytest.mark.parametrize("roots", [1, 4])
def test_every_site_knows_the_time_to_a_quarter_of_the_latency(roots: int) -> None:
    # With one root, "d" asks "c", which asks "b", which asks the root: over links in use.
    errors_s: list[float] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = SimulatedNetwork(loop, CHAIN, 0, control_latency_s=0.02)
        plan: Plan = fapt(CHAIN, roots=[0] if roots == 1 else [0, 1, 2, 3])
        scheduler = Scheduler(
            network.control(None), CHAIN, plan, TOKEN, "", lambda plan, elements: 1000, Witness()
        )
        address = await scheduler.listen(("s", 0))
        agents, clocks = [], []
        for site in range(CHAIN.size):
            clock = Clock(loop)
            clock.step(OFFSETS_S[site], DRIFTS[site])
            clocks.append(clock)
            agents.append(
                SiteAgent(
                    network.control(site),
                    network.lanes(site),
                    CHAIN.sites[site].name,
                    TOKEN,
                    ("", 0),
                    lambda: None,
                    lambda sender, error: None,
                    clock.now_s,
                )
            )

        async def live(site: int) -> None:
            agent, buffer = agents[site], np.ones(20_000, np.float32)
            await agent.join(address)
            meter = Meter(BusyPeriodEstimator, 1.0)
            await agent.start(Transport(1000, 1000, 1 << 16), network.lanes(site), meter)
            for round in range(40):
                done = await all_reduce(agent, buffer, more=round < 39)
                await agent.round_ended(done, None)
                await asyncio.sleep(0.5)  # computes: the links are idle
                assert agent._instruments is not None
                stamp = agent._instruments.stamp(backlogged=False)
                if round >= 5:
                    assert stamp.offset_s is not None
                    errors_s.append(abs(clocks[site].now_s() + stamp.offset_s - loop.time()))
            await agent.leave()

        await asyncio.gather(*(live(site) for site in range(CHAIN.size)))
        await scheduler.finished()
        await scheduler.close()

    run_virtually(play())
    assert max(errors_s) < LATENCY_S / 4


def test_a_site_that_measures_nothing_keeps_no_time() -> None:
    async def play() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        await cluster.all_reduce([np.ones(100, np.float32) for _ in range(3)])
        for agent in cluster.agents:
            assert agent._instruments is not None
            assert agent._instruments.stamp(backlogged=True).offset_s is None
            assert agent._instruments.tell_time(TimeRequest(1.0)).error_s == math.inf
        await cluster.leave()

    run_virtually(play())


def test_a_root_asks_the_scheduler_and_any_other_site_its_parent() -> None:
    plan = fapt(CHAIN, roots=[0])
    assert [parent_to_ask(plan, site) for site in range(4)] == [None, 0, 1, 2]


def test_a_site_whose_parents_are_all_behind_relays_asks_the_scheduler() -> None:
    plan = star(CHAIN, hub=1)
    assert len(plan.path(3, 1)) == 3
    assert [parent_to_ask(plan, site) for site in range(4)] == [1, None, 1, None]
