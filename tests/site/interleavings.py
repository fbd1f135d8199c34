"""Rounds under plans that change every round, on a network whose every timing is drawn at random.

    python -m tests.site.interleavings 5000

What must hold whatever the timing: nothing is lost or refused, no site waits for ever, and every
mean is exact, so no sum was ever formed under another plan's child count.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from anabranch import plan as plans
from anabranch.log import events
from anabranch.net.errors import PeerError
from anabranch.net.messages import Auxiliary
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import (
    Plan,
    algorithm_3,
    balanced,
    cut,
    disjoint_paths,
    fapt,
    packed,
    star,
    with_auxiliary,
)
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import SiteAgent, Transport
from anabranch_lab.sim.loop import VirtualLoop, run_virtually
from anabranch_lab.sim.network import SimulatedNetwork

from .cluster import TOKEN, Witness, all_reduce

ROUNDS = 6


def draw_overlay(rng: np.random.Generator) -> Overlay:
    """Return 3 to 6 sites, connected, with links that are slow, far and drifting at random."""
    n = int(rng.integers(3, 7))
    links = []
    for i in range(n):
        for j in range(i):
            if j == i - 1 or rng.random() < 0.5:
                links += [draw_link(rng, i, j), draw_link(rng, j, i)]
    return Overlay("drawn", tuple(Site(f"s{i}") for i in range(n)), tuple(links))


def draw_link(rng: np.random.Generator, source: int, target: int) -> Link:
    return Link(
        source,
        target,
        rate_bps=10 ** rng.uniform(3.5, 6),
        latency_s=float(rng.choice([0.0, 0.01, 0.3])) * rng.random(),
        latency_drift_s=float(rng.choice([0.0, 0.05])),
    )


def draw_plan(rng: np.random.Generator, overlay: Overlay, version: int) -> Plan:
    """Return a plan of any kind, for rates that are not the overlay's."""
    guess = replace(overlay, links=tuple(draw_link(rng, e.source, e.target) for e in overlay))
    n = overlay.size
    match rng.integers(5):
        case 0:
            plan = star(guess, hub=int(rng.integers(n)), version=version)
        case 1:
            plan = balanced(guess, root=int(rng.integers(n)), version=version)
        case 2:
            plan = packed(guess, version=version)
        case _:
            plan = fapt(guess, roots=int(rng.integers(1, n + 1)), version=version)
    match rng.integers(3):
        case 0:
            return with_auxiliary(plan, guess, disjoint_paths)
        case 1:
            return with_auxiliary(plan, guess, algorithm_3)
    return plan


class Replanning(Witness):
    """A log that calls back when a round has begun."""

    def __init__(self, round_began: Callable[[int], object]) -> None:
        super().__init__()
        self._round_began = round_began

    def write(self, *happened: events.Event) -> None:
        super().write(*happened)
        for event in happened:
            if isinstance(event, events.RoundBegan):
                self._round_began(event.round)


async def play(seed: int) -> None:
    """Run some rounds; raise AssertionError where something does not hold."""
    rng = np.random.default_rng(seed)
    overlay = draw_overlay(rng)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    control_s = float(rng.choice([0.0, 0.05, 1.0])) * rng.random()
    network = SimulatedNetwork(loop, overlay, seed, control_latency_s=control_s)
    witness = Replanning(
        lambda round: loop.call_later(float(rng.exponential(0.1)), plan_again, round + 1)
    )
    refusals = list[PeerError]()
    chunk_elements = int(rng.integers(4, 64))
    transport = Transport(
        chunk_elements,
        chunk_elements,
        room_elements=1 << 14,
        strands=int(rng.integers(1, 3)),
        auxiliary=plans.Auxiliary(
            primary_busy_bound=int(rng.integers(1, 4)),
            auxiliary_queue_length=int(rng.integers(1, 4)),
            when_full="wait" if rng.integers(2) else "primary",
        ),
    )
    window = int(rng.choice([1, 3, 11, 32, 64]))

    def dispatching(plan: Plan, elements: int, chunk_elements: int, _: float) -> tuple[int, int]:
        return len(cut(plan, elements, chunk_elements)), window

    scheduler = Scheduler(
        network.control(None),
        overlay,
        draw_plan(rng, overlay, 1),
        TOKEN,
        "",
        lambda plan, elements: chunk_elements,
        witness,
        dispatching=dispatching if rng.random() < 0.5 else None,
    )
    address = await scheduler.listen(("scheduler", 0))
    behind_nat = seed % (2 * overlay.size)  # a site in half of the cases
    agents = [
        SiteAgent(
            network.control(site),
            network.lanes(site),
            overlay.sites[site].name,
            TOKEN,
            None if site == behind_nat else (f"s{site}", 0),
            lambda: None,
            lambda sender, error: refusals.append(error),
        )
        for site in range(overlay.size)
    ]
    elements = int(rng.integers(50, 600))
    contributions = rng.integers(-99, 99, (ROUNDS, overlay.size, elements)).astype(np.float32)
    weights = rng.integers(1, 5, overlay.size).astype(float)
    pauses_s = rng.exponential(rng.choice([0.001, 0.1, 1.0]), (ROUNDS, overlay.size))

    async def live(site: int) -> None:
        agent = agents[site]
        await agent.join(address)
        await agent.start(transport, network.lanes(site))
        for round in range(ROUNDS):
            await asyncio.sleep(pauses_s[round, site])
            buffer = contributions[round, site].copy()
            done = await all_reduce(agent, buffer, float(weights[site]), more=round + 1 < ROUNDS)
            mean = np.average(contributions[round], axis=0, weights=weights)
            np.testing.assert_allclose(buffer, mean, rtol=2e-6, atol=2e-5)
            await agent.round_ended(done, hash(buffer.tobytes()))
        await agent.leave()

    def plan_again(version: int) -> None:
        if version <= scheduler.channels.all.plan.version:
            return  # a later one was faster
        plan = draw_plan(rng, overlay, version)
        scheduler.planning.issue(plan)
        if rng.random() < 0.5:  # of another plan than some sites run under
            paths = tuple(path for each in plan.auxiliary.values() for path in each)
            scheduler._run.broadcast(Auxiliary(version - int(rng.integers(2)), paths))

    async with asyncio.timeout(100_000.0):
        await asyncio.gather(*(live(site) for site in range(overlay.size)))
        await scheduler.finished()
        await scheduler.close()
    assert not refusals, refusals[0]
    assert not witness.refusals, witness.refusals[0]
    assert len(witness.of(events.RoundDone)) == ROUNDS * overlay.size


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for seed in range(count):
        try:
            run_virtually(play(seed))
        except BaseException:
            print(f"seed {seed}")
            raise
    print(f"{count} seeds, {ROUNDS} rounds each: nothing lost, nothing refused, every mean exact")


if __name__ == "__main__":
    main()
