"""A site joins a group that trains, in virtual time: what the others feel of it.

    python benchmarks/join_virtual.py

Four sites, joined by links of RATE_BPS each way; each is a program over a group's core, and the
network is simulated, so the machine's speed is in none of the figures. Three sites all-reduce a
gradient in a loop, and call `admit` before each round. The fourth joins, gets a state STATES times
as large as the gradient, and all-reduces with them. Each row has a size of the state and a time
that computing a gradient takes. It compares the others' steps before the fourth asked to join with
those until it contributes (their mean, and the longest). It compares the time in which the state
came with the time that the links to the newcomer need for it alone, and all that these links
carried meanwhile, results of the others' exchanges too, with what they can carry.
"""

from __future__ import annotations

import argparse
import asyncio
import math
from dataclasses import dataclass, field
from itertools import permutations
from statistics import median
from typing import Any

import numpy as np

import common
import virtual
from anabranch.exchange.arithmetic import Flat, Floats
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.group.hand_over import Offer
from anabranch.overlay import Link, Overlay, Site
from anabranch.scheduler.deal import ByShare
from anabranch_lab.sim.loop import run_virtually

SITES = 4
RATE_BPS = 4e6
LATENCY_S = 0.002
ELEMENTS = 610_000
CHUNK_ELEMENTS = 6_000
BEFORE, AFTER = 4, 4  # steps before the newcomer asks, and after it contributes
STATES = 1, 3
COMPUTE_S = 0.0, 1.0, 10.0
TERMS = Terms(Op.MEAN, Wire.FLOAT32, ELEMENTS)
SERVICE = Service(
    Overlay(
        "four sites",
        tuple(Site(f"site-{i}") for i in range(SITES)),
        tuple(Link(a, b, RATE_BPS, LATENCY_S) for a, b in permutations(range(SITES), 2)),
    ),
    awareness=None,
    deal=ByShare(),
    model_elements=ELEMENTS,
    chunk_elements=CHUNK_ELEMENTS,
    begin_with=SITES - 1,
)


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
    weights: Floats = field(default_factory=lambda: np.zeros(0, np.float32))


class Training:
    """Three sites that train, and a fourth that joins.

    Args:
        states: the size of the state, in gradients.
        compute_s: the time that computing a gradient takes.
    """

    def __init__(self, states: int, compute_s: float) -> None:
        self._states, self._compute_s = states, compute_s
        self._lived = [Lived() for _ in range(SITES)]
        self._groups: dict[int, AsyncGroup] = {}
        self._newcomer_comes = asyncio.Event()
        self._last_step = math.inf

    async def run(self) -> list[Lived]:
        """Run the group to its end; return what each site has seen."""
        await virtual.run(SERVICE, LATENCY_S, self._train, self._comes)
        return self._lived

    async def _comes(self, site: int) -> None:
        if site == SITES - 1:
            await self._newcomer_comes.wait()

    async def _train(self, group: AsyncGroup) -> None:
        site, own = group.index, self._lived[group.index]
        self._groups[site] = group
        step, weights = 0, np.zeros(self._states * ELEMENTS, np.float32)
        own.asked_s = group.now_s()
        while step < self._last_step:
            began_s = group.now_s()
            told = await group.agent.admit()
            if told.newcomers:
                state = {"step": step, "weights": weights}
                offer = Offer(state, told.follows) if site in told.holders else None
                handed = await group.hand_over(told, offer)
                if handed.state is not None:
                    step, weights = handed.state["step"], handed.state["weights"]
                    own.state_s = group.now_s()
                    for other, each in self._groups.items():
                        self._lived[other].sent_bytes = each.agent.sent_bytes().get(site, 0)
            group.agent.has_state()
            await asyncio.sleep(self._compute_s)
            gradient = np.full(ELEMENTS, step * SITES + site, np.float32)
            done = await group.exchange(Flat(gradient), TERMS)
            weights += gradient[0]
            step += 1
            whose = done.contributions[0].sites if done.contributions else done.members
            own.steps.append((began_s, group.now_s(), whose))
            if step == BEFORE:
                self._newcomer_comes.set()
            if site == SITES - 1 and site in whose:
                self._last_step = min(self._last_step, step + AFTER)
        own.weights = weights


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
            rows.append(
                account(run_virtually(Training(states, compute_s).run()), states, compute_s)
            )
            print(rows[-1], flush=True)
    if not options.dry:
        settings = {"sites": SITES, "rate_bps": RATE_BPS, "elements": ELEMENTS}
        common.write("join_virtual", seed=0, **settings, latency_s=LATENCY_S, rows=rows)


if __name__ == "__main__":
    main()
