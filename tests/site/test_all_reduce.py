"""All-reduce of a whole run, scheduler and sites in one loop: exact, equal everywhere, unharmed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anabranch.exchange.actions import Send
from anabranch.exchange.reduction import Reduction
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.net.errors import (
    DuplicateMessage,
    MalformedMessage,
    OutOfPlaceMessage,
    OversizedMessage,
    PeerError,
    RunAborted,
    UnauthorisedPeer,
)
from anabranch.net.frames import DISCARD, Sink, encode_frame
from anabranch.net.identity import proven
from anabranch.net.messages import (
    AnyMessage,
    Credit,
    ExchangeRequest,
    Hello,
    Message,
    PartialSum,
    Refusal,
    Result,
    Signature,
    Start,
)
from anabranch.net.shaping import Course
from anabranch.net.tcp import TcpNetwork
from anabranch.net.tls import SCHEDULER, identity_of
from anabranch.overlay import Link, Overlay, Site, internet2_9, random_complete, random_sparse
from anabranch.plan import Plan, balanced, fapt, ring, spanning, star
from anabranch.site._connections import MOST_STRANDS
from anabranch_lab.run._faults import OutagesFault, PartitionFault, SlowFault, link_factors, script
from anabranch_lab.sim.loop import run_virtually

from ..every import every
from ..seeds import seeds
from .cluster import (
    LIMITS,
    PAIR,
    TOKEN,
    Cluster,
    Floats,
    Ports,
    Tcp,
    Tls,
    all_reduce,
    simulated,
)

Planner = Callable[[Overlay], Plan]
PLANNERS: dict[str, Planner] = {
    "star": star,
    "balanced": balanced,
    "mst": spanning,
    "fapt-1": fapt,
    "fapt-all": lambda overlay: fapt(overlay, roots=overlay.size),
    "ring": ring,
    "ring-both-ways": lambda overlay: ring(overlay, both_ways=True),
}
TRIANGLE = Overlay(
    "triangle",
    tuple(Site(name) for name in "abc"),
    tuple(Link(i, j, 1e9) for i in range(3) for j in range(3) if i != j),
)


def run_over_tcp(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


# In which time, and over which network.
WORLDS: dict[
    str, tuple[Callable[[Coroutine[Any, Any, None]], None], Callable[[Overlay], Ports]]
] = {
    "simulated": (run_virtually, simulated),
    "tcp": (run_over_tcp, lambda overlay: Tcp()),
}


def random_buffers(sites: int, elements: int, seed: int) -> list[Floats]:
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(elements).astype(np.float32) for _ in range(sites)]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("planner", PLANNERS)
def test_the_mean_is_exact_and_the_same_bits_everywhere(world: str, planner: str) -> None:
    run, ports = WORLDS[world]

    async def scenario() -> None:
        overlay = internet2_9()
        cluster = await Cluster.start(ports(overlay), overlay, PLANNERS[planner](overlay))
        for round in range(1, 4):
            buffers = random_buffers(9, 4000 - round, seed=round)
            mean = np.mean([buffer.astype(np.float64) for buffer in buffers], axis=0)
            done = await cluster.all_reduce(buffers)
            assert [each.round for each in done] == [round] * 9
            np.testing.assert_allclose(buffers[0], mean, rtol=1e-5, atol=1e-6)
            assert every(np.array_equal(buffer, buffers[0]) for buffer in buffers)
        assert cluster.refusals == []
        await cluster.leave()

    run(scenario())


def test_an_exchange_keeps_no_memory_of_sums_that_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Reduction] = []
    begin = Reduction.begin

    def noted(reduction: Reduction, *given: Any) -> None:
        made.append(reduction)
        begin(reduction, *given)

    monkeypatch.setattr(Reduction, "begin", noted)

    async def scenario() -> None:
        overlay = internet2_9()
        cluster = await Cluster.start(simulated(overlay), overlay, balanced(overlay))
        await cluster.all_reduce(random_buffers(9, 4000, seed=0))
        await cluster.leave()

    run_virtually(scenario())
    sent = [send for reduction in made for send in reduction.sums.values() if send is not None]
    assert len(sent) == 8 * 63  # chunks of 64 elements, from all but the root
    assert not any(send.payload for send in sent)


@pytest.mark.parametrize("world", WORLDS)
def test_a_lane_of_several_connections_changes_nothing(world: str) -> None:
    run, ports = WORLDS[world]

    async def scenario() -> None:
        plan = star(TRIANGLE, hub=1)
        cluster = await Cluster.start(ports(TRIANGLE), TRIANGLE, plan, strands=3)
        for seed in range(3):
            buffers = random_buffers(3, 4000, seed)
            mean = np.mean([buffer.astype(np.float64) for buffer in buffers], axis=0)
            await cluster.all_reduce(buffers)
            np.testing.assert_allclose(buffers[0], mean, rtol=1e-5, atol=1e-6)
            assert every(np.array_equal(buffer, buffers[0]) for buffer in buffers)
        hub = cluster.agents[1]._plane
        assert hub is not None
        assert {source: len(strands) for source, strands in hub.connections._inbound.items()} == {
            0: 3,
            2: 3,
        }
        assert cluster.refusals == []
        await cluster.leave()

    run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_random_sparse_overlays_and_weights(seed: int) -> None:
    async def scenario() -> None:
        generator = np.random.default_rng(seed)
        overlay = random_sparse(int(generator.integers(3, 14)), seed)
        plan = list(PLANNERS.values())[seed % len(PLANNERS)](overlay)
        weights = generator.integers(1, 9, overlay.size).astype(float).tolist()
        cluster = await Cluster.start(simulated(overlay), overlay, plan, chunk_elements=37)
        # Small whole numbers: the weighted sum is exact in float32, in whatever order.
        buffers = [
            generator.integers(-50, 50, 1000).astype(np.float32) for _ in range(overlay.size)
        ]
        total = sum(w * b.astype(np.float64) for w, b in zip(weights, buffers, strict=True))
        expected = np.asarray(total, np.float32) / np.float32(sum(weights))
        await cluster.all_reduce(buffers, weights)
        assert every(np.array_equal(buffer, expected) for buffer in buffers)
        await cluster.leave()

    run_virtually(scenario())


def test_a_single_site_keeps_its_buffer() -> None:
    async def scenario() -> None:
        alone = Overlay("alone", (Site("a"),), ())
        cluster = await Cluster.start(simulated(alone), alone, star(alone))
        buffer = np.arange(10, dtype=np.float32)
        await cluster.all_reduce([buffer])
        assert buffer.tolist() == list(range(10))
        await cluster.leave()

    run_virtually(scenario())


def test_buffers_shorter_than_the_number_of_trees_are_exact_too() -> None:
    async def scenario() -> None:
        overlay = internet2_9()
        cluster = await Cluster.start(simulated(overlay), overlay, fapt(overlay, roots=9))
        for elements in (1, 3, 10):
            buffers = [np.full(elements, float(site), np.float32) for site in range(9)]
            await cluster.all_reduce(buffers)
            assert every(buffer.tolist() == [4.0] * elements for buffer in buffers)
        await cluster.leave()

    run_virtually(scenario())


def test_a_site_that_is_late_finds_its_neighbours_data_kept() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        buffers = random_buffers(3, 500, seed=0)
        expected = np.mean(buffers, axis=0)
        early = asyncio.gather(
            *(all_reduce(cluster.agents[site], buffers[site]) for site in (1, 2))
        )
        await asyncio.sleep(3600.0)  # nothing more can move without the hub
        assert not early.done()
        await all_reduce(cluster.agents[0], buffers[0])
        await early
        np.testing.assert_allclose(buffers[1], expected, rtol=1e-5, atol=1e-6)
        assert every(np.array_equal(buffer, buffers[0]) for buffer in buffers)
        assert cluster.refusals == []
        await cluster.leave()

    run_virtually(scenario())


def test_a_new_plan_counts_from_the_next_round_that_no_site_has_asked_for() -> None:
    async def scenario() -> None:
        overlay = internet2_9()
        cluster = await Cluster.start(simulated(overlay), overlay, star(overlay))
        versions = []
        for version, plan in enumerate(
            (fapt(overlay, roots=9, version=2), spanning(overlay, version=3)), start=2
        ):
            buffers = random_buffers(9, 300, seed=version)
            mean = np.mean(buffers, axis=0)
            started = asyncio.ensure_future(cluster.all_reduce(buffers))
            await cluster.witness.has_begun[version - 1].wait()
            cluster.scheduler.planning.issue(plan)
            versions += [{done.version for done in await started}]
            np.testing.assert_allclose(buffers[3], mean, rtol=1e-4, atol=1e-6)
        buffers = random_buffers(9, 300, seed=9)
        versions += [{done.version for done in await cluster.all_reduce(buffers)}]
        assert versions == [{1}, {2}, {3}]
        assert cluster.refusals == []
        await cluster.leave()

    run_virtually(scenario())


def test_shaped_links_still_give_the_exact_mean() -> None:
    async def scenario() -> None:
        overlay = Overlay(
            "slow", TRIANGLE.sites, tuple(Link(e.source, e.target, 4e6, 0.001) for e in TRIANGLE)
        )
        plan = fapt(overlay, roots=3)
        cluster = await Cluster.start(Tcp(), overlay, plan, shaped=True)
        buffers = [np.full(3000, float(site), np.float32) for site in range(3)]
        (done, *_) = await cluster.all_reduce(buffers)
        assert every(buffer.tolist() == [1.0] * 3000 for buffer in buffers)
        # Each link carries a third of the buffer up and a third down.
        assert done.seconds >= 2 * 8 * 4000 / 4e6
        await cluster.leave()

    run_over_tcp(scenario())


LINE = tuple(Site(name) for name in "abc")
TWO_MODELS = {
    "internet2-9, star at dc4, behind relays": (internet2_9(), lambda o: star(o, hub=3)),
    "internet2-9, every root": (internet2_9(), lambda o: fapt(o, roots=9)),
    "a way back that takes much longer": (
        Overlay(
            "line",
            LINE,
            tuple(
                Link(a, b, 80e6, 1.0 if (a, b) == (1, 2) else 0.01)
                for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))
            ),
        ),
        lambda o: star(o, hub=0),
    ),
    "drifting latencies": (
        random_complete(4, 1, latency_s=(0.1, 0.5), latency_drift_s=0.05),
        lambda o: fapt(o, roots=4),
    ),
}


@pytest.mark.parametrize("name", TWO_MODELS)
def test_links_held_in_the_sender_take_as_long_as_simulated_ones(name: str) -> None:
    """Both models of a link in virtual time, where nothing else can make a difference."""
    overlay, planner = TWO_MODELS[name]
    plan, took_s = planner(overlay), []

    async def rounds(ports: Ports, shaped: bool) -> None:
        cluster = await Cluster.start(ports, overlay, plan, chunk_elements=10_000, shaped=shaped)
        for _ in range(3):
            done = await cluster.all_reduce([np.ones(200_000, np.float32) for _ in overlay.sites])
            took_s.append(max(each.seconds for each in done))
        await cluster.leave()

    async def simulate() -> None:
        await rounds(simulated(overlay), shaped=False)

    async def shape() -> None:
        # A network so fast that it adds nothing.
        loopback = Overlay(
            "loopback", overlay.sites, tuple(Link(e.source, e.target, 1e18) for e in overlay)
        )
        await rounds(simulated(loopback), shaped=True)

    run_virtually(simulate())
    run_virtually(shape())
    assert took_s[3:] == pytest.approx(took_s[:3], rel=1e-3)


@seeds(1, 3)
@pytest.mark.parametrize("name", TWO_MODELS)
def test_so_do_those_through_outages_and_a_partition(name: str, seed: int) -> None:
    overlay, planner = TWO_MODELS[name]
    plan = planner(overlay)
    first, *_ = overlay
    one, other = overlay.sites[first.source].name, overlay.sites[first.target].name
    faults = [
        OutagesFault(all=True, up_s=2.0, down_s=0.5),
        PartitionFault(groups=((overlay.sites[-1].name,),), at_s=0.3, for_s=0.4),
        SlowFault(link=(one, other), factor=3.0, at_s=0.1),
    ]
    scripted, longest_s = script(faults, overlay, seed=seed), 60.0
    took_s: list[float] = []

    async def rounds(ports: Ports, **shaping: Any) -> None:
        cluster = await Cluster.start(ports, overlay, plan, chunk_elements=10_000, **shaping)
        for _ in range(8):
            done = await cluster.all_reduce([np.ones(200_000, np.float32) for _ in overlay.sites])
            took_s.append(max(each.seconds for each in done))
        await cluster.leave()

    async def simulate() -> None:
        ports = simulated(overlay, connect_s=math.inf)
        for link in overlay:
            pair = link.source, link.target
            changes = link_factors(scripted, pair)
            for at_s, factor in takewhile(lambda change: change[0] < longest_s, changes):
                ports.loop.at(at_s, ports.scale, pair, factor)
        await rounds(ports)

    async def shape() -> None:
        loopback = Overlay(
            "loopback", overlay.sites, tuple(Link(e.source, e.target, 1e18) for e in overlay)
        )
        await rounds(
            simulated(loopback),
            shaped=True,
            course=lambda link: Course(link_factors(scripted, link)),
        )

    run_virtually(simulate())
    run_virtually(shape())
    assert sum(took_s) < 2 * longest_s
    assert took_s[8:] == pytest.approx(took_s[:8], rel=1e-6)


@pytest.mark.parametrize(
    ("elements", "weight", "named"),
    [
        (0, 1.0, "the buffer is empty"),
        (10, 0.0, "weight is 0"),
        (10, -1.0, "weight is -1"),
        (10, 1e39, r"weight is 1e\+39"),
        (10, float("inf"), "weight is inf"),
        (10, float("nan"), "weight is nan"),
    ],
)
def test_what_cannot_be_reduced_is_refused_before_anything_is_asked(
    elements: int, weight: float, named: str
) -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE))
        with pytest.raises(ValueError, match=named):
            await all_reduce(cluster.agents[0], np.zeros(elements, np.float32), weight)
        await cluster.all_reduce([np.ones(4, np.float32) for _ in range(3)])
        await cluster.leave()

    run_virtually(scenario())


def test_a_credit_that_was_not_earned_is_refused() -> None:
    async def scenario() -> None:
        chain = Overlay(
            "chain", TRIANGLE.sites, tuple(e for e in TRIANGLE if {e.source, e.target} != {0, 2})
        )
        cluster = await Cluster.start(simulated(chain), chain, star(chain, hub=0))
        await cluster.all_reduce([np.ones(2000, np.float32) for _ in range(3)])
        relay = cluster.agents[1]._plane
        assert relay is not None
        for path in ((2, 1, 0), (1, 2, 0), (0, 1, 2)):
            relay.connections._inbound[2][0].post(Credit(path))
        buffers = [np.full(2000, float(site), np.float32) for site in range(3)]
        await cluster.all_reduce(buffers)
        assert buffers[2].tolist() == [1.0] * 2000
        assert [type(refusal) for refusal in cluster.refusals] == [OutOfPlaceMessage] * 3
        await cluster.leave()

    run_virtually(scenario())


# --- unauthenticated and confused neighbours


# Of the exchange that is disturbed.
TERMS = Terms(Op.MEAN, Wire.FLOAT32, 2000)


def up(exchange: int, chunk: int, path: tuple[int, ...], weight: float = 1.0) -> PartialSum:
    return PartialSum(exchange, 1, chunk, path, TERMS.code, weight=weight)


@pytest.mark.parametrize(
    ("noise", "error"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", MalformedMessage),
        (encode_frame(Hello(b"", 1, 0), 1 << 40), OversizedMessage),
        (encode_frame(Start()) * 1000, UnauthorisedPeer),  # once, not a thousand times
        (encode_frame(Hello(bytes(5000), 1, 0)), OversizedMessage),  # small until it is trusted
        (encode_frame(up(2, 0, (1, 0))), UnauthorisedPeer),
        (encode_frame(up(2, 0, (1, 0)), 40) + bytes(40), OversizedMessage),
    ],
)
def test_a_stranger_is_turned_away_and_the_round_in_progress_goes_on(
    noise: bytes, error: type[PeerError]
) -> None:
    async def disturb(cluster: Cluster) -> None:
        reader, writer = await asyncio.open_connection(*cluster.scheduler.members.addresses[0])
        writer.write(noise)
        with suppress(ConnectionResetError):  # it need not read all of the noise
            await reader.read()  # until the site hangs up
        writer.close()

    run_over_tcp(disturbed(disturb, error))


async def disturbed(
    disturb: Callable[[Cluster], Awaitable[None]], error: type[PeerError] = UnauthorisedPeer
) -> None:
    """Hold a round while somebody disturbs site 0, which refuses something once."""
    cluster = await Cluster.start(Tcp(), TRIANGLE, star(TRIANGLE, hub=0))
    await cluster.all_reduce([np.ones(100, np.float32) for _ in range(3)])
    buffers = random_buffers(3, 2000, seed=1)
    expected = np.mean(buffers, axis=0)
    early = asyncio.gather(*(all_reduce(cluster.agents[site], buffers[site]) for site in (1, 2)))
    await disturb(cluster)
    await all_reduce(cluster.agents[0], buffers[0])
    await early
    np.testing.assert_allclose(buffers[0], expected, rtol=1e-5, atol=1e-6)
    assert [type(refusal) for refusal in cluster.refusals] == [error]
    await cluster.leave()


@pytest.mark.parametrize(
    ("hello", "lane"),
    [
        (Hello(b"", 1, 0, 0, 1), None),  # who knows the token, and no secret of this run
        (Hello(b"", 1, 0, 1, 2), None),  # on one more connection of the lane
        (Hello(b"", 1, 0, 1, 2), (2, 0)),  # site 2 as site 1
        (Hello(b"", 1, 0, 1, 2), (1, 2)),  # by what site 2 was told by site 1
        (Hello(b"", 2, 1), (2, 1)),  # for another site
        (Hello(b"", 1, 0), (1, 0)),  # site 1, which is connected already
        (Hello(b"", 1, 0, 2, 2), (1, 0)),  # a third of two connections
        (Hello(b"", 1, 0, -1, 2), (1, 0)),
        (Hello(b"", 1, 0, 5, MOST_STRANDS + 1), (1, 0)),
        (Hello(b"", 7, 0), None),  # no site
        (Hello(b"", 1, 0, 1, 2, incarnation=3), (1, 0)),  # not its present one
    ],
)
def test_who_is_not_the_neighbour_it_says_it_is_cannot_take_its_place(
    hello: Hello, lane: tuple[int, int] | None
) -> None:
    async def disturb(cluster: Cluster) -> None:
        members, told = cluster.scheduler.members, Told()
        secret = TOKEN.encode()
        if lane is not None:
            secret = members.lane_secrets(lane[0])[lane[1]]
        connection = await TcpNetwork(LIMITS).connect(members.addresses[0], told)
        await connection.send(proven(hello, secret, connection.their_challenge))
        await told.closed.wait()
        assert [type(message) for message in told.messages] == [Refusal]

    run_over_tcp(disturbed(disturb))


def test_a_lane_is_refused_to_whom_its_certificate_calls_somebody_else() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        plane = cluster.agents[0]._plane
        assert plane is not None
        hello = proven(Hello(b"", 1, 0, 1, 2), cluster.scheduler.members.lane_secrets(1)[0], b"")
        here: Any = SimpleNamespace(
            peer="10.0.0.1:1",
            identity=identity_of("c"),
            own_challenge=b"",
            tell_silence=lambda told: None,
        )
        with pytest.raises(UnauthorisedPeer, match="certificate of site-c, not of site-b"):
            plane.admit(hello, here)
        here.identity = identity_of("b")
        assert plane.admit(hello, here) == 1

    run_virtually(scenario())


def test_no_lane_leads_to_a_neighbour_that_has_another_certificate_than_its_own() -> None:
    async def scenario() -> None:
        posing = Tls(called={1: SCHEDULER})
        cluster = await Cluster.start(posing, PAIR, star(PAIR, hub=0))
        try:
            with pytest.raises(RunAborted, match="certificate of scheduler, not of site-b"):
                await cluster.all_reduce([np.ones(10, np.float32), np.ones(10, np.float32)])
        finally:
            await cluster.end()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_what_a_neighbour_proved_on_one_connection_proves_nothing_on_another() -> None:
    async def disturb(cluster: Cluster) -> None:
        members, told = cluster.scheduler.members, Told()
        secret = members.lane_secrets(1)[0]
        network = TcpNetwork(LIMITS)
        first = await network.connect(members.addresses[0], Told())
        overheard = proven(Hello(b"", 1, 0, 1, 2), secret, first.their_challenge)
        again = await network.connect(members.addresses[0], told)
        await again.send(overheard)
        await told.closed.wait()
        first.close()

    run_over_tcp(disturbed(disturb))


def test_a_chunk_under_way_when_its_fork_is_made_is_not_counted_by_the_fork() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        plane = cluster.agents[1]._plane
        assert plane is not None
        plane.lanes.routes[1, 0](Send(up(1, 0, (1, 0)), bytes(256)))
        plane.lanes.use_auxiliary({(1, 0): ((1, 2, 0),)})
        await asyncio.sleep(60.0)
        assert plane.lanes._lanes[0].payload_bytes == 256
        assert plane.lanes._forks[1, 0]._primary_queued == 0
        await cluster.end()

    run_virtually(scenario())


def test_chunks_that_are_withdrawn_from_a_fork_give_their_memory_back_once() -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        plane = cluster.agents[1]._plane
        assert plane is not None
        lanes, freed = plane.lanes, []
        lanes.use_auxiliary({(1, 0): ((1, 2, 0),)})
        for chunk in range(200):
            free = partial(freed.append, chunk)
            lanes.routes[1, 0](Send(up(1, chunk, (1, 0)), bytes(256), free=free))
        lanes.withdraw(1)
        await asyncio.sleep(60.0)
        assert sorted(freed) == [*range(200)]
        assert lanes._forks[1, 0]._primary_queued == 0
        await cluster.end()

    run_virtually(scenario())


@pytest.mark.parametrize("op", [Op.STEP, Op.LETTER, 7])
def test_data_that_is_of_no_exchange_is_refused_and_not_kept_for_one(op: int) -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(simulated(TRIANGLE), TRIANGLE, star(TRIANGLE, hub=0))
        await cluster.all_reduce([np.ones(100, np.float32) for _ in range(3)])
        code = TERMS.code - TERMS.op + op
        stray = PartialSum(9, 1, 0, (1, 0), code, weight=1.0)
        await cluster.connection(1, 0).send(stray, bytes(40))
        buffers = random_buffers(3, 2000, seed=1)
        await cluster.all_reduce(buffers)
        assert type(cluster.refusals[0]) is (
            MalformedMessage if op not in [*Op] else OutOfPlaceMessage
        )
        await cluster.leave()

    run_virtually(scenario())


class Told:
    """Remembers what it is told, to the end."""

    def __init__(self) -> None:
        self.messages: list[AnyMessage] = []
        self.closed = asyncio.Event()

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        self.messages.append(message)
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None: ...

    def on_closed(self, error: Exception | None) -> None:
        self.closed.set()


@pytest.mark.parametrize(
    ("sender", "path"), [(1, (1, 0)), (2, (1, 2, 0))], ids=["its own", "a relay"]
)
def test_a_sum_that_comes_twice_ends_the_run_since_the_first_may_be_the_wrong_one(
    sender: int, path: tuple[int, ...]
) -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(Tcp(), TRIANGLE, star(TRIANGLE, hub=0))
        await cluster.all_reduce([np.ones(100, np.float32) for _ in range(3)])
        buffers = random_buffers(3, 2000, seed=1)
        hub = asyncio.ensure_future(all_reduce(cluster.agents[0], buffers[0]))
        exchanging = cluster.agents[0]._collectives._exchanging
        assert exchanging is not None
        while 2 not in exchanging._active:
            await asyncio.sleep(0)
        noise = memoryview(np.full(63, 1e3, np.float32)).cast("B")
        await cluster.connection(sender, 0).send(up(2, 3, path), noise)
        # These may have their results before they hear.
        others = [asyncio.ensure_future(all_reduce(cluster.agents[s], buffers[s])) for s in (1, 2)]
        named = r"site 1 \(b\) for chunk 3 of exchange 2 came twice, .* the lane of site [12] "
        with pytest.raises(RunAborted, match=named):
            await hub
        await asyncio.gather(*others, return_exceptions=True)
        with pytest.raises(RunAborted, match=named):
            await cluster.scheduler.finished()
        for agent in cluster.agents:
            agent.close()
        await cluster.scheduler.close()

    run_over_tcp(scenario())


@pytest.mark.parametrize(
    ("message", "elements", "error"),
    [
        (up(1, 0, (1, 0)), 10, DuplicateMessage),  # exchange 1 is over
        (up(0, 0, (1, 0)), 10, DuplicateMessage),  # exchanges count from 1
        (up(2, 0, (1, 0)), 10, OutOfPlaceMessage),  # too short for the deal
        (up(2, 0, (2, 0)), 10, OutOfPlaceMessage),  # speaks as another site
        (up(2, 0, (1, 2)), 10, OutOfPlaceMessage),  # does not lead here
        (up(2, 0, (1, 0, 1)), 10, OutOfPlaceMessage),  # runs in a circle
        (up(2, 0, (1, 0, 9)), 10, OutOfPlaceMessage),  # on to nowhere
        (up(2, 0, (1, 0, 2)), 4000, OutOfPlaceMessage),  # too long to relay
        (up(2, 99, (1, 0)), 10, OutOfPlaceMessage),  # beyond the last chunk
        (up(5, 0, (1, 0)), 1 << 17, OutOfPlaceMessage),  # more than there is room for
        (up(2, 0, (1, 0), -1.0), 10, MalformedMessage),
        (up(2, 0, (1, 0)), 0, OutOfPlaceMessage),
        (Result(2, 1, 0, (1, 0), TERMS.code), 63, OutOfPlaceMessage),  # unasked
        (Start(), 0, OutOfPlaceMessage),
        (ExchangeRequest(0, 1, Signature(0, 0, 2000)), 0, OutOfPlaceMessage),
        (Hello(b"", 1, 0), 0, OutOfPlaceMessage),
    ],
)
def test_a_confused_neighbour_is_told_and_the_round_goes_on(
    message: Message, elements: int, error: type[PeerError]
) -> None:
    async def scenario() -> None:
        cluster = await Cluster.start(Tcp(), TRIANGLE, star(TRIANGLE, hub=0))
        await cluster.all_reduce([np.ones(100, np.float32) for _ in range(3)])
        await cluster.connection(1, 0).send(message, memoryview(bytes(4 * elements)))
        buffers = random_buffers(3, 2000, seed=1)
        expected = np.mean(buffers, axis=0)
        await cluster.all_reduce(buffers)
        np.testing.assert_allclose(buffers[2], expected, rtol=1e-5, atol=1e-6)
        assert error in [type(refusal) for refusal in cluster.refusals]
        await cluster.leave()

    run_over_tcp(scenario())
