"""Connections over real TCP on loopback: order, limits, and every way to end."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from anabranch import __version__
from anabranch.net import _liveness as liveness
from anabranch.net import _shared_memory as shared_memory
from anabranch.net import tcp
from anabranch.net._rings import PIECE_BYTES, RING_BYTES
from anabranch.net.errors import (
    LinkError,
    MalformedMessage,
    OtherRelease,
    OutOfPlaceMessage,
    OversizedMessage,
    PeerError,
    SilentWay,
)
from anabranch.net.frames import Limits, Sink, encode_alive, encode_frame, encode_greeting
from anabranch.net.identity import CHALLENGE_BYTES
from anabranch.net.messages import (
    AnyMessage,
    Credit,
    Hello,
    NoMoreRounds,
    Shutdown,
    Start,
)
from anabranch.net.network import Connection
from anabranch.net.pipe import End
from anabranch.net.tcp import (
    BY_ROUND_TRIP,
    Networks,
    TcpNetwork,
    may_set_congestion_control,
    strands_of,
    wait_closed,
)
from anabranch.overlay import Link, Overlay, Site

from ..weak_sets import free_amid
from .jumping import run_jumping

LIMITS = Limits(message_bytes=1 << 16, payload_bytes=1 << 28)
WAYS = Link(0, 1, 1e8, latency_s=0.03), Link(1, 0, 1e8, latency_s=0.03)
PAIR = Overlay("pair", (Site("a"), Site("b")), WAYS)
CHALLENGE = bytes(range(CHALLENGE_BYTES))
GREETING = encode_greeting(CHALLENGE)
# More than the kernel buffers for a peer that does not read.
LARGE = bytes(range(256)) * (1 << 18)  # 64 MiB


class Ear:
    """Remembers what it hears; ``closed`` is done when the connection has gone."""

    def __init__(self, trusting: bool = True) -> None:
        self.connection: Connection
        self.trusting = trusting
        self.heard: list[tuple[AnyMessage, bytes]] = []
        self.refused: list[tuple[AnyMessage, PeerError]] = []
        self.closed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self._more = asyncio.Event()

    def welcome(self, connection: Connection) -> Ear:
        self.connection = connection
        if self.trusting:  # once the connection is made
            asyncio.get_running_loop().call_soon(connection.trust)
        return self

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        memory = bytearray(payload_bytes)

        def done() -> None:
            self.heard.append((message, bytes(memory)))
            self._more.set()

        return Sink(target=memoryview(memory) if payload_bytes else None, done=done)

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self.refused.append((message, error))

    def on_closed(self, error: Exception | None) -> None:
        self.closed.set_result(error)

    async def hears_first(self) -> AnyMessage:
        """Wait for the first message; return it."""
        while not self.heard:
            self._more.clear()
            await self._more.wait()
        return self.heard[0][0]

    async def hears(self, *messages: AnyMessage) -> None:
        """Wait for so many messages, and check them all."""
        while len(self.heard) < len(messages):
            self._more.clear()
            await self._more.wait()
        assert [message for message, _ in self.heard] == list(messages)


on_linux = pytest.mark.skipif(not shared_memory.is_possible(), reason="needs Linux")
both_ways = pytest.mark.parametrize(
    "shares_memory",
    [
        pytest.param(False, id="tcp"),
        pytest.param(
            True,
            id="shared memory",
            marks=on_linux,
        ),
    ],
)


def on_loop(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), 30))


@asynccontextmanager
async def joined(
    called: Ear, caller: Ear | None = None, shares_memory: bool = True
) -> AsyncIterator[Connection]:
    """Yield the caller's end of a connection; close both in the end."""
    network = TcpNetwork(LIMITS, shares_memory=shares_memory)
    caller = caller or Ear()
    listener = await network.listen(("127.0.0.1", 0), called.welcome)
    connection = await network.connect(listener.address, caller)
    while not hasattr(called, "connection"):
        await asyncio.sleep(0)
    yield connection
    for end in (connection, called.connection):
        end.close()
    listener.close()
    await asyncio.wait({called.closed, caller.closed})


@asynccontextmanager
async def raw_server(receiver: Ear) -> AsyncIterator[tuple[Connection, socket.socket]]:
    """Yield a connection and the plain socket at its other end, which reads nothing more itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        network, loop = TcpNetwork(LIMITS), asyncio.get_running_loop()
        connecting = asyncio.ensure_future(network.connect(server.getsockname(), receiver))
        peer, _ = await loop.sock_accept(server)
        with peer:
            peer.setblocking(False)
            await read(peer, len(GREETING))
            await loop.sock_sendall(peer, GREETING)
            connection = await connecting
            assert connection.their_challenge == CHALLENGE
            yield connection, peer
    connection.close()
    await asyncio.wait({receiver.closed})


@asynccontextmanager
async def raw_client(ear: Ear) -> AsyncIterator[socket.socket]:
    """Yield a plain socket that is connected to a listener."""
    listener = await TcpNetwork(LIMITS).listen(("127.0.0.1", 0), ear.welcome)
    with socket.create_connection(listener.address) as peer:
        peer.setblocking(False)
        while not hasattr(ear, "connection"):
            await asyncio.sleep(0)
        yield peer
    ear.connection.close()
    listener.close()
    await asyncio.wait({ear.closed})


async def turns() -> None:
    """Let the loop turn, so that what is ready happens."""
    for _ in range(20):
        await asyncio.sleep(0)


@both_ways
def test_payloads_arrive_whole_and_in_order(shares_memory: bool) -> None:
    async def play() -> None:
        ear = Ear()
        async with joined(ear, shares_memory=shares_memory) as connection:
            await asyncio.gather(
                connection.send(NoMoreRounds(1), LARGE),
                connection.send(NoMoreRounds(2)),
                connection.send(NoMoreRounds(3), memoryview(b"end")),
            )
            await ear.hears(NoMoreRounds(1), NoMoreRounds(2), NoMoreRounds(3))
            assert [payload for _, payload in ear.heard] == [LARGE, b"", b"end"]

    on_loop(play)


def test_a_message_is_handed_over_when_its_head_is_in_ahead_of_its_payload() -> None:
    class Eager(Ear):
        def __init__(self) -> None:
            super().__init__()
            self.head = asyncio.Event()

        def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
            self.head.set()
            return super().on_message(message, payload_bytes)

    async def play() -> None:
        ear = Eager()
        async with raw_client(ear) as peer:
            peer.send(encode_frame(Start(), 4))
            await ear.head.wait()
            assert not ear.heard
            peer.send(b"late")
            await ear.hears(Start())
            assert ear.heard[0][1] == b"late"

    assert TcpNetwork.heads_go_ahead
    on_loop(play)


@both_ways
def test_the_memory_of_a_payload_is_free_once_send_returns(shares_memory: bool) -> None:
    async def play() -> None:
        ear = Ear()
        async with joined(ear, shares_memory=shares_memory) as connection:
            memory = bytearray(b"old " * 10_000)
            await connection.send(Start(), memoryview(memory))
            memory[:] = bytes(len(memory))
            await ear.hears(Start())
            assert ear.heard[0][1] == b"old " * 10_000

    on_loop(play)


def test_posts_go_between_sends_and_never_into_one() -> None:
    async def play() -> None:
        async with raw_server(Ear()) as (connection, peer):
            first = asyncio.ensure_future(connection.send(NoMoreRounds(1), LARGE))
            second = asyncio.ensure_future(connection.send(NoMoreRounds(2)))
            await turns()
            assert not first.done()  # nobody reads
            connection.post(Credit((7,)))
            expected = b"".join(
                [
                    encode_frame(NoMoreRounds(1), len(LARGE)) + LARGE,
                    encode_frame(Credit((7,))),
                    encode_frame(NoMoreRounds(2)),
                ]
            )
            assert await read(peer, len(expected)) == expected
            await asyncio.gather(first, second)

    on_loop(play)


async def read(peer: socket.socket, count: int) -> bytes:
    """Read so many bytes, or all until the end."""
    data = bytearray()
    while len(data) < count:
        more = await asyncio.get_running_loop().sock_recv(peer, min(count - len(data), 1 << 20))
        if not more:
            break
        data += more
    return bytes(data)


@both_ways
def test_what_is_posted_goes_before_what_is_sent_later_in_the_same_turn(
    shares_memory: bool,
) -> None:
    async def play() -> None:
        called = Ear()
        async with joined(called, shares_memory=shares_memory) as connection:
            connection.post(NoMoreRounds(0))
            connection.post(NoMoreRounds(1))
            await connection.send(Start(), bytes(1000))
            connection.post(NoMoreRounds(2))
            await called.hears(NoMoreRounds(0), NoMoreRounds(1), Start(), NoMoreRounds(2))

    on_loop(play)


@both_ways
def test_small_messages_of_one_turn_leave_by_one_write_and_in_order(
    shares_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        called = Ear()
        async with joined(called, shares_memory=shares_memory) as connection:
            await turns()
            writes: list[int] = []
            write = connection._transport.write  # type: ignore[attr-defined]

            def count(data: bytes) -> None:
                writes.append(len(data))
                write(data)

            monkeypatch.setattr(connection._transport, "write", count)  # type: ignore[attr-defined]
            connection.post(NoMoreRounds(0))
            payload = bytearray(b"12345678")
            assert connection.post_payload(NoMoreRounds(1), memoryview(payload))
            payload[:] = bytes(8)  # the caller's memory is free at once
            connection.post(NoMoreRounds(2))
            await called.hears(NoMoreRounds(0), NoMoreRounds(1), NoMoreRounds(2))
            assert [data for _, data in called.heard] == [b"", b"12345678", b""]
            assert len(writes) == 1

    on_loop(play)


@both_ways
def test_small_messages_of_one_turn_are_few(shares_memory: bool) -> None:
    async def play() -> None:
        called = Ear()
        async with joined(called, shares_memory=shares_memory) as connection:
            await turns()
            taken = [connection.post_payload(NoMoreRounds(k), b"12345678") for k in range(100)]
            assert taken == [True] * 64 + [False] * 36
            await called.hears(*(NoMoreRounds(k) for k in range(64)))

    on_loop(play)


@both_ways
def test_a_heartbeat_goes_at_every_beat_of_an_idle_connection(shares_memory: bool) -> None:
    async def play() -> None:
        called = Ear()
        async with joined(called, shares_memory=shares_memory) as connection:
            await turns()
            outflow = connection._outflow  # type: ignore[attr-defined]
            beats: list[bytes] = []
            write = outflow._transport.write

            def count(data: bytes) -> None:
                beats.append(data)
                write(data)

            outflow._transport.write = count
            for _ in range(5):
                outflow.beat(False)
                await turns()
            assert beats == [encode_alive()] * 5
            connection.post(NoMoreRounds(0))
            await turns()
            outflow.beat(False)
            assert len(beats) == 6, "a message counts as a beat"

    on_loop(play)


@both_ways
def test_a_small_message_waits_where_a_send_is_in_progress(shares_memory: bool) -> None:
    async def play() -> None:
        called = Ear()
        async with joined(called, shares_memory=shares_memory) as connection:
            first = asyncio.ensure_future(connection.send(NoMoreRounds(1), LARGE))
            await asyncio.sleep(0)
            assert not connection.post_payload(NoMoreRounds(2), b"12345678")
            await first
            await called.hears(NoMoreRounds(1))

    on_loop(play)


@pytest.mark.parametrize("head_first", [False, True])
@both_ways
def test_a_payload_arrives_whole_whether_its_head_goes_first_or_not(
    head_first: bool, shares_memory: bool
) -> None:
    async def play() -> None:
        called = Ear()
        async with joined(called, shares_memory=shares_memory) as connection:
            await connection.send(Start(), LARGE, head_first)
            await connection.send(Shutdown(), b"", head_first)
            await called.hears(Start(), Shutdown())
            assert [payload for _, payload in called.heard] == [LARGE, b""]

    on_loop(play)


def test_a_payload_that_trickles_in_is_taken_as_soon_as_its_last_byte_is_there() -> None:
    # Within a payload the kernel wakes the loop only when what is awaited has come.
    async def play() -> None:
        ear = Ear()
        async with raw_client(ear) as peer:
            loop = asyncio.get_running_loop()
            payload = LARGE[: 1 << 20]
            for _ in range(2):
                frame = encode_frame(Start(), len(payload)) + payload
                for part in (frame[:100], frame[100:400_000], frame[400_000:-1]):
                    await loop.sock_sendall(peer, part)
                    await asyncio.sleep(0.01)
                await loop.sock_sendall(peer, frame[-1:] + encode_frame(Shutdown()))
            await ear.hears(Start(), Shutdown(), Start(), Shutdown())
            assert ear.heard[0] == ear.heard[2] == (Start(), payload)

    on_loop(play)


def test_a_send_cancelled_in_the_middle_ends_the_connection() -> None:
    async def play() -> None:
        ear = Ear()
        async with raw_server(ear) as (connection, peer):
            sending = asyncio.ensure_future(connection.send(NoMoreRounds(1), LARGE))
            await turns()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            assert isinstance(await ear.closed, LinkError)
            with pytest.raises(LinkError, match="is gone"):
                await connection.send(Start())
            connection.post(Start())  # and this is nothing to complain of
            got = await read(peer, 2 * len(LARGE))
            frame = encode_frame(NoMoreRounds(1), len(LARGE)) + LARGE
            assert len(got) < len(frame)  # and nothing else comes after it
            assert frame.startswith(got)

    on_loop(play)


def test_a_send_to_a_peer_that_goes_away_is_a_link_error() -> None:
    async def play() -> None:
        ear = Ear()
        async with raw_server(ear) as (connection, peer):
            sending = asyncio.ensure_future(connection.send(NoMoreRounds(1), LARGE))
            await turns()
            peer.close()
            with pytest.raises(LinkError, match=r"the connection to .* (is gone|broke)"):
                await sending
            assert isinstance(await ear.closed, LinkError)

    on_loop(play)


def test_what_a_peer_says_before_it_goes_is_heard_also_where_a_write_finds_it_gone() -> None:
    async def play() -> None:
        ear = Ear()
        async with raw_server(ear) as (connection, peer):
            peer.sendall(encode_frame(NoMoreRounds(1)) + encode_frame(Shutdown()))
            peer.close()
            for _ in range(3):  # the first write has the kernel told that nobody is there
                connection.post(Start())
            assert isinstance(await ear.closed, LinkError)
            assert [message for message, _ in ear.heard] == [NoMoreRounds(1), Shutdown()]

    on_loop(play)


def slow_to_read(ear: Ear) -> asyncio.Transport:
    """Let the end that was called read nothing for now; return its transport."""
    transport: asyncio.Transport = ear.connection._transport  # type: ignore[attr-defined]
    transport.pause_reading()
    return transport


@on_linux
@pytest.mark.parametrize("how", ["reads", "goes", "cancelled"])
def test_a_send_waits_for_room_in_shared_memory_until_the_other_end_reads_or_goes(how: str) -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        async with joined(called, caller) as connection:
            assert connection.peer == f"process {os.getpid()} of this machine"
            transport = slow_to_read(called)
            sending = asyncio.ensure_future(connection.send(Start(), LARGE))
            await turns()
            assert not sending.done()
            connection.post(Shutdown())  # after it
            if how == "reads":
                transport.resume_reading()
                await called.hears(Start(), Shutdown())
                assert called.heard[0][1] == LARGE
            elif how == "goes":
                transport.abort()
                with pytest.raises(LinkError, match="is gone"):
                    await sending
            else:
                sending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await sending
                transport.resume_reading()
                assert isinstance(await called.closed, LinkError)
                assert not called.heard
                with pytest.raises(LinkError, match="is gone"):
                    await connection.send(Start())

    on_loop(play)


@on_linux
def test_room_that_comes_while_a_head_is_written_is_seen() -> None:
    async def fill(connection: Connection, most: int) -> int:
        """Fill the ring, and then the kernel's buffer with so many messages, or all it takes."""
        for _ in range(RING_BYTES // PIECE_BYTES):
            await connection.send(Start(), LARGE[:PIECE_BYTES])
        flushed: asyncio.Event = connection._outflow.flushed  # type: ignore[attr-defined]
        posts = 0
        while flushed.is_set() and posts < most:
            connection.post(Shutdown())
            posts += 1
        return posts

    async def play() -> None:
        called = Ear()
        async with joined(called) as connection:
            slow_to_read(called)
            most = await fill(connection, 1 << 20)
        called = Ear()
        async with joined(called) as connection:
            transport = slow_to_read(called)
            await fill(connection, most - 1)  # so that the head will have to wait
            sending = asyncio.ensure_future(connection.send(Start(), LARGE[:PIECE_BYTES]))
            await turns()
            transport.resume_reading()
            await asyncio.wait_for(sending, 10)

    on_loop(play)


@on_linux
def test_where_the_system_grants_no_memory_a_connection_is_tcp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str, flags: int) -> int:
        raise PermissionError

    async def play() -> None:
        ears: list[Ear] = []

        def welcome(connection: Connection) -> Ear:
            ears.append(Ear())
            return ears[-1].welcome(connection)

        network, caller = TcpNetwork(LIMITS), Ear()
        listener = await network.listen(("127.0.0.1", 0), welcome)
        connection = await network.connect(listener.address, caller)
        assert connection.peer == "{}:{}".format(*listener.address)
        await connection.send(Start(), LARGE)
        await ears[0].closed  # the call that found no memory
        await ears[1].hears(Start())
        for end in (connection, ears[1].connection):
            end.close()
        listener.close()
        await asyncio.wait({ears[1].closed, caller.closed})

    monkeypatch.setattr(os, "memfd_create", refuse)
    on_loop(play)


# --- who may send what ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "named"),
    [
        (encode_frame(Start(), 1), "a payload of 1 bytes, at most 0"),
        (encode_frame(Hello(bytes(5000), 1, 0)), "a message of 50.. bytes, at most 4096"),
    ],
)
def test_a_caller_may_send_only_small_messages_until_it_is_trusted(
    frame: bytes, named: str
) -> None:
    async def play() -> None:
        unauthenticated = Ear(trusting=False)
        async with raw_client(unauthenticated) as peer:
            peer.send(encode_frame(Start()) + frame)
            error = await unauthenticated.closed
            assert isinstance(error, OversizedMessage)
            with pytest.raises(OversizedMessage, match=named):
                raise error
            assert unauthenticated.heard == [(Start(), b"")]
        friend = Ear()
        async with raw_client(friend) as peer:
            await turns()
            peer.send(frame)
            peer.send(b"p")
            while not friend.heard:
                await asyncio.sleep(0)

    on_loop(play)


@both_ways
def test_who_was_called_is_trusted_from_the_first(shares_memory: bool) -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        async with joined(called, caller, shares_memory=shares_memory):
            await called.connection.send(Start(), b"payload")
            await caller.hears(Start())

    on_loop(play)


def test_a_trusted_peer_has_limits_too() -> None:
    async def play() -> None:
        ear = Ear()
        async with raw_client(ear) as peer:
            await turns()
            peer.send(encode_frame(Start(), LIMITS.payload_bytes + 1))
            assert isinstance(await ear.closed, OversizedMessage)

    on_loop(play)


@pytest.mark.parametrize(
    ("data", "error", "named"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", MalformedMessage, "a frame begins with b'GE'"),
        (encode_frame(Start())[:-1], LinkError, "closed the connection inside a message"),
        (encode_frame(Start()), LinkError, "closed the connection$"),
        (b"", LinkError, "closed the connection$"),
    ],
)
def test_how_a_stream_ends_is_named(data: bytes, error: type[Exception], named: str) -> None:
    async def play() -> None:
        ear = Ear()
        async with raw_client(ear) as peer:
            peer.send(data)
            peer.shutdown(socket.SHUT_WR)
            why = await ear.closed
            assert why is not None
            with pytest.raises(error, match=named):
                raise why

    on_loop(play)


@both_ways
def test_a_refused_message_harms_neither_the_next_nor_the_connection(shares_memory: bool) -> None:
    refusal = OutOfPlaceMessage("not now")

    class Picky(Ear):
        def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
            if message == NoMoreRounds(1):
                raise refusal
            return super().on_message(message, payload_bytes)

    async def play() -> None:
        ear = Picky()
        async with joined(ear, shares_memory=shares_memory) as connection:
            await turns()
            await connection.send(NoMoreRounds(1), bytes(1_000_000))
            await connection.send(Start(), b"good")
            await ear.hears(Start())
            assert ear.heard == [(Start(), b"good")]
            assert ear.refused == [(NoMoreRounds(1), refusal)]

    on_loop(play)


@both_ways
def test_a_receiver_that_breaks_ends_the_connection_on_both_sides(shares_memory: bool) -> None:
    class Broken(Ear):
        def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
            raise ZeroDivisionError

    async def play() -> None:
        called, caller = Broken(), Ear()
        async with joined(called, caller, shares_memory=shares_memory) as connection:
            await connection.send(Start())
            assert isinstance(await called.closed, ZeroDivisionError)
            assert isinstance(await caller.closed, LinkError)

    on_loop(play)


@pytest.mark.parametrize(
    ("may_be_set", "there", "strands"),
    [
        ({"bbr", "cubic"}, {"10.0.0.1": "cubic"}, 1),
        ({"bbr", "cubic"}, {"10.0.0.1": "cubic", "10.0.0.2": "bbr"}, 2),
        ({"bbr", "cubic"}, {"10.0.0.1": BY_ROUND_TRIP}, 2),
        ({"cubic"}, {"10.0.0.1": BY_ROUND_TRIP}, 4),
        ({"cubic"}, {"10.0.0.1": "cubic", "10.0.0.2": "bbr"}, 4),
        ({"cubic"}, {"127.0.0.1": "bbr", "localhost": "bbr"}, 1),
        ({"cubic"}, {}, 1),
    ],
)
def test_a_lane_takes_as_many_connections_as_its_congestion_control_needs(
    may_be_set: set[str], there: dict[str, str], strands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.net.tcp.may_set_congestion_control", may_be_set.__contains__)
    assert strands_of({(host, 7700): control for host, control in there.items()}) == strands


@pytest.mark.parametrize(("host", "strands"), [("10.0.0.1", 8), ("127.0.0.1", 1)])
def test_a_lane_over_a_long_fast_link_takes_as_many_connections_as_fill_it(
    host: str, strands: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.net.tcp.may_set_congestion_control", lambda name: True)
    monkeypatch.setattr("anabranch.net.tcp.window_bytes", lambda: 1_000_000)
    pairs = (0, 1, 1e9), (0, 2, 1e8), (1, 2, 1e8), (1, 0, 1e8), (2, 0, 1e8)
    links = tuple(Link(*pair, latency_s=0.03) for pair in pairs)
    overlay = Overlay("long", (Site("a"), Site("b"), Site("c")), links)
    addresses = {1: (host, 1), 2: (host, 2)}
    networks = Networks(LIMITS)
    assert networks.lanes(overlay, 0, addresses, 1.0, 1.0)[1] == strands


@both_ways
def test_ends_of_different_releases_are_both_told_which_the_other_runs(
    shares_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = b"AV\x63" + GREETING[3:]
    monkeypatch.setattr("anabranch.net.tcp.encode_greeting", lambda challenge: later)
    told = re.escape(f"runs anabranch {__version__} (wire version 99)")

    async def play() -> None:
        called = Ear()
        network = TcpNetwork(LIMITS, shares_memory=shares_memory)
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        with pytest.raises(OtherRelease, match=f"cannot connect to .*{told}"):
            await network.connect(listener.address, Ear())
        with pytest.raises(OtherRelease, match=told):
            raise await called.closed or AssertionError
        listener.close()

    on_loop(play)


def test_who_has_not_said_who_it_is_in_time_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.net.tcp._UNAUTHENTICATED_S", 0.0)

    async def play() -> None:
        unauthenticated = Ear(trusting=False)
        async with raw_client(unauthenticated) as peer:
            assert len(await read(peer, 1 << 16)) == len(GREETING)  # and then the end
            assert await unauthenticated.closed is None

    on_loop(play)


def test_of_many_who_have_not_said_who_they_are_those_who_have_had_longest_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anabranch.net.tcp._MOST_UNAUTHENTICATED", 3)

    async def play() -> None:
        network = TcpNetwork(LIMITS, shares_memory=False)
        called: list[Ear] = []

        def welcome(connection: Connection) -> Ear:
            called.append(Ear(trusting=not called))
            return called[-1].welcome(connection)

        listener = await network.listen(("127.0.0.1", 0), welcome)
        callers = [Ear() for _ in range(6)]
        for count, caller in enumerate(callers, 1):
            await network.connect(listener.address, caller)
            while len(called) < count:
                await asyncio.sleep(0)
            await turns()
        await asyncio.wait_for(asyncio.wait({callers[1].closed, callers[2].closed}), 10)
        assert [ear.closed.done() for ear in called] == [False, True, True, False, False, False]
        called[0].connection.post(Start())  # who is trusted is not counted
        await callers[0].hears(Start())
        called[0].connection.close()
        listener.close()
        await asyncio.wait({ear.closed for ear in called + callers})

    on_loop(play)


@pytest.mark.parametrize(
    ("answer", "error", "named"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", MalformedMessage, "begins with b'HT'"),
        (b"AB\x02" + bytes(13), OtherRelease, "an older release of anabranch"),
        (b"", LinkError, "closed the connection"),
        (GREETING[:20], LinkError, "closed the connection inside a message"),
        (None, LinkError, "it said nothing in 0.01 s"),
    ],
)
def test_who_is_called_and_is_nobody_to_talk_to_is_named_and_the_receiver_hears_nothing(
    answer: bytes | None,
    error: type[Exception],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            host, port = server.getsockname()
            ear, loop = Ear(), asyncio.get_running_loop()
            if answer is None:
                monkeypatch.setattr("anabranch.net.tcp._GREETING_S", 0.01)
            connecting = asyncio.ensure_future(TcpNetwork(LIMITS).connect((host, port), ear))
            peer, _ = await loop.sock_accept(server)
            with peer:
                if answer is not None:
                    peer.sendall(answer)
                    peer.shutdown(socket.SHUT_WR)
                with pytest.raises(error, match=f"cannot connect to {host}:{port}: .*{named}"):
                    await connecting
                await turns()
                assert not ear.closed.done()

    on_loop(play)


@both_ways
def test_a_peer_that_stands_still_is_given_up_and_one_that_has_nothing_to_say_is_not(
    shares_memory: bool,
) -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        network = TcpNetwork(
            LIMITS,
            shares_memory=shares_memory,
            least_silence_s=0.5,
            heartbeat_s=0.05,
            stillness_s=0.5,
        )
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        connection = await network.connect(listener.address, caller)
        await asyncio.sleep(1.5)
        assert not called.closed.done()
        assert not caller.closed.done()
        called.connection._liveness.end()  # type: ignore[attr-defined]
        error = await caller.closed
        assert re.search(r"has said nothing for [\d.]+ s, though its machine answers", str(error))
        assert isinstance(await called.closed, LinkError)
        with pytest.raises(LinkError, match="is gone"):
            await connection.send(Start())
        listener.close()

    run_jumping(play())


@both_ways
def test_an_unusual_silence_is_told_and_that_it_is_over(shares_memory: bool) -> None:
    async def play() -> None:
        called, caller, told = Ear(), Ear(), asyncio.Queue[bool]()
        network = TcpNetwork(
            LIMITS, shares_memory=shares_memory, least_silence_s=60.0, heartbeat_s=0.05
        )
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        connection = await network.connect(listener.address, caller)
        connection.tell_silence(told.put_nowait)
        await asyncio.sleep(0.5)
        called.connection._liveness.end()  # type: ignore[attr-defined]
        assert await told.get()
        called.connection.post(Start())
        assert not await told.get()
        connection.close()
        await called.closed
        listener.close()

    run_jumping(play())


@both_ways
def test_a_peer_that_is_borne_with_is_given_up_only_when_it_no_longer_is(
    shares_memory: bool,
) -> None:
    async def play() -> None:
        called, caller, told = Ear(), Ear(), asyncio.Queue[bool]()
        network = TcpNetwork(
            LIMITS,
            shares_memory=shares_memory,
            least_silence_s=0.2,
            heartbeat_s=0.02,
            stillness_s=0.2,
        )
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        connection = await network.connect(listener.address, caller)
        connection.bear(60.0)
        connection.tell_silence(told.put_nowait)
        called.connection._liveness.end()  # type: ignore[attr-defined]
        await said_to_be_silent(told, heartbeats=20)  # twice the least silence
        assert not caller.closed.done()
        connection.bear(0.0)
        assert "has said nothing" in str(await caller.closed)
        listener.close()

    run_jumping(play())


async def said_to_be_silent(told: asyncio.Queue[bool], heartbeats: int) -> None:
    """Return once a peer has been silent for so many heartbeats, one after another."""
    silent = 0
    while silent < heartbeats:
        silent = silent + 1 if await told.get() else 0


@both_ways
def test_a_peer_that_says_nothing_while_its_kernel_answers_is_borne_with_for_longer(
    shares_memory: bool,
) -> None:
    async def play() -> None:
        called, caller, told = Ear(), Ear(), asyncio.Queue[bool]()
        network = TcpNetwork(
            LIMITS,
            shares_memory=shares_memory,
            least_silence_s=0.1,
            heartbeat_s=0.02,
            stillness_s=1.2,
        )
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        connection = await network.connect(listener.address, caller)
        connection.tell_silence(told.put_nowait)
        called.connection._liveness.end()  # type: ignore[attr-defined]
        await said_to_be_silent(told, heartbeats=20)  # four times the least silence
        assert not caller.closed.done()
        error = str(await caller.closed)
        assert "though its machine answers: the process is stopped, or holds" in error
        assert "for longer than the 1.2 s that are allowed (--stillness)" in error
        listener.close()

    on_loop(play)


@both_ways
def test_a_listener_takes_connections_with_the_patience_that_it_was_told_since(
    shares_memory: bool,
) -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        network = TcpNetwork(
            LIMITS,
            shares_memory=shares_memory,
            least_silence_s=0.5,
            heartbeat_s=0.05,
            stillness_s=0.5,
        )
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        network.give_up_after(0.5, stillness_s=60.0)
        connection = await network.connect(listener.address, caller)
        connection._liveness.end()  # type: ignore[attr-defined]
        await asyncio.sleep(20.0)
        assert not called.closed.done()
        connection.close()
        await called.closed
        listener.close()

    run_jumping(play())


def test_lanes_are_borne_with_alike_at_the_end_that_opens_them_and_at_the_other() -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        networks = Networks(LIMITS)
        listener = await networks.data.listen(("127.0.0.1", 0), called.welcome)
        lanes, _ = networks.lanes(PAIR, 0, {}, least_silence_s=0.5, stillness_s=60.0)
        connection = await lanes.connect(listener.address, caller)
        connection._liveness.end()  # type: ignore[attr-defined]
        await asyncio.sleep(30.0)
        assert not called.closed.done()
        connection.close()
        await called.closed
        listener.close()

    run_jumping(play())


@pytest.mark.parametrize(("asked", "chosen"), [(None, "bbr"), ("reno", "reno")])
def test_lanes_to_a_site_that_comes_later_have_the_congestion_control_that_suits_the_link(
    asked: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []
    monkeypatch.setattr("anabranch.net.tcp._is_here", lambda connection: False)
    monkeypatch.setattr(shared_memory, "is_possible", lambda: False)

    def use(connection: socket.socket, name: str) -> bool:
        used.append(name)
        return True

    monkeypatch.setattr("anabranch.net.tcp.set_congestion_control", use)

    async def play() -> None:
        called, caller = Ear(), Ear()
        networks = Networks(LIMITS)
        listener = await networks.data.listen(("127.0.0.1", 0), called.welcome)
        lanes, _ = networks.lanes(PAIR, 0, {0: ("127.0.0.1", 1), 1: ("", 0)}, 60.0, 60.0, asked)
        networks.moved(1, listener.address)
        used.clear()
        connection = await lanes.connect(listener.address, caller)
        assert used == [chosen]
        connection.close()
        await called.closed
        listener.close()

    on_loop(play)


@pytest.mark.parametrize("closed_window", [False, True])
def test_a_peer_whose_kernel_acknowledges_nothing_is_given_up_at_the_least_silence(
    closed_window: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        network = TcpNetwork(
            LIMITS, shares_memory=False, least_silence_s=0.2, heartbeat_s=0.02, stillness_s=1e6
        )
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        await network.connect(listener.address, caller)
        told = (1, 0, 10**6, 10**6) if closed_window else (0, 3, 10**6, 10**6)
        monkeypatch.setattr(liveness, "account_of", lambda tcp: told)
        called.connection._liveness.end()  # type: ignore[attr-defined]
        assert "its machine acknowledges nothing" in str(await caller.closed)
        listener.close()

    on_loop(play)


@pytest.mark.parametrize("is_heard", [False, True])
@pytest.mark.parametrize("ends_with_way", [False, True])
def test_a_caller_that_can_make_another_connection_ends_one_that_nothing_crosses(
    is_heard: bool, ends_with_way: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it hears the peer, which hears nothing of it."""

    async def play() -> None:
        called, caller = Ear(), Ear()
        network = TcpNetwork(
            LIMITS,
            shares_memory=False,
            least_silence_s=1e6,
            heartbeat_s=0.05,
            ends_with_way=ends_with_way,
        )
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        connection = await network.connect(listener.address, caller)
        monkeypatch.setattr(liveness, "account_of", lambda tcp: (0, 3, 10**6, 10**6))
        if not is_heard:
            called.connection._liveness.end()  # type: ignore[attr-defined]
        began_s = asyncio.get_running_loop().time()
        await asyncio.wait({caller.closed}, timeout=5.0)
        assert caller.closed.done() == ends_with_way
        if ends_with_way:
            error = caller.closed.result()
            assert isinstance(error, SilentWay)
            assert "nothing crosses the way to 127.0.0.1" in str(error)
            took_s = asyncio.get_running_loop().time() - began_s
            assert 0.15 < took_s < 0.5  # four heartbeats, by the clock of this loop
        connection.close()
        await called.closed
        listener.close()

    run_jumping(play())


def test_a_caller_bears_with_a_peer_that_stands_still_however_it_may_connect_again() -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        network = TcpNetwork(
            LIMITS, shares_memory=False, least_silence_s=1.0, heartbeat_s=0.05, ends_with_way=True
        )
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        connection = await network.connect(listener.address, caller)
        called.connection._liveness.end()  # type: ignore[attr-defined]
        await asyncio.sleep(5.0)
        assert not caller.closed.done()
        connection.close()
        await called.closed
        listener.close()

    run_jumping(play())


def test_the_kernel_tells_whether_a_peers_kernel_has_acknowledged_what_was_sent() -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        network = TcpNetwork(LIMITS, shares_memory=False)
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        connection = await network.connect(listener.address, caller)
        connection.post(Start())
        await called.hears(Start())
        told = liveness.account_of(connection._socket)  # type: ignore[attr-defined]
        while told[1]:  # an acknowledgment may be late
            await asyncio.sleep(0.01)
            told = liveness.account_of(connection._socket)  # type: ignore[attr-defined]
        probes, unacknowledged, data_ms, acked_ms = told
        assert (probes, unacknowledged) == (0, 0)
        assert max(data_ms, acked_ms) < 60_000
        connection.close()
        await called.closed
        listener.close()

    on_loop(play)


def test_who_is_slow_in_the_middle_of_a_payload_is_not_silent() -> None:
    """The loop is not woken for less than what it waits for; the kernel knows that data comes."""

    async def play() -> None:
        ear, told = Ear(), list[bool]()
        network = TcpNetwork(LIMITS, least_silence_s=0.5, heartbeat_s=0.05)
        listener = await network.listen(("127.0.0.1", 0), ear.welcome)
        loop, payload = asyncio.get_running_loop(), LARGE[: 1 << 20]
        with socket.create_connection(listener.address) as peer:
            peer.setblocking(False)
            await loop.sock_sendall(peer, encode_frame(Start(), len(payload)))
            for start in range(0, 1 << 16, 1 << 10):
                await loop.sock_sendall(peer, payload[start : start + 1024])
                await asyncio.sleep(0.02)
                ear.connection.tell_silence(told.append)
            await loop.sock_sendall(peer, payload[1 << 16 :])
            await ear.hears(Start())
            assert ear.heard[0][1] == payload
            assert not told
            ear.connection.close()
            await ear.closed
        listener.close()

    run_jumping(play())


# --- the end --------------------------------------------------------------------------------------


def test_a_connection_that_was_closed_hears_nothing_more() -> None:
    class Leaving(Ear):
        def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
            self.connection.close()
            return super().on_message(message, payload_bytes)

    async def play() -> None:
        ear = Leaving()
        async with raw_client(ear) as peer:
            peer.send(encode_frame(Start()) + encode_frame(Shutdown()))  # in one read
            peer.send(encode_frame(Shutdown()))
            assert await ear.closed is None
            assert ear.heard == [(Start(), b"")]

    on_loop(play)


@pytest.mark.parametrize("turns_before", [0, 1, 2, 3, 20])
def test_a_listener_that_closes_closes_whom_nobody_has_trusted(turns_before: int) -> None:
    async def play() -> None:
        called, caller = Ear(trusting=False), Ear()
        network = TcpNetwork(LIMITS)
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        await network.connect(listener.address, caller)
        for _ in range(turns_before):  # it may not have been accepted, or not been made yet
            await asyncio.sleep(0)
        listener.close()
        assert isinstance(await caller.closed, LinkError)

    on_loop(play)


@pytest.mark.parametrize("turns_before", range(6))
@pytest.mark.parametrize("family", [socket.AF_INET, pytest.param(socket.AF_UNIX, marks=on_linux)])
def test_a_listener_that_closes_while_it_accepts_leaves_nothing_open(
    family: socket.AddressFamily, turns_before: int
) -> None:
    async def play() -> None:
        listener = await TcpNetwork(LIMITS).listen(("127.0.0.1", 0), Ear(trusting=False).welcome)
        address = listener.address
        with socket.socket(family) as caller:
            caller.connect(address if family == socket.AF_INET else shared_memory.name_of(address))
            for _ in range(turns_before):  # a turn to notice, one to accept, one to make it
                await asyncio.sleep(0)
            listener.close()
            await turns()
            gc.collect()  # what was left open since says so
            caller.setblocking(False)
            with suppress(ConnectionResetError):
                while caller.recv(1):  # a byte may have come with memory; then it is the end
                    pass

    gc.freeze()  # what other tests have left is not looked through
    try:
        on_loop(play)
    finally:
        gc.unfreeze()


def test_a_listener_closes_at_once_where_its_loop_does_not_run() -> None:
    def welcome(connection: Connection) -> Ear:
        raise AssertionError("the listener took a call that this test does not make")

    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(TcpNetwork(LIMITS).listen(("127.0.0.1", 0), welcome))
    address = listener.address
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    loop.close()


def test_a_listener_that_closes_leaves_whom_somebody_trusts() -> None:
    async def play() -> None:
        called = Ear()
        network = TcpNetwork(LIMITS)
        listener = await network.listen(("127.0.0.1", 0), called.welcome)
        connection = await network.connect(listener.address, Ear())
        await turns()
        listener.close()
        connection.post(Start())
        await called.hears(Start())
        connection.close()
        called.connection.close()
        await called.closed

    on_loop(play)


@both_ways
def test_what_was_posted_before_the_end_arrives(shares_memory: bool) -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        async with joined(called, caller, shares_memory=shares_memory) as connection:
            for number in range(100):
                connection.post(NoMoreRounds(number))
            connection.close()
            await called.hears(*map(NoMoreRounds, range(100)))
            assert isinstance(await called.closed, LinkError)
            assert await caller.closed is None

    on_loop(play)


def test_what_cannot_be_reached_or_listened_on_is_a_link_error_with_its_address() -> None:
    async def raises(attempt: Awaitable[object], named: str) -> None:
        with pytest.raises(LinkError, match=named):
            await attempt

    async def play() -> None:
        network = TcpNetwork(LIMITS)
        listener = await network.listen(("127.0.0.1", 0), lambda connection: Ear())
        host, port = listener.address
        await raises(
            network.listen((host, port), lambda connection: Ear()),
            f"cannot listen on 127.0.0.1:{port}",
        )
        listener.close()
        await raises(network.connect((host, port), Ear()), f"cannot connect to 127.0.0.1:{port}")

    on_loop(play)


def test_a_congestion_control_that_the_kernel_has_not_got_is_found_out_before_it_is_needed() -> (
    None
):
    assert not may_set_congestion_control("nobody-knows-this")
    with open("/proc/sys/net/ipv4/tcp_congestion_control") as file:
        assert may_set_congestion_control(file.read().strip())


def test_loops_of_several_threads_wait_for_their_own_connections() -> None:
    """What one opens meanwhile is no concern of another's that waits."""

    async def live(turns: int) -> None:
        for _ in range(turns):
            network = TcpNetwork(LIMITS)
            listener = await network.listen(("127.0.0.1", 0), Ear().welcome)
            (await network.connect(listener.address, Ear())).close()
            listener.close()
            await wait_closed()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(asyncio.run, asyncio.wait_for(live(20), 30)) for _ in range(4)]:
            done.result()


def test_a_loop_that_waits_may_meet_a_thread_that_frees_an_end() -> None:
    class Open(End):
        def __init__(self) -> None:
            """Need no loop."""

        def start(self, ends: object) -> None:
            pass

    def opened() -> Open:
        ends: Any = None
        end = Open()
        tcp._start(end, ends)
        return end

    kept, freed = [opened() for _ in range(3)], [opened()]
    free_amid(lambda: asyncio.run(wait_closed()), freed.clear)
    assert len(kept) == 3


def test_a_host_that_answers_nothing_is_given_up_as_one_that_falls_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(self: object, *arguments: object, **options: object) -> None:
        await asyncio.Event().wait()

    async def go() -> None:
        network = TcpNetwork(LIMITS, shares_memory=False, least_silence_s=0.05)
        with pytest.raises(LinkError, match=r"127.0.0.1:9: nothing answered in 0.1 s"):
            await network.connect(("127.0.0.1", 9), Ear())

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", never)
    asyncio.run(go())
