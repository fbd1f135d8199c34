"""A scheduler that is killed and started again finds its group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.log import LogError, events
from anabranch.net.errors import LinkError, RunAborted
from anabranch.net.identity import proven
from anabranch.net.messages import Refusal, Restarted, Resume, SiteSnapshot
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan
from anabranch.scheduler.awareness import Awareness, Passive
from anabranch.scheduler.losses import Repairs
from anabranch.scheduler.memory import encode, read
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import SiteAgent
from anabranch.site.round import ExchangeError, Round
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork
from tests.every import every
from tests.sim.test_network import Ear
from tests.site.cluster import TOKEN, Cluster, Floats, Witness, all_reduce, make_agent, simulated

_LATE_S = 9.0  # by then a site that died is given up


class Written:
    """A journal in this process's memory, by virtual time."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self.writes = 0

    def load(self) -> bytes | None:
        return self.data

    def save(self, data: bytes) -> None:
        self.data = data
        self.writes += 1

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() + 1e9


def plan_of(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


def awareness_of(overlay: Overlay) -> Awareness:
    return Passive(start="equal").awareness(
        plan_of(overlay), plan_of, lambda overlay, plan: {}, lambda elements: 512, overlay
    )


class Restartable:
    """A cluster whose scheduler can be killed and started again."""

    def __init__(self, network: SimulatedNetwork, cluster: Cluster, journal: Written) -> None:
        self.network, self.cluster, self.journal = network, cluster, journal
        self.witness = Witness()
        self.scheduler = cluster.scheduler

    @classmethod
    async def begin(
        cls, size: int, begin_with: int | None = None, measures: bool = False
    ) -> Restartable:
        pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
        links = tuple(Link(a, b, 1e6, latency_s=0.001) for a, b in pairs)
        overlay = Overlay("full", tuple(Site(f"s{site}") for site in range(size)), links)
        network = simulated(overlay)
        network.begin()
        journal = Written()
        cluster = await Cluster.start(
            network,
            overlay,
            plan_of(overlay),
            chunk_elements=512,
            repairs=Repairs(plan_of, 2, begin_with),
            joining=range(begin_with or size),
            journal=journal,
            meter=partial(Passive().measuring().meter, 512) if measures else None,
            awareness=awareness_of(overlay) if measures else None,
        )
        for agent in cluster.agents:
            agent.wait_for_scheduler(60.0)
        return cls(network, cluster, journal)

    @property
    def agents(self) -> list[SiteAgent]:
        return self.cluster.agents

    def part(self, site: int) -> None:
        """Break a site's way to the scheduler, and let no neighbour carry what it says."""
        self.network.disconnect(site)
        self.agents[site]._scheduler.neighbours = None

    def kill_scheduler(self) -> None:
        self.network.kill(None)
        self.scheduler.abandon()

    async def start_scheduler(self, measures: bool = False) -> None:
        self.network.revive(None)
        overlay = self.scheduler.overlay
        self.witness = Witness()
        self.scheduler = self.cluster.scheduler = Scheduler(
            self.network.control(None),
            overlay,
            plan_of(overlay),
            TOKEN,
            "work",
            lambda plan, elements: 512,
            self.witness,
            awareness_of(overlay) if measures else None,
            repairs=Repairs(plan_of, 2),
            journal=self.journal,
        )
        await self.scheduler.listen((self.cluster.address[0], 0))


def powers(site: int, elements: int) -> Floats:
    return np.full(elements, 2.0**site, np.float32)


async def one_call(agent: SiteAgent, elements: int = 300, channel: int = 0) -> tuple[Floats, Round]:
    buffer = powers(agent.welcome.site, elements)
    done = await all_reduce(agent, buffer, channel=channel)
    await agent.round_ended(done, None)
    return buffer, done


def calls_of(agents: list[SiteAgent], elements: int = 300) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(one_call(agent, elements)) for agent in agents]


async def means_of(tasks: list[asyncio.Task[Any]]) -> set[float]:
    return {float(value) for task in tasks for value in (await task)[0]}


def virtually(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@pytest.mark.parametrize("at_s", [0.0, 0.001, 0.002, 0.003, 0.01, 0.1, 0.3, 0.5, 0.8])
def test_no_call_is_lost_or_made_twice_whenever_the_scheduler_dies(at_s: float) -> None:
    async def go() -> None:
        group = await Restartable.begin(4)
        assert await means_of(calls_of(group.agents)) == {15 / 4}
        tasks = calls_of(group.agents, 20_000)
        await asyncio.sleep(at_s)
        group.kill_scheduler()
        await asyncio.sleep(1.0)
        await group.start_scheduler()
        assert await means_of(tasks) == {15 / 4}
        assert {(await task)[1].contributions for task in tasks} == {()}
        assert await means_of(calls_of(group.agents)) == {15 / 4}
        assert {(await task)[1].round for task in calls_of(group.agents)} == {4}
        (restarted,) = group.witness.of(events.SchedulerRestarted)
        assert restarted.awaited == [0, 1, 2, 3]
        assert not group.witness.of(events.SiteLost)
        assert not group.witness.refusals
        await group.cluster.leave()

    run_virtually(go())


@virtually
async def test_a_site_that_dies_meanwhile_is_left_out() -> None:
    group = await Restartable.begin(4)
    tasks = calls_of(group.agents, 20_000)
    await asyncio.sleep(0.3)
    group.kill_scheduler()
    await asyncio.sleep(0.1)
    group.network.kill(3)
    tasks.pop().cancel()
    await asyncio.sleep(1.0)
    await group.start_scheduler()
    for task in tasks:
        buffer, done = await task
        assert done.members == (0, 1, 2)
        for each in done.contributions:
            mean = np.float32(sum(2.0**site for site in each.sites) / len(each.sites))
            assert (buffer[each.start : each.stop] == mean).all()
    assert group.scheduler.lost == {3}
    assert await means_of(calls_of(group.agents[:3])) == {np.float32(7 / 3)}


@virtually
async def test_a_pair_that_is_cut_meanwhile_is_led_round() -> None:
    group = await Restartable.begin(4)
    tasks = calls_of(group.agents, 20_000)
    await asyncio.sleep(0.2)
    group.kill_scheduler()
    group.network.sever(0, 1)
    await asyncio.sleep(1.0)
    await group.start_scheduler()
    assert await means_of(tasks) == {15 / 4}
    assert not group.scheduler.lost
    assert await means_of(calls_of(group.agents)) == {15 / 4}


@virtually
async def test_it_may_be_started_again_several_times() -> None:
    group = await Restartable.begin(3)
    for number in range(1, 4):
        tasks = calls_of(group.agents, 5_000)
        await asyncio.sleep(0.07 * number)
        group.kill_scheduler()
        await asyncio.sleep(3.0)
        await group.start_scheduler()
        assert await means_of(tasks) == {np.float32(7 / 3)}
        assert {(await task)[1].round for task in tasks} == {number}


@pytest.mark.parametrize("at_s", [0.0, 0.005, 0.1])
def test_small_values_and_subgroups_come_through(at_s: float) -> None:
    async def go() -> None:
        group = await Restartable.begin(3)
        first = await asyncio.gather(*(agent.gather(b"%d" % 7) for agent in group.agents))
        assert {each.values for each in first} == {(b"7",) * 3}
        before = await asyncio.gather(*(agent.subgroup((0, 2)) for agent in group.agents[::2]))
        calls: list[Any] = [agent.gather(b"%d" % i) for i, agent in enumerate(group.agents[:2])]
        tasks = [asyncio.create_task(each) for each in calls]
        pair = [asyncio.create_task(agent.subgroup((0, 1))) for agent in group.agents[:2]]
        await asyncio.sleep(at_s)
        group.kill_scheduler()
        last = asyncio.create_task(group.agents[2].gather(b"2"))
        await asyncio.sleep(1.0)
        await group.start_scheduler()
        assert {(await task).values for task in (*tasks, last)} == {(b"0", b"1", b"2")}
        assert {await task for task in pair} == {before[0] + 1}
        both = [one_call(agent, channel=before[0]) for agent in group.agents[::2]]
        assert {float(buffer[0]) for buffer, _ in await asyncio.gather(*both)} == {2.5}
        assert not group.witness.refusals

    run_virtually(go())


@virtually
async def test_calls_that_differ_are_named_also_after_a_restart() -> None:
    group = await Restartable.begin(2)
    one = asyncio.create_task(one_call(group.agents[0], 10))
    await asyncio.sleep(0.1)
    group.kill_scheduler()
    other = asyncio.create_task(group.agents[1].gather(b""))
    await asyncio.sleep(1.0)
    await group.start_scheduler()
    said = r"site 0 \(s0\) exchanges a mean .* and site 1 \(s1\) gathers"
    for task in (one, other):
        with pytest.raises(ExchangeError, match=said):
            await task


@pytest.mark.parametrize("at_s", [0.0, 0.001, 0.002, 0.01, 0.1])
def test_a_site_may_join_while_it_is_away(at_s: float) -> None:
    async def go() -> None:
        group = await Restartable.begin(3, begin_with=2)
        await asyncio.gather(*(agent.admit() for agent in group.agents))
        for agent in group.agents:
            agent.has_state()
        new = await group.cluster.join(2)
        new.wait_for_scheduler(60.0)
        waiting = asyncio.create_task(new.admit())
        await asyncio.sleep(0.1)
        tasks = [asyncio.create_task(agent.admit()) for agent in group.agents]
        await asyncio.sleep(at_s)
        group.kill_scheduler()
        await asyncio.sleep(1.0)
        await group.start_scheduler()
        told = [await task for task in tasks]
        if 2 in told[0].members:
            assert await waiting == told[0] == told[1]
            new.has_state()
            everyone = [*group.agents, new]
        else:
            with pytest.raises(RunAborted, match="this site"):
                await waiting
            everyone = group.agents
        await asyncio.gather(*(agent.gather(b"") for agent in everyone))  # all are in step
        mean = np.float32(sum(2.0**site for site in told[0].members) / len(told[0].members))
        assert await means_of(calls_of(everyone)) == {mean}

    run_virtually(go())


@virtually
async def test_without_any_site_left_it_ends() -> None:
    group = await Restartable.begin(2)
    group.kill_scheduler()
    for site in range(2):
        group.network.kill(site)
    await group.start_scheduler()
    with pytest.raises(RunAborted, match="no site came back to it"):
        await group.scheduler.finished()


@virtually
async def test_what_links_were_measured_at_is_known_after_a_restart() -> None:
    group = await Restartable.begin(4, measures=True)
    for _ in range(5):
        assert await means_of(calls_of(group.agents, 20_000)) == {15 / 4}
    before = {(link.source, link.target): link for link in group.scheduler.status().links}
    assert every(link.basis == "measured" for link in before.values())
    group.kill_scheduler()
    await asyncio.sleep(1.0)
    await group.start_scheduler(measures=True)
    after = {(link.source, link.target): link for link in group.scheduler.status().links}
    assert not group.witness.of(events.LinkMeasured)
    assert after.keys() == before.keys()
    for pair, link in after.items():
        assert link.basis == "measured"
        assert link.rate_bps == pytest.approx(before[pair].rate_bps, rel=0.05)
    await means_of(calls_of(group.agents))
    await group.cluster.leave()


@virtually
async def test_the_journal_is_written_seldom() -> None:
    group = await Restartable.begin(3)
    before = group.journal.writes
    for _ in range(50):
        await means_of(calls_of(group.agents))
    assert group.journal.writes == before == 1


@virtually
async def test_a_journal_that_cannot_be_written_ends_the_group_by_its_name() -> None:
    group = await Restartable.begin(3)
    await means_of(calls_of(group.agents))

    def save(data: bytes) -> None:
        raise LogError("the journal run.journal cannot be written: database or disk is full")

    group.journal.save = save  # type: ignore[method-assign]
    group.network.kill(2)
    ended = await asyncio.gather(*calls_of(group.agents[:2]), return_exceptions=True)
    for each in ended:
        assert isinstance(each, RunAborted)
        assert "the journal run.journal cannot be written: database or disk is full" in str(each)


@virtually
async def test_a_journal_of_another_overlay_is_refused() -> None:
    group = await Restartable.begin(2)
    other = await Restartable.begin(3)
    group.kill_scheduler()
    group.journal.data = other.journal.data
    with pytest.raises(LogError, match="another overlay"):
        await group.start_scheduler()


@virtually
async def test_what_is_said_while_sites_come_back_counts_once() -> None:
    group = await Restartable.begin(3)
    group.kill_scheduler()
    group.network.disconnect(2)
    await group.start_scheduler()
    await asyncio.sleep(1.0)
    tasks = calls_of(group.agents, 3_000)  # two sites are back, and ask
    await asyncio.sleep(0.1)
    group.network.reconnect(2)
    assert await means_of(tasks) == {np.float32(7 / 3)}
    for _ in range(100):  # each side tells the other how much it has heard, now and then
        assert await means_of(calls_of(group.agents)) == {np.float32(7 / 3)}


@virtually
async def test_a_connection_may_break_before_a_site_is_asked_how_far_it_is() -> None:
    group = await Restartable.begin(3)
    tasks = calls_of(group.agents, 5_000)
    await asyncio.sleep(0.1)
    group.kill_scheduler()
    await asyncio.sleep(0.1)
    control = group.agents[1]._scheduler
    hear, dropped = control.hear, []

    def deaf(message: Any, connection: Any) -> None:
        if isinstance(message, Restarted) and not dropped:
            dropped.append(message)
            connection.close()
            control.lost(LinkError("broken"))
            return
        hear(message, connection)

    control.hear = deaf  # type: ignore[method-assign]
    await group.start_scheduler()
    assert await means_of(tasks) == {np.float32(7 / 3)}
    assert dropped
    assert not group.scheduler.lost


@virtually
async def test_a_clock_that_was_set_back_blames_no_site() -> None:
    group = await Restartable.begin(3)
    tasks = calls_of(group.agents, 5_000)
    await asyncio.sleep(5.0)
    assert group.journal.data is not None
    group.kill_scheduler()
    began = structs.replace(read(group.journal.data), began_at_s=group.journal.now_s() + 3600.0)
    group.journal.data = encode(began)
    await group.start_scheduler()
    assert await means_of(tasks) == {np.float32(7 / 3)}
    assert await means_of(calls_of(group.agents)) == {np.float32(7 / 3)}


@pytest.mark.parametrize("lie", ["op", "answer", "count"])
def test_a_site_that_lies_about_its_calls_is_refused_and_the_others_go_on(lie: str) -> None:
    async def go() -> None:
        group = await Restartable.begin(3)
        tasks = calls_of(group.agents, 20_000)
        await asyncio.sleep(0.1)
        group.kill_scheduler()
        agent = group.agents[2]
        post = agent._scheduler.post

        def lying(message: Any) -> None:
            if isinstance(message, SiteSnapshot):
                message = structs.replace(message, channels=(lie_about(*message.channels),))
            post(message)

        def lie_about(told: Any) -> Any:
            (exchange,) = told.exchanges
            signature = structs.replace(exchange.signature, op=99)
            match lie:
                case "op":
                    exchange = structs.replace(exchange, signature=signature)
                    return structs.replace(told, exchanges=(exchange,))
                case "answer":
                    return structs.replace(told, answers=(b"none",))
                case _:
                    return structs.replace(told, asked=-3)

        agent._scheduler.post = lying  # type: ignore[method-assign]
        await group.start_scheduler()
        with pytest.raises(RunAborted, match="refused this site"):
            await tasks[2]
        assert await means_of(tasks[:2]) == {np.float32(7 / 3), np.float32(3 / 2)}
        (refused,) = group.witness.refusals
        assert refused.sender == 2
        assert [each.site for each in group.witness.of(events.SiteLost)] == [2]

    run_virtually(go())


def test_a_journal_of_another_release_is_refused() -> None:
    with pytest.raises(LogError, match="not one of this release"):
        read(b"{}")


@virtually
async def test_a_scheduler_may_be_started_again_before_all_have_joined() -> None:
    links = tuple(Link(a, b, 1e6) for a, b in [(0, 1), (1, 0)])
    overlay = Overlay("pair", (Site("s0"), Site("s1")), links)
    network = simulated(overlay)
    network.begin()

    def scheduler() -> Scheduler:
        control, plan = network.control(None), plan_of(overlay)
        return Scheduler(control, overlay, plan, TOKEN, "", lambda plan, elements: 512, Witness())

    first = scheduler()
    address = await first.listen(("", 0))
    agents = [make_agent(network, site, f"s{site}") for site in range(2)]
    joining = [asyncio.create_task(agents[0].join(address, patience_s=30.0))]
    await asyncio.sleep(1.0)
    network.kill(None)
    first.abandon()
    await asyncio.sleep(5.0)
    network.revive(None)
    await scheduler().listen(("", address[1]))
    joining.append(asyncio.create_task(agents[1].join(address, patience_s=30.0)))
    assert [(await task).site for task in joining] == [0, 1]


@virtually
async def test_a_site_that_has_no_patience_hears_that_the_scheduler_is_gone() -> None:
    group = await Restartable.begin(3, begin_with=2)
    late = make_agent(group.network, 2, "s2")
    network, address = group.network, group.cluster.address
    network.disconnect(2)
    with pytest.raises(LinkError):
        await late.join(address)


@virtually
async def test_what_was_interrupted_before_a_site_asked_for_it_may_be_forgotten() -> None:
    """Only the site that died had begun the exchange, and the scheduler that knew it is gone."""
    group = await Restartable.begin(3)
    alone = asyncio.create_task(one_call(group.agents[2]))
    await asyncio.sleep(0.1)
    group.network.kill(2)
    alone.cancel()
    await asyncio.sleep(_LATE_S)
    group.kill_scheduler()
    await asyncio.sleep(1.0)
    await group.start_scheduler()
    assert await means_of(calls_of(group.agents[:2])) == {1.5}


def test_what_a_site_did_not_hear_of_several_gatherings_at_once_is_known_after_a_restart() -> None:
    async def play() -> None:
        group = await Restartable.begin(3)
        one, two, other = group.agents
        calls = [asyncio.create_task(other.gather(b"2%d" % number)) for number in range(2)]
        await asyncio.sleep(0.1)
        group.network.disconnect(2)
        for number in range(2):
            await asyncio.gather(*(agent.gather(b"%d" % number) for agent in (one, two)))
        group.kill_scheduler()
        await asyncio.sleep(0.1)
        group.network.reconnect(2)
        await group.start_scheduler()
        values = [found.values for found in await asyncio.gather(*calls)]
        assert values == [(b"0", b"0", b"20"), (b"1", b"1", b"21")]
        for _ in range(3):  # and what all have heard is forgotten
            await asyncio.gather(*(agent.gather(b"") for agent in group.agents))
        assert every(len(agent._collectives._channels[0].answers) == 1 for agent in group.agents)

    run_virtually(play())


def test_a_broadcast_that_failed_before_a_restart_fails_for_who_asks_for_it_later() -> None:
    async def play() -> None:
        group = await Restartable.begin(4)
        group.network.kill(3)
        one, two, late = group.agents[:3]
        await asyncio.sleep(_LATE_S)

        async def broadcast(agent: SiteAgent) -> str:
            terms = Terms(Op.COPY, Wire.FLOAT32, 8, source=3)
            with pytest.raises(ExchangeError, match="site 3, which would broadcast, is lost") as no:
                await agent.exchange(Flat(np.zeros(8, np.float32)), terms)
            return str(no.value)

        group.network.disconnect(2)
        await asyncio.gather(*map(broadcast, (one, two)))
        group.kill_scheduler()
        group.network.reconnect(2)
        await asyncio.sleep(0.1)
        await group.start_scheduler()
        await asyncio.sleep(1.0)  # it is back, and has not asked yet
        await asyncio.wait_for(broadcast(late), 30.0)

    run_virtually(play())


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_site_that_died_with_the_scheduler_is_not_awaited_for_long(comes_back: bool) -> None:
    async def go() -> None:
        loop = asyncio.get_running_loop()
        group = await Restartable.begin(4)
        assert await means_of(calls_of(group.agents)) == {np.float32(15 / 4)}
        if comes_back:  # it lives, and has lost one lane only
            group.network.sever(2, 3)
        else:
            group.network.kill(3)
        group.kill_scheduler()
        await asyncio.sleep(0.1)
        await group.start_scheduler()
        began_s = loop.time()
        if comes_back:
            assert await means_of(calls_of(group.agents)) == {np.float32(15 / 4)}
            assert group.scheduler.lost == set()
        else:
            assert await means_of(calls_of(group.agents[:3])) == {np.float32(7 / 3)}
            assert group.scheduler.lost == {3}
            assert loop.time() - began_s < 2.0

    run_virtually(go())


def test_a_caller_that_proves_nothing_is_told_nothing_of_a_restart() -> None:
    async def go() -> None:
        group = await Restartable.begin(3)
        group.part(2)
        assert await means_of(calls_of(group.agents[:2])) == {1.5}
        group.kill_scheduler()
        await asyncio.sleep(1.0)
        await group.start_scheduler()
        assert await means_of(calls_of(group.agents[:2])) == {1.5}
        group.network.reconnect(2)
        told = Ear()
        caller = await group.network.control(2).connect(group.cluster.address, told)
        caller.post(proven(Resume(b"", 2, 0), b"guess", b""))
        await asyncio.sleep(1.0)
        [(_, refusal, _)] = told.heard
        assert isinstance(refusal, Refusal)
        assert refusal.detail == "s2 says it is site 2 of this run, and does not prove it"

    run_virtually(go())


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (True, "the scheduler was started again, and goes on without s2"),
        (False, "given up, and the others go on without it: site 2 (s2) died in round 2"),
    ],
)
def test_who_was_given_up_before_a_restart_or_after_it_is_told_so(before: bool, told: str) -> None:
    async def go() -> None:
        group = await Restartable.begin(3)
        assert await means_of(calls_of(group.agents)) == {np.float32(7 / 3)}
        if before:
            group.part(2)
            assert await means_of(calls_of(group.agents[:2])) == {1.5}
        group.kill_scheduler()
        await asyncio.sleep(1.0)
        await group.start_scheduler()
        if not before:
            assert await means_of(calls_of(group.agents)) == {np.float32(7 / 3)}
            group.part(2)
        assert await means_of(calls_of(group.agents[:2])) == {1.5}
        group.network.reconnect(2)
        with pytest.raises(RunAborted) as refused:
            await one_call(group.agents[2])
        assert told in str(refused.value), refused.value
        assert str(refused.value).endswith("join again")

    run_virtually(go())


@pytest.mark.parametrize("is_ahead", [False, True])
def test_what_no_member_can_use_is_said_again_to_the_next_scheduler(is_ahead: bool) -> None:
    async def main() -> None:
        group = await Restartable.begin(3)
        terms = Terms(Op.MEAN, Wire.FLOAT32, 300)
        if is_ahead:
            first = [
                agent.exchange(Flat(powers(0, 300)), terms, more=True) for agent in group.agents
            ]
            await asyncio.gather(*first)
        group.kill_scheduler()
        buffers = [powers(site, 300) for site in range(3)]
        calls = [
            asyncio.create_task(
                agent.exchange(Flat(buffers[site]), terms, unfit="1 NaN" if site == 1 else "")
            )
            for site, agent in enumerate(group.agents)
        ]
        await asyncio.sleep(1.0)
        await group.start_scheduler()
        said = await asyncio.gather(*calls, return_exceptions=True)
        assert every(isinstance(each, ExchangeError) and "has 1 NaN" in str(each) for each in said)
        assert [buffer[0] for buffer in buffers] == [1.0, 2.0, 4.0]
        await asyncio.gather(*calls_of(group.agents))

    run_virtually(main())


@virtually
async def test_the_others_go_on_without_a_site_that_asked_ahead_and_left_before_a_restart() -> None:
    group = await Restartable.begin(3)
    terms = Terms(Op.MEAN, Wire.FLOAT32, 300)
    first = [agent.exchange(Flat(powers(0, 300)), terms, more=True) for agent in group.agents]
    await asyncio.gather(*first)
    group.kill_scheduler()
    leaving = asyncio.create_task(group.agents[2].leave())
    await asyncio.sleep(1.0)
    await group.start_scheduler()
    assert await asyncio.wait_for(means_of(calls_of(group.agents[:2])), 600.0) == {1.5}
    leaving.cancel()


@virtually
async def test_calls_fail_without_a_site_that_left_before_a_restart_where_too_few_are_left() -> (
    None
):
    group = await Restartable.begin(2)
    leaving = asyncio.create_task(group.agents[1].leave())
    with pytest.raises(ExchangeError, match=r"site 1 \(s1\) has left"):
        await one_call(group.agents[0])
    await group.agents[0].subgroup((0, 1))  # the journal has now what led to that
    group.kill_scheduler()
    (call,) = calls_of(group.agents[:1])
    await asyncio.sleep(1.0)
    await group.start_scheduler()
    with pytest.raises(ExchangeError, match=r"site 1 \(s1\) has left"):
        await asyncio.wait_for(call, 600.0)
    leaving.cancel()


@pytest.mark.parametrize("gathers", [False, True])
def test_calls_fail_without_a_site_that_left_and_is_not_there_after_a_restart(
    gathers: bool,
) -> None:
    """It says nothing of its calls, and has not made the one that goes on."""

    async def main() -> None:
        group = await Restartable.begin(2)
        leaving = asyncio.create_task(group.agents[1].leave())
        await asyncio.sleep(0.1)
        group.kill_scheduler()
        group.part(1)
        agent = group.agents[0]
        call = asyncio.create_task(agent.gather(b"")) if gathers else calls_of([agent])[0]
        await asyncio.sleep(1.0)
        await group.start_scheduler()
        with pytest.raises(ExchangeError, match=r"site 1 \(s1\) has left"):
            await asyncio.wait_for(call, 600.0)
        leaving.cancel()

    run_virtually(main())
