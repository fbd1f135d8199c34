"""Groups plan for each order of size that they exchange, and run each exchange under its plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from anabranch.cohort import Clients
from anabranch.group import Service
from anabranch.group.service import Serving
from anabranch.log import events
from anabranch.overlay import Overlay, random_complete, random_geographic, random_sparse
from anabranch.pace import Asp
from anabranch.plan import (
    CORE_BPS,
    AnyPlanner,
    Packed,
    Plan,
    Star,
    port_load,
    predict,
    steady_rate_bps,
    within_cores,
)
from anabranch.scheduler.awareness import Oracle
from anabranch.scheduler.deal import ByShare
from anabranch.scheduler.losses import Planner, Repairs
from anabranch.site.agent import Transport
from anabranch_lab.sim.loop import run_virtually
from tests.site.cluster import TOKEN, Cluster, Witness, all_reduce, simulated

SITES = 5
SMALL, LARGE = 50, 200_000
OVERLAY = random_complete(SITES, 0, latency_s=0.03)


class Planned:
    """Packs trees, and remembers for which sizes and among how many sites."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def of(self, elements: int) -> Planner:
        return partial(self._plan, elements)

    def _plan(self, elements: int, overlay: Overlay, version: int, previous: Plan | None) -> Plan:
        self.asked.append((elements, overlay.size))
        return Packed().plan(overlay, version=version, elements=elements)


def first() -> Plan:
    return Packed().plan(OVERLAY)


def blind(overlay: Overlay, version: int, previous: Plan | None) -> Plan:
    return Packed().plan(overlay, version=version)


async def mean(cluster: Cluster, elements: int, without: int = 0) -> set[int]:
    """Let all but the last few sites average; return the versions that they did so under."""
    agents = cluster.agents[: SITES - without]
    buffers = [np.full(elements, 2.0**site, np.float32) for site in range(len(agents))]
    rounds = await asyncio.gather(*map(all_reduce, agents, buffers))
    mean = sum(2.0**site for site in range(len(agents))) / len(agents)
    for buffer in buffers:
        np.testing.assert_allclose(buffer, mean, rtol=1e-6)
    for agent, done in zip(agents, rounds, strict=True):
        await agent.round_ended(done, None)
    return {done.version for done in rounds}


def test_each_order_of_size_is_planned_for_once_and_keeps_its_plan() -> None:
    planned = Planned()

    async def run() -> None:
        network = simulated(OVERLAY)
        network.begin()
        cluster = await Cluster.start(network, OVERLAY, first(), planners=planned.of)
        versions = [await mean(cluster, elements) for elements in (SMALL, LARGE, SMALL, LARGE)]
        assert versions == [{2}, {3}, {2}, {3}]
        assert planned.asked == [(SMALL, SITES), (LARGE, SITES)]
        [issued] = cluster.witness.of(events.PlanIssued)  # the first plan is the run's beginning
        assert issued.version == 3
        assert "800 kB" in issued.why
        await cluster.leave()

    run_virtually(run())


def test_buffers_that_are_averaged_at_once_are_planned_for_together() -> None:
    planned = Planned()

    async def run() -> None:
        network = simulated(OVERLAY)
        network.begin()
        cluster = await Cluster.start(network, OVERLAY, first(), planners=planned.of)
        versions = await asyncio.gather(*(mean(cluster, LARGE) for _ in range(4)))
        assert versions == [{2}] * 4
        assert await mean(cluster, SMALL) == {3}
        assert await mean(cluster, LARGE) == {2}
        assert planned.asked == [(4 * LARGE, SITES), (SMALL, SITES)]
        assert cluster.scheduler.channels.books.largest_at_once == 4 * LARGE
        await cluster.leave()

    run_virtually(run())


@pytest.mark.slow
def test_plans_of_other_sizes_are_made_again_without_a_site_that_is_lost() -> None:
    planned = Planned()

    async def run() -> None:
        network = simulated(OVERLAY)
        network.begin()
        repairs = Repairs(blind, least_sites=2)
        cluster = await Cluster.start(
            network, OVERLAY, first(), repairs=repairs, planners=planned.of
        )
        await mean(cluster, SMALL)
        await mean(cluster, LARGE)
        network.kill(SITES - 1)
        await asyncio.sleep(9.0)
        assert cluster.scheduler.lost == {SITES - 1}
        assert await mean(cluster, LARGE, without=1) == {4}
        assert await mean(cluster, SMALL, without=1) == {5}
        assert await mean(cluster, LARGE, without=1) == {4}
        assert planned.asked[2:] == [(LARGE, SITES - 1), (SMALL, SITES - 1)]
        await cluster.leave(dead={SITES - 1})

    run_virtually(run())


def test_a_plan_that_cannot_be_found_ends_the_group_by_name() -> None:
    def planners(elements: int) -> Planner:
        def plan(overlay: Overlay, version: int, previous: Plan | None) -> Plan:
            raise ZeroDivisionError("no trees at all")

        return plan

    async def run() -> None:
        network = simulated(OVERLAY)
        network.begin()
        cluster = await Cluster.start(network, OVERLAY, first(), planners=planners)
        with pytest.raises(Exception, match="failed to plan: ZeroDivisionError: no trees at all"):
            await mean(cluster, SMALL)
        with pytest.raises(Exception, match="no trees at all"):
            await cluster.scheduler.finished()
        await cluster.scheduler.close()

    run_virtually(run())


@pytest.mark.parametrize("planner", [Packed(), Star()])
def test_a_service_plans_for_the_size_of_its_exchanges_where_that_matters(
    planner: AnyPlanner, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | None] = []

    def plan(self: Packed, overlay: Overlay, **given: int) -> Plan:
        asked.append(given["elements"])
        return found(self, overlay, **given)  # type: ignore[arg-type]

    found = type(planner).plan
    monkeypatch.setattr(type(planner), "plan", plan)

    async def run() -> None:
        network = simulated(OVERLAY)
        network.begin()
        service = Service(OVERLAY, planner, awareness=None)
        here = "127.0.0.1", 0
        scheduler = service.scheduler(network.control(None), TOKEN, Witness())
        address = await scheduler.listen(here)

        async def begin(agent, lanes) -> None:  # type: ignore[no-untyped-def]
            await agent.start(Transport(1 << 14, 1 << 20, 1 << 20, 1), lanes, None, None, 0)

        cluster = Cluster(
            network,
            scheduler,
            address,
            Witness(),
            begin,
            False,
            (),
            lambda link: None,  # type: ignore[arg-type, return-value]
        )
        cluster.agents = [*await asyncio.gather(*map(cluster.join, range(SITES)))]
        for elements in (SMALL, LARGE, SMALL):
            await mean(cluster, elements)
        await cluster.leave()

    run_virtually(run())
    assert asked == ([None, SMALL, LARGE] if isinstance(planner, Packed) else [None])


@pytest.mark.parametrize("pace", [Asp(), None], ids=["served", "all-reduced"])
def test_a_model_s_route_is_planned_for_its_size_where_that_is_given(pace: Asp | None) -> None:
    service = Service(OVERLAY, awareness=None, deal=ByShare(), pace=pace, model_elements=SMALL)

    async def run() -> Plan:
        control = simulated(OVERLAY).control(None)
        scheduler = service.scheduler(control, TOKEN, Witness())
        return scheduler.channels.all.plan

    plan = run_virtually(run())
    unknown = Service(OVERLAY, awareness=None)
    assert plan == unknown.plan(OVERLAY, elements=SMALL) == service.first_plan()
    assert plan != unknown.plan(OVERLAY)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"awareness": Oracle()}, "awareness: an oracle"),
        ({"serving": Serving(clients=Clients(registered=9))}, "serving.clients"),
    ],
)
def test_an_answer_that_a_group_s_sites_cannot_be_told_is_named(
    answer: dict[str, object], said: str
) -> None:
    service = Service(OVERLAY, pace=Asp(), **answer)  # type: ignore[arg-type]

    async def run() -> None:
        service.scheduler(simulated(OVERLAY).control(None), TOKEN, Witness())

    with pytest.raises(ValueError, match=f"{said} is for the sites of a scenario"):
        run_virtually(run())


@pytest.mark.parametrize("draw", [random_sparse, random_geographic, random_complete])
def test_a_group_whose_links_are_faster_than_a_core_plans_for_the_core(
    draw: Callable[[int, int], Overlay],
) -> None:
    drawn = draw(9, 1)
    fast = tuple(replace(link, rate_bps=1000 * link.rate_bps) for link in drawn)  # over 20 Gbit/s
    overlay = replace(drawn, links=fast)
    service, world = Service(overlay), within_cores(overlay)

    async def run() -> Overlay:
        control = simulated(overlay).control(None)
        scheduler = service.scheduler(control, TOKEN, Witness())
        return scheduler.planning.belief()

    assert run_virtually(run()).sites == world.sites  # so that it plans again for cores, too
    elements, chunk_elements = 60_000_000, 1 << 16
    blind = Packed().plan(overlay, elements=elements, chunk_elements=chunk_elements)
    known = service.plan(overlay, elements=elements)
    blind_s, known_s = (
        predict(plan, world, 4 * elements, chunk_bytes=4 * chunk_elements).contention_s
        for plan in (blind, known)
    )
    assert known_s < 0.9 * blind_s
    busiest = max(port_load(known, world).values())
    assert busiest * steady_rate_bps(known, world) <= 1.001 * CORE_BPS
