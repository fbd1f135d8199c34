"""A site of a scenario at a group's scheduler, and the reverse: each says which it has come to."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.group import Service
from anabranch.group._local import Silent, _complete
from anabranch.group._thread import LoopThread
from anabranch.group.blocking_group import join_at
from anabranch.group.place import Place
from anabranch.net.addresses import show
from anabranch.net.errors import RunAborted
from anabranch.scheduler.server import Scheduler
from anabranch_lab.run._site import take_part
from anabranch_lab.run.checkpoints import WHOLE, Files
from anabranch_lab.run.control import job_of, service_of
from anabranch_lab.run.scenario import loads
from anabranch_lab.run.simulate import _SimulatedWorld
from anabranch_lab.sim.loop import VirtualLoop, run_virtually
from anabranch_lab.sim.network import SimulatedNetwork

ALONE = _complete(1)


def test_a_site_of_a_scenario_says_that_it_came_to_a_groups_scheduler() -> None:
    async def come() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        network = SimulatedNetwork(loop, ALONE, seed=1, control_latency_s=0.005)
        with network.scheduler.in_process():
            scheduler = Service(ALONE).scheduler(network.control(None), "t", Silent())
            address = await scheduler.listen(("scheduler", 0))
        network.begin()
        world = _SimulatedWorld(loop, network, 0, None, lambda round: None)
        try:
            with network.sites[0].in_process():
                await take_part(world, "site0", address, "t", Files())
        finally:
            await scheduler.close()

    with pytest.raises(RunAborted, match=r"serves a group, .* a scenario by `anabranch host"):
        run_virtually(come())


def test_a_member_of_a_group_says_that_it_came_to_a_scenarios_scheduler() -> None:
    given = loads(
        'overlay = "aws-8"\n[task]\nkind = "exchange"\nelements = 9\n[stop]\nrounds = 1\n', ""
    )
    service, thread = service_of(given, ALONE), LoopThread("scheduler")

    async def start() -> tuple[Scheduler, str]:
        job = job_of(given, WHOLE)
        made = service.scheduler(service.network(), "t", Silent(), job_json=job)
        return made, show(await made.listen(("127.0.0.1", 0)))

    scheduler, address = thread.run(start())
    try:
        with pytest.raises(RunAborted, match=r"runs a scenario, .* a group by `anabranch sched"):
            join_at(Place(scheduler=address, site="site0", token="t"))
    finally:
        thread.run(scheduler.close())
        thread.close()
