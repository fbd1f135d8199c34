"""Workers die while updates are added up: each is part of the model wholly or not at all."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from anabranch.learn.optimisers import Sgd
from anabranch.net.messages import UpdateSum
from anabranch.overlay import Link, Overlay, Site
from anabranch.pace import Bsp, Equal
from anabranch.plan import Plan, Tree
from anabranch.scheduler.pacing import PaceBook
from anabranch.site.accumulator import Floats
from anabranch.site.agent import Served

from .cluster import Cluster, Ports
from .test_all_reduce import WORLDS
from .test_push_and_pull import ELEMENTS, gradients_on, initial, serve, work

UPDATES = 6
# Two servers over two sites in the middle, of which one only forwards; four workers below them,
# which one tree serves the other way round than it gathers from.
EDGES = [
    (0, 1),
    (0, 2),
    (0, 3),
    (1, 2),
    (1, 3),
    (2, 3),
    *((m, leaf) for m in (2, 3) for leaf in (4, 5, 6, 7)),
]
OVERLAY = Overlay(
    "two levels",
    tuple(Site(f"s{k}") for k in range(8)),
    tuple(
        Link(*ends, 2e5 + 1e5 * (sum(ends) % 3), 0.002)
        for pair in EDGES
        for ends in (pair, pair[::-1])
    ),
)
WEST, EAST = (-1, 0, 0, 0, 2, 2, 3, 3), (-1, 0, 0, 0, 3, 2, 3, 2)
SOUTH = (1, -1, 1, 1, 3, 3, 2, 2)
PLAN = Plan(1, (Tree(0, 0.5, WEST, EAST), Tree(1, 0.5, SOUTH, SOUTH)))
WORKERS, LEAVES = (1, 3, 4, 5, 6, 7), (4, 5, 6, 7)


class Run:
    """A run under a barrier, some of whose workers die."""

    def __init__(self) -> None:
        self.models = [initial() for _ in OVERLAY.sites]
        self.seen: dict[tuple[int, int], Floats] = {}
        self.dead: set[int] = set()
        self.lives: list[asyncio.Future[None]] = []
        self.cluster: Cluster

    async def begin(self, ports: Ports, shaped: bool) -> None:
        self.cluster = await Cluster.start(
            ports,
            OVERLAY,
            PLAN,
            chunk_elements=32,
            shaped=shaped,
            pacing=PaceBook(Bsp(), Equal(8), WORKERS, (0, 1), UPDATES),
            served=lambda site: Served(
                self.models[site], Sgd(0.1).start, len(WORKERS), added_up=WORKERS
            ),
        )

    async def live(self) -> None:
        agents = self.cluster.agents
        self.lives = [
            asyncio.ensure_future(
                work(agent, site, self.models[site], self.seen) if site in WORKERS else serve(agent)
            )
            for site, agent in enumerate(agents)
        ]
        ends = await asyncio.gather(*self.lives, return_exceptions=True)
        for site, end in enumerate(ends):
            if isinstance(end, BaseException) and site not in self.dead:
                raise end
        await self.cluster.leave(self.dead)

    async def kill(self, worker: int, at_s: float) -> None:
        """Let a worker die; its connections end without a word."""
        await asyncio.sleep(at_s)
        self.dead.add(worker)
        self.lives[worker].cancel()
        self.cluster.agents[worker].close()

    def check(self) -> None:
        """Take the same steps by hand, and look at every model that was pulled."""
        assert self.cluster.refusals == self.cluster.witness.refusals == []
        model, update = initial(), Sgd(0.1).start(ELEMENTS)
        applied: list[tuple[int, int]] = []
        for decision in self.cluster.witness.decisions:
            if decision.applied:
                step = [each.update for each in decision.applied]
                gradients = np.asarray(sum(self.seen[each] for each in step), np.float32)
                update(model, gradients / np.float32(len(step)), len(step) / len(WORKERS))
                applied += step
            for each in decision.permissions:
                if (each.worker, each.update) in self.seen:
                    np.testing.assert_allclose(
                        self.seen[each.worker, each.update],
                        gradients_on(model, each.worker),
                        rtol=2e-5,
                        atol=1e-6,
                    )
        assert len(set(applied)) == len(applied)
        for worker in set(WORKERS) - self.dead:
            assert [number for site, number in applied if site == worker] == [
                *range(1, UPDATES + 1)
            ]


async def play(run: Run, ports: Ports, deaths: list[tuple[int, float]], shaped: bool) -> None:
    await run.begin(ports, shaped)
    kills = [asyncio.ensure_future(run.kill(*death)) for death in deaths]
    await run.live()
    for kill in kills:
        kill.cancel()
    run.check()


def kill_some(world: str, seed: int) -> Run:
    """Let one to four workers die at random moments, and check what the others made of it."""
    rng = np.random.default_rng(seed)
    run_in, make_ports = WORLDS[world]
    victims = rng.choice(LEAVES, int(rng.integers(1, 5)), replace=False).tolist()
    deaths = [(victim, float(rng.uniform(0, 1.0))) for victim in victims]
    run = Run()

    async def all_of_it() -> None:
        await play(run, make_ports(OVERLAY), deaths, shaped=world == "tcp")

    run_in(all_of_it())
    return run


@pytest.mark.parametrize("seed", range(40))
def test_the_model_is_that_of_the_survivors_whenever_workers_die(seed: int) -> None:
    kill_some("simulated", seed)


@pytest.mark.parametrize("seed", range(3))
def test_so_it_is_over_real_connections(seed: int) -> None:
    kill_some("tcp", seed)


def test_a_sum_out_of_place_is_refused_and_the_run_goes_on() -> None:
    run_in, make_ports = WORLDS["simulated"]
    run = Run()

    async def misuse() -> None:
        await asyncio.sleep(0.3)
        payload = memoryview(bytes(4 * 32))
        for message in (
            UpdateSum(99, 1, 0, (4, 2), 1.0, 0),
            UpdateSum(98, 7, 0, (4, 2), 1.0, 0),
        ):
            await run.cluster.connection(4, 2).send(message, payload)

    async def all_of_it() -> None:
        await run.begin(make_ports(OVERLAY), shaped=False)
        await asyncio.gather(run.live(), misuse())
        named = [str(refusal) for refusal in run.cluster.refusals]
        assert len(named) == 4  # each is told to its sender, too
        for part in ("update 99", "plan version 7"):
            assert sum(part in name for name in named) == 2
        run.cluster.refusals.clear()
        run.check()

    run_in(all_of_it())
