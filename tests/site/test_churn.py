"""Hundreds of sites that join, die and leave, one after the other; every mean is exact."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.log import events
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan
from anabranch.scheduler.losses import Repairs
from anabranch.site.agent import SiteAgent
from anabranch_lab.sim.loop import run_virtually
from tests.site.cluster import Cluster, Floats, all_reduce, simulated
from tests.site.test_admission import in_step

SIZE, FOUNDERS, ELEMENTS = 9, 4, 600


def plan_of(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


async def live(seed: int, changes: int) -> tuple[int, int, int]:
    """Let sites come and go so often; return how many joined, died and left."""
    rng = random.Random(seed)
    pairs = [(a, b) for a in range(SIZE) for b in range(SIZE) if a != b]
    links = tuple(Link(a, b, 1e6, latency_s=0.001) for a, b in pairs)
    overlay = Overlay("full", tuple(Site(f"s{site}") for site in range(SIZE)), links)
    network = simulated(overlay)
    network.begin()
    cluster = await Cluster.start(
        network,
        overlay,
        plan_of(overlay),
        repairs=Repairs(plan_of, 2, FOUNDERS),
        joining=range(FOUNDERS),
    )
    members = {agent.welcome.site: agent for agent in cluster.agents}
    states: dict[int, Floats] = {site: np.zeros(ELEMENTS, np.float32) for site in members}
    leaving: list[asyncio.Task[None]] = []
    joined = died = left = 0
    for step in range(changes):
        absent = sorted(set(range(SIZE)) - members.keys())
        what = rng.choice(["join", "join", "die", "leave"])
        coming: dict[int, asyncio.Task[object]] = {}
        if what == "join" and absent:
            site = rng.choice(absent)
            if network.sites[site].dead:
                network.revive(site)
            agent = await cluster.join(site)
            coming[site] = asyncio.create_task(agent.admit())
            await asyncio.sleep(0.01)
            members[site] = agent
            joined += 1
        elif what != "join" and len(members) > 2:
            site = rng.choice(sorted(members))
            gone = members.pop(site)
            del states[site]
            if what == "die":
                network.kill(site)
                gone.close()
                died += 1
            else:
                leaving.append(asyncio.create_task(gone.leave()))
                left += 1
        await advance(members, states, coming, step)
    await asyncio.gather(*leaving)
    await asyncio.gather(*(agent.leave() for agent in members.values()))
    await cluster.scheduler.finished()
    assert not cluster.refusals
    assert len(cluster.witness.of(events.SiteJoined)) == FOUNDERS + joined
    return joined, died, left


async def advance(
    members: dict[int, SiteAgent],
    states: dict[int, Floats],
    coming: dict[int, asyncio.Task[object]],
    step: int,
) -> None:
    """Let all in, hand the state on, and take one step of training with an exact mean."""
    old = {site: agent for site, agent in members.items() if site not in coming}
    told = await asyncio.gather(*(agent.admit() for agent in old.values()))
    assert set(told[0].members) == members.keys()
    for task in coming.values():
        assert await task == told[0]
    if told[0].newcomers:
        for site in coming:
            states[site] = np.full(ELEMENTS, np.nan, np.float32)
        one = told[0].holders[0] if len(told[0].holders) == 1 else None
        receivers = () if one is not None else told[0].newcomers
        terms = Terms(Op.COPY, Wire.FLOAT32, ELEMENTS, one, receivers)

        async def hand_on(site: int, agent: SiteAgent) -> None:
            await agent.round_ended(await agent.exchange(Flat(states[site]), terms), None)
            agent.has_state()

        await asyncio.gather(*(hand_on(*each) for each in members.items()))
        await in_step([*members.values()])

    async def reduce(site: int, agent: SiteAgent) -> Floats:
        buffer = np.full(ELEMENTS, float(site + step % 5), np.float32)
        done = await all_reduce(agent, buffer)
        await agent.round_ended(done, None)
        assert done.members == tuple(sorted(members))
        return buffer

    found = await asyncio.gather(*(reduce(*each) for each in members.items()))
    mean = np.float32(sum(members) + len(members) * (step % 5)) / np.float32(len(members))
    for site, buffer in zip(members, found, strict=True):
        np.testing.assert_allclose(buffer, mean, rtol=1e-6)
        states[site] += buffer
    assert len({state.tobytes() for state in states.values()}) == 1


def test_sites_come_and_go() -> None:
    assert sum(run_virtually(live(0, 40))) > 30  # type: ignore[arg-type]


@pytest.mark.slow
def test_sites_come_and_go_hundreds_of_times() -> None:
    joined, died, left = run_virtually(live(1, 200))  # type: ignore[arg-type]
    assert joined > 60
    assert died + left > 60
