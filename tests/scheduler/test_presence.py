"""A site whose connection breaks: lost with its process, or awaited; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from anabranch.log import events
from anabranch.net.session import LEAST_PATIENCE_S
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan, Star
from anabranch.scheduler import _presence as presence
from anabranch.scheduler.losses import Repairs
from anabranch_lab.sim.loop import run_virtually
from tests.site.cluster import Cluster, simulated

LINKS = tuple(Link(a, b, 1e6) for a in range(3) for b in range(3) if a != b)
OVERLAY = Overlay("three", tuple(Site(f"site{index}") for index in range(3)), LINKS)


def plan_again(rest: Overlay, version: int, previous: Plan | None) -> Plan:
    return Packed().plan(rest, version=version)


class Kernel:
    """Stands for the kernel: tells of the end of processes, all of which have ended, or none."""

    def __init__(self, have_ended: bool) -> None:
        self.have_ended = have_ended
        self.watched = 0

    def when_ended(self, process: int | None, told: Callable[[], None]) -> Callable[[], None]:
        self.watched += 1
        if self.have_ended:
            asyncio.get_running_loop().call_soon(told)
        return self._end

    def _end(self) -> None:
        self.watched -= 1


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_site_is_lost_with_its_process_and_awaited_where_that_is_not_known(
    has_ended, monkeypatch
) -> None:
    kernel = Kernel(has_ended)
    monkeypatch.setattr(presence, "when_ended", kernel.when_ended)

    async def scenario() -> None:
        network = simulated(OVERLAY)
        first = Star(hub="site0").plan(OVERLAY)
        cluster = await Cluster.start(network, OVERLAY, first, repairs=Repairs(plan_again, 2))
        await asyncio.gather(*(agent.gather(b"") for agent in cluster.agents))
        network.kill(2)  # no lane has been opened, so that no neighbour notices
        await asyncio.gather(*(agent.gather(b"") for agent in cluster.agents[:2]))
        (cut,), (lost,) = cluster.witness.of(events.SiteCut), cluster.witness.of(events.SiteLost)
        awaited_s = lost.at_s - cut.at_s
        assert awaited_s == 0.0 if has_ended else awaited_s > LEAST_PATIENCE_S
        assert kernel.watched == 0

    run_virtually(scenario())


def test_a_site_that_connects_again_is_watched_no_longer(monkeypatch) -> None:
    kernel = Kernel(have_ended=False)
    monkeypatch.setattr(presence, "when_ended", kernel.when_ended)

    async def scenario() -> None:
        network = simulated(OVERLAY)
        cluster = await Cluster.start(network, OVERLAY, Star(hub="site0").plan(OVERLAY))
        network.disconnect(2)
        await asyncio.sleep(0.1)
        assert kernel.watched == 1
        network.reconnect(2)
        buffers = [np.ones(9, np.float32) for _ in cluster.agents]
        await cluster.all_reduce(buffers)
        assert kernel.watched == 0
        assert not cluster.witness.of(events.SiteLost)

    run_virtually(scenario())
