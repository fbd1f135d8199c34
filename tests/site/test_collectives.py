"""Exchanges of a whole run: several at once, of some sites, from one site, and those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.log import events
from anabranch.net.errors import RunAborted
from anabranch.overlay import Overlay, internet2_9
from anabranch.plan import Plan, fapt, restrict, star
from anabranch.site.round import ExchangeError
from anabranch_lab.sim.loop import run_virtually

from ..every import every
from .cluster import Cluster, Floats, all_reduce, simulated
from .test_all_reduce import TRIANGLE, WORLDS

ROUTES: dict[str, Callable[[Overlay], Plan]] = {
    "star": star,
    "every root": lambda overlay: fapt(overlay, roots=overlay.size),
}


def whole_numbers(rng: np.random.Generator, *shape: int) -> Floats:
    """Return numbers that float32 and bfloat16 hold, and whose sums float32 holds."""
    return rng.integers(-50, 50, shape).astype(np.float32)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("route", ROUTES)
def test_several_exchanges_at_once_are_exact_in_whatever_order_they_end(
    world: str, route: str
) -> None:
    run, ports = WORLDS[world]
    overlay = internet2_9()
    sizes = (3000, 17, 800, 1, 4000, 250, 2000)
    ops = (Op.MEAN, Op.SUM, Op.MAX, Op.MEAN, Op.SUM, Op.MEAN, Op.MEAN)
    wires = (*[Wire.FLOAT32] * 6, Wire.FLOAT16)

    async def scenario() -> None:
        rng = np.random.default_rng(0)
        cluster = await Cluster.start(ports(overlay), overlay, ROUTES[route](overlay))
        weights = rng.integers(1, 4, overlay.size)
        own = [whole_numbers(rng, overlay.size, elements) for elements in sizes]
        buffers = [each.copy() for each in own]

        async def site_of(site: int) -> None:
            agent, pauses_s = cluster.agents[site], rng.random(len(sizes)) * 0.01
            under_way = []
            for k, elements in enumerate(sizes):
                terms = Terms(ops[k], wires[k], elements)
                exchange = agent.exchange(Flat(buffers[k][site]), terms, float(weights[site]))
                under_way.append(asyncio.ensure_future(exchange))
                await asyncio.sleep(pauses_s[k])
            for k in rng.permutation(len(sizes)):
                await agent.round_ended(await under_way[k], None)

        await asyncio.gather(*map(site_of, range(overlay.size)))
        for k, op in enumerate(ops):
            weighted = (own[k] * weights[:, None]).sum(axis=0)
            expected = {
                Op.MEAN: weighted / np.float32(weights.sum()),
                Op.SUM: weighted,
                Op.MAX: own[k].max(axis=0),
            }[op]
            assert every(np.array_equal(each, buffers[k][0]) for each in buffers[k])
            tolerance = 1e-6 if wires[k] == Wire.FLOAT32 else 2e-3
            np.testing.assert_allclose(buffers[k][0], expected, rtol=tolerance, atol=50 * tolerance)
        assert cluster.refusals == cluster.witness.refusals == []
        await cluster.leave()
        book = cluster.scheduler.channels.all
        assert book.latest == len(sizes)
        assert not any(k + 1 in book.held for k in range(len(sizes)))

    run(scenario())


def test_exchanges_at_once_that_others_will_follow_ask_for_each_once() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))

        async def live(site: int) -> None:
            for turn in range(3):
                buffers = [np.full(3000, float(site), np.float32) for _ in range(3)]
                more = turn < 2
                await asyncio.gather(
                    *(all_reduce(cluster.agents[site], each, more=more) for each in buffers)
                )
                assert every(each.tolist() == [1.0] * 3000 for each in buffers)

        await asyncio.gather(*map(live, range(3)))
        assert cluster.refusals == cluster.witness.refusals == []
        assert cluster.scheduler.channels.all.latest == 9
        await cluster.leave()

    run_virtually(scenario())


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("route", ROUTES)
def test_some_sites_exchange_among_themselves_and_others_only_relay(world: str, route: str) -> None:
    run, ports = WORLDS[world]
    overlay = internet2_9()
    members = (0, 5, 8)
    plan = ROUTES[route](overlay)
    inside = restrict(plan, members)
    relays = {site for path in inside.routes.values() for site in path[1:-1]}
    assert relays - set(members)

    async def scenario() -> None:
        cluster = await Cluster.start(ports(overlay), overlay, plan)
        agents = [cluster.agents[site] for site in members]
        channels = await asyncio.gather(*(agent.subgroup(members) for agent in agents))
        assert set(channels) == {1}
        assert await agents[0].subgroup(members) == 1  # asked again, the answer is the same
        for elements in (1000, 1):
            buffers = [np.full(elements, float(site), np.float32) for site in members]
            done = await asyncio.gather(
                *(
                    all_reduce(agent, each, float(k + 1), channel=1)
                    for k, (agent, each) in enumerate(zip(agents, buffers, strict=True))
                )
            )
            mean = np.float32((0 + 2 * 5 + 3 * 8) / 6)
            for buffer in buffers:
                np.testing.assert_allclose(buffer, mean, rtol=1e-6)
                np.testing.assert_array_equal(buffer, buffers[0])
            assert {each.channel for each in done} == {1}
        for site, agent in enumerate(cluster.agents):
            takes_part = site in members or site in relays
            assert bool(sum(agent.sent_bytes().values())) == takes_part
        # The exchanges of all sites are counted on their own.
        everyone = [np.full(50, float(site), np.float32) for site in range(9)]
        rounds = await cluster.all_reduce(everyone)
        assert [each.round for each in rounds] == [1] * 9
        assert every(each.tolist() == [4.0] * 50 for each in everyone)
        assert cluster.refusals == cluster.witness.refusals == []
        await cluster.leave()

    run(scenario())


def test_exchanges_of_all_sites_and_of_some_go_on_at_once() -> None:
    overlay = internet2_9()
    groups = ((0, 1, 2), (2, 5, 8), (6, 7))

    async def scenario() -> None:
        cluster = await Cluster.start(simulated(overlay), overlay, fapt(overlay, roots=9))
        agents = cluster.agents

        async def among(members: tuple[int, ...], site: int) -> None:
            channel = await agents[site].subgroup(members)
            for elements in (900, 30):
                buffer = np.full(elements, float(site), np.float32)
                await all_reduce(agents[site], buffer, channel=channel)
                np.testing.assert_allclose(buffer, np.mean(members), rtol=1e-6)

        async def among_all(site: int) -> None:
            for elements in (1500, 40):
                buffer = np.full(elements, float(site), np.float32)
                await all_reduce(agents[site], buffer)
                assert buffer.tolist() == [4.0] * elements

        await asyncio.gather(
            *(among(members, site) for members in groups for site in members),
            *map(among_all, range(9)),
        )
        assert cluster.refusals == cluster.witness.refusals == []
        await cluster.leave()

    run_virtually(scenario())


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("source", [0, 4])
@pytest.mark.parametrize("wire", [Wire.FLOAT32, Wire.BFLOAT16])
def test_a_broadcast_from_any_site_reaches_all(world: str, source: int, wire: Wire) -> None:
    run, ports = WORLDS[world]
    overlay = internet2_9()

    async def scenario() -> None:
        plan = star(overlay, hub=0)
        cluster = await Cluster.start(ports(overlay), overlay, plan)
        rng = np.random.default_rng(1)
        for elements in (1000, 3):
            buffers = [whole_numbers(rng, elements) for _ in overlay.sites]
            sent = buffers[source].copy()
            terms = Terms(Op.SUM, wire, elements, source)
            await asyncio.gather(
                *(
                    agent.exchange(Flat(buffer), terms)
                    for agent, buffer in zip(cluster.agents, buffers, strict=True)
                )
            )
            for buffer in buffers:
                np.testing.assert_array_equal(buffer, sent)
        assert cluster.refusals == cluster.witness.refusals == []
        await cluster.leave()

    run(scenario())


def test_small_values_are_gathered_from_members_in_order() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE))
        agents = cluster.agents
        for turn in range(2):
            values = [f"{turn} {site}".encode() for site in range(3)]
            gathered = await asyncio.gather(
                *(agent.gather(value) for agent, value in zip(agents, values, strict=True))
            )
            assert [each.values for each in gathered] == [tuple(values)] * 3
        channels = await asyncio.gather(*(agents[site].subgroup((0, 2)) for site in (0, 2)))
        some = await asyncio.gather(
            *(agents[site].gather(bytes([site]), channels[0]) for site in (2, 0))
        )
        assert [each.values for each in some] == [(b"\x00", b"\x02")] * 2
        await cluster.leave()

    run_virtually(scenario())


# --- members that disagree


OTHERS = {
    "size": (Terms(Op.MEAN, Wire.FLOAT32, 101), "mean of 101 elements"),
    "type": (Terms(Op.MEAN, Wire.BFLOAT16, 100), r"mean of 100 elements \(bfloat16 on the wire\)"),
    "operation": (Terms(Op.SUM, Wire.FLOAT32, 100), "sum of 100 elements"),
    "source": (Terms(Op.MEAN, Wire.FLOAT32, 100, 1), "broadcast from 1 of 100 elements"),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("odd", range(3))
def test_members_that_disagree_all_hear_which_two_and_go_on(
    world: str, what: str, odd: int
) -> None:
    run, ports = WORLDS[world]
    usual = Terms(Op.MEAN, Wire.FLOAT32, 100)
    other, named = OTHERS[what]

    async def scenario() -> None:
        cluster = await Cluster.start(ports(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        rng = np.random.default_rng(0)
        for _ in range(2):
            terms = [other if site == odd else usual for site in range(3)]
            buffers = [whole_numbers(rng, each.elements) for each in terms]
            before = [each.copy() for each in buffers]
            results = await asyncio.gather(
                *(
                    agent.exchange(Flat(buffer), each)
                    for agent, buffer, each in zip(cluster.agents, buffers, terms, strict=True)
                ),
                return_exceptions=True,
            )
            for result in results:
                assert isinstance(result, ExchangeError)
                assert str(result) == str(results[0])
            text = str(results[0])
            assert f"site {odd} ({'abc'[odd]}) calls for a {other}" in text
            assert any(
                f"site {site} ({'abc'[site]}) calls for a {usual}" in text
                for site in {0, 1, 2} - {odd}
            )
            with pytest.raises(AssertionError, match=named):
                raise AssertionError(text)
            for buffer, untouched in zip(buffers, before, strict=True):
                np.testing.assert_array_equal(buffer, untouched)
            good = [np.full(2000, float(site), np.float32) for site in range(3)]
            await cluster.all_reduce(good)
            assert every(each.tolist() == [1.0] * 2000 for each in good)
        assert cluster.witness.refusals == []
        await cluster.leave()

    run(scenario())


def test_a_member_that_asks_late_or_while_others_wait_is_told_the_same() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        agents = cluster.agents
        first = [
            asyncio.ensure_future(all_reduce(agents[site], np.ones(10 + site, np.float32)))
            for site in (0, 1)
        ]
        await asyncio.sleep(1.0)
        assert every(each.done() for each in first)
        good = [np.full(10, float(site), np.float32) for site in range(3)]
        ahead = [asyncio.ensure_future(all_reduce(agents[site], good[site])) for site in (0, 1)]
        await asyncio.sleep(1.0)
        with pytest.raises(ExchangeError) as late:
            await all_reduce(agents[2], np.ones(10, np.float32))
        for each in first:
            with pytest.raises(ExchangeError) as told:
                await each
            assert str(told.value) == str(late.value)
        await all_reduce(agents[2], good[2])
        await asyncio.gather(*ahead)
        assert every(each.tolist() == [1.0] * 10 for each in good)
        assert cluster.refusals == cluster.witness.refusals == []
        await cluster.leave()

    run_virtually(scenario())


def test_one_of_several_exchanges_may_fail_and_the_others_do_not_notice() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))

        async def live(site: int) -> list[object]:
            agent = cluster.agents[site]
            buffers = [np.full(4000, float(site), np.float32) for _ in range(3)]
            buffers[1] = buffers[1][: 4000 - site]
            results = await asyncio.gather(
                *(all_reduce(agent, each) for each in buffers), return_exceptions=True
            )
            assert buffers[0].tolist() == buffers[2].tolist() == [1.0] * 4000
            assert buffers[1].tolist() == [float(site)] * (4000 - site)
            return results

        for results in await asyncio.gather(*map(live, range(3))):
            assert [isinstance(each, ExchangeError) for each in results] == [False, True, False]
        await cluster.leave()

    run_virtually(scenario())


def test_a_site_without_room_for_what_comes_early_ends_the_run_by_name() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(
            simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0), room_elements=1000
        )
        results = await asyncio.gather(
            *(all_reduce(cluster.agents[site], np.ones(2000, np.float32)) for site in (1, 2)),
            return_exceptions=True,
        )
        for result in results:
            assert isinstance(result, RunAborted)
            assert "site 0 (a) refused a message of site" in str(result)
            assert "of 1000 elements of room for such data are left" in str(result)

    run_virtually(scenario())


def test_a_result_is_written_down_by_the_number_of_its_exchange() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        for _ in range(2):
            done = await cluster.all_reduce([np.ones(100, np.float32) for _ in range(3)])
            for agent, each in zip(cluster.agents, done, strict=True):
                assert each.size_bytes == 400
                await agent.round_ended(each, 7)
        await cluster.leave()
        written = cluster.witness.of(events.RoundDone)
        assert sorted((each.round, each.site) for each in written) == [
            (round, site) for round in (1, 2) for site in range(3)
        ]
        assert {each.checksum for each in written} == {7}

    run_virtually(scenario())
