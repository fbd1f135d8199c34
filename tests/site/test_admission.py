"""Sites that join a group that goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import permutations

import numpy as np
import pytest

from anabranch import plan as plans
from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.log import events
from anabranch.net.errors import RunAborted
from anabranch.net.messages import Admitted
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Auxiliary, Packed, Plan
from anabranch.scheduler.awareness import Passive
from anabranch.scheduler.losses import Repairs
from anabranch.site.agent import SiteAgent
from anabranch.site.round import ExchangeError
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork
from tests.every import every
from tests.site.cluster import Cluster, Floats, all_reduce, simulated


def plan_of(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


async def begin(size: int, begin_with: int) -> tuple[SimulatedNetwork, Cluster]:
    """Begin with some sites of a full overlay."""
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    links = tuple(Link(a, b, 1e6, latency_s=0.001) for a, b in pairs)
    overlay = Overlay("full", tuple(Site(f"s{site}") for site in range(size)), links)
    network = simulated(overlay)
    network.begin()
    repairs = Repairs(plan_of, 2, begin_with)
    plan = plan_of(overlay)
    cluster = await Cluster.start(
        network, overlay, plan, chunk_elements=512, repairs=repairs, joining=range(begin_with)
    )
    return network, cluster


async def mean_of(agents: list[SiteAgent], elements: int = 300) -> set[float]:
    buffers = [np.full(elements, 2.0**agent.welcome.site, np.float32) for agent in agents]
    rounds = await asyncio.gather(*map(all_reduce, agents, buffers))
    for agent, done in zip(agents, rounds, strict=True):
        await agent.round_ended(done, None)
    return {float(value) for buffer in buffers for value in buffer}


async def asks(cluster: Cluster, site: int) -> tuple[SiteAgent, asyncio.Task[Admitted]]:
    """Let a site join, and ask to be let in."""
    new = await cluster.join(site)
    waiting = asyncio.create_task(new.admit())
    await asyncio.sleep(0.1)
    return new, waiting


async def let_in(agents: list[SiteAgent]) -> Admitted:
    told = await asyncio.gather(*(agent.admit() for agent in agents))
    assert every(each == told[0] for each in told)
    for agent in agents:
        agent.has_state()
    return told[0]


async def hand_on(agents: list[SiteAgent], told: Admitted, elements: int = 5000) -> list[Floats]:
    """Hand holders' state to newcomers; return what each site has then."""
    terms = Terms(Op.COPY, Wire.FLOAT32, elements, None, told.newcomers)
    state = np.arange(elements, dtype=np.float32)
    buffers = [
        state.copy() if agent.welcome.site in told.holders else np.zeros(elements, np.float32)
        for agent in agents
    ]
    pairs = zip(agents, buffers, strict=True)
    calls = (agent.exchange(Flat(buffer), terms) for agent, buffer in pairs)
    for done, agent in zip(await asyncio.gather(*calls), agents, strict=True):
        await agent.round_ended(done, None)
        agent.has_state()
    await in_step(agents)
    return buffers


async def in_step(agents: list[SiteAgent]) -> None:
    """Let newcomers take part from here on: a gathering waits for all of them."""
    await asyncio.gather(*(agent.gather(b"") for agent in agents))


def virtually(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtually(test())  # type: ignore[arg-type]

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@virtually
async def test_newcomers_are_let_in_once_members_reach_them_however_many_they_are() -> None:
    pairs = [(a, b) for a in range(6) for b in ((a + 1) % 6, (a - 1) % 6)]
    links = tuple(Link(a, b, 1e6, latency_s=0.001) for a, b in pairs)
    overlay = Overlay("ring", tuple(Site(f"s{site}") for site in range(6)), links)
    network = simulated(overlay)
    network.begin()
    plan = plan_of(overlay)
    repairs = Repairs(plan_of, 2, 2)
    cluster = await Cluster.start(network, overlay, plan, repairs=repairs, joining=(2, 3))
    await let_in(cluster.agents)
    waiting = [await asks(cluster, site) for site in (5, 0)]
    assert (await let_in(cluster.agents)).newcomers == ()
    assert await mean_of(cluster.agents) == {(4 + 8) / 2}
    waiting.append(await asks(cluster, 1))
    told = await let_in(cluster.agents)
    assert told.newcomers == (0, 1, 5)
    everyone = [*cluster.agents, *(new for new, _ in waiting)]
    assert [await each for _, each in waiting] == [told] * 3
    await hand_on(everyone, told)
    assert await mean_of(everyone) == {np.float32((1 + 2 + 4 + 8 + 32) / 5)}


@virtually
async def test_a_newcomer_is_let_in_and_gets_the_state_of_all_who_have_it() -> None:
    _, cluster = await begin(4, begin_with=3)
    assert await mean_of(cluster.agents) == {np.float32(7 / 3)}
    assert await let_in(cluster.agents) == Admitted(1, 1, (0, 1, 2), (1, 2), (0,), "")
    new = await cluster.join(3)
    waiting = asyncio.create_task(new.admit())
    assert await mean_of(cluster.agents) == {np.float32(7 / 3)}
    await asyncio.sleep(1.0)
    told = await let_in(cluster.agents)
    assert (told.newcomers, told.holders, told.exchanges) == ((3,), (0, 1, 2), 2)
    assert await waiting == told
    everyone = [*cluster.agents, new]
    for buffer in await hand_on(everyone, told):
        assert (buffer == np.arange(5000)).all()
    assert await mean_of(everyone) == {15 / 4}


@virtually
async def test_where_none_waits_nothing_changes() -> None:
    _, cluster = await begin(3, begin_with=3)
    await let_in(cluster.agents)
    told = await let_in(cluster.agents)
    assert told == Admitted(2, 0, (0, 1, 2), (), (0, 1, 2), "")
    assert cluster.scheduler.channels.all.plan.version == 1


@virtually
async def test_a_site_that_died_comes_back_and_its_links_count_again() -> None:
    network, cluster = await begin(3, begin_with=3)
    network.kill(2)
    cluster.agents[2].close()
    assert await mean_of(cluster.agents[:2]) == {1.5}
    assert cluster.scheduler.lost == {2}
    network.revive(2)
    again, waiting = await asks(cluster, 2)
    await let_in(cluster.agents[:2])
    told = await waiting
    assert told.members == (0, 1, 2)
    assert (told.newcomers, told.holders) == ((1, 2), (0,))  # no state was handed on before
    assert await mean_of([*cluster.agents[:2], again]) == {np.float32(7 / 3)}
    assert not cluster.scheduler.lost
    assert [joined.site for joined in cluster.witness.of(events.SiteJoined)] == [0, 1, 2, 2]
    assert not cluster.refusals


@virtually
async def test_a_newcomer_that_goes_before_it_is_let_in_harms_nothing() -> None:
    network, cluster = await begin(4, begin_with=3)
    _, waiting = await asks(cluster, 3)
    network.kill(3)
    waiting.cancel()
    await asyncio.sleep(0.1)
    assert (await let_in(cluster.agents)).members == (0, 1, 2)
    assert await mean_of(cluster.agents) == {np.float32(7 / 3)}


@virtually
async def test_a_newcomer_that_dies_while_it_gets_the_state_is_left_out() -> None:
    network, cluster = await begin(4, begin_with=3)
    await let_in(cluster.agents)
    new, waiting = await asks(cluster, 3)
    told = await let_in(cluster.agents)
    await waiting
    receiving = asyncio.create_task(hand_on([new], told, 200_000))
    sending = asyncio.create_task(hand_on(cluster.agents, told, 200_000))
    await asyncio.sleep(0.5)
    network.kill(3)
    receiving.cancel()
    for buffer in await sending:
        assert (buffer == np.arange(200_000)).all()
    assert await mean_of(cluster.agents) == {np.float32(7 / 3)}


@virtually
async def test_a_holder_that_dies_while_it_hands_on_is_replaced_by_the_others() -> None:
    network, cluster = await begin(4, begin_with=3)
    await let_in(cluster.agents)
    new, waiting = await asks(cluster, 3)
    told = await let_in(cluster.agents)
    await waiting
    going = asyncio.create_task(hand_on([*cluster.agents[:2], new], told, 200_000))
    dying = asyncio.create_task(hand_on(cluster.agents[2:], told, 200_000))
    await asyncio.sleep(0.5)
    network.kill(2)
    dying.cancel()
    for buffer in await going:
        assert (buffer == np.arange(200_000)).all()


@virtually
async def test_a_state_comes_over_all_of_the_newcomers_links_at_once() -> None:
    """A million bits a second over each of three links: 32 bits of 93 750 elements take 1 s."""
    _, cluster = await begin(4, begin_with=3)
    await let_in(cluster.agents)
    new, waiting = await asks(cluster, 3)
    told = await let_in(cluster.agents)
    await waiting
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await hand_on([*cluster.agents, new], told, 93_750)
    assert 1.0 < loop.time() - began_s < 1.1


@virtually
async def test_calls_of_two_kinds_in_one_place_are_named() -> None:
    _, cluster = await begin(3, begin_with=3)
    calls = [cluster.agents[0].admit(), cluster.agents[1].gather(b""), cluster.agents[2].admit()]
    for found in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(found, ExchangeError)
        assert "site 1 (s1) gathers (all_gather or barrier)" in str(found)
        assert "site 0 (s0) lets others in (admit)" in str(found)


@virtually
async def test_subgroups_are_made_again_with_the_new_site() -> None:
    _, cluster = await begin(3, begin_with=2)
    old = await asyncio.gather(*(agent.subgroup((0, 1)) for agent in cluster.agents))
    new, waiting = await asks(cluster, 2)
    await let_in(cluster.agents)
    await waiting
    everyone = [*cluster.agents, new]
    again = await asyncio.gather(*(agent.subgroup((0, 1)) for agent in cluster.agents))
    whole = await asyncio.gather(*(agent.subgroup((0, 1, 2)) for agent in everyone))
    assert len({*old}) == len({*again}) == len({*whole}) == 1
    assert len({old[0], again[0], whole[0]}) == 3
    for channel, agents in ((old[0], cluster.agents), (whole[0], everyone)):
        buffers = [np.full(9, 2.0**agent.welcome.site, np.float32) for agent in agents]
        pairs = zip(agents, buffers, strict=True)
        await asyncio.gather(*(all_reduce(a, b, channel=channel) for a, b in pairs))
        mean = np.mean([2.0**site for site in range(len(agents))], dtype=np.float32)
        assert {float(buffer[0]) for buffer in buffers} == {float(mean)}


@virtually
async def test_one_that_is_not_let_in_hears_that_the_group_has_ended() -> None:
    _, cluster = await begin(3, begin_with=2)
    _, waiting = await asks(cluster, 2)
    await asyncio.gather(*(agent.leave() for agent in cluster.agents))
    with pytest.raises(RunAborted, match="the group has ended, and did not let this site in"):
        await waiting


@virtually
async def test_a_group_waits_until_those_that_are_there_reach_one_another() -> None:
    links = tuple(Link(a, b, 1e6) for a, b in [(0, 1), (1, 0), (1, 2), (2, 1)])
    overlay = Overlay("chain", tuple(Site(f"s{site}") for site in range(3)), links)
    network = simulated(overlay)
    network.begin()
    starting = asyncio.create_task(
        Cluster.start(
            network, overlay, plan_of(overlay), repairs=Repairs(plan_of, 2, 2), joining=(0, 2, 1)
        )
    )
    cluster = await starting
    assert {agent.welcome.is_new for agent in cluster.agents} == {False}
    assert await mean_of(cluster.agents) == {np.float32(7 / 3)}


@virtually
async def test_a_newcomer_that_all_holders_die_on_gets_no_state() -> None:
    network, cluster = await begin(4, begin_with=2)
    await let_in(cluster.agents)
    new = [await cluster.join(site) for site in (2, 3)]
    waiting = [asyncio.create_task(agent.admit()) for agent in new]
    await asyncio.sleep(0.1)
    told = await let_in(cluster.agents)
    await asyncio.gather(*waiting)
    receiving = [asyncio.create_task(hand_on([agent], told)) for agent in new]
    await asyncio.sleep(0.01)
    for site in (0, 1):
        network.kill(site)
        cluster.agents[site].close()
    for task in receiving:
        with pytest.raises(ExchangeError, match="no site is left that has"):
            await task


@virtually
async def test_a_newcomer_with_links_of_one_way_gets_the_state_over_the_trees() -> None:
    links = [Link(a, b, 1e6) for a, b in [(0, 1), (1, 0), (0, 2), (2, 1)]]
    overlay = Overlay("ways", tuple(Site(f"s{site}") for site in range(3)), tuple(links))
    network = simulated(overlay)
    network.begin()
    repairs = Repairs(plan_of, 2, 2)
    cluster = await Cluster.start(
        network, overlay, plan_of(overlay), repairs=repairs, joining=range(2)
    )
    await let_in(cluster.agents)
    new, waiting = await asks(cluster, 2)
    told = await let_in(cluster.agents)
    await waiting
    for buffer in await hand_on([*cluster.agents, new], told):
        assert (buffer == np.arange(5000)).all()
    assert await mean_of([*cluster.agents, new]) == {np.float32(7 / 3)}


@pytest.mark.parametrize("call", ["exchange", "gather"])
def test_a_newcomer_that_does_not_wait_harms_only_itself(call: str) -> None:
    async def go() -> None:
        _, cluster = await begin(4, begin_with=3)
        new = await cluster.join(3)
        given = powers(3)
        doing = all_reduce(new, given) if call == "exchange" else new.gather(b"")
        with pytest.raises(RunAborted, match="refused this site: a "):
            await doing
        assert await mean_of(cluster.agents) == {np.float32(7 / 3)}
        assert (await let_in(cluster.agents)).members == (0, 1, 2)

    run_virtually(go())


@pytest.mark.parametrize("dies", [False, True])
def test_one_that_leaves_holds_no_newcomer_up_and_may_come_back(dies: bool) -> None:
    async def go() -> None:
        network, cluster = await begin(4, begin_with=3)
        leaving = asyncio.create_task(cluster.agents[2].leave())
        await asyncio.sleep(0.1)
        if dies:
            network.kill(2)
            leaving.cancel()
        else:
            network.disconnect(2)  # so that it does not hear that it may go
        assert await mean_of(cluster.agents[:2]) == {1.5}
        new = await asyncio.wait_for(cluster.join(3), 20.0)
        waiting = asyncio.create_task(new.admit())
        await asyncio.sleep(0.1)
        assert (await let_in(cluster.agents[:2])).members == (0, 1, 3)
        await waiting
        if dies:
            network.revive(2)
        else:
            network.reconnect(2)
            await leaving
        again = await asyncio.wait_for(cluster.join(2), 20.0)
        waiting = asyncio.create_task(again.admit())
        await asyncio.sleep(0.1)
        assert (await let_in([*cluster.agents[:2], new])).members == (0, 1, 2, 3)
        await waiting

    run_virtually(go())


@virtually
async def test_a_subgroup_may_be_asked_for_before_and_after_an_admission() -> None:
    _, cluster = await begin(3, begin_with=2)
    one, other = cluster.agents
    _, waiting = await asks(cluster, 2)
    first = await one.subgroup((0, 1))
    await let_in(cluster.agents)
    await waiting
    assert await other.subgroup((0, 1)) == first


def powers(site: int, elements: int = 100) -> Floats:
    return np.full(elements, 2.0**site, np.float32)


@virtually
async def test_plans_that_are_made_again_do_not_lead_over_those_that_have_not_come() -> None:
    pairs = list(permutations(range(4), 2))

    def full(slow_bps: float) -> Overlay:
        links = (Link(a, b, slow_bps if a + b == 1 else 1e7, latency_s=0.001) for a, b in pairs)
        return Overlay("full", tuple(Site(f"s{site}") for site in range(4)), tuple(links))

    believed = full(1e6)  # of sites 0 and 1: that it is not slow is found out
    network = simulated(full(1e7))
    network.begin()
    plan, passive = plan_of(believed), Passive(update_time_s=0.2)
    search = Auxiliary(primary_busy_bound=1).paths
    cluster = await Cluster.start(
        network,
        believed,
        plan,
        chunk_elements=2000,
        meter=lambda: passive.measuring().meter(2000),
        repairs=Repairs(plan_of, 2, 3),
        awareness=passive.awareness(plan, plan_of, search, lambda elements: 2000, believed),
        joining=range(3),
    )
    issued: list[events.PlanIssued] = []
    async with asyncio.timeout(60):
        while not (issued and issued[-1].changed):
            assert await mean_of(cluster.agents, 50_000) == {np.float32(7 / 3)}
            issued = cluster.witness.of(events.PlanIssued)
        assert await mean_of(cluster.agents, 50_000) == {np.float32(7 / 3)}
    again = plans.loads(issued[-1].plan_json)
    assert {*again.members} == {0, 1, 2}
    await cluster.leave()
