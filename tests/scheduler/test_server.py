"""The scheduler: whatever goes wrong, the run ends everywhere and the error names the cause."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from anabranch.log import LogError, events
from anabranch.net.errors import LinkError, PeerError, RunAborted
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.identity import proven
from anabranch.net.messages import (
    AnyMessage,
    ExchangeEnded,
    ExchangeRequest,
    Gather,
    Join,
    Leave,
    Message,
    Ready,
    Refusal,
    Resume,
    Signature,
    SubgroupRequest,
)
from anabranch.net.session import LEAST_PATIENCE_S
from anabranch.overlay import internet2_9, random_complete
from anabranch.plan import Plan, PlanError, star
from anabranch.scheduler._members import ABSENT
from anabranch.scheduler._presence import PREPARING_SILENCE_S
from anabranch.scheduler.server import Scheduler
from anabranch.site.agent import Transport
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import _End

from ..net.test_tcp import Ear
from ..site.cluster import PAIR, TOKEN, Cluster, Tls, Witness, all_reduce, make_agent, simulated

OVERLAY = random_complete(3, 0)
PLAN = star(OVERLAY, hub=0)


def whole(plan: Plan, elements: int) -> int:
    """Leave buffers in one piece."""
    return elements


async def errors_of(cluster: Cluster, rounds: Any) -> list[str]:
    results = await asyncio.gather(rounds, cluster.scheduler.finished(), return_exceptions=True)
    errors = []
    for result in results:
        assert isinstance(result, RunAborted), result
        errors.append(str(result))
    return errors


def test_a_site_that_dies_in_a_round_ends_the_run_everywhere_and_is_named() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        buffers = [np.ones(1000, np.float32) for _ in range(3)]
        await cluster.all_reduce(buffers)
        survivors = [
            asyncio.ensure_future(all_reduce(cluster.agents[site], buffers[site]))
            for site in (0, 2)
        ]
        await cluster.witness.has_begun[2].wait()
        cluster.agents[1]._plane.close()
        cluster.agents[1]._scheduler.close()
        results = await asyncio.gather(
            *survivors, cluster.scheduler.finished(), return_exceptions=True
        )
        for result in results:
            assert isinstance(result, RunAborted)
            assert str(result).startswith("site 1 (site1) died in round 2"), result

    run_virtually(scenario())


def test_a_lane_that_breaks_ends_the_run_and_both_ends_are_named() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        buffers = [np.ones(1000, np.float32) for _ in range(3)]
        await cluster.all_reduce(buffers)
        cluster.connection(2, 0).close()
        (first, second) = await errors_of(cluster, cluster.all_reduce(buffers))
        assert first == second
        assert "site 2 (site2)" in first

    run_virtually(scenario())


def test_sites_are_borne_with_while_they_prepare_their_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    borne: list[float] = []
    monkeypatch.setattr(_End, "bear", lambda self, silence_s: borne.append(silence_s))

    async def scenario() -> None:
        ports = simulated(OVERLAY)
        scheduler = Scheduler(ports.control(None), OVERLAY, PLAN, TOKEN, "work", whole, Witness())
        address = await scheduler.listen(("127.0.0.1", 0))
        agents = [make_agent(ports, index, site.name) for index, site in enumerate(OVERLAY.sites)]
        await asyncio.gather(*(agent.join(address) for agent in agents))
        assert borne == [0.0] * 3 + [PREPARING_SILENCE_S] * 3  # they wait; they are welcomed
        borne.clear()
        await asyncio.gather(
            *(
                agent.start(Transport(64, 64, 64), ports.lanes(site))
                for site, agent in enumerate(agents)
            )
        )
        assert borne == [0.0] * 3
        scheduler.abort("that was all")
        await scheduler.close()

    run_virtually(scenario())


@pytest.mark.parametrize("round", [1, 3])
def test_a_log_that_fails_ends_the_run_everywhere(
    round: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        writes = 0

        def fail(*happened: events.Event) -> None:
            nonlocal writes
            if any(isinstance(event, events.RoundBegan) for event in happened):
                writes += 1
            if writes >= round:
                raise LogError("the event log is full")

        monkeypatch.setattr(cluster.witness, "write", fail)
        buffers = [np.ones(1000, np.float32) for _ in range(3)]
        for _ in range(round - 1):
            await cluster.all_reduce(buffers)
        assert (
            await errors_of(cluster, cluster.all_reduce(buffers)) == ["the event log is full"] * 2
        )
        await cluster.scheduler.close()

    run_virtually(scenario())


def test_the_scheduler_that_dies_ends_the_run_at_every_site() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        rounds = [
            asyncio.ensure_future(all_reduce(each, np.ones(10, np.float32)))
            for each in cluster.agents[:2]
        ]
        await cluster.witness.has_begun[1].wait()
        cluster.scheduler._listener.close()
        break_connections(cluster)
        for result in await asyncio.gather(*rounds, return_exceptions=True):
            assert isinstance(result, RunAborted)
            assert "the scheduler is gone" in str(result)

    run_virtually(scenario())


def break_connections(cluster: Cluster) -> None:
    for agent in cluster.agents:
        assert agent._scheduler._session is not None
        assert agent._scheduler._session.connection is not None
        agent._scheduler._session.connection.close()
        agent._scheduler.lost(LinkError("broken"))


def test_a_scheduler_that_is_only_out_of_reach_for_a_moment_costs_nothing_else() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        for _ in range(20):
            rounds = asyncio.ensure_future(
                cluster.all_reduce([np.full(10, site, np.float32) for site in range(3)])
            )
            await asyncio.sleep(0)
            break_connections(cluster)
            await rounds
        await cluster.leave()

    run_virtually(scenario())


def test_a_site_out_of_reach_is_given_up_only_once_it_has_given_up_itself() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        loop = asyncio.get_running_loop()
        session = cluster.agents[1]._scheduler._session
        assert session is not None
        assert session.connection is not None
        session.connection.close()  # and it does not connect again
        began_s = loop.time()
        with pytest.raises(RunAborted, match=r"site 1 \(site1\) died"):
            await cluster.scheduler.finished()
        assert loop.time() - began_s > LEAST_PATIENCE_S

    run_virtually(scenario())


def test_who_guesses_the_token_or_is_not_in_the_run_cannot_take_a_place_in_it() -> None:
    async def scenario() -> None:
        ports = simulated(OVERLAY)
        cluster = await Cluster.start(ports, OVERLAY, PLAN)
        own, token = cluster.scheduler.members.secret(1), TOKEN.encode()
        for message in (
            proven(Resume(b"", 1, 0), b"guess", b""),
            proven(Resume(b"", 1, 0), token, b""),  # who might have joined
            proven(Resume(b"", 1, 0), cluster.scheduler.members.secret(2), b""),
            proven(Resume(b"", 7, 0), cluster.scheduler.members.secret(7), b""),
            proven(Resume(b"", 1, 99), own, b""),
            proven(Resume(b"", 1, 0, incarnation=1), own, b""),
            proven(Join(b"", OVERLAY.sites[1].name, "127.0.0.1", 1), token, b""),
        ):
            told: list[AnyMessage] = []
            unauthenticated = await ports.control(1).connect(
                cluster.scheduler._listener.address, Listener(told)
            )
            unauthenticated.post(message)
            await asyncio.sleep(1.0)
            assert [type(each) for each in told] == [Refusal]
        assert len(cluster.witness.refusals) == 7
        await cluster.all_reduce([np.ones(10, np.float32) for _ in range(3)])
        await cluster.leave()

    run_virtually(scenario())


def test_a_caller_without_the_token_does_not_hear_that_the_run_is_over() -> None:
    async def scenario() -> None:
        ports = simulated(OVERLAY)
        cluster = await Cluster.start(ports, OVERLAY, PLAN)
        cluster.scheduler.abort("it is over")
        for secret, told in ((b"guess", "does not know the run's token"), (TOKEN.encode(), "over")):
            answers: list[AnyMessage] = []
            caller = await ports.control(1).connect(
                cluster.scheduler._listener.address, Listener(answers)
            )
            caller.post(proven(Join(b"", OVERLAY.sites[1].name, "127.0.0.1", 1), secret, b""))
            await asyncio.sleep(1.0)
            [refusal] = answers
            assert isinstance(refusal, Refusal)
            assert told in refusal.detail

    run_virtually(scenario())


@pytest.mark.parametrize("joins", [False, True])
def test_a_proof_is_worth_nothing_beside_the_certificate_of_another(joins: bool) -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(Tls(), PAIR, star(PAIR, hub=0))
        posing = Ear()
        connection = await cluster.ports.control(0).connect(
            cluster.scheduler._listener.address, posing
        )
        message: Join | Resume = Resume(b"", 1, 0)
        secret = cluster.scheduler.members.secret(1)
        if joins:
            message, secret = Join(b"", PAIR.sites[1].name, "127.0.0.1", 1), TOKEN.encode()
        connection.post(proven(message, secret, connection.their_challenge))
        try:
            told = await posing.hears_first()
            assert isinstance(told, Refusal)
            assert "certificate of site-a, not of site-b" in told.detail
            await cluster.all_reduce([np.ones(10, np.float32) for _ in range(2)])
        finally:
            connection.close()
            await cluster.end()

    asyncio.run(asyncio.wait_for(scenario(), 30))


class Listener:
    """Remembers what it is told."""

    def __init__(self, told: list[AnyMessage]) -> None:
        self._told = told

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        self._told.append(message)
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None: ...

    def on_closed(self, error: Exception | None) -> None: ...


def test_models_that_drift_apart_end_the_run() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        done = await cluster.all_reduce([np.ones(10, np.float32) for _ in range(3)])
        for site, checksum in enumerate((5, 5, 6)):
            await cluster.agents[site].round_ended(done[site], checksum)
        with pytest.raises(RunAborted, match=r"after round 1 the models of sites \[2\] differ"):
            await cluster.scheduler.finished()

    run_virtually(scenario())


def test_a_site_that_dies_before_all_have_joined_is_waited_for_like_the_others() -> None:
    async def scenario() -> None:
        ports = simulated(OVERLAY)
        witness = Witness()
        scheduler = Scheduler(ports.control(None), OVERLAY, PLAN, TOKEN, "", whole, witness)
        address = await scheduler.listen(("h", 0))
        agents = [make_agent(ports, index, site.name) for index, site in enumerate(OVERLAY.sites)]
        first = asyncio.ensure_future(agents[0].join(address))
        dead = asyncio.ensure_future(agents[1].join(address))
        await witness.has_joined[1].wait()
        dead.cancel()
        agents[1].close()
        await asyncio.sleep(1.0)
        assert scheduler.members.addresses[1:] == (ABSENT, ABSENT)
        lost = [e for write in witness.writes for e in write if isinstance(e, events.SiteLost)]
        assert [(each.site, each.goes_on) for each in lost] == [(1, True)]
        assert "site 1 (site1) went before the run began" in lost[0].detail
        again = make_agent(ports, 1, "site1")
        await asyncio.gather(first, *(each.join(address) for each in (again, agents[2])))
        assert again.welcome.site == 1

    run_virtually(scenario())


def test_a_site_that_would_exchange_less_than_nothing_is_the_one_to_blame() -> None:
    async def scenario() -> None:
        ports = simulated(OVERLAY)
        scheduler = Scheduler(ports.control(None), OVERLAY, PLAN, TOKEN, "", whole, Witness())
        address = await scheduler.listen(("h", 0))
        agents = [make_agent(ports, index, site.name) for index, site in enumerate(OVERLAY.sites)]
        await asyncio.gather(*(each.join(address) for each in agents))
        agents[1]._scheduler.post(Ready(-5))
        with pytest.raises(
            RunAborted, match=r"site 1 \(site1\) broke the protocol .*: .* -5 elements"
        ):
            await agents[0].start(Transport(64, 64, 64), ports.lanes(0), buffer_elements=9)

    run_virtually(scenario())


def test_models_of_different_size_never_start() -> None:
    async def scenario() -> None:
        ports = simulated(OVERLAY)
        scheduler = Scheduler(ports.control(None), OVERLAY, PLAN, TOKEN, "", whole, Witness())
        address = await scheduler.listen(("h", 0))
        agents = [make_agent(ports, index, site.name) for index, site in enumerate(OVERLAY.sites)]
        await asyncio.gather(*(each.join(address) for each in agents))
        results = await asyncio.gather(
            *(
                agents[site].start(Transport(64, 64, 64), ports.lanes(site), buffer_elements=size)
                for site, size in enumerate((9, 9, 8))
            ),
            return_exceptions=True,
        )
        for result in results:
            assert isinstance(result, RunAborted)
            assert "site 2 (site2) would exchange 8 elements, site 0 (site0) 9;" in str(result)

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("name", "token", "named"),
    [
        ("site1", "guess", "token"),
        ("site9", TOKEN, "no site .site9."),
        ("site0", TOKEN, "joined already"),
    ],
)
def test_a_site_that_may_not_join_is_told_why_and_the_others_go_on(
    name: str, token: str, named: str
) -> None:
    async def scenario() -> None:
        ports = simulated(OVERLAY)
        witness = Witness()
        scheduler = Scheduler(ports.control(None), OVERLAY, PLAN, TOKEN, "", whole, witness)
        address = await scheduler.listen(("h", 0))
        agents = [make_agent(ports, index, site.name) for index, site in enumerate(OVERLAY.sites)]
        first = asyncio.ensure_future(agents[0].join(address))
        await witness.has_joined[0].wait()
        with pytest.raises(RunAborted, match=named):
            await make_agent(ports, 1, name, token).join(address)
        assert len(witness.refusals) == 1
        await asyncio.gather(first, *(each.join(address) for each in agents[1:]))

    run_virtually(scenario())


@pytest.mark.parametrize(
    "message",
    [
        Join(b"", "site1", "h", 1),
        Ready(9),
        ExchangeRequest(0, 2, Signature(0, 0, 10)),
        ExchangeRequest(0, 1, Signature(0, 0, 0)),
        ExchangeRequest(3, 1, Signature(0, 0, 10)),
        SubgroupRequest((0, 2)),
        SubgroupRequest((1, 7)),
        Gather(3, 1, b""),
        ExchangeEnded(0, 1, 1, 0.0, None),
        ExchangeEnded(0, 7, 1, 0.0, None),
        ExchangeEnded(0, 0, 1, 0.0, None),
        ExchangeEnded(4, 1, 1, 0.0, None),
        ExchangeEnded(0, 1, 1, float("nan"), None),
        ExchangeEnded(0, 1, 1, 1e308, None),
    ],
)
def test_a_message_out_of_place_is_refused_by_name(message: Message) -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        cluster.agents[1]._scheduler.post(message)
        with pytest.raises(RunAborted, match="refused this site"):
            await all_reduce(cluster.agents[1], np.ones(10, np.float32))
        assert len(cluster.witness.refusals) == 1
        assert cluster.witness.refusals[0].sender == 1

    run_virtually(scenario())


def test_the_run_ends_when_the_last_site_has_left_and_not_before() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(OVERLAY), OVERLAY, PLAN)
        cluster.agents[0]._scheduler.post(Leave())
        end = asyncio.ensure_future(cluster.scheduler.finished())
        await asyncio.sleep(3600.0)
        assert not end.done()
        await asyncio.gather(*(each.leave() for each in cluster.agents[1:]))
        await end

    run_virtually(scenario())


def test_a_plan_for_another_overlay_is_refused_at_once() -> None:
    async def scenario() -> None:
        control = simulated(OVERLAY).control(None)
        with pytest.raises(PlanError):
            Scheduler(control, internet2_9(), replace(PLAN), TOKEN, "", whole, Witness())

    run_virtually(scenario())
