"""Sites whose clocks are wrong come to know the scheduler's time while they exchange."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import TimeReply, TimeRequest
from anabranch.net.throughput import BusyPeriodEstimator
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Plan, fapt
from anabranch.scheduler.server import Scheduler
from anabranch.sim.loop import VirtualLoop, run_virtually
from anabranch.sim.machine import Clock
from anabranch.sim.network import SimulatedNetwork
from anabranch.site.agent import SiteAgent, Transport
from anabranch.site.meter import Meter
from anabranch.site.timekeeper import Timekeeper

from .cluster import TOKEN, Witness, all_reduce

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
                stamp = agent.stamp(backlogged=False)
                if round >= 5:
                    assert stamp.offset_s is not None
                    errors_s.append(abs(clocks[site].now_s() + stamp.offset_s - loop.time()))
            await agent.leave()

        await asyncio.gather(*(live(site) for site in range(CHAIN.size)))
        await scheduler.finished()
        await scheduler.close()

    run_virtually(play())
    assert max(errors_s) < LATENCY_S / 4


def test_a_site_that_does_not_know_the_time_says_so_and_is_not_believed() -> None:
    asked: list[TimeRequest] = []
    keeper = Timekeeper(lambda: 5.0, asked.append)
    keeper.begin()
    keeper.hear(TimeReply(5.0, 9.0, 9.0, float("inf")))
    assert keeper.offset_s() is None
    assert keeper.error_s() == float("inf")


def test_an_answer_that_cannot_be_is_refused() -> None:
    keeper = Timekeeper(lambda: 5.0, lambda request: None)
    keeper.begin()
    with pytest.raises(OutOfPlaceMessage, match="not asked for"):
        keeper.hear(TimeReply(4.0, 9.0, 9.0, 0.0))
    with pytest.raises(MalformedMessage, match="exchange"):
        keeper.hear(TimeReply(5.0, float("nan"), 9.0, 0.0))


def test_an_answer_that_took_longer_than_the_question_was_out_is_passed_over() -> None:
    now_s = 0.0
    keeper = Timekeeper(lambda: now_s, lambda request: None)
    keeper.begin()
    now_s = 0.1
    keeper.hear(TimeReply(0.0, 5.0, 5.10008, 0.0))
    assert keeper.offset_s() is None


def test_a_site_asks_often_at_first_and_then_seldom() -> None:
    now_s, asked = 0.0, list[TimeRequest]()
    keeper = Timekeeper(lambda: now_s, asked.append)
    keeper.begin()
    for _ in range(1000):
        if len(asked) and asked[-1].sent_s == now_s:
            keeper.hear(TimeReply(now_s - 0.0, 3.0 + now_s, 3.0 + now_s, 0.0))
        now_s += 0.1
        keeper.remember()
    assert keeper.offset_s() == pytest.approx(3.0)
    assert 20 < len(asked) < 60  # 100 s
