"""TLS: both ends prove who they are, and nobody else can read or take part."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.net.errors import LinkError, MalformedMessage, UnauthorisedPeer, UntrustedPeer
from anabranch.net.frames import Sink
from anabranch.net.messages import AnyMessage, NoMoreRounds, Shutdown, Start
from anabranch.net.network import Connection
from anabranch.net.tcp import TcpNetwork
from anabranch.net.tls import (
    RECORD_BYTES,
    SCHEDULER,
    Credentials,
    Session,
    TlsError,
    check_identity,
    identity_of,
    said_by,
)

from .test_tcp import LARGE, LIMITS, Ear

CERTIFICATES = Path(__file__).with_name("certs")
A, B = identity_of("a"), identity_of("b")


def network(identity: str | None, folder: Path = CERTIFICATES / "ours") -> TcpNetwork:
    credentials = None if identity is None else Credentials(folder, identity)
    return TcpNetwork(LIMITS, credentials=credentials)


def on_loop(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), 60))


@asynccontextmanager
async def joined(
    called: Ear, caller: Ear, listens: TcpNetwork, calls: TcpNetwork
) -> AsyncIterator[Connection]:
    listener = await listens.listen(("127.0.0.1", 0), called.welcome)
    connection = await calls.connect(listener.address, caller)
    yield connection
    for end in (connection, called.connection):
        end.close()
    listener.close()
    await asyncio.wait({called.closed, caller.closed})


def test_payloads_arrive_whole_both_ways_between_ends_that_know_each_other() -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        async with joined(called, caller, network(SCHEDULER), network(A)) as connection:
            assert connection.identity == SCHEDULER
            assert called.connection.identity == A
            await asyncio.gather(
                connection.send(NoMoreRounds(1), LARGE),
                called.connection.send(NoMoreRounds(2), LARGE[1:]),
            )
            connection.post(Shutdown())
            await connection.send(Start(), b"end", head_first=True)
            await called.hears(NoMoreRounds(1), Shutdown(), Start())
            await caller.hears(NoMoreRounds(2))
            assert [payload for _, payload in called.heard] == [LARGE, b"", b"end"]
            assert caller.heard[0][1] == LARGE[1:]

    on_loop(play)


def test_nothing_that_passes_can_be_read() -> None:
    async def play() -> None:
        """Let all bytes pass through a relay that keeps them."""
        called, caller, overheard = Ear(), Ear(), bytearray()
        listener = await network(B).listen(("127.0.0.1", 0), called.welcome)

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            on_reader, on_writer = await asyncio.open_connection(*listener.address)

            async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(1 << 16):
                    overheard.extend(data)
                    sink.write(data)
                sink.close()

            await asyncio.gather(copy(reader, on_writer), copy(on_reader, writer))

        between = await asyncio.start_server(relay, "127.0.0.1", 0)
        connection = await network(A).connect(between.sockets[0].getsockname(), caller)
        await connection.send(Start(), b"the secret weights" * 100)
        await called.hears(Start())
        assert len(overheard) > 1800
        assert b"secret weights" not in overheard
        assert b"Start" not in overheard
        connection.close()
        called.connection.close()
        await asyncio.wait({called.closed, caller.closed})
        listener.close()
        between.close()

    on_loop(play)


class Bare(Credentials):
    """A caller that knows the authority, and shows a certificate of another one, or none."""

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(CERTIFICATES / "ours" / "ca.pem")
        if self.identity:
            folder = CERTIFICATES / "theirs"
            context.load_cert_chain(folder / "site-a.pem", folder / "site-a.key")
        else:
            context.maximum_version = ssl.TLSVersion.TLSv1_3
        return context


class Old(Bare):
    """A caller that speaks an older TLS."""

    def context(self, purpose: ssl.Purpose) -> ssl.SSLContext:
        context = super().context(purpose)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        return context


THEIRS = CERTIFICATES / "theirs"
UNTRUSTED = {
    "another authority calls": (
        *(network(B), network(A, THEIRS)),
        *("is not believed here \\(self-signed", "does not believe this .* \\(unknown ca\\)"),
    ),
    "another authority is called": (
        *(network(A, THEIRS), network(B)),
        *("is not believed here \\(self-signed", "does not believe this .* \\(unknown ca\\)"),
    ),
    "a certificate of another authority calls": (
        *(network(B), TcpNetwork(LIMITS, credentials=Bare(THEIRS, A))),
        *(
            "does not believe this .* \\(unknown ca\\)",
            "is not believed here \\(unable to get local",
        ),
    ),
    "no certificate calls": (
        *(network(B), TcpNetwork(LIMITS, credentials=Bare(THEIRS, ""))),
        *("does not believe this .* \\(certificate required\\)", "shows no certificate"),
    ),
    "an older version calls": (
        *(network(B), TcpNetwork(LIMITS, credentials=Old(THEIRS, ""))),
        *("does not speak TLS 1.3", "does not speak TLS 1.3"),
    ),
    "plain calls": (
        *(network(B), network(None)),
        *("speaks TLS, and this one has no cert", "speaks without TLS, and this one has a cert"),
    ),
    "plain is called": (
        *(network(None), network(A)),
        *("speaks without TLS, and this one has a cert", "speaks TLS, and this one has no cert"),
    ),
}


@pytest.mark.parametrize(
    ("listens", "calls", "at_the_caller", "at_the_called"), UNTRUSTED.values(), ids=UNTRUSTED
)
def test_ends_that_do_not_trust_one_another_each_say_at_once_what_is_wrong(
    listens: TcpNetwork, calls: TcpNetwork, at_the_caller: str, at_the_called: str
) -> None:
    async def play() -> None:
        ear = Ear(trusting=False)
        listener = await listens.listen(("127.0.0.1", 0), ear.welcome)
        with pytest.raises(UntrustedPeer, match=f"cannot connect to .*{at_the_caller}"):
            await calls.connect(listener.address, Ear())
        with pytest.raises(UntrustedPeer, match=at_the_called):
            raise await ear.closed or AssertionError("no error")
        assert not ear.heard
        listener.close()

    on_loop(play)


@pytest.mark.parametrize("said", [b"GET / HTTP/1.0\r\n\r\n", bytes(40)])
def test_what_is_neither_tls_nor_a_frame_is_named(said: bytes) -> None:
    async def play() -> None:
        ear = Ear(trusting=False)
        listener = await network(B).listen(("127.0.0.1", 0), ear.welcome)
        reader, writer = await asyncio.open_connection(*listener.address)
        writer.write(said)
        with pytest.raises(MalformedMessage, match="does not speak TLS: it began with"):
            raise await ear.closed or AssertionError("no error")
        assert await reader.read() == b""
        writer.close()
        listener.close()

    on_loop(play)


def sessions() -> tuple[Session, Session]:
    """Return a session of a caller and one of who is called, ready."""
    caller = Session(Credentials(CERTIFICATES / "ours", A).context(ssl.Purpose.SERVER_AUTH), False)
    called = Session(Credentials(CERTIFICATES / "ours", B).context(ssl.Purpose.CLIENT_AUTH), True)
    for _ in range(2):
        caller.shake_hands()
        feed(called, caller.to_send())
        called.shake_hands()
        feed(caller, called.to_send())
    assert caller.is_ready
    assert called.is_ready
    return caller, called


def feed(session: Session, travelled: bytes) -> None:
    while travelled:
        count = min(len(travelled), len(session.staging))
        session.staging[:count], travelled = travelled[:count], travelled[count:]
        session.take(count)


@given(
    payload=st.binary(min_size=1, max_size=70_000),
    steps=st.lists(st.integers(1, 40_000), min_size=1),
    room=st.integers(1, 50_000),
)
def test_a_session_gives_what_was_written_however_its_bytes_come(
    payload: bytes, steps: list[int], room: int
) -> None:
    caller, called = sessions()
    assert (caller.identity, called.identity) == (B, A)
    caller.write(payload)
    travelled = caller.to_send()
    memory, got, step = memoryview(bytearray(room)), bytearray(), cycle(steps)
    while travelled:
        count = next(step)
        feed(called, travelled[:count])
        travelled = travelled[count:]
        while read := called.read_into(memory):
            got += memory[:read]
        # So much is still to come, at least, whatever was read of it before.
        assert len(travelled) >= len(payload) - len(got) - RECORD_BYTES
    assert got == payload


def test_a_byte_that_was_changed_on_its_way_ends_a_session() -> None:
    caller, called = sessions()
    caller.write(b"the weights")
    travelled = bytearray(caller.to_send())
    travelled[-1] ^= 1
    feed(called, bytes(travelled))
    with pytest.raises(LinkError, match="BAD_RECORD_MAC"):
        called.read_into(memoryview(bytearray(100)))


def test_nothing_is_read_after_the_other_end_has_said_the_end() -> None:
    caller, called = sessions()
    caller.write(b"last")
    caller.say_the_end()
    feed(called, caller.to_send())
    memory = memoryview(bytearray(100))
    assert bytes(memory[: called.read_into(memory)]) == b"last"
    assert called.read_into(memory) == 0
    with pytest.raises(LinkError, match="shutdown"):
        caller.write(b"more")
    with pytest.raises(LinkError, match="goes on after"):
        feed(called, b"whatever")


def test_a_payload_arrives_that_comes_in_the_smallest_pieces() -> None:
    async def play() -> None:
        """Let what the caller says pass through a relay that splits it."""
        called, caller = Ear(), Ear()
        listener = await network(B).listen(("127.0.0.1", 0), called.welcome)

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            on_reader, on_writer = await asyncio.open_connection(*listener.address)

            async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                pieces = cycle([1, 4096, 16_408, 5, 333])
                while data := await source.read(next(pieces)):
                    sink.write(data)
                    await sink.drain()
                sink.close()

            await asyncio.gather(copy(reader, on_writer), copy(on_reader, writer))

        between = await asyncio.start_server(relay, "127.0.0.1", 0)
        connection = await network(A).connect(between.sockets[0].getsockname(), caller)
        payload = LARGE[: 1 << 20]
        for number in range(3):
            await connection.send(NoMoreRounds(number), payload[number:])
        await called.hears(*map(NoMoreRounds, range(3)))
        assert [came for _, came in called.heard] == [payload[number:] for number in range(3)]
        connection.close()
        called.connection.close()
        await asyncio.wait({called.closed, caller.closed})
        listener.close()
        between.close()

    on_loop(play)


def test_a_caller_that_does_not_shake_hands_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.net.tcp._UNAUTHENTICATED_S", 0.0)

    async def play() -> None:
        listener = await network(B).listen(("127.0.0.1", 0), Ear(trusting=False).welcome)
        reader, writer = await asyncio.open_connection(*listener.address)
        assert await reader.read() == b""
        writer.close()
        listener.close()

    on_loop(play)


def test_who_closes_on_what_it_hears_is_told_of_no_error() -> None:
    class Closing(Ear):
        def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
            sink = super().on_message(message, payload_bytes)
            if message == Shutdown():
                self.connection.close()
            return sink

    async def play() -> None:
        called, caller = Closing(), Ear()
        listener = await network(B).listen(("127.0.0.1", 0), called.welcome)
        connection = await network(A).connect(listener.address, caller)
        connection.post(Start())
        await called.hears(Start())
        connection.post(Shutdown())
        for _ in range(50):
            connection.post(Start())
        connection.close()
        assert await called.closed is None
        listener.close()

    on_loop(play)


def test_who_sends_on_what_it_has_closed_is_told_that_it_is_gone() -> None:
    async def play() -> None:
        called, caller = Ear(), Ear()
        async with joined(called, caller, network(B), network(A)) as connection:
            connection.close()
            with pytest.raises(LinkError, match="is gone"):
                await connection.send(Start())

    on_loop(play)


def test_a_handshake_that_cannot_begin_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(session: Session) -> None:
        raise LinkError("no protocols available")

    async def play() -> None:
        listener = await network(B).listen(("127.0.0.1", 0), Ear(trusting=False).welcome)
        monkeypatch.setattr(Session, "shake_hands", refuse)
        with pytest.raises(LinkError, match="no protocols available"):
            await network(A).connect(listener.address, Ear())
        listener.close()

    on_loop(play)


def test_of_too_many_callers_those_go_first_that_have_shown_no_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("anabranch.net.tcp._MOST_UNAUTHENTICATED", 3)

    async def play() -> None:
        called, caller = Ear(trusting=False), Ear()
        listener = await network(B).listen(("127.0.0.1", 0), called.welcome)
        connection = await network(A).connect(listener.address, caller)
        proven = called.connection
        bare = [await asyncio.open_connection(*listener.address) for _ in range(5)]
        assert await bare[0][0].read() == b""
        assert proven.their_challenge
        assert not caller.closed.done()
        connection.close()
        for _, writer in bare:
            writer.close()
        listener.close()
        await asyncio.wait({caller.closed})

    on_loop(play)


def test_older_versions_of_tls_are_refused() -> None:
    async def play() -> None:
        listener = await network(B).listen(("127.0.0.1", 0), Ear(trusting=False).welcome)
        context = Credentials(CERTIFICATES / "ours", A).context(ssl.Purpose.SERVER_AUTH)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2

        def call() -> None:
            with socket.create_connection(listener.address) as plain, context.wrap_socket(plain):
                pass

        with pytest.raises(ssl.SSLError):
            await asyncio.to_thread(call)
        listener.close()

    on_loop(play)


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    for file in (CERTIFICATES / "ours").iterdir():
        shutil.copy(file, tmp_path)

    async def play() -> None:
        listens, calls = network(B, tmp_path), network(A, tmp_path)
        ears = [Ear(), Ear()]
        waiting = iter(ears)
        listener = await listens.listen(("127.0.0.1", 0), lambda c: next(waiting).welcome(c))
        first = await calls.connect(listener.address, Ear())
        assert first.identity == B
        for ending in ("pem", "key"):  # the listener is somebody else from now on
            shutil.copy(tmp_path / f"scheduler.{ending}", tmp_path / f"site-b.{ending}")
        second = await calls.connect(listener.address, Ear())
        assert second.identity == SCHEDULER
        for connection in (first, second, *(ear.connection for ear in ears)):
            connection.close()
        listener.close()
        await asyncio.wait({ear.closed for ear in ears})

    on_loop(play)


def test_what_is_missing_or_no_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"there is no .*ca\.pem; `anabranch certs` makes"):
        Credentials(tmp_path, A).check()
    for file in (CERTIFICATES / "ours").iterdir():
        shutil.copy(file, tmp_path)
    with pytest.raises(TlsError, match=r"there is no .*site-c\.pem"):
        Credentials(tmp_path, identity_of("c")).check()
    shutil.copy(tmp_path / "site-b.key", tmp_path / "site-a.key")
    with pytest.raises(TlsError, match=r"site-a\.pem, its key and .* cannot be used"):
        Credentials(tmp_path, A).check()
    (tmp_path / "ca.pem").write_text("nothing")
    with pytest.raises(TlsError, match="cannot be used"):
        Credentials(tmp_path, B).check()


def test_an_identity_is_the_one_uri_of_a_certificate() -> None:
    assert said_by({"subjectAltName": (("DNS", "x"), ("URI", A))}) == A
    assert said_by({"subjectAltName": (("URI", A), ("URI", B))}) == ""
    assert said_by({}) == ""


def test_who_is_somebody_else_is_named() -> None:
    check_identity("10.0.0.1:1", A, A)
    check_identity("10.0.0.1:1", None, A)  # without TLS nobody can tell
    with pytest.raises(UnauthorisedPeer, match="has the certificate of site-b, not of site-a"):
        check_identity("10.0.0.1:1", B, A)
    with pytest.raises(UnauthorisedPeer, match="certificate of no site, not of scheduler"):
        check_identity("10.0.0.1:1", "", SCHEDULER)
