"""Groups that go on: the scheduler and its sites in virtual time, and one loss at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from anabranch.log import events
from anabranch.net.errors import RunAborted
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan, Star
from anabranch.scheduler.losses import Losses, Repairs
from anabranch.site.round import ExchangeError, Round
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork
from tests.every import every
from tests.site.cluster import Cluster, Floats, all_reduce, simulated

LINKS = tuple(Link(a, b, 1e6) for a in range(4) for b in range(4) if a != b)
OVERLAY = Overlay("four", tuple(Site(f"site{index}") for index in range(4)), LINKS)
ELEMENTS = 20_000  # 0.6 s over one link


def plan_again(rest: Overlay, version: int, previous: Plan | None) -> Plan:
    """Return a star around site 1 while it reaches all, else packed trees."""
    hub = rest.index("site1") if "site1" in [site.name for site in rest.sites] else None
    if hub is not None and len(rest.targets[hub]) == rest.size - 1:
        return Star(hub="site1").plan(rest, version=version)
    return Packed().plan(rest, version=version)


async def started(
    plan: Plan | None = None, least_sites: int = 2
) -> tuple[Cluster, SimulatedNetwork, list[Floats]]:
    """Return a group of four that goes on, and what its sites contribute."""
    network = simulated(OVERLAY)
    repairs = Repairs(plan_again, least_sites)
    first = Packed().plan(OVERLAY) if plan is None else plan
    cluster = await Cluster.start(network, OVERLAY, first, chunk_elements=500, repairs=repairs)
    return cluster, network, [np.full(ELEMENTS, 10.0**site, np.float32) for site in range(4)]


def called(cluster: Cluster, buffers: Sequence[Floats]) -> list[asyncio.Future[Round]]:
    """Let all sites take part in a mean."""
    return [
        asyncio.ensure_future(all_reduce(agent, buffer))
        for agent, buffer in zip(cluster.agents, buffers, strict=True)
    ]


async def ended(calls: Sequence[Awaitable[Round]]) -> list[Round]:
    return list(await asyncio.gather(*calls))


def test_a_loss_in_the_middle_costs_the_elements_that_nobody_held_yet() -> None:
    async def scenario() -> None:
        cluster, network, buffers = await started(Star(hub="site0").plan(OVERLAY))
        calls = called(cluster, buffers)
        await asyncio.sleep(0.5)
        network.kill(3)
        calls.pop().cancel()
        rounds = await ended(calls)
        first, second = rounds[0].contributions
        assert (first.start, second.stop) == (0, ELEMENTS)
        assert first.stop == second.start > 0
        assert first.sites == (0, 1, 2, 3)
        assert second.sites == (0, 1, 2)
        for each, buffer in zip(rounds, buffers, strict=False):
            assert each.contributions == rounds[0].contributions
            assert each.members == (0, 1, 2)
            assert (buffer[: first.stop] == np.float32(1111.0 / 4)).all()
            assert (buffer[first.stop :] == np.float32(111.0 / 3)).all()
        (repaired,) = cluster.witness.of(events.ExchangeRepaired)
        assert repaired.reduced_elements == ELEMENTS - first.stop
        again = [all_reduce(cluster.agents[site], buffers[site]) for site in range(3)]
        assert [each.contributions for each in await ended(again)] == [()] * 3

    run_virtually(scenario())


def test_a_root_that_dies_leaves_no_result_half_in_a_buffer() -> None:
    async def scenario() -> None:
        cluster, network, buffers = await started(Star(hub="site0").plan(OVERLAY))
        calls = called(cluster, buffers)
        await asyncio.sleep(0.5)
        network.kill(0)
        calls.pop(0).cancel()
        rounds = await ended(calls)
        for part in rounds[0].contributions:
            expected = np.float32(sum(10.0**site for site in part.sites) / len(part.sites))
            for buffer in buffers[1:]:
                assert (buffer[part.start : part.stop] == expected).all()

    run_virtually(scenario())


def test_a_pair_that_is_cut_costs_nobody_anything_and_is_used_again_once_it_is_whole() -> None:
    async def scenario() -> None:
        cluster, network, buffers = await started(Star(hub="site1").plan(OVERLAY))
        calls = called(cluster, buffers)
        await asyncio.sleep(0.3)
        network.sever(1, 2)
        rounds = await ended(calls)
        assert [each.contributions for each in rounds] == [()] * 4
        assert every((buffer == np.float32(1111.0 / 4)).all() for buffer in buffers)
        assert not cluster.witness.of(events.SiteLost)
        await asyncio.sleep(20.0)  # probes find that it is not whole
        assert not {(1, 2), (2, 1)} & {hop for _, hop in cluster.scheduler.channels.all.plan.hops()}
        network.join(1, 2)
        await asyncio.sleep(40.0)
        assert {(1, 2), (2, 1)} <= {hop for _, hop in cluster.scheduler.channels.all.plan.hops()}
        before = cluster.agents[1].sent_bytes()[2]
        await cluster.all_reduce(buffers)
        assert cluster.agents[1].sent_bytes()[2] - before == 4 * ELEMENTS
        await cluster.leave()

    run_virtually(scenario())


def test_a_site_that_nobody_reaches_is_told_so_and_the_others_go_on() -> None:
    async def scenario() -> None:
        cluster, network, buffers = await started()
        calls = called(cluster, buffers)
        await asyncio.sleep(0.3)
        for other in range(3):
            network.sever(3, other)
        with pytest.raises(RunAborted, match=r"site 3 \(site3\) reaches the others no more"):
            await calls.pop()
        rounds = await ended(calls)
        assert [each.members for each in rounds] == [(0, 1, 2)] * 3

    run_virtually(scenario())


def test_with_too_few_left_the_group_ends() -> None:
    async def scenario() -> None:
        cluster, network, buffers = await started(least_sites=4)
        calls = called(cluster, buffers)
        await asyncio.sleep(0.3)
        network.kill(3)
        calls.pop().cancel()
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, RunAborted)
            assert str(error).startswith("site 3 (site3) died in round 1")

    run_virtually(scenario())


def test_members_that_disagree_after_a_loss_are_still_told_so() -> None:
    async def scenario() -> None:
        cluster, network, buffers = await started()
        calls = [asyncio.ensure_future(all_reduce(cluster.agents[s], buffers[s])) for s in (0, 1)]
        await asyncio.sleep(0.1)
        network.kill(3)
        await asyncio.sleep(1.0)
        calls.append(asyncio.ensure_future(all_reduce(cluster.agents[2], buffers[2][:7])))
        for error in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(error, ExchangeError)
            assert "site 2 (site2) calls for a mean of 7 elements" in str(error)
        again = [all_reduce(cluster.agents[site], buffers[site]) for site in range(3)]
        assert [each.members for each in await ended(again)] == [(0, 1, 2)] * 3

    run_virtually(scenario())


def test_both_lanes_of_a_pair_end_with_one_of_them() -> None:
    async def scenario() -> None:
        cluster, _, buffers = await started(Star(hub="site1").plan(OVERLAY))
        await cluster.all_reduce(buffers)
        cluster.connection(1, 2).close()
        await asyncio.sleep(1.0)
        for here, there in ((1, 2), (2, 1)):
            plane = cluster.agents[here]._plane
            assert plane is not None
            assert there in plane.neighbourhood.lost
        await cluster.all_reduce(buffers)
        await cluster.leave()

    run_virtually(scenario())


def test_paths_through_what_is_lost_are_taken_no_more() -> None:
    async def scenario() -> None:
        plan = Star(hub="site1").plan(OVERLAY)
        plan = replace(plan, auxiliary={(0, 1): ((0, 3, 1),)})
        cluster, network, buffers = await started(plan)
        await cluster.all_reduce(buffers)
        plane = cluster.agents[0]._plane
        assert plane is not None
        assert plane.lanes._forks[0, 1]._auxiliary == ((0, 3, 1),)
        network.kill(3)
        await asyncio.sleep(1.0)
        assert plane.lanes._forks[0, 1]._auxiliary == ()

    run_virtually(scenario())


def test_a_site_that_has_left_relays_only_where_the_others_need_it() -> None:
    left = Losses().further(OVERLAY, departed={1})
    assert (left.lost, left.relays, left.members(4)) == ({1}, set(), {0, 2, 3})
    cut = [(0, 2), (2, 0), (0, 3), (3, 0)]
    needed = Losses().further(OVERLAY, links=cut, departed={1})
    assert (needed.lost, needed.relays, needed.members(4)) == (set(), {1}, {0, 2, 3})
