"""What a scheduler says of its run: states of sites, whom others wait for, what was counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from anabranch.log import events
from anabranch.log.console import Console, Line
from anabranch.log.metrics import exposition
from anabranch.log.status import dumps, loads
from anabranch.net.errors import LinkError, OutOfPlaceMessage, UnauthorisedPeer
from anabranch.net.frames import CONTROL_LIMITS
from anabranch.net.tcp import TcpNetwork
from anabranch.net.tls import identity_of
from anabranch.overlay import random_complete
from anabranch.plan import star
from anabranch.scheduler._status import Snapshot, stalls, status_of
from anabranch.scheduler._tally import Tally
from anabranch.scheduler._waits import Stall, Waits
from anabranch.scheduler.asking import ask
from anabranch.scheduler.server import Scheduler
from anabranch.scheduler.watching import Watching, watched
from anabranch_lab.sim.loop import run_virtually

from ..every import every
from ..site.cluster import PAIR, TOKEN, Cluster, Tcp, Tls, Witness, all_reduce, simulated

OVERLAY = random_complete(4, 0)
PLAN = star(OVERLAY, hub=0)
KNOWN = Snapshot(
    overlay=OVERLAY,
    believed=replace(
        OVERLAY,
        links=tuple(
            replace(link, basis="measured") if (link.source, link.target) == (1, 2) else link
            for link in OVERLAY
        ),
    ),
    plan=PLAN,
    running_s=5.0,
    is_over=False,
    returning=frozenset(),
    addresses=[("10.0.0.1", 1), ("10.0.0.2", 2), ("-", 2), ("", 0)],
    here={0, 1, 2},
    newcomers=frozenset(),
    disconnected=frozenset(),
    through={},
    lost={3},
    left=frozenset(),
    stalls=[Stall((0, 4), 1, frozenset({0, 2}), "call 4 (an exchange)")],
    exchanges=3,
    exchanged_bytes=12,
    incomplete=0,
    tally=Tally(),
)


def states(**changed: Any) -> list[str]:
    return [site.state for site in status_of(replace(KNOWN, **changed)).sites]


def test_each_site_has_the_state_that_it_is_in() -> None:
    assert states() == ["member", "member", "member", "awaited"]  # of the last nothing was heard
    assert states(running_s=None) == ["joined", "joined", "joined", "awaited"]
    assert states(lost={2, 3}, here={0, 1})[2] == "lost"
    assert states(disconnected={1})[1] == "disconnected"
    assert states(newcomers={1}, lost={1})[1] == "joining"
    assert states(left={0}, lost={0})[0] == "left"


def awaited(**changed: Any) -> list[int]:
    return [stall.awaited for stall in stalls(replace(KNOWN, **changed))]


def test_sites_are_awaited_that_have_to_join_or_to_come_back_or_to_make_a_call() -> None:
    assert awaited() == [1]
    assert awaited(stalls=[]) == []
    assert awaited(running_s=None) == [3]
    assert awaited(running_s=None, disconnected={1}) == [1, 3]
    assert awaited(returning={0, 2}) == [0, 2]
    assert awaited(is_over=True) == []


def test_a_status_names_the_awaited_site_and_the_sites_that_wait() -> None:
    waits = Waits()
    waits.look(stalls(KNOWN), 10.0)
    status = status_of(KNOWN, waits.look(stalls(KNOWN), 24.0))
    [wait] = status.waits
    assert (wait.site, wait.seconds, wait.waiting) == ("site1", 14.0, ("site0", "site2"))
    assert status.waits_for == ("site1",)


def test_a_site_that_takes_no_connections_has_no_address() -> None:
    addresses = [site.address for site in status_of(KNOWN).sites]
    assert addresses == ["10.0.0.1:1", "10.0.0.2:2", None, None]


def test_links_are_those_of_the_plan_and_those_measured() -> None:
    found = {
        (link.source, link.target): (link.is_used, link.basis) for link in status_of(KNOWN).links
    }
    assert found.pop(("site1", "site2")) == (False, "measured")
    assert len(found) == 6
    assert every("site0" in pair and of == (True, "given") for pair, of in found.items())


def test_events_are_counted_and_the_latest_loss_is_kept() -> None:
    tally = Tally()
    for event in (
        events.StepDone(at_s=1.0, site=2, round=7, loss=0.5, samples=1, compute_s=1.0),
        events.StepDone(at_s=2.0, site=2, round=8, loss=None, samples=1, compute_s=1.0),
        events.StepDone(at_s=2.0, site=3, round=8, loss=None, samples=1, compute_s=1.0),
        events.ProceedAsked(at_s=2.0, site=1, update=3, samples=1, compute_s=1.0, loss=0.25),
        events.Evaluated(at_s=2.0, site=1, round=3, accuracy=0.5),
        events.Evaluated(at_s=2.0, site=2, round=3, accuracy=0.75, step=8),
        events.UpdateApplied(at_s=2.0, site=1, update=3, version=1, missed=0),
        events.SiteLost(at_s=3.0, site=3, detail="it died"),
    ):
        tally.note(event)
    status = status_of(replace(KNOWN, tally=tally))
    assert [(site.loss, site.loss_step) for site in status.sites][1] == (0.25, 3)
    assert [site.loss_step for site in status.sites] == [None, 3, 8, None]  # site 3 learns nothing
    seen = [(site.accuracy, site.accuracy_step) for site in status.sites]
    assert seen == [(None, None), (0.5, 3), (0.75, 8), (None, None)]
    told = loads(dumps(status))
    assert told == status
    assert 'anabranch_site_loss{site="site2"} NaN' in exposition(told)
    assert "site3" not in "".join(x for x in exposition(told).splitlines() if "site_loss" in x)
    assert str(tally.mean_loss) == "nan"
    assert (status.updates, status.losses, status.replans) == (1, 1, 0)


async def exchange(cluster: Cluster) -> None:
    """Let all sites have a result, and say so."""
    rounds = await cluster.all_reduce([np.ones(1000, np.float32) for _ in range(4)])
    for agent, round in zip(cluster.agents, rounds, strict=True):
        await agent.round_ended(round, None)
    await asyncio.sleep(0.05)  # until the scheduler has heard it


def test_exchanges_are_counted_once_and_progress_is_said() -> None:
    said: list[Line] = []

    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        console = Console([site.name for site in OVERLAY.sites], said.append)
        async with watched(cluster.scheduler, console, Watching(progress_s=10.0)):
            for _ in range(3):
                await exchange(cluster)
            status = cluster.scheduler.status()
            await asyncio.sleep(25.0)
        assert (status.phase, status.exchanges, status.exchanged_bytes) == ("running", 3, 12_000)
        assert status.members == 4
        assert status.waits_for == ()
        await cluster.leave()

    run_virtually(scenario())
    assert [line.event for line in said] == ["progress"]  # and no second one without news
    assert said[0].fields["exchanges"] == 3


def test_a_scheduler_says_how_its_run_stands_to_those_who_know_the_token() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(Tcp(), OVERLAY, PLAN)
        at = cluster.scheduler._listener.address
        network = TcpNetwork(CONTROL_LIMITS)
        await exchange(cluster)
        status, stack = await ask(network, at, TOKEN, 5.0)
        assert stack == ""
        assert status == structs.replace(cluster.scheduler.status(), running_s=status.running_s)
        assert status.exchanges == 1
        with pytest.raises(UnauthorisedPeer, match="without its token"):
            await ask(network, at, "another", 5.0)
        # None of that harms the run.
        await exchange(cluster)
        await cluster.leave()
        with pytest.raises(LinkError):
            await ask(network, at, TOKEN, 5.0)

    asyncio.run(scenario())


def test_a_long_wait_is_told_to_the_console_and_at_the_sites_that_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said: list[Line] = []

    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        console = Console([site.name for site in OVERLAY.sites], said.append)
        async with watched(cluster.scheduler, console, Watching()):
            await exchange(cluster)
            buffers = [np.ones(1000, np.float32) for _ in range(4)]
            first = [
                asyncio.create_task(all_reduce(cluster.agents[site], buffers[site]))
                for site in (0, 1, 2)
            ]
            await asyncio.sleep(23.0)
            [wait] = cluster.scheduler.status().waits
            await all_reduce(cluster.agents[3], buffers[3])
            await asyncio.gather(*first)
        assert (wait.site, wait.at) == ("site3", "call 2 (an exchange)")
        assert wait.waiting == ("site0", "site1", "site2")
        assert wait.seconds == pytest.approx(23.0, abs=1.0)
        await cluster.leave()

    run_virtually(scenario())
    assert [line.event for line in said] == ["awaited"] * 3  # after 5, 10 and 20 s
    told = [record for record in caplog.records if "has waited" in record.getMessage()]
    assert len(told) == 9  # at three sites each time
    assert "for site3 at call 2 (an exchange)" in told[0].getMessage()


def test_on_request_a_site_tells_where_its_python_threads_are() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(Tcp(), OVERLAY, PLAN)
        at = cluster.scheduler._listener.address
        network = TcpNetwork(CONTROL_LIMITS)
        _, stack = await ask(network, at, TOKEN, 5.0, stack_of="site2")
        assert stack.startswith("thread MainThread:")
        assert "test_on_request_a_site_tells_where_its_python_threads_are" in stack
        with pytest.raises(OutOfPlaceMessage, match="no site is called paris; the sites are site0"):
            await ask(network, at, TOKEN, 5.0, stack_of="paris")
        with pytest.raises(UnauthorisedPeer):
            await ask(network, at, "another", 5.0, stack_of="site2")
        await exchange(cluster)
        await cluster.leave()

    asyncio.run(scenario())


def test_none_is_asked_that_has_another_certificate_than_a_scheduler_s() -> None:
    async def scenario() -> None:
        posing = Tls(scheduler=identity_of("b"))
        scheduler = Scheduler(
            posing.control(None),
            PAIR,
            star(PAIR, hub=0),
            TOKEN,
            "",
            lambda plan, elements: 64,
            Witness(),
        )
        at = await scheduler.listen(("127.0.0.1", 0))
        with pytest.raises(UnauthorisedPeer, match="certificate of site-b, not of scheduler"):
            await ask(posing.control(0), at, TOKEN, 5.0)
        await scheduler.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))
