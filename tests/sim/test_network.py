"""The simulated network through its ports: when things arrive, in which order, and what ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

from anabranch.net.errors import LinkError, OutOfPlaceMessage, PeerError
from anabranch.net.frames import DISCARD, Sink, encode_frame
from anabranch.net.messages import AnyMessage, Credit, NoMoreRounds, Start
from anabranch.net.network import Connection, Receiver
from anabranch.overlay import Latency, Link, Overlay, Site, Trace
from anabranch_lab.sim.loop import VirtualLoop, run_virtually
from anabranch_lab.sim.network import SimulatedNetwork

MB_S = 8e6  # bit/s
HEADER_BYTES = len(encode_frame(Start(), 1))
START = Start()
ZEROS = bytes(4_000_000)


def filler(frame_bytes: int) -> memoryview:
    """Return the payload that makes a frame with a Start so long."""
    return memoryview(ZEROS)[: frame_bytes - HEADER_BYTES]


def sites(count: int) -> tuple[Site, ...]:
    return tuple(Site(name) for name in "abcdefghijklmnop"[:count])


def pair_of(there: Link | None = None, back: Link | None = None) -> Overlay:
    """Return two sites joined by links of 1 MB/s and 0.03 s, where nothing else is said."""
    links = there or Link(0, 1, MB_S, 0.03), back or Link(1, 0, MB_S, 0.03)
    return Overlay("pair", sites(2), links)


def complete(count: int, rate_bps: float = MB_S, latency_s: float = 0.0) -> Overlay:
    ends = [(i, j) for i in range(count) for j in range(count) if i != j]
    return Overlay("complete", sites(count), tuple(Link(*e, rate_bps, latency_s) for e in ends))


class Ear:
    """Remembers what it hears, and when."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.heard: list[tuple[float, AnyMessage, bytes]] = []
        self.refused: list[tuple[float, AnyMessage, PeerError]] = []
        self.closed: list[tuple[float, Exception | None]] = []

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        memory = bytearray(payload_bytes)

        def done() -> None:
            self.heard.append((self._loop.time(), message, bytes(memory)))

        return Sink(target=memoryview(memory), done=done)

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self.refused.append((self._loop.time(), message, error))

    def on_closed(self, error: Exception | None) -> None:
        self.closed.append((self._loop.time(), error))

    @property
    def times_s(self) -> list[float]:
        return [at_s for at_s, _, _ in self.heard]

    @property
    def messages(self) -> list[AnyMessage]:
        return [message for _, message, _ in self.heard]


class Strict(Ear):
    """Raises what it is given for every NoMoreRounds."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if isinstance(message, NoMoreRounds):
            raise self._error
        return super().on_message(message, payload_bytes)


class Deaf:
    """Throws away what comes."""

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        raise AssertionError

    def on_closed(self, error: Exception | None) -> None:
        raise AssertionError


class World:
    """A simulated network in the running loop."""

    def __init__(self, overlay: Overlay, seed: int = 0, control_latency_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.network = SimulatedNetwork(loop, overlay, seed, control_latency_s)

    async def connect(
        self, source: int, target: int, hearing: Receiver, answered: Receiver | None = None
    ) -> tuple[Connection, Connection]:
        """Connect two sites; return both ends."""
        ends: list[Connection] = []

        def welcome(connection: Connection) -> Receiver:
            ends.append(connection)
            return hearing

        listener = await self.network.lanes(target).listen(("", 0), welcome)
        port = self.network.lanes(source)
        caller = await port.connect(listener.address, answered or Ear())
        listener.close()
        return caller, ends[0]

    async def until(self, at_s: float) -> None:
        await asyncio.sleep(at_s - self.loop.time())


def in_world(
    overlay: Overlay, play: Callable[[World], Coroutine[Any, Any, None]], seed: int = 0
) -> None:
    async def main() -> None:
        await play(World(overlay, seed))

    run_virtually(main())


# --- one message after another --------------------------------------------------------------------


@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_a_message_leaves_at_the_goodput_and_arrives_one_latency_later(loss: float) -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        await connection.send(START, filler(1_000_000))
        sent_s = world.loop.time()
        assert sent_s == pytest.approx(1.0 / (1.0 - loss), rel=1e-15)
        await asyncio.sleep(1.0)
        assert ear.times_s == [sent_s + 0.03]
        assert ear.messages == [START]

    in_world(pair_of(Link(0, 1, MB_S, 0.03, loss)), play)


def test_messages_go_one_by_one_and_their_latencies_overlap() -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        await asyncio.gather(*(connection.send(START, filler(500_000)) for _ in range(4)))
        assert world.loop.time() == 2.0
        await asyncio.sleep(20.0)
        assert ear.times_s == [10.5, 11.0, 11.5, 12.0]

    in_world(pair_of(Link(0, 1, MB_S, 10.0)), play)


def test_nothing_overtakes_however_the_latency_drifts() -> None:
    link = Link(0, 1, MB_S, latency_s=1.0, latency_drift_s=0.4)
    count, frame_s = 300, 0.01

    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        for number in range(count):
            message = NoMoreRounds(number)
            room = round(frame_s * MB_S / 8) - len(encode_frame(message, 1))
            await connection.send(message, memoryview(ZEROS)[:room])
        await asyncio.sleep(100.0)
        assert ear.messages == [NoMoreRounds(number) for number in range(count)]
        series = Latency(link, seed=5)
        alone_s = [(number + 1) * frame_s + series.next_s() for number in range(count)]
        in_order_s = list(accumulate(alone_s, max))
        assert ear.times_s == pytest.approx(in_order_s, rel=1e-12)
        assert in_order_s != alone_s  # some would have overtaken

    in_world(pair_of(link), play, seed=5)


def test_the_memory_of_a_payload_is_free_once_send_returns() -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        memory = bytearray(b"old " * 1000)
        sending = asyncio.ensure_future(connection.send(START, memoryview(memory)))
        await world.until(0.002)
        assert not sending.done()
        memory[:4] = b"new "  # has not left yet
        await sending
        memory[:] = bytes(len(memory))
        assert ear.heard == []
        await asyncio.sleep(1.0)
        assert ear.heard[0][2] == b"new " + b"old " * 999

    in_world(pair_of(), play)


def test_a_post_takes_a_latency_and_no_bandwidth_and_waits_for_the_send_in_progress() -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        connection.post(Credit((0,)))
        sending = asyncio.ensure_future(connection.send(START, filler(1_000_000)))
        await world.until(0.5)
        connection.post(Credit((1,)))
        connection.post(Credit((2,)))
        await world.until(0.7)
        assert ear.messages == [Credit((0,))]
        await sending
        assert world.loop.time() == 1.0
        connection.post(Credit((3,)))
        await asyncio.sleep(1.0)
        assert ear.messages == [Credit((0,)), START, Credit((1,)), Credit((2,)), Credit((3,))]
        assert ear.times_s == [0.03, 1.03, 1.03, 1.03, 1.03]

    in_world(pair_of(), play)


def test_a_post_made_while_others_queue_goes_right_after_the_send_in_progress() -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        sending = asyncio.gather(*(connection.send(NoMoreRounds(i), filler(500)) for i in (1, 2)))
        await asyncio.sleep(0)
        connection.post(Credit(()))
        await sending
        await asyncio.sleep(1.0)
        assert ear.messages == [NoMoreRounds(1), Credit(()), NoMoreRounds(2)]

    in_world(pair_of(), play)


# --- sharing --------------------------------------------------------------------------------------


async def send_all(world: World, traffic: Sequence[tuple[int, int, int]]) -> list[float]:
    """Send (source, target, frame bytes), each on its own connection; return when each has left."""

    async def send(connection: Connection, frame_bytes: int) -> float:
        await connection.send(START, filler(frame_bytes))
        return world.loop.time()

    connections = [(await world.connect(i, j, Ear()))[0] for i, j, _ in traffic]
    return await asyncio.gather(
        *(send(each, size) for each, (_, _, size) in zip(connections, traffic, strict=True))
    )


def test_connections_over_one_link_share_it_and_directions_do_not() -> None:
    async def play(world: World) -> None:
        traffic = [(0, 1, 1_000_000), (0, 1, 500_000), (1, 0, 1_000_000)]
        assert await send_all(world, traffic) == pytest.approx([1.5, 1.0, 1.0], rel=1e-12)

    in_world(pair_of(), play)


def test_the_directions_of_a_link_have_their_own_rates_and_latencies() -> None:
    async def play(world: World) -> None:
        here, there = Ear(), Ear()
        caller, called = await world.connect(0, 1, there, here)
        await asyncio.gather(
            caller.send(START, filler(1_000_000)), called.send(START, filler(1_000_000))
        )
        await asyncio.sleep(10.0)
        assert there.times_s == [1.5]
        assert here.times_s == [4.25]

    in_world(pair_of(Link(0, 1, MB_S, 0.5), Link(1, 0, MB_S / 4, 0.25)), play)


def test_an_uplink_is_shared_max_min_by_links_of_different_rates() -> None:
    overlay = replace(
        complete(3),
        sites=(Site("a", uplink_bps=3 * MB_S), Site("b"), Site("c")),
        links=(Link(0, 1, 1 * MB_S), Link(0, 2, 9 * MB_S), Link(1, 0, MB_S), Link(2, 0, MB_S)),
    )

    async def play(world: World) -> None:
        # To b at 1 MB/s, as fast as that link goes; c gets the other 2 MB/s, then all 3.
        traffic = [(0, 1, 1_000_000), (0, 2, 3_500_000)]
        assert await send_all(world, traffic) == pytest.approx([1.0, 1.5], rel=1e-12)

    in_world(overlay, play)


@pytest.mark.parametrize("sizes", [[500_000] * 5, [100_000, 200_000, 400_000, 800_000, 1_600_000]])
def test_senders_to_one_capped_downlink_share_it_as_one_processor(sizes: list[int]) -> None:
    overlay = complete(6, 10 * MB_S)
    capped = replace(overlay.sites[0], downlink_bps=2 * MB_S)
    overlay = replace(overlay, sites=(capped, *overlay.sites[1:]))

    async def play(world: World) -> None:
        traffic = [(1 + i, 0, size) for i, size in enumerate(sizes)]
        # While one is left that is no longer than the others, all have got as much as it.
        cap = 2e6
        expected = [sum(min(size, other) for other in sizes) / cap for size in sizes]
        assert await send_all(world, traffic) == pytest.approx(expected, rel=1e-12)

    in_world(overlay, play)


def test_a_port_does_not_limit_the_other_direction() -> None:
    overlay = complete(3)
    capped = replace(overlay.sites[0], downlink_bps=MB_S)
    overlay = replace(overlay, sites=(capped, *overlay.sites[1:]))

    async def play(world: World) -> None:
        traffic = [(0, 1, 1_000_000), (0, 2, 1_000_000), (1, 0, 500_000), (2, 0, 500_000)]
        assert await send_all(world, traffic) == pytest.approx([1.0] * 4, rel=1e-12)

    in_world(overlay, play)


# --- change ---------------------------------------------------------------------------------------


def test_a_trace_changes_the_speed_under_way_and_counts_from_the_beginning_of_the_run() -> None:
    trace = Trace((0.0, 2.0, 2.5), (MB_S, 3 * MB_S, 0.5 * MB_S))

    async def play(world: World) -> None:
        connection, _ = await world.connect(0, 1, Ear())
        await asyncio.sleep(5.0)
        await connection.send(START, filler(1_000_000))
        assert world.loop.time() == 6.0  # before the run begins, at its first rate
        world.network.begin()
        await connection.send(START, filler(3_900_000))  # 2 MB, 1.5 MB, and 0.4 MB
        assert world.loop.time() == pytest.approx(6.0 + 2.5 + 0.8, rel=1e-12)

    in_world(pair_of(Link(0, 1, MB_S, 0.0, trace=trace)), play)


def test_loss_lowers_every_rate_of_a_trace() -> None:
    trace = Trace((0.0, 1.0), (MB_S, 2 * MB_S))

    async def play(world: World) -> None:
        connection, _ = await world.connect(0, 1, Ear())
        world.network.begin()
        await connection.send(START, filler(1_000_000))  # 0.5 MB in the first second
        assert world.loop.time() == pytest.approx(1.5, rel=1e-12)

    in_world(pair_of(Link(0, 1, MB_S, 0.0, loss=0.5, trace=trace)), play)


def test_a_cut_link_stalls_for_as_long_as_it_is_cut() -> None:
    async def play(world: World) -> None:
        world.loop.call_at(0.25, world.network.scale, (0, 1), 0.0)
        world.loop.call_at(7.5, world.network.scale, (0, 1), 1.0)
        traffic = [(0, 1, 1_000_000), (1, 0, 1_000_000)]
        assert await send_all(world, traffic) == pytest.approx([8.25, 1.0], rel=1e-12)

    in_world(pair_of(), play)


def test_a_slow_link_stays_slow_when_its_trace_changes() -> None:
    trace = Trace((0.0, 1.0), (MB_S, 2 * MB_S))

    async def play(world: World) -> None:
        connection, _ = await world.connect(0, 1, Ear())
        world.network.begin()
        world.network.scale((0, 1), 0.5)
        await connection.send(START, filler(1_000_000))  # 0.5 MB in the first second
        assert world.loop.time() == pytest.approx(1.5, rel=1e-12)

    in_world(pair_of(Link(0, 1, MB_S, 0.0, trace=trace)), play)


# --- hosts that die or sleep ----------------------------------------------------------------------


def test_peers_of_a_dead_host_hear_of_it_one_latency_later_after_all_that_it_sent() -> None:
    async def play(world: World) -> None:
        alive, dead = Ear(), Ear()
        caller, called = await world.connect(0, 1, dead, alive)
        caller.post(Credit(()))
        await called.send(START, filler(1_000_000))
        sending = asyncio.ensure_future(called.send(START, filler(1_000_000)))
        world.loop.call_at(1.01, world.network.kill, 1)
        await world.until(1.02)
        caller.post(Credit((2,)))
        await asyncio.sleep(10.0)
        assert alive.times_s == [1.5]  # what had left arrives, what was leaving does not
        [(at_s, error)] = alive.closed
        assert at_s == 1.01 + 0.5
        assert str(error) == "b closed the connection"
        assert isinstance(error, LinkError)
        assert dead.messages == [Credit(())]  # and not what came when it was dead
        assert dead.closed == []
        with pytest.raises(LinkError, match="the connection to b is gone"):
            await caller.send(START)
        assert not sending.done()  # nobody is left to hear of it
        sending.cancel()

    in_world(pair_of(Link(0, 1, MB_S, 0.25), Link(1, 0, MB_S, 0.5)), play)


def test_a_send_to_a_host_that_dies_ends_when_the_sender_hears() -> None:
    async def play(world: World) -> None:
        connection, _ = await world.connect(0, 1, Ear())
        world.loop.call_at(0.5, world.network.kill, 1)
        with pytest.raises(LinkError, match="the connection to b is gone"):
            await connection.send(START, filler(1_000_000))
        assert world.loop.time() == 0.53

    in_world(pair_of(), play)


def test_the_flows_of_a_dead_host_leave_the_link_to_others() -> None:
    overlay = complete(3)
    capped = replace(overlay.sites[2], downlink_bps=MB_S)
    overlay = replace(overlay, sites=(*overlay.sites[:2], capped))

    async def play(world: World) -> None:
        doomed, _ = await world.connect(0, 2, Ear())
        living, _ = await world.connect(1, 2, Ear())
        sending = asyncio.ensure_future(doomed.send(START, filler(1_000_000)))
        world.loop.call_at(0.5, world.network.kill, 0)
        await living.send(START, filler(1_000_000))  # a quarter while sharing, then all alone
        assert world.loop.time() == pytest.approx(0.5 + 0.75, rel=1e-12)
        sending.cancel()

    in_world(overlay, play)


def test_nobody_can_connect_to_a_dead_host() -> None:
    async def play(world: World) -> None:
        listener = await world.network.lanes(1).listen(("", 0), lambda connection: Ear())
        await world.network.lanes(0).connect(listener.address, Ear())
        world.network.kill(1)
        with pytest.raises(LinkError, match=r"cannot connect to b:\d+: no host listens there"):
            await world.network.lanes(0).connect(listener.address, Ear())

    in_world(pair_of(), play)


def test_another_host_takes_a_dead_ones_place_and_hears_nothing_of_its_connections() -> None:
    async def play(world: World) -> None:
        before, after = Ear(), Ear()
        connection, _ = await world.connect(0, 1, before)
        world.network.disconnect(1)
        world.network.kill(1)
        world.network.revive(1)
        await connection.send(START, filler(1000))
        again, _ = await world.connect(0, 1, after)
        await again.send(START, filler(1000))
        await asyncio.sleep(1.0)
        assert (len(before.times_s), len(after.times_s)) == (0, 1)
        listener = await world.network.control(None).listen(("", 0), lambda connection: Ear())
        with pytest.raises(LinkError, match="nothing leads there"):
            await world.network.control(1).connect(listener.address, Ear())

    in_world(pair_of(), play)


def test_a_host_asleep_hears_everything_in_order_when_it_wakes() -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, called = await world.connect(0, 1, ear)
        host = world.network.sites[1]
        host.sleep()
        for number in (1, 2):
            await connection.send(NoMoreRounds(number), filler(100_000))
        connection.post(Credit(()))
        connection.close()
        await world.until(5.0)
        assert (ear.heard, ear.closed) == ([], [])
        host.wake()
        await asyncio.sleep(0)
        assert ear.messages == [NoMoreRounds(1), NoMoreRounds(2), Credit(())]
        assert set(ear.times_s) == {5.0}
        [(at_s, error)] = ear.closed
        assert at_s == 5.0
        assert isinstance(error, LinkError)
        with pytest.raises(LinkError):
            await called.send(START)

    in_world(pair_of(), play)


def test_what_a_host_handed_over_before_it_slept_leaves_and_the_rest_waits() -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        host = world.network.sites[0]
        sends = asyncio.gather(
            *(connection.send(NoMoreRounds(i), filler(1_000_000)) for i in (1, 2))
        )
        await world.until(0.5)
        host.sleep()
        await world.until(9.0)
        assert ear.times_s == pytest.approx([1.03], abs=1e-4)
        connection.post(Credit(()))
        host.wake()
        await sends
        await asyncio.sleep(1.0)
        assert ear.messages == [NoMoreRounds(1), Credit(()), NoMoreRounds(2)]
        assert ear.times_s == pytest.approx([1.03, 9.03, 10.03], abs=1e-4)

    in_world(pair_of(), play)


def test_a_send_or_post_begun_in_sleep_waits_for_the_morning() -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        host = world.network.sites[0]
        host.sleep()
        sending = asyncio.ensure_future(connection.send(START, filler(1_000_000)))
        await world.until(5.0)
        connection.post(Credit(()))
        host.wake()
        await sending
        assert world.loop.time() == 6.0
        await asyncio.sleep(1.0)
        assert ear.messages == [Credit(()), START]
        assert ear.times_s == [5.03, 6.03]

    in_world(pair_of(), play)


def test_what_a_timer_posts_on_waking_up_leaves_ahead_of_answers_to_what_came_in() -> None:
    async def play(world: World) -> None:
        peer = Ear()

        class Echo(Ear):
            def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
                called.post(NoMoreRounds(2))
                return super().on_message(message, payload_bytes)

        connection, called = await world.connect(0, 1, Echo(), peer)
        host = world.network.sites[1]
        with host.in_process():
            world.loop.call_later(2.0, called.post, NoMoreRounds(1))
        host.sleep()
        connection.post(START)
        await world.until(5.0)
        host.wake()
        await asyncio.sleep(1.0)
        assert peer.messages == [NoMoreRounds(1), NoMoreRounds(2)]

    in_world(pair_of(), play)


def test_a_host_killed_in_its_sleep_does_nothing_when_it_is_woken() -> None:
    async def play(world: World) -> None:
        ear, peer = Ear(), Ear()
        connection, _ = await world.connect(0, 1, ear, peer)
        host = world.network.sites[1]
        host.sleep()
        await connection.send(START)
        await asyncio.sleep(1.0)
        world.network.kill(1)
        host.wake()
        await asyncio.sleep(1.0)
        assert (ear.heard, ear.closed) == ([], [])
        assert [str(error) for _, error in peer.closed] == ["b closed the connection"]

    in_world(pair_of(), play)


# --- connections that are not, or end -------------------------------------------------------------


def test_nobody_listens_and_no_link_are_named() -> None:
    ring = Overlay("ring", sites(3), tuple(Link(i, (i + 1) % 3, MB_S) for i in range(3)))

    async def play(world: World) -> None:
        port = world.network.lanes(0)
        with pytest.raises(LinkError, match="cannot connect to b:7: no host listens there"):
            await port.connect(("b", 7), Ear())
        listener = await world.network.lanes(2).listen(("", 0), lambda connection: Ear())
        with pytest.raises(LinkError, match="no link leads from a to c"):
            await port.connect(listener.address, Ear())
        listener.close()
        with pytest.raises(LinkError, match="no host listens"):
            await world.network.lanes(1).connect(listener.address, Ear())

    in_world(ring, play)


def test_every_listener_has_its_own_address() -> None:
    async def play(world: World) -> None:
        listeners = [
            await world.network.lanes(site).listen(("", 0), lambda connection: Ear())
            for site in (0, 0, 1)
        ]
        assert len({listener.address for listener in listeners}) == 3
        assert [listener.address[0] for listener in listeners] == ["a", "a", "b"]

    in_world(pair_of(), play)


def test_an_answer_over_a_link_that_has_no_way_back_takes_the_same_latency() -> None:
    ring = Overlay("ring", sites(3), tuple(Link(i, (i + 1) % 3, MB_S, 0.1) for i in range(3)))

    async def play(world: World) -> None:
        answers = Ear()
        _, called = await world.connect(0, 1, Ear(), answers)
        called.post(Credit(()))
        await asyncio.sleep(1.0)
        assert answers.times_s == [0.1]

    in_world(ring, play)


def test_control_messages_take_their_latency_and_no_bandwidth() -> None:
    async def main() -> None:
        world = World(pair_of(), control_latency_s=0.2)
        scheduler, site = Ear(), Ear()
        ends: list[Connection] = []

        def welcome(connection: Connection) -> Receiver:
            ends.append(connection)
            return scheduler

        listener = await world.network.control(None).listen(("", 0), welcome)
        assert listener.address[0] == "scheduler"
        connection = await world.network.control(0).connect(listener.address, site)
        await connection.send(START, filler(4_000_000))
        assert world.loop.time() == 0.0
        ends[0].post(Credit(()))
        await asyncio.sleep(1.0)
        assert (scheduler.times_s, site.times_s) == ([0.2], [0.2])
        world.network.kill(0)
        await asyncio.sleep(1.0)
        [(at_s, error)] = scheduler.closed
        assert at_s == 1.2
        assert str(error) == "a closed the connection"

    run_virtually(main())


def test_a_refused_message_harms_neither_the_next_nor_the_connection() -> None:
    async def play(world: World) -> None:
        error = OutOfPlaceMessage("not now")
        ear = Strict(error)
        connection, _ = await world.connect(0, 1, ear)
        await connection.send(NoMoreRounds(1), filler(1000))
        await connection.send(START, b"good")
        await asyncio.sleep(1.0)
        assert [(message, why) for _, message, why in ear.refused] == [(NoMoreRounds(1), error)]
        assert [payload for _, _, payload in ear.heard] == [b"good"]
        assert ear.closed == []

    in_world(pair_of(), play)


def test_a_receiver_that_breaks_ends_the_connection_on_both_sides() -> None:
    async def play(world: World) -> None:
        ear, answers = Strict(ZeroDivisionError("ours")), Ear()
        connection, called = await world.connect(0, 1, ear, answers)
        connection.post(NoMoreRounds(1))
        connection.post(START)
        await asyncio.sleep(1.0)
        [(at_s, error)] = ear.closed
        assert at_s == 0.03
        assert isinstance(error, ZeroDivisionError)
        assert ear.heard == []
        [(at_s, error)] = answers.closed
        assert at_s == 0.06
        assert isinstance(error, LinkError)
        for end in (connection, called):
            with pytest.raises(LinkError, match="is gone"):
                await end.send(START)
            end.post(START)  # and this is nothing to complain of

    in_world(pair_of(), play)


def test_what_is_on_its_way_arrives_before_the_other_side_hears_of_the_end() -> None:
    async def play(world: World) -> None:
        ear, answers = Ear(), Ear()
        connection, called = await world.connect(0, 1, ear, answers)
        called.post(Credit(()))
        await connection.send(START)
        connection.post(NoMoreRounds(1))
        sent_s = world.loop.time()
        connection.close()
        connection.close()  # once is enough
        assert answers.closed == []  # never from inside the call
        await asyncio.sleep(1.0)
        assert ear.messages == [START, NoMoreRounds(1)]
        [(at_s, error)] = ear.closed
        assert at_s == sent_s + 0.03
        assert str(error) == "a closed the connection"
        assert answers.closed == [(sent_s, None)]
        assert answers.heard == []  # the side that closed hears no more

    in_world(pair_of(), play)


def test_news_of_the_end_overtakes_nothing_however_the_latency_drifts() -> None:
    link = Link(0, 1, MB_S, latency_s=1.0, latency_drift_s=0.5)
    series = Latency(link, seed=3)
    latencies_s = [series.next_s() for _ in range(20)]
    assert min(latencies_s) < 0.9 < 1.1 < max(latencies_s)

    async def play(world: World) -> None:
        for latency_s in latencies_s:
            ear = Ear()
            connection, _ = await world.connect(0, 1, ear)
            await connection.send(START)
            sent_s = world.loop.time()
            connection.close()
            await asyncio.sleep(20.0)
            assert ear.times_s == [pytest.approx(sent_s + latency_s)]
            assert ear.closed[0][0] == max(ear.times_s[0], sent_s + 1.0)

    in_world(pair_of(link), play, seed=3)


def test_a_cancelled_send_ends_the_connection_and_frees_the_link() -> None:
    async def play(world: World) -> None:
        ear, answers = Ear(), Ear()
        connection, _ = await world.connect(0, 1, ear, answers)
        other, _ = await world.connect(0, 1, Ear())
        sending = asyncio.ensure_future(connection.send(START, filler(1_000_000)))
        world.loop.call_at(0.5, sending.cancel)
        await other.send(START, filler(1_000_000))
        assert world.loop.time() == pytest.approx(1.25, rel=1e-12)
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert ear.heard == []
        [(at_s, error)] = ear.closed
        assert at_s == 0.53
        assert isinstance(error, LinkError)
        assert answers.closed == [(0.5, None)]
        with pytest.raises(LinkError):
            await connection.send(START)

    in_world(pair_of(), play)


def test_a_send_that_is_cancelled_before_its_turn_costs_nothing() -> None:
    async def play(world: World) -> None:
        ear = Ear()
        connection, _ = await world.connect(0, 1, ear)
        first, second = (
            asyncio.ensure_future(connection.send(START, filler(500_000))) for _ in range(2)
        )
        await world.until(0.25)
        second.cancel()
        await first
        await connection.send(START, filler(500_000))
        await asyncio.sleep(1.0)
        assert ear.times_s == [0.53, 1.03]

    in_world(pair_of(), play)


# --- closed forms of whole systems ----------------------------------------------------------------


class Inbox(Ear):
    """Hands on what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: asyncio.Queue[memoryview] = asyncio.Queue()

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        return Sink(
            done=lambda: self.queue.put_nowait(filler(payload_bytes + HEADER_BYTES)),
        )


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_ring_all_reduce_takes_what_its_formula_says(count: int) -> None:
    rate, latency_s, size = MB_S, 0.02, 840_000  # size is a multiple of every count
    links = {(i, (i + 1) % count) for i in range(count)}
    overlay = Overlay("ring", sites(count), tuple(Link(*e, rate, latency_s) for e in sorted(links)))

    async def play(world: World) -> None:
        inboxes = [Inbox() for _ in range(count)]
        to_next = [
            (await world.connect(site, (site + 1) % count, inboxes[(site + 1) % count]))[0]
            for site in range(count)
        ]

        async def take_part(site: int) -> None:
            part = filler(size // count)
            for _ in range(2 * (count - 1)):  # reduce-scatter, then all-gather
                await to_next[site].send(START, part)
                part = await inboxes[site].queue.get()

        await asyncio.gather(*map(take_part, range(count)))
        steps = 2 * (count - 1)
        expected_s = steps / count * 8 * size / rate + steps * latency_s
        assert world.loop.time() == pytest.approx(expected_s, rel=1e-12)

    in_world(overlay, play)


@pytest.mark.parametrize(("hops", "chunks"), [(1, 1), (1, 7), (4, 1), (4, 7), (9, 30)])
def test_a_pipelined_chain_takes_what_its_formula_says(hops: int, chunks: int) -> None:
    latency_s, chunk_s = 0.05, 0.1
    links = [Link(*ends, MB_S, latency_s) for ends in pairwise(range(hops + 1))]
    links += [Link(link.target, link.source, MB_S, latency_s) for link in links]
    overlay = Overlay("chain", sites(hops + 1), tuple(links))

    async def play(world: World) -> None:
        inboxes = [Inbox() for _ in range(hops + 1)]
        for _ in range(chunks):
            inboxes[0].queue.put_nowait(filler(100_000))

        async def relay(site: int) -> None:
            connection, _ = await world.connect(site, site + 1, inboxes[site + 1])
            for _ in range(chunks):
                await connection.send(START, await inboxes[site].queue.get())

        async def consume() -> None:
            for _ in range(chunks):
                await inboxes[-1].queue.get()

        await asyncio.gather(consume(), *map(relay, range(hops)))
        expected_s = (chunks + hops - 1) * chunk_s + hops * latency_s
        assert world.loop.time() == pytest.approx(expected_s, rel=1e-12)

    in_world(overlay, play)


# --- queues: random traffic against queueing theory -----------------------------------------------

SERVICE_S = 0.02  # mean
LOAD = 0.5


def arrivals_s(count: int, rng: np.random.Generator) -> list[float]:
    return np.cumsum(rng.exponential(SERVICE_S / LOAD, count)).tolist()


def exponential_sizes(count: int, rng: np.random.Generator) -> list[int]:
    sizes = rng.exponential(SERVICE_S * MB_S / 8, count)
    return [max(HEADER_BYTES, round(size)) for size in sizes]


def fixed_sizes(count: int, rng: np.random.Generator) -> list[int]:
    return [round(SERVICE_S * MB_S / 8)] * count


def sojourns_s(arrive_s: list[float], sizes: list[int], connections: int) -> list[float]:
    """Send a stream of messages over one link, in turn over so many connections.

    Returns:
        For each, the seconds from its arrival at the sender until it has left.
    """
    found = [math.nan] * len(sizes)

    async def play(world: World) -> None:
        lanes = [(await world.connect(0, 1, Deaf()))[0] for _ in range(connections)]

        async def send(number: int) -> None:
            began_s = world.loop.time()
            await lanes[number % connections].send(START, filler(sizes[number]))
            found[number] = world.loop.time() - began_s

        async with asyncio.TaskGroup() as sends:
            for number, at_s in enumerate(arrive_s):
                await world.until(at_s)
                sends.create_task(send(number))

    in_world(pair_of(), play)
    return found


Sizes = Callable[[int, np.random.Generator], list[int]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "mean_s"),
    [
        (exponential_sizes, SERVICE_S / (1 - LOAD)),  # M/M/1
        pytest.param(  # M/D/1, Pollaczek-Khinchine
            fixed_sizes, SERVICE_S * (1 + LOAD / 2 / (1 - LOAD)), marks=pytest.mark.slow
        ),
    ],
    ids=["M/M/1", "M/D/1"],
)
def test_a_lane_is_the_queue_of_the_textbooks(sizes: Sizes, mean_s: float) -> None:
    rng = np.random.default_rng(20)
    arrive_s, frames = arrivals_s(60_000, rng), sizes(60_000, rng)
    sojourn_s = sojourns_s(arrive_s, frames, connections=1)
    # Every single one (Lindley's recursion), and the mean.
    free_s, expected = 0.0, []
    for at_s, frame_bytes in zip(arrive_s, frames, strict=True):
        free_s = max(free_s, at_s) + 8 * frame_bytes / MB_S
        expected.append(free_s - at_s)
    assert sojourn_s == pytest.approx(expected, rel=1e-6)
    assert np.mean(sojourn_s) == pytest.approx(mean_s, rel=0.03)


@pytest.mark.parametrize("sizes", [exponential_sizes, fixed_sizes], ids=["M/M/1", "M/D/1"])
def test_connections_that_share_a_link_are_a_processor_sharing_queue(sizes: Sizes) -> None:
    rng = np.random.default_rng(21)
    arrive_s, frames = arrivals_s(20_000, rng), sizes(20_000, rng)
    # So many that a connection is free again when its next turn comes.
    sojourn_s = sojourns_s(arrive_s, frames, connections=100)
    # Whatever the sizes: under processor sharing the mean depends on their mean alone.
    assert np.mean(sojourn_s) == pytest.approx(SERVICE_S / (1 - LOAD), rel=0.04)
