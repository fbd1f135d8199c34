"""A site joins a group that trains, in virtual time: what the others feel of it.

    python benchmarks/join_virtual.py

Four sites, joined by links of RATE_BPS each way; the protocol's own code, over the simulated
network, so the machine's speed is in none of the figures. Three sites all-reduce a gradient in a
loop, and call `admit` before each round; the fourth joins, gets a state STATES times as large as
the gradient, and all-reduces with them. Each row is a state, and a time that computing a gradient
takes. Compared are the others' steps before the fourth asked to be let in with those until it
contributes (their mean, and the longest); the time in which the state came with what the links to
the newcomer need for it alone; and all that these links carried meanwhile, results of the others'
exchanges too, with what they can.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

import common
from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.log import events
from anabranch.net.messages import Admitted
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan
from anabranch.scheduler.losses import Repairs
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import SiteAgent, Transport
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork

SITES = 4
RATE_BPS = 4e6
LATENCY_S = 0.002
ELEMENTS = 610_000
CHUNK_ELEMENTS = 6_000
BEFORE, AFTER = 4, 4  # steps before the newcomer asks, and after it contributes
STATES = 1, 3
COMPUTE_S = 0.0, 1.0, 10.0
ADDRESS = "127.0.0.1", 0

Floats = npt.NDArray[np.float32]


class Log:
    """What the scheduler writes down, which does not matter here."""

    def began(self, buffer_elements: int, plan: Plan) -> None: ...

    def write(self, *happened: events.Event) -> None: ...


@dataclass
class Lived:
    """What a site has seen.

    Attributes:
        steps: when each of its steps began and ended, and which sites contributed; seconds.
        asked_s, state_s: when it asked for the state, and had it.
        sent_bytes: to the newcomer, until that had the state.
        weights: in the end.
    """

    steps: list[tuple[float, float, tuple[int, ...]]] = field(default_factory=list)
    asked_s: float = 0.0
    state_s: float = 0.0
    sent_bytes: int = 0
    weights: Floats | None = None


def planned(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


async def hand_on(agent: SiteAgent, told: Admitted, state: Floats) -> asyncio.Task[None]:
    """Hand the state on, or get it, as a group does; return what ends when that has."""
    await agent.gather(b"")
    buffer = state.copy() if told.follows and agent.welcome.site in told.holders else state
    terms = Terms(Op.COPY, Wire.FLOAT32, len(state), None, told.newcomers)

    async def run() -> None:
        await agent.round_ended(await agent.exchange(Flat(buffer), terms), None)
        agent.has_state()

    return asyncio.create_task(run())


async def join(states: int, compute_s: float) -> list[Lived]:
    """Let three sites train, and a fourth join."""
    loop = asyncio.get_running_loop()
    pairs = [(a, b) for a in range(SITES) for b in range(SITES) if a != b]
    links = tuple(Link(a, b, RATE_BPS, latency_s=LATENCY_S) for a, b in pairs)
    overlay = Overlay("four sites", tuple(Site(f"site-{i}") for i in range(SITES)), links)
    network = SimulatedNetwork(loop, overlay, seed=0, control_latency_s=LATENCY_S)  # type: ignore[arg-type]
    scheduler = Scheduler(
        network.control(None),
        overlay,
        planned(overlay),
        "joined",
        "",
        lambda plan, elements: CHUNK_ELEMENTS,
        Log(),
        repairs=Repairs(planned, 2, SITES - 1),
    )
    address = await scheduler.listen(ADDRESS)
    lived = [Lived() for _ in range(SITES)]
    agents: dict[int, SiteAgent] = {}
    last: list[int] = []  # the step after which all leave
    comes = asyncio.Event()

    async def live(site: int) -> None:
        newcomer = site == SITES - 1
        if newcomer:
            await comes.wait()
        own, handing_on = lived[site], None
        name = overlay.sites[site].name
        ports = network.control(site), network.lanes(site)
        agent = SiteAgent(*ports, name, "joined", ADDRESS, None, lambda sender, error: None)
        agents[site] = agent
        await agent.join(address)
        await agent.start(Transport(CHUNK_ELEMENTS, CHUNK_ELEMENTS, 1 << 20), network.lanes(site))
        state = np.zeros(states * ELEMENTS, np.float32)  # its first element counts the steps
        own.asked_s = loop.time()
        while not last or state[0] < last[0]:
            began_s = loop.time()
            told = await agent.admit()
            if told.newcomers:
                handing_on = await hand_on(agent, told, state)
                if not (told.follows and site in told.holders):
                    await handing_on
            agent.has_state()
            if newcomer and not own.steps:
                own.state_s = loop.time()
                for other, each in agents.items():
                    lived[other].sent_bytes = each.sent_bytes().get(site, 0)
            await asyncio.sleep(compute_s)
            step = int(state[0])
            gradient = np.full(ELEMENTS, step * SITES + site, np.float32)
            terms = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS)
            done = await agent.exchange(Flat(gradient), terms)
            await agent.round_ended(done, None)
            state += gradient[0]
            state[0] = step + 1
            whose = done.contributions[0].sites if done.contributions else done.members
            own.steps.append((began_s, loop.time(), whose))
            if site == 0 and step + 1 == BEFORE:
                comes.set()
            if newcomer and site in whose and not last:
                last.append(step + 1 + AFTER)
        own.weights = state
        if handing_on is not None:
            await handing_on
        await agent.leave()
        agent.close()

    network.begin()
    await asyncio.gather(*(live(site) for site in range(SITES)))
    await scheduler.finished()
    await scheduler.close()
    return lived


def account(lived: list[Lived], states: int, compute_s: float) -> dict[str, Any]:
    """Return what the others felt of it, and how fast the state came."""
    newcomer, others = lived[-1], lived[:-1]
    assert all(np.array_equal(each.weights, newcomer.weights) for each in others)
    steps = others[0].steps
    before = [end - begin for begin, end, _ in steps if end <= newcomer.asked_s][1:]
    during = [
        end - begin
        for begin, end, whose in steps
        if end > newcomer.asked_s and SITES - 1 not in whose
    ]
    first = next(i for i, (_, _, whose) in enumerate(steps) if SITES - 1 in whose)
    during.append(steps[first][1] - steps[first][0])
    after = [end - begin for begin, end, _ in steps[first + 2 :]]
    limit_s = 32 * states * ELEMENTS / ((SITES - 1) * RATE_BPS)
    let_in_s = min(begin for begin, _, _ in steps if begin >= newcomer.asked_s)
    took_s = newcomer.state_s - let_in_s
    sent_bits = 8 * sum(each.sent_bytes for each in others)
    return {
        "states": states,
        "compute_s": compute_s,
        "step_before_s": round(median(before), 3),
        "steps_until_it_contributes": len(during),
        "mean_step_s": round(sum(during) / len(during), 3),
        "longest_step_s": round(max(during), 3),
        "longest_over_before": round(max(during) / median(before), 3),
        "step_after_s": round(median(after), 3),
        "state_s": round(took_s, 3),
        "limit_s": round(limit_s, 3),
        "share_of_limit": round(limit_s / took_s, 3),
        "links_used": round(sent_bits / ((SITES - 1) * RATE_BPS) / took_s, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args()
    rows = []
    for states in STATES:
        for compute_s in COMPUTE_S:
            rows.append(account(run_virtually(join(states, compute_s)), states, compute_s))
            print(rows[-1], flush=True)
    if not options.dry:
        settings = {"sites": SITES, "rate_bps": RATE_BPS, "elements": ELEMENTS}
        common.write("join_virtual", seed=0, **settings, latency_s=LATENCY_S, rows=rows)


if __name__ == "__main__":
    main()
