"""A site that loses the scheduler: it connects again, says why if it cannot, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from anabranch.net.errors import LinkError, PeerError, RunAborted, SilentWay
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.messages import AnyMessage, Patience, Refusal
from anabranch.net.network import Connection, Receiver
from anabranch.net.tcp import CONTROL_SILENCE_S, wait_closed
from anabranch.net.tls import identity_of
from anabranch.overlay import random_complete
from anabranch.plan import star
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import SiteAgent, Transport
from anabranch_lab.sim.loop import run_virtually

from ..net.test_tcp import Ear
from .cluster import PAIR, TOKEN, Cluster, Tls, Witness, all_reduce, make_agent, simulated

OVERLAY = random_complete(3, 0)
PLAN = star(OVERLAY, hub=0)


class Mute:
    """Hears and says nothing."""

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None: ...

    def on_closed(self, error: Exception | None) -> None: ...


def cut(agent: SiteAgent, kind: type[LinkError] = LinkError) -> None:
    control = agent._scheduler
    assert control._session is not None
    assert control._session.connection is not None
    control._session.connection.close()
    control.lost(kind("cut"))


async def instead_of_the_scheduler(
    welcome: Callable[[Connection], None], kind: type[LinkError] = LinkError
) -> float:
    """Let another program answer where the scheduler was; return when the site gives up."""
    ports = simulated(OVERLAY)
    cluster = await Cluster.start(ports, OVERLAY, PLAN)
    address = cluster.scheduler._listener.address
    cluster.scheduler._listener.close()

    def accept(connection: Connection) -> Receiver:
        welcome(connection)
        return Mute()

    await ports.control(None).listen(address, accept)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    cut(cluster.agents[1], kind)
    with pytest.raises(RunAborted, match="the scheduler is gone: cut"):
        await all_reduce(cluster.agents[1], np.ones(10, np.float32))
    return loop.time() - began_s


def test_a_scheduler_that_answers_nothing_is_not_waited_for_for_ever() -> None:
    gave_up_s = run_virtually(instead_of_the_scheduler(lambda connection: None))
    assert gave_up_s == pytest.approx(5.0, abs=0.1)


def test_where_the_way_fell_silent_it_is_tried_for_as_long_as_the_scheduler_bears_that() -> None:
    gave_up_s = run_virtually(instead_of_the_scheduler(lambda connection: None, SilentWay))
    assert gave_up_s == pytest.approx(5.0 + CONTROL_SILENCE_S, abs=0.1)


def test_a_scheduler_that_hangs_up_at_once_is_not_called_all_the_time() -> None:
    called: list[Connection] = []

    def hang_up(connection: Connection) -> None:
        called.append(connection)
        asyncio.get_running_loop().call_soon(connection.close)

    assert run_virtually(instead_of_the_scheduler(hang_up)) == pytest.approx(5.0, abs=0.3)
    assert 10 < len(called) < 60


def test_a_site_is_as_patient_as_the_scheduler_says() -> None:
    async def scenario() -> None:
        ports = simulated(OVERLAY)
        cluster = await Cluster.start(ports, OVERLAY, PLAN)
        cluster.scheduler._run.broadcast(Patience(60.0))
        cluster.scheduler._run.patience_s = 60.0
        await asyncio.sleep(1.0)
        address, welcome = cluster.scheduler._listener.address, cluster.scheduler._welcome
        cluster.scheduler._listener.close()
        cut(cluster.agents[1])

        async def come_back() -> None:
            await asyncio.sleep(58.0)
            cluster.scheduler._listener = await ports.control(None).listen(address, welcome)

        await asyncio.gather(
            cluster.all_reduce([np.ones(10, np.float32) for _ in range(3)]), come_back()
        )
        await cluster.leave()

    run_virtually(scenario())


def test_a_site_that_fails_while_it_is_cut_says_why() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        cut(cluster.agents[1])
        await cluster.agents[1].fail(ValueError("no gradient"))
        with pytest.raises(RunAborted, match="no gradient"):
            await cluster.scheduler.finished()

    run_virtually(scenario())


def test_a_site_is_in_the_run_from_its_welcome_on() -> None:
    async def scenario() -> None:
        ports = simulated(OVERLAY)
        scheduler = Scheduler(
            ports.control(None), OVERLAY, PLAN, TOKEN, "", lambda plan, elements: 64, Witness()
        )
        address = await scheduler.listen(("h", 0))
        agents = [make_agent(ports, index, site.name) for index, site in enumerate(OVERLAY.sites)]
        await asyncio.gather(*(each.join(address) for each in agents))
        cut(agents[1])
        await asyncio.gather(
            *(
                agent.start(Transport(64, 64, 1 << 16), ports.lanes(site))
                for site, agent in enumerate(agents)
            )
        )
        await asyncio.gather(*(all_reduce(agent, np.ones(10, np.float32)) for agent in agents))
        await asyncio.gather(*(agent.leave() for agent in agents))
        await scheduler.finished()
        await scheduler.close()

    run_virtually(scenario())


def test_a_site_that_is_cut_as_the_run_ends_hears_of_it_all_the_same() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        await cluster.all_reduce([np.ones(10, np.float32) for _ in range(3)])
        leaving = asyncio.ensure_future(cluster.leave())
        for _ in range(3):
            await asyncio.sleep(0)
        cut(cluster.agents[2])
        await leaving
        assert asyncio.get_running_loop().time() < 5.0

    run_virtually(scenario())


def test_a_connection_that_breaks_as_soon_as_it_is_taken_up_is_made_again() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        session = cluster.agents[1]._scheduler._session
        assert session is not None
        go_on, breaks = session.go_on, [True, True]

        def go_on_and_break(connection: Connection, heard: int) -> None:
            go_on(connection, heard)
            if breaks:
                breaks.pop()
                asyncio.get_running_loop().call_soon(cut, cluster.agents[1])

        session.go_on = go_on_and_break  # type: ignore[method-assign]
        cut(cluster.agents[1])
        await cluster.all_reduce([np.ones(10, np.float32) for _ in range(3)])
        assert not breaks
        await cluster.leave()

    run_virtually(scenario())


def posing_scheduler() -> Scheduler:
    """Return a scheduler that has the certificate of site b, and knows the token."""
    control, plan = Tls(scheduler=identity_of("b")).control(None), star(PAIR, hub=0)
    return Scheduler(control, PAIR, plan, TOKEN, "", lambda plan, elements: 64, Witness())


def test_a_site_does_not_join_a_peer_without_the_certificate_of_a_scheduler() -> None:
    async def scenario() -> None:
        posing = posing_scheduler()
        agents = [make_agent(Tls(), site, PAIR.sites[site].name) for site in (0, 1)]
        try:
            address = await posing.listen(("127.0.0.1", 0))
            joining = [agent.join(address) for agent in agents]
            told = await asyncio.gather(*joining, return_exceptions=True)
            assert [str(each).partition(" has ")[2] for each in told] == 2 * [
                "the certificate of site-b, not of scheduler"
            ]
        finally:
            for agent in agents:
                agent.close()
            await posing.close()
            await wait_closed()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_a_site_resumes_with_no_peer_without_the_certificate_of_a_scheduler() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(Tls(), PAIR, star(PAIR, hub=0))
        posing, control = Ear(), Tls(scheduler=identity_of("b")).control(None)
        address = cluster.scheduler._listener.address
        cluster.scheduler._listener.close()
        listener = await control.listen(address, posing.welcome)
        try:
            cut(cluster.agents[1])
            await posing.closed
            (said,) = (message for message, _ in posing.heard)  # no more than why it is refused
            assert isinstance(said, Refusal)
            assert "has the certificate of site-b, not of scheduler" in said.detail
        finally:
            listener.close()
            await cluster.end()

    asyncio.run(asyncio.wait_for(scenario(), 30))
