"""Workers die and come back: each update is part of the model wholly, once, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import NetError
from anabranch.net.messages import PartialSum
from anabranch.overlay import Link, Overlay, Site
from anabranch.pace import Bsp, Equal, Pace
from anabranch.plan import Plan, Tree
from anabranch.scheduler.pacing import PaceBook
from anabranch.site.agent import SiteAgent
from anabranch.site.control import RoundsOver
from anabranch.site.serving import ServedModel
from anabranch.train.optimisers import Sgd

from ..seeds import seeds
from .cluster import Cluster, Floats, Ports
from .test_all_reduce import WORLDS
from .test_push_and_pull import ELEMENTS, PACES, gradients_on, initial, serve, work

UPDATES = 6
TERMS = Terms(Op.STEP, Wire.FLOAT32, ELEMENTS).code
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
    """A run, some of whose workers die; some of them come back."""

    def __init__(self, pace: Callable[[], Pace] = Bsp) -> None:
        self.pace = pace
        self.back: set[int] = set()
        self.ended: set[int] = set()
        self.models = [initial() for _ in OVERLAY.sites]
        self.seen: dict[tuple[int, int], Floats] = {}
        self.dead: set[int] = set()
        self.incarnations: list[asyncio.Future[None]] = []
        self.cluster: Cluster

    async def begin(self, ports: Ports, shaped: bool) -> None:
        self.cluster = await Cluster.start(
            ports,
            OVERLAY,
            PLAN,
            chunk_elements=32,
            shaped=shaped,
            pacing=PaceBook(self.pace(), Equal(8), WORKERS, (0, 1), UPDATES),
            served=lambda site: ServedModel(
                self.models[site],
                Sgd(0.1).start,
                len(WORKERS),
                added_up=WORKERS if self.pace().barrier else (),
            ),
            last_to="all",
        )

    async def live(self) -> None:
        agents = self.cluster.agents
        self.incarnations = [
            asyncio.ensure_future(self.work(agent, site) if site in WORKERS else serve(agent))
            for site, agent in enumerate(agents)
        ]
        ends = await asyncio.gather(*self.incarnations, return_exceptions=True)
        for site, end in enumerate(ends):
            if isinstance(end, BaseException) and site not in self.dead:
                raise end
        await self.cluster.leave(self.dead)

    async def work(self, agent: SiteAgent, site: int) -> None:
        await work(agent, site, self.models[site], self.seen)
        await agent.last_model()
        self.ended.add(site)

    async def bring_back(self, worker: int, after_s: float) -> None:
        """Let another process of a worker join, some time after the first was killed."""
        await asyncio.sleep(after_s)
        self.models[worker] = np.full(ELEMENTS, np.nan, np.float32)
        try:
            agent = await self.cluster.join(worker)
            self.back.add(worker)
            await self.work(agent, worker)
        except (RoundsOver, NetError):
            return  # the run has ended, or all others have made their updates
        await agent.leave()

    async def kill(self, worker: int, at_s: float) -> None:
        """Let a worker die; its connections end without a word."""
        await asyncio.sleep(at_s)
        if worker in self.ended:
            return  # it may have left
        self.dead.add(worker)
        self.incarnations[worker].cancel()
        self.cluster.agents[worker].close()

    def check(self) -> None:
        """Take the same steps by hand, and look at every model that was pulled."""
        late = [each for each in self.cluster.witness.refusals if "the run is over" in each.detail]
        assert self.cluster.refusals == []
        assert self.cluster.witness.refusals == late
        model, update = initial(), Sgd(0.1).start(ELEMENTS)
        applied: list[tuple[int, int]] = []
        discarded: list[tuple[int, int]] = []
        for decision in self.cluster.witness.decisions:
            if decision.applied:
                step = decision.applied
                gradients = np.asarray(sum(self.seen[each] for each in step), np.float32)
                update(model, gradients / np.float32(len(step)), len(step) / len(WORKERS))
                applied += step
            discarded += decision.discarded
            for each in decision.went:
                if each in self.seen:
                    np.testing.assert_allclose(
                        self.seen[each],
                        gradients_on(model, each[0]),
                        rtol=2e-5,
                        atol=1e-6,
                    )
        assert len(set(applied)) == len(applied)
        assert self.ended >= set(WORKERS) - self.dead
        for worker in self.ended:
            np.testing.assert_allclose(self.models[worker], model, rtol=2e-5, atol=1e-6)
        for worker in set(WORKERS) - self.dead:
            assert sorted(number for site, number in applied + discarded if site == worker) == [
                *range(1, UPDATES + 1)
            ]
        for worker in self.back:
            numbers = [number for site, number in applied + discarded if site == worker]
            assert len(set(numbers)) == len(numbers)
            if not self.pace().barrier:
                assert sorted(numbers) == [*range(1, len(numbers) + 1)]


async def play(
    run: Run, ports: Ports, deaths: list[tuple[int, float, float | None]], shaped: bool
) -> None:
    await run.begin(ports, shaped)

    async def befall(worker: int, at_s: float, away_s: float | None) -> None:
        await run.kill(worker, at_s)
        if away_s is not None and worker in run.dead:
            await run.bring_back(worker, away_s)

    kills = [asyncio.ensure_future(befall(*death)) for death in deaths]
    await run.live()
    for (worker, _, _), kill in zip(deaths, kills, strict=True):
        if worker in run.dead:
            await kill
        kill.cancel()
    run.check()


def kill_some(
    world: str, seed: int, pace: Callable[[], Pace] = Bsp, most_away_s: float | None = None
) -> Run:
    """Let one to four workers die at random moments, and check what the others made of it.

    Each comes back after some time, if ``most_away_s`` says how long that may be.
    """
    rng = np.random.default_rng(seed)
    run_in, make_ports = WORLDS[world]
    victims = rng.choice(LEAVES, int(rng.integers(1, 5)), replace=False).tolist()
    deaths = [
        (victim, float(rng.uniform(0, 1.0)), most_away_s and float(rng.uniform(0, most_away_s)))
        for victim in victims
    ]
    run = Run(pace)

    async def all_of_it() -> None:
        await play(run, make_ports(OVERLAY), deaths, shaped=world == "tcp")

    run_in(all_of_it())
    return run


@seeds(5, 40)
def test_the_model_is_that_of_the_survivors_whenever_workers_die(seed: int) -> None:
    kill_some("simulated", seed)


@seeds(1, 12)
@pytest.mark.parametrize("pace", PACES)
def test_the_model_is_that_of_all_updates_whenever_workers_die_and_come_back(
    pace: str, seed: int
) -> None:
    kill_some("simulated", seed, PACES[pace], most_away_s=0.5)


@pytest.mark.parametrize("pace", ["bsp", "asp"])
def test_over_real_connections_workers_come_back_too(pace: str) -> None:
    assert kill_some("tcp", 1, PACES[pace], most_away_s=0.1).back


@seeds(1, 3)
def test_so_it_is_over_real_connections(seed: int) -> None:
    kill_some("tcp", seed)


def test_a_sum_out_of_place_is_refused_and_the_run_goes_on() -> None:
    run_in, make_ports = WORLDS["simulated"]
    run = Run()

    async def misuse() -> None:
        await asyncio.sleep(0.3)
        payload = memoryview(bytes(4 * 32))
        for message in (
            PartialSum(99, 1, 0, (4, 2), TERMS),
            PartialSum(98, 7, 0, (4, 2), TERMS),
        ):
            await run.cluster.connection(4, 2).send(message, payload)

    async def all_of_it() -> None:
        await run.begin(make_ports(OVERLAY), shaped=False)
        await asyncio.gather(run.live(), misuse())
        named = [str(refusal) for refusal in run.cluster.refusals]
        assert len(named) == 4  # each is told to its sender, too
        for part in ("update 99", "plan version 7, where [1]"):
            assert sum(part in name for name in named) == 2
        run.cluster.refusals.clear()
        run.check()

    run_in(all_of_it())
