"""Every row of the table of a site's life, as a scheduler and its sites live it in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache, partial

import numpy as np
import pytest

from anabranch.overlay import Link, Overlay, Site
from anabranch.pace import Asp, Equal
from anabranch.plan import Packed, Plan, star
from anabranch.scheduler.losses import Repairs
from anabranch.scheduler.membership._life import TABLE, Happens, Lives, Stage
from anabranch.scheduler.pacing import PaceBook
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import SiteAgent, Transport
from anabranch.site.serving import ServedModel
from anabranch.train.optimisers import Sgd
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork

from ..site.cluster import TOKEN, Cluster, Witness, all_reduce, make_agent, simulated

Row = tuple[Stage, Happens]
ROWS = [(stage, what) for stage, rows in TABLE.items() for what in rows]
LAST = 3


def full(size: int = 4) -> Overlay:
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    links = tuple(Link(a, b, 1e6, latency_s=0.001) for a, b in pairs)
    return Overlay("full", tuple(Site(f"s{site}") for site in range(size)), links)


def chain(size: int = 4) -> Overlay:
    pairs = [(a, b) for a in range(size) for b in range(size) if abs(a - b) == 1]
    links = tuple(Link(a, b, 1e6, latency_s=0.001) for a, b in pairs)
    return Overlay("chain", tuple(Site(f"s{site}") for site in range(size)), links)


def planned(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


class Group:
    """Sites that live under one scheduler, step by step.

    Args:
        overlay: theirs.
        begin_with: how many sites the run begins with; it goes on with two.
        repairs: whether it goes on without what is lost.
    """

    def __init__(self, overlay: Overlay, begin_with: int = 3, repairs: bool = True) -> None:
        self.network = simulated(overlay, control_latency_s=0.02)
        self.network.begin()
        self.scheduler = Scheduler(
            self.network.control(None),
            overlay,
            planned(overlay),
            TOKEN,
            "work",
            lambda plan, elements: 64,
            Witness(),
            repairs=Repairs(planned, 2, begin_with) if repairs else None,
            errors_end=False,
        )
        self.overlay = overlay
        self.agents: dict[int, SiteAgent] = {}
        self.tasks: list[asyncio.Future[object]] = []
        self.killed: set[int] = set()

    @property
    def lives(self) -> Lives:
        return self.scheduler._run.lives

    def begin(self, doing: Awaitable[object]) -> None:
        self.tasks.append(asyncio.ensure_future(doing))

    async def listen(self) -> None:
        self.address = await self.scheduler.listen(("127.0.0.1", 0))

    def join(self, *sites: int, takes_calls: bool = True) -> None:
        for site in sites:
            name = self.overlay.sites[site].name
            agent = make_agent(self.network, site, name, takes_calls=takes_calls)
            self.agents[site] = agent
            self.begin(agent.join(self.address))

    async def start(self, *sites: int) -> None:
        for site in sites:
            await self.reaches(Stage.PREPARING, Stage.CAME, site=site)
            await asyncio.sleep(0.1)  # the welcome is on its way
            transport = Transport(64, 64, 1 << 16)
            self.begin(self.agents[site].start(transport, self.network.lanes(site)))

    async def reaches(self, *stages: Stage, site: int) -> None:
        """Wait until a site is at one of some stages."""
        async with asyncio.timeout(600.0):
            while self.lives[site] not in stages:
                await asyncio.sleep(0.0005)

    async def exchange(self, *sites: int) -> None:
        buffers = [np.ones(100, np.float32) for _ in sites]
        agents = [self.agents[site] for site in sites]
        rounds = await asyncio.gather(*map(all_reduce, agents, buffers))
        for agent, done in zip(agents, rounds, strict=True):
            await agent.round_ended(done, None)

    async def admit(self, *sites: int) -> None:
        await asyncio.gather(*(self.agents[site].admit() for site in sites))
        for site in sites:
            self.agents[site].has_state()

    def kill(self, site: int) -> None:
        self.killed.add(site)
        self.network.kill(site)
        self.agents[site].close()

    async def members(self, *sites: int) -> None:
        """Let a run begin with some sites."""
        await self.listen()
        self.join(*sites)
        await self.start(*sites)
        for site in sites:
            await self.reaches(Stage.MEMBER, site=site)

    async def comes(self, site: int, until: Stage) -> None:
        """Let a newcomer come, until it is at some stage."""
        if site in self.killed:
            self.network.revive(site)
            self.killed.remove(site)
        self.join(site)
        await self.reaches(Stage.CAME, site=site)
        if until != Stage.CAME:
            await self.start(site)
            await self.reaches(until, Stage.STARTED, site=site)
        if until == Stage.ASKING:
            self.begin(self.agents[site].admit())
            await self.reaches(until, site=site)

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.scheduler.abort("the test is over")
        await self.scheduler.close()


async def founder(what: str) -> None:
    group = Group(full())
    await group.listen()
    if what == "goes before all are here":
        group.join(0, LAST)
        await group.reaches(Stage.JOINED, site=LAST)
        group.kill(LAST)
        await group.reaches(Stage.ABSENT, site=LAST)
    else:
        group.join(0, 1, LAST)
        await group.start(0)
        if what == "dies once it is ready":
            await group.start(LAST)
            await group.reaches(Stage.READY, site=LAST)
        else:
            await group.reaches(Stage.PREPARING, site=LAST)
        group.kill(LAST)
        await group.reaches(Stage.LOST, site=LAST)
    await group.end()


async def out_of_reach() -> None:
    """Let two sites join, neither of which takes connections, and then one that both reach."""
    group = Group(chain(), begin_with=2)
    await group.listen()
    group.join(0, takes_calls=False)
    await group.reaches(Stage.JOINED, site=0)
    group.join(1, takes_calls=False)
    await asyncio.sleep(0.1)
    group.join(2)
    await asyncio.sleep(0.1)
    await group.end()


async def newcomer(until: Stage, ends: bool) -> None:
    group = Group(full())
    await group.members(0, 1, 2)
    await group.comes(LAST, until)
    if ends:
        group.kill(LAST)
        await group.reaches(Stage.LOST, site=LAST)
    elif until == Stage.ASKING:
        await group.admit(0, 1, 2)
        await group.reaches(Stage.MEMBER, site=LAST)
    await group.end()


async def member(what: str) -> None:
    group = Group(chain() if "relays" in what else full(), begin_with=4)
    await group.members(0, 1, 2, LAST)
    who = 1 if "relays" in what else LAST
    others = [site for site in range(4) if site != who]
    if what == "dies":
        group.kill(who)
        await group.exchange(*others)
        await group.reaches(Stage.LOST, site=who)
        await group.end()
        return
    group.begin(group.agents[who].leave())
    await group.reaches(Stage.DEPARTED, site=who)
    if what == "leaves, and dies":
        group.kill(who)
        await group.reaches(Stage.GONE, site=who)
    else:
        await group.exchange(*others)
        await group.reaches(Stage.LEFT, Stage.GONE, site=who)
    if what == "leaves, relays, and dies":
        group.kill(who)
        await group.reaches(Stage.GONE, site=who)
    if what == "leaves, and comes back":
        await group.comes(who, Stage.CAME)
    await group.end()


async def worker(what: str) -> None:
    """Let a worker of a served model leave before the others, or die and come back."""
    overlay = full()
    workers = (1, 2, LAST)
    cluster = await Cluster.start(
        simulated(overlay),
        overlay,
        star(overlay, hub=0),
        pacing=PaceBook(Asp(), Equal(8), workers, (0,), 1000),
        served=lambda site: ServedModel(np.zeros(50, np.float32), Sgd(0.1).start, len(workers)),
    )
    network, lives = cluster.ports, cluster.scheduler._run.lives
    assert isinstance(network, SimulatedNetwork)
    await asyncio.sleep(0.1)
    if what == "leaves":
        leaving = asyncio.ensure_future(cluster.agents[LAST].leave())
        await asyncio.sleep(1.0)
        leaving.cancel()
    else:
        network.kill(LAST)
        cluster.agents[LAST].close()
        await asyncio.sleep(30.0)
        network.revive(LAST)
        cluster.agents[LAST] = await cluster.join(LAST)
        assert lives[LAST] == Stage.MEMBER
    cluster.scheduler.abort("the test is over")
    await asyncio.sleep(1.0)
    await cluster.end()


async def without_repairs() -> None:
    group = Group(full(), repairs=False)
    await group.members(0, 1, 2, LAST)
    group.begin(group.agents[LAST].leave())
    await group.reaches(Stage.LEFT, site=LAST)
    await group.end()


NEWCOMER = (Stage.CAME, Stage.INTRODUCED, Stage.STARTED, Stage.ASKING)
SCENARIOS: tuple[Callable[[], Awaitable[None]], ...] = (
    partial(founder, "goes before all are here"),
    partial(founder, "dies while it prepares"),
    partial(founder, "dies once it is ready"),
    out_of_reach,
    *(partial(newcomer, stage, ends) for stage in NEWCOMER for ends in (True, False)),
    partial(member, "dies"),
    partial(member, "leaves, and dies"),
    partial(member, "leaves, relays, and dies"),
    partial(member, "leaves, and comes back"),
    partial(worker, "leaves"),
    partial(worker, "dies, and comes back"),
    without_repairs,
)


@cache
def lived() -> frozenset[Row]:
    """Live all scenarios; return each row of the table that happened."""
    seen: set[Row] = set()
    happens = Lives.happens

    def record(self: Lives, what: Happens, *sites: int) -> None:
        seen.update((self[site], what) for site in sites)
        happens(self, what, *sites)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lives, "happens", record)
        for scenario in SCENARIOS:
            run_virtually(scenario())  # type: ignore[arg-type]
    return frozenset(seen)


@pytest.mark.parametrize(("stage", "what"), ROWS, ids=lambda each: each.name.lower())
def test_each_row_of_the_table_happens(stage: Stage, what: Happens) -> None:
    assert (stage, what) in lived()


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("what", Happens)
def test_what_the_table_lacks_cannot_happen(stage: Stage, what: Happens) -> None:
    lives = Lives(1)
    lives.put(0, stage)
    following = TABLE[stage].get(what)
    assert lives.may(0, what) == (following is not None)
    if following is None:
        with pytest.raises(RuntimeError, match=f"site 0 {what.value}, and it is {stage.value}"):
            lives.happens(what, 0)
    else:
        lives.happens(what, 0)
    assert lives[0] == (following or stage)


def test_a_scheduler_that_is_started_again_takes_lives_up() -> None:
    lives = Lives(5)
    lives.restore(lost={1, 4}, left={2, 3, 4}, departed={3})
    stages = [Stage.MEMBER, Stage.LOST, Stage.LEFT, Stage.DEPARTED, Stage.GONE]
    assert [lives[site] for site in range(5)] == stages
    assert (lives.lost, lives.left, lives.departed) == ({1, 4}, {2, 3, 4}, {3})
    assert lives.has_formed
    assert lives.are_ready
