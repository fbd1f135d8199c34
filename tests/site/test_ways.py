"""A site whose way to the scheduler alone is cut goes on through a neighbour."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import msgspec
import numpy as np
import pytest

from anabranch.log import events
from anabranch.net.errors import LinkError, OutOfPlaceMessage, RunAborted
from anabranch.net.identity import proven
from anabranch.net.messages import (
    Hello,
    Piece,
    PieceTaken,
    Piped,
    PipeRequest,
    Refusal,
    decode,
)
from anabranch.net.network import Address, Connection, Receiver
from anabranch.net.pipe import PIECE_BYTES, WINDOW, End
from anabranch.net.tcp import TcpNetwork, wait_closed
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import Packed, Plan, star
from anabranch.scheduler.losses import Repairs
from anabranch.site._carrying import Carrying
from anabranch.site._ways import MOST_PIPES, Ways, why_not
from anabranch.site.neighbourhood import LIMITS
from anabranch_lab.sim.loop import run_virtually
from anabranch_lab.sim.network import SimulatedNetwork
from tests.every import every
from tests.net.test_tcp import Ear
from tests.site.cluster import PAIR, Cluster, Ports, Tcp, Tls, simulated

_PATIENCE_S = 5.0


def complete(size: int) -> Overlay:
    links = tuple(Link(a, b, 1e7, latency_s=0.001) for a, b in permutations(range(size), 2))
    return Overlay("full", tuple(Site(f"s{site}") for site in range(size)), links)


def planned(overlay: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
    return Packed().plan(overlay, version=version)


async def begin(
    size: int = 3, outbound_only: Collection[int] = ()
) -> tuple[SimulatedNetwork, Cluster]:
    network = simulated(complete(size), control_latency_s=0.005)
    network.begin()
    cluster = await Cluster.start(
        network,
        complete(size),
        planned(complete(size)),
        repairs=Repairs(planned, 2, None),
        outbound_only=outbound_only,
    )
    return network, cluster


async def check(cluster: Cluster) -> None:
    """Let all sites take part in a round, and check each element at each of them."""
    size = len(cluster.agents)
    buffers = [np.full(3000, 2.0**site, np.float32) for site in range(size)]
    rounds = await cluster.all_reduce(buffers)
    for agent, done in zip(cluster.agents, rounds, strict=True):
        await agent.round_ended(done, None)
        assert done.members == (*range(size),)
    for buffer in buffers:
        assert (buffer == np.float32((2**size - 1) / size)).all()


def resumed(cluster: Cluster) -> list[tuple[int, int | None]]:
    return [(each.site, each.through) for each in cluster.witness.of(events.SiteResumed)]


# --- which way is tried, and which neighbour carries


def trials(attempt_s: float, until_s: float, near: list[int]) -> list[tuple[float, int | None]]:
    """Return when what is tried, where each attempt fails after so long, or when it is given up."""
    ways, now_s, tried = Ways(0.0, _PATIENCE_S / 3), 0.0, []
    while now_s < until_s:
        attempt = ways.next(now_s, near)
        now_s += attempt.pause_s
        tried.append((round(now_s, 3), attempt.through))
        now_s += min(attempt_s, attempt.within_s)
    return tried


def test_where_nothing_answers_a_neighbour_is_asked_after_half_a_second() -> None:
    assert trials(60.0, 3.0, [4, 7])[:3] == [(0.0, None), (0.5, 4), (1.52, None)]


def test_all_neighbours_are_asked_in_turn_and_none_of_them_often() -> None:
    asked = [(at_s, who) for at_s, who in trials(0.01, 5.0, [4, 7]) if who is not None]
    assert [who for _, who in asked[:4]] == [4, 7, 4, 7]
    assert asked[0][0] >= 0.5
    for who in (4, 7):
        at_s = [each_s for each_s, each in asked if each == who]
        assert len(at_s) >= 3
        assert every(b - a >= 1.0 for a, b in pairwise(at_s))


def test_neighbours_that_refuse_at_once_are_all_asked_before_the_direct_way() -> None:
    near = [*range(2, 40)]
    tried = trials(0.005, 1.0, near)
    asked = [who for _, who in tried if who is not None]
    assert asked[: len(near)] == near
    first = [who for _, who in tried].index(near[0])
    assert [who for _, who in tried[first : first + len(near)]] == near


def test_slow_neighbours_do_not_keep_a_site_from_a_scheduler_that_is_back() -> None:
    tried = trials(0.3, 5.0, [*range(2, 40)])
    direct_s = [at_s for at_s, who in tried if who is None and at_s > 0.5]
    assert len(direct_s) >= 4
    assert every(b - a < 1.2 for a, b in pairwise(direct_s))


def test_without_neighbours_the_direct_way_has_all_the_time_there_is() -> None:
    assert Ways(0.0, 1.7).next(0.0, []).within_s == 1.7
    assert {who for _, who in trials(0.0, 5.0, [])} == {None}


def test_a_slow_way_is_not_given_up_for_ever() -> None:
    ways = Ways(0.0, 4.0)
    within_s = [ways.next(10.0 * k, [4]) for k in range(8)]
    assert [each.within_s for each in within_s if each.through is None] == [0.5, 1.0, 2.0, 4.0]
    assert [each.within_s for each in within_s if each.through == 4] == [1.0, 2.0, 4.0, 4.0]


def test_a_site_carries_one_pipe_a_neighbour_and_not_too_many() -> None:
    many = range(10, 10 + MOST_PIPES)
    assert why_not(2, many, is_direct=True) == f"it carries {MOST_PIPES} pipes already"
    assert why_not(10, many, is_direct=True) is None  # in place of its own


# --- in virtual time


def test_a_site_whose_way_alone_is_cut_is_not_lost_and_rounds_stay_exact() -> None:
    async def go() -> None:
        network, cluster = await begin()
        await check(cluster)
        network.disconnect(2)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await check(cluster)
        assert loop.time() - began_s == pytest.approx(0.7, abs=0.15)
        await asyncio.sleep(20.0)
        await check(cluster)
        assert not cluster.scheduler.lost
        assert resumed(cluster) == [(2, 0)]
        assert [each.through for each in cluster.scheduler.status().sites] == [None, None, "s0"]
        await cluster.leave()

    run_virtually(go())


def test_so_does_one_that_takes_no_connections_but_not_through_such_a_one() -> None:
    async def go() -> None:
        network, cluster = await begin(4, outbound_only={2, 3})
        network.disconnect(2)
        await check(cluster)
        assert resumed(cluster) == [(2, 0)]
        assert not cluster.scheduler.lost
        await cluster.leave()

    run_virtually(go())


def test_a_neighbour_that_is_cut_off_too_carries_nothing() -> None:
    async def go() -> None:
        network, cluster = await begin(4)
        network.disconnect(2)
        network.disconnect(3)  # which site 2 asks first
        await check(cluster)
        assert {*resumed(cluster)} <= {(2, 0), (2, 1), (3, 0), (3, 1)}
        assert not cluster.scheduler.lost
        await cluster.leave()

    run_virtually(go())


def test_where_no_neighbour_reaches_the_scheduler_the_site_is_lost() -> None:
    async def go() -> None:
        network, cluster = await begin(3)
        for agent in cluster.agents[:2]:
            agent._scheduler._through = 1  # not directly, as if each were carried itself
        network.disconnect(2)
        with pytest.raises(RunAborted, match="the scheduler is gone"):
            await cluster.agents[2].ended_early()
        await asyncio.sleep(2.0)
        assert cluster.scheduler.lost == {2}

    run_virtually(go())


def test_neighbours_that_cannot_be_called_or_do_not_answer_are_not_asked() -> None:
    async def go() -> None:
        network, cluster = await begin(5, outbound_only={4})
        await check(cluster)
        plane = cluster.agents[2]._plane
        assert plane is not None
        assert plane.connections.that_may_pipe() == [3, 0, 1]
        network.sever(2, 3)
        await check(cluster)
        assert plane.connections.that_may_pipe() == [0, 1]
        network.hush(2, 0, are_silent=True)
        await asyncio.sleep(0.1)
        assert plane.connections.that_may_pipe() == [1]

    run_virtually(go())


def test_a_site_moves_on_when_the_one_that_carries_it_dies_or_is_cut_off() -> None:
    async def go() -> None:
        network, cluster = await begin(4)
        network.disconnect(2)
        await check(cluster)
        ((_, first),) = resumed(cluster)
        assert first is not None
        network.disconnect(first)
        await check(cluster)
        last = dict(resumed(cluster))
        assert None not in (last[2], last[first])
        assert last[2] != first
        assert not cluster.scheduler.lost
        await cluster.leave()

    run_virtually(go())


async def cut_off_many(carriers: int) -> Cluster:
    """Begin with four sites more than one site carries; cut all off but so many."""
    overlay = complete(MOST_PIPES + 4)

    def again(rest: Overlay, version: int = 1, previous: Plan | None = None) -> Plan:
        return replace(star(rest, hub=0), version=version)

    network = simulated(overlay, control_latency_s=0.005)
    network.begin()
    cluster = await Cluster.start(
        network, overlay, star(overlay, hub=0), repairs=Repairs(again, 2, None)
    )
    for site in range(carriers, overlay.size):
        network.disconnect(site)
    return cluster


def test_more_sites_than_one_carries_are_spread_over_those_that_can() -> None:
    async def go() -> None:
        cluster = await cut_off_many(carriers=2)
        await check(cluster)
        assert not cluster.scheduler.lost
        carried = Counter(through for _, through in resumed(cluster))
        assert {*carried} == {0, 1}
        assert carried.total() == MOST_PIPES + 2
        assert max(carried.values()) <= MOST_PIPES
        await cluster.leave()

    run_virtually(go())


def test_sites_that_no_neighbour_has_a_pipe_for_are_lost_and_say_why() -> None:
    async def go() -> None:
        cluster = await cut_off_many(carriers=1)
        await asyncio.sleep(20.0)
        assert [through for _, through in resumed(cluster)] == [0] * MOST_PIPES
        lost = cluster.scheduler.lost
        assert len(lost) == 3
        for site in lost:
            with pytest.raises(RunAborted, match=f"it carries {MOST_PIPES} pipes already"):
                await cluster.agents[site].ended_early()
        await cluster.leave(dead=lost)

    run_virtually(go())


def test_a_scheduler_that_is_gone_for_a_moment_is_found_directly() -> None:
    async def go() -> None:
        network, cluster = await begin(3)
        network.disconnect(2)
        await asyncio.sleep(0.3)
        network.reconnect(2)
        await check(cluster)
        assert resumed(cluster) == [(2, None)]
        await cluster.leave()

    run_virtually(go())


# --- over TCP


class Deaf:
    """A port from which nothing leads directly to the scheduler, once that is cut."""

    heads_go_ahead = TcpNetwork.heads_go_ahead

    def __init__(self, network: TcpNetwork) -> None:
        self._network = network
        self.is_cut = False

    async def connect(self, address: Address, receiver: Receiver) -> Connection:
        if self.is_cut:
            await asyncio.sleep(60.0)
        return await self._network.connect(address, receiver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


def cut_off(agent: Any) -> None:
    """Cut a site's way to the scheduler, from which it hears nothing any more, silently."""
    control = agent._scheduler
    control._network = port = Deaf(control._network)
    port.is_cut = True
    control._session.connection.cut()


async def goes_on(ports: Ports, overlay: Overlay, outbound_only: set[int]) -> None:
    cluster = await Cluster.start(
        ports,
        overlay,
        star(overlay, hub=0),
        repairs=Repairs(planned, 2, None),
        outbound_only=outbound_only,
    )
    try:
        await check(cluster)
        cut_off(cluster.agents[1])
        for _ in range(3):
            await check(cluster)
        ((site, through),) = resumed(cluster)
        assert (site, through) in {(1, 0), (1, 2)}
        assert not cluster.scheduler.lost
        assert not cluster.refusals
        await cluster.leave()
    finally:
        await cluster.end()
    await wait_closed()


@pytest.mark.parametrize("outbound_only", [set(), {1}])
def test_over_tcp_a_site_goes_on_through_a_neighbour(outbound_only: set[int]) -> None:
    play = goes_on(Tcp(), complete(3), outbound_only)
    asyncio.run(asyncio.wait_for(play, 30))


def test_with_certificates_its_conversation_stays_between_it_and_the_scheduler() -> None:
    asyncio.run(asyncio.wait_for(goes_on(Tls(), PAIR, set()), 30))


def test_a_neighbour_that_answers_in_the_schedulers_place_is_found_out() -> None:
    """The certificate at the other end of the pipe counts, not the one of who carries it."""

    async def go() -> None:
        cluster = await Cluster.start(
            Tls(), PAIR, star(PAIR, hub=0), repairs=Repairs(planned, 1, None)
        )
        try:
            here = cluster.agents[0]._listener
            assert here is not None
            carrier = cluster.agents[0]._scheduler
            carrier._scheduler = here.address  # it pipes to itself
            cut_off(cluster.agents[1])
            while "certificate of site-a, not of scheduler" not in (
                cluster.agents[1]._scheduler._why_away
            ):
                await asyncio.sleep(0.01)
            assert resumed(cluster) == []
        finally:
            await cluster.end()

    asyncio.run(asyncio.wait_for(go(), 30))


# --- strangers, and neighbours that ask for more than they may


def test_a_request_says_nothing_of_where_the_pipe_is_to_lead() -> None:
    fields = ["PipeRequest", b"proof", 1, 0, 0, "10.0.0.1", 22]
    with pytest.raises(msgspec.DecodeError):
        decode(msgspec.msgpack.encode(fields))


async def called(cluster: Cluster, request: PipeRequest | Hello, secret: bytes) -> Ear:
    ear = Ear()
    network = TcpNetwork(LIMITS)
    ear.connection = await network.connect(cluster.scheduler.members.addresses[0], ear)
    ear.connection.post(proven(request, secret, ear.connection.their_challenge))
    return ear


@pytest.mark.parametrize(
    ("request_", "whose"),
    [
        (PipeRequest(b"", 1, 0), None),  # by a process that merely knows the token
        (PipeRequest(b"", 1, 0), (2, 0)),  # by another member
        (PipeRequest(b"", 1, 0), (1, 2)),  # meant for another member
        (PipeRequest(b"", 1, 2), (1, 0)),
        (PipeRequest(b"", 1, 0, 1), (1, 0)),  # by a process that was never let in
        (PipeRequest(b"", 7, 0), (1, 0)),
    ],
)
def test_a_stranger_is_piped_nowhere(
    request_: PipeRequest, whose: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        cluster = await Cluster.start(Tcp(), complete(3), star(complete(3), hub=0))
        try:
            monkeypatch.setattr(Carrying, "take", None)  # nothing is carried
            members = cluster.scheduler.members
            secret = b"secret" if whose is None else members.lane_secrets(whose[0])[whose[1]]
            ear = await called(cluster, request_, secret)
            said = await ear.hears_first()
            assert isinstance(said, Refusal)
            assert said.error == "UnauthorisedPeer"
            await ear.closed
        finally:
            await cluster.end()

    asyncio.run(asyncio.wait_for(go(), 30))


def test_a_neighbour_that_is_carried_itself_says_so_and_carries_nothing() -> None:
    async def go() -> None:
        cluster = await Cluster.start(Tcp(), complete(3), star(complete(3), hub=0))
        try:
            cluster.agents[0]._scheduler._through = 2
            secret = cluster.scheduler.members.lane_secrets(1)[0]
            ear = await called(cluster, PipeRequest(b"", 1, 0), secret)
            said = await ear.hears_first()
            assert isinstance(said, Refusal)
            assert said.detail == "it does not reach the scheduler directly, either"
            await ear.closed
        finally:
            await cluster.end()

    asyncio.run(asyncio.wait_for(go(), 30))


def test_what_a_site_carries_ends_with_its_own_way() -> None:
    async def go() -> None:
        cluster = await Cluster.start(Tcp(), complete(3), star(complete(3), hub=0))
        try:
            secret = cluster.scheduler.members.lane_secrets(1)[0]
            ear = await called(cluster, PipeRequest(b"", 1, 0), secret)
            assert await ear.hears_first() == Piped()
            control: Any = cluster.agents[0]._scheduler
            control._session.connection.close()
            control.lost(LinkError("nothing crosses the way"))
            await ear.closed
        finally:
            await cluster.end()

    asyncio.run(asyncio.wait_for(go(), 30))


def test_the_second_pipe_of_a_neighbour_takes_the_place_of_the_first() -> None:
    async def go() -> None:
        cluster = await Cluster.start(Tcp(), complete(3), star(complete(3), hub=0))
        try:
            secret = cluster.scheduler.members.lane_secrets(1)[0]
            first = await called(cluster, PipeRequest(b"", 1, 0), secret)
            assert await first.hears_first() == Piped()
            second = await called(cluster, PipeRequest(b"", 1, 0), secret)
            assert await second.hears_first() == Piped()
            await first.closed
            assert len(cluster.agents[0]._scheduler._carrying._pipes) == 1
        finally:
            await cluster.end()

    asyncio.run(asyncio.wait_for(go(), 30))


@pytest.mark.parametrize(
    "said",
    [
        [Piece(bytes(PIECE_BYTES + 1))],
        [Piece(b"")],
        [PieceTaken()],  # none was sent
        [Piece(b"x")] * (WINDOW + 1),  # none of which has left
        [Hello(b"", 1, 0)],
    ],
)
def test_what_a_pipe_may_not_carry_is_refused(said: list[Any]) -> None:
    async def go() -> None:
        end = End()
        for message in said[:-1]:
            end.on_message(message, 0)
        with pytest.raises(OutOfPlaceMessage):
            end.on_message(said[-1], 0)

    asyncio.run(go())


@pytest.mark.parametrize("said", [[PieceTaken()] * (WINDOW + 1), [Hello(b"", 1, 0)]])
def test_a_neighbour_that_says_what_it_may_not_loses_its_pipe(said: list[Any]) -> None:
    async def go() -> None:
        cluster = await Cluster.start(Tcp(), complete(3), star(complete(3), hub=0))
        try:
            secret = cluster.scheduler.members.lane_secrets(1)[0]
            ear = await called(cluster, PipeRequest(b"", 1, 0), secret)
            assert await ear.hears_first() == Piped()
            for message in said:
                ear.connection.post(message)
            await ear.closed
            assert not cluster.agents[0]._scheduler._carrying._pipes
        finally:
            await cluster.end()

    asyncio.run(asyncio.wait_for(go(), 30))
