"""The network over TCP: one asyncio ``BufferedProtocol`` per connection.

Over a machine's loopback, a connection is a Unix-domain socket and shared memory
(:mod:`anabranch.net._shared_memory`).

Bulk data bypasses the transport, through a duplicate of its socket. A payload goes to the kernel
directly from the caller's memory, and arrived data is read in a few large reads per turn of the
loop. The transport notices data and the end of the stream, sends small messages, and closes in
order. With TLS, this module encrypts and decrypts (:class:`anabranch.net.tls.Session`), and the
transport moves ciphertext.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import socket
import ssl
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

from anabranch.net import _shared_memory as shared_memory
from anabranch.net import pipe, tls
from anabranch.net._liveness import Liveness, Patience, round_trip_s
from anabranch.net._rings import PIECE_BYTES, IncomingRing, OutgoingRing
from anabranch.net.addresses import is_loopback, show
from anabranch.net.deadline import Deadline, after, within
from anabranch.net.errors import LinkError, NetError, PeerError
from anabranch.net.frames import (
    CONTROL_LIMITS,
    FrameReader,
    Limits,
    encode_alive,
    encode_frame,
    encode_freed,
    encode_greeting,
)
from anabranch.net.identity import CHALLENGE_BYTES
from anabranch.net.messages import Message
from anabranch.net.network import Address, Connection, Payload, Receiver
from anabranch.net.silence import HEARTBEAT_S, LANE_HEARTBEAT_S, STILLNESS_S
from anabranch.overlay import Link, Overlay

# Bounds on a caller that has not proved its identity: its messages, its time, and how many of them
# a listener holds. Beyond that number, the listener closes the oldest one.
_UNAUTHENTICATED = Limits(message_bytes=1 << 12, payload_bytes=0)
_UNAUTHENTICATED_S = 30.0
_MOST_UNAUTHENTICATED = 128  # neighbours open all connections of their lanes at once
CONTROL_SILENCE_S = 5.0
"""The least silence that ends a connection to or from a scheduler; the site connects again."""

LANE_SILENCE_S = 15.0  # the least silence that ends a lane
# Greeting timeout; the callee may be busy.
_GREETING_S = 60.0
_LOOPBACK = "127.0.0.1"
_HEARD_S = 0.01  # data that follows sooner tells the silence detector nothing
# Connect timeout, as a multiple of the least silence: a lost first packet costs 1 s.
_CONNECT_SILENCES = 2.0
# Reads in one turn of the loop; with more, one fast peer would keep the others waiting.
_READS = 4
# Inside a payload the kernel wakes the loop once the awaited bytes have arrived, at most this many.
# Below the least, a setsockopt call costs more than it saves.
_LEAST_AWAITED_BYTES, _MOST_AWAITED_BYTES = 1 << 13, 1 << 19
_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25)  # named since Python 3.12, on Linux
_UNSENT_BYTES = 1 << 18
_MOST_POSTED = 64  # frames of one turn of the loop, beyond which small payloads wait for their lane


# The open ends of this process. A forked child, as of a data loader, must not keep them open when
# this process dies: its peers would see no end of the stream. An end may be freed in any thread, at
# any moment, so that no lock can guard its removal. To add, discard and copy is atomic.
_open: set[ref[_TcpConnection | _TcpListener | pipe.End]] = set()


def _note_open(end: _TcpConnection | _TcpListener | pipe.End) -> None:
    _open.add(ref(end, _open.discard))


def _opened() -> list[_TcpConnection | _TcpListener | pipe.End]:
    return [end for each in _open.copy() if (end := each()) is not None]


async def wait_closed() -> None:
    """Wait until all connections of the running loop are gone; the caller has closed each.

    Closing takes turns of the loop. A connection with unsent data also waits for its peer, which
    may read nothing any more. So this cuts connections that are left after a second.
    """
    loop = asyncio.get_running_loop()
    for _ in range(3):  # a socket accepted just now becomes a connection after three turns
        await asyncio.sleep(0)
    for pause_s in (0.0, 0.0, 0.0, 0.0, 0.0, *(100 * [0.01])):
        opened = [each for each in _opened() if isinstance(each, _TcpConnection)]
        left = [each for each in opened if each.is_in(loop)]
        await asyncio.sleep(pause_s)
        if not left:
            return
    for each in left:
        each.cut()
    await asyncio.sleep(0)


def _let_go() -> None:
    """Release all connections and listeners in a process that was just forked."""
    null = os.open(os.devnull, os.O_RDWR)
    for fileno in [fileno for each in _opened() for fileno in each.filenos() if fileno >= 0]:
        # Not os.close: a later close by its owner might then close a reused descriptor.
        os.dup2(null, fileno, inheritable=False)
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def _start(end: pipe.End, ends: pipe.Streams) -> None:
    _note_open(end)
    end.start(ends)


class _Outflow:
    """The sending side of a connection: one frame at a time, with posted frames in between.

    Frames that are posted during a send leave after it. A payload bypasses the transport, so a send
    first waits until the transport's buffer is empty.
    """

    def __init__(
        self, connection: _TcpConnection, session: tls.Session | None, ring: OutgoingRing | None
    ) -> None:
        self._connection = connection
        self._tls = session
        self._ring = ring  # from which a peer on this machine reads payloads; or None
        self._transport: asyncio.Transport
        self._socket: socket.socket | None = None  # a duplicate that bypasses the transport
        self._loop = asyncio.get_running_loop()
        self.flushed = asyncio.Event()  # set while the transport's buffer is empty
        self.flushed.set()
        self.room = asyncio.Event()  # shared memory may have been freed, or the connection is gone
        self._unwritten: list[Payload] = []  # the rest of the frame in progress
        self._written: asyncio.Future[None] | None = None  # while a sender waits for the kernel
        self._one_at_a_time = asyncio.Lock()
        self._sending = session is not None  # the handshake counts as a send
        self._posted: list[bytes] = []  # frames to write next, after the send in progress
        self._write_is_due = False  # at the end of this turn of the loop
        self._has_written = False  # since the last heartbeat

    def begin(self, transport: asyncio.Transport, around: socket.socket | None) -> None:
        self._transport, self._socket = transport, around

    def opened(self, greeting: bytes) -> None:
        """Send the greeting, then posted frames: the handshake is over."""
        self._sending = False
        self._posted.insert(0, greeting)
        self._write_posted()

    def end(self) -> None:
        """Wake all waiting senders: the connection is gone."""
        self._go_on_writing()
        self.flushed.set()
        self.room.set()
        self._ring = None

    def beat(self, is_mute: bool) -> None:
        """Post a heartbeat, unless this end has sent something since the last call."""
        if not self._has_written and not self._sending and not is_mute:
            self.post(encode_alive())
            self._write_posted()
        self._has_written = False

    async def send(self, message: Message, payload: Payload, head_first: bool) -> None:
        """See :meth:`anabranch.net.network.Connection.send`."""
        data = memoryview(payload).cast("B")
        head = encode_frame(message, len(data))
        async with self._one_at_a_time:
            self._write_posted()
            self._sending = self._has_written = True
            try:
                if not self.flushed.is_set():
                    await self.flushed.wait()  # earlier posted frames go first
                if head_first:
                    await self._write(head)
                    head = b""
                if self._ring is None:
                    await self._write(head, data)
                else:
                    await self._share(self._ring, head, data)
            except asyncio.CancelledError:
                # The peer would take the next frame for the rest of this one.
                self._transport.abort()
                raise
            finally:
                self._sending = False
                self._write_posted()

    async def _share(self, ring: OutgoingRing, head: bytes, data: memoryview) -> None:
        while True:
            self.room.clear()  # ahead of `put`, because the peer may free room during the write
            place = ring.put(data) if data else b""
            await self._write(head + place)
            if place:
                data = data[PIECE_BYTES:]
            if not data:
                return
            head = b""
            if not place:
                await self.room.wait()

    async def _write(self, *parts: Payload) -> None:
        if self._socket is None:
            await self._write_through_transport(b"".join(parts))
        elif self._tls is None:
            await self._write_around(*parts)
        else:
            self._check_is_there()
            for part in parts:
                for start in range(0, len(part), tls.SEALED_BYTES):
                    self._tls.write(part[start : start + tls.SEALED_BYTES])
                    if len(part) > tls.SEALED_BYTES:
                        await self._write_around(self._tls.to_send())
            await self._write_around(self._tls.to_send())

    async def _write_around(self, *parts: Payload) -> None:
        assert self._socket is not None
        self._unwritten = [part for part in parts if part]
        if self._write_what_fits(self._socket):
            return
        self._written = self._loop.create_future()
        self._loop.add_writer(self._socket.fileno(), self._go_on_writing)
        try:
            await self._written
        finally:
            self._unwritten = []  # the caller may reuse its memory

    async def _write_through_transport(self, data: bytes) -> None:
        self._check_is_there()
        self._transport.write(data)
        if not self.flushed.is_set():
            await self.flushed.wait()
            self._check_is_there()

    def _check_is_there(self) -> None:
        failure = self._connection.failure
        if failure is not None or self._transport.is_closing():
            raise LinkError(f"the connection to {self._connection.peer} is gone") from failure

    def _write_what_fits(self, around: socket.socket) -> bool:
        """Write as much of the frame as the kernel accepts; return whether that was all."""
        left = self._unwritten
        self._check_is_there()
        while left:
            try:
                count = around.sendmsg(left)
            except BlockingIOError:
                return False
            except OSError as error:
                peer = self._connection.peer
                raise LinkError(f"the connection to {peer} broke: {error}") from error
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if left:
                left[0] = memoryview(left[0])[count:]
                return False
        return True

    def _go_on_writing(self) -> None:
        """Continue the write; wake the sender once, at its end, instead of for every part."""
        if self._written is None or self._socket is None:
            return
        error: Exception | None = None
        try:
            if not self._write_what_fits(self._socket):
                return
        except Exception as broken:  # of any kind: the waiting sender raises it
            error = broken
        self._loop.remove_writer(self._socket.fileno())
        written, self._written = self._written, None
        if written.done():
            return  # cancelled
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)

    def post(self, frame: bytes) -> None:
        """Send a frame after the send in progress; never wait.

        The frames of one turn of the loop leave by one write. A frame may have a small payload.
        """
        self._posted.append(frame)
        if not self._write_is_due:
            self._write_is_due = True
            self._loop.call_soon(self._write_posted)

    def post_payload(self, message: Message, payload: Payload) -> bool:
        """See :meth:`anabranch.net.network.Connection.post_payload`."""
        placed: Payload
        data = placed = memoryview(payload).cast("B")
        if self._sending or not self.flushed.is_set() or len(self._posted) >= _MOST_POSTED:
            return False
        if self._ring is not None and data:
            placed = self._ring.put(data)
            if not placed:
                return False
        self.post(encode_frame(message, len(data)) + placed)
        return True

    def _write_posted(self) -> None:
        self._write_is_due = False
        if self._posted and not self._sending:
            posted, self._posted = self._posted, []
            self._has_written = True
            if not self._transport.is_closing():
                said = b"".join(posted)
                if self._tls is not None:
                    self._tls.write(said)
                    said = self._tls.to_send()
                self._transport.write(said)

    def answer(self, session: tls.Session) -> None:
        """Send what TLS itself has to send, unless the send in progress will carry it."""
        if not self._sending and (said := session.to_send()):
            self._transport.write(said)

    def say_the_end(self) -> None:
        """Send what is posted, and TLS's close alert, if no send is in progress."""
        self._write_posted()
        if self._tls is not None and not self._sending and not self._transport.is_closing():
            self._tls.say_the_end()
            self._transport.write(self._tls.to_send())


class _TcpConnection(asyncio.BufferedProtocol):
    """One end of a connection; see :class:`anabranch.net.network.Connection`.

    It opens, reads and closes. An :class:`_Outflow` sends, and a :class:`Liveness` decides whether
    the peer is lost. It is one class since asyncio and our own interface both call its methods.
    """

    def __init__(
        self,
        welcome: Callable[[Connection], Receiver],
        limits: Limits,
        patience: Patience,
        listener: _TcpListener | None = None,
        congestion_control: str | None = None,
        outgoing: OutgoingRing | None = None,
        make_session: Callable[[], tls.Session] | None = None,
        through: str | None = None,
    ) -> None:
        self._tls = None if make_session is None else make_session()
        self._incoming: IncomingRing | None = None
        self._outgoing = outgoing  # from which a peer on this machine reads payloads; or None
        self._listener = listener  # that accepted it; None if this process connected
        self._congestion_control = congestion_control
        self._welcome = welcome
        self._limits = limits
        self._receiver: Receiver
        self._reader: FrameReader
        self._transport: asyncio.Transport
        self._own: Any  # the transport's socket
        self.peer = "?"  # until the connection is made
        self.process: int | None = None  # the peer's, if it is on this machine
        self.hosts = _LOOPBACK, _LOOPBACK
        self._socket: socket.socket | None = None  # a duplicate that bypasses the transport
        self._loop = asyncio.get_running_loop()
        self._outflow = _Outflow(self, self._tls, outgoing)
        self._awaited_bytes = 1  # that must arrive before the kernel wakes the loop
        self.failure: Exception | None = None
        self._closing = False
        self._through = through  # names the peer in errors, if a pipe carries the connection
        self._liveness = Liveness(patience, self._outflow.beat, self._fail)
        self._heard_s = -math.inf  # the last call of `Liveness.heard`
        self.identity: str | None = None
        self.own_challenge = secrets.token_bytes(CHALLENGE_BYTES)
        # Done once the callee's greeting has arrived; the callee itself waits for none.
        self._greeted: asyncio.Future[None] = self._loop.create_future()
        if listener is not None:
            self._greeted.set_result(None)

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        _note_open(self)
        own = transport.get_extra_info("socket")
        self._own = own
        is_tcp = own.family != socket.AF_UNIX
        shares_memory = not is_tcp and self._through is None
        if shares_memory:
            self.peer = shared_memory.other_end(own)
            self.process = shared_memory.process_of(own)
            if self._listener is not None:
                self._incoming = shared_memory.offer(own)
        else:
            if self._through is not None:
                self.peer = self._through
            else:
                own_host, *_ = transport.get_extra_info("sockname")
                host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
                self.peer, self.hosts = show((host, port)), (own_host, host)
                own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._congestion_control is not None:
                self.send_by(self._congestion_control)
            self._socket = own.dup()
            self._socket.setblocking(False)
        transport.set_write_buffer_limits(high=0, low=0)
        self._outflow.begin(transport, self._socket)
        self._receiver = self._welcome(self)
        self._reader = FrameReader(
            self._receiver.on_message,
            self._receiver.on_refused,
            self._limits if self._listener is None else _UNAUTHENTICATED,
            self._incoming,
            self._outgoing,
        )
        if self._listener is None and self._tls is not None:
            self._tls.trust()
        if shares_memory and self._incoming is None and self._outgoing is None:
            transport.abort()  # no memory to share: the caller sees the end and uses TCP instead
        elif self._tls is None:
            transport.write(encode_greeting(self.own_challenge))
        self._liveness.begin(self.peer, self._socket if is_tcp else None)
        if self._listener is not None:
            self._listener.accepted(self)
        if self._tls is not None and not self._closing:
            try:
                self._shake_hands(self._tls)
            except NetError as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Cut the connection, for this reason."""
        self.failure = error
        self._transport.abort()

    def give_up_after(self, least_silence_s: float, stillness_s: float) -> None:
        """Set the least silences after which the peer counts as lost; see :class:`Patience`."""
        self._liveness.give_up_after(least_silence_s, stillness_s)

    def bear(self, silence_s: float) -> None:
        """See :meth:`anabranch.net.network.Connection.bear`."""
        self._liveness.bear(silence_s)

    def fall_silent(self, is_mute: Callable[[], bool], is_deaf: Callable[[], bool]) -> None:
        """See :meth:`anabranch.net.network.Connection.fall_silent`."""
        self._liveness.fall_silent(is_mute, is_deaf)

    def tell_silence(self, told: Callable[[bool], None]) -> None:
        """See :meth:`anabranch.net.network.Connection.tell_silence`."""
        self._liveness.tell(told)

    def send_by(self, congestion_control: str) -> None:
        """Use this congestion control from now on, unless the peer is on this machine.

        Args:
            congestion_control: its name, or :data:`BY_ROUND_TRIP`.
        """
        if self._own.family != socket.AF_UNIX and not _is_here(self._own):
            if congestion_control == BY_ROUND_TRIP:
                congestion_control = _suits((round_trip_s(self._own) or 0.0) / 2)
            set_congestion_control(self._own, congestion_control)
            # Urgent data can overtake data that waits here, but not data in the kernel.
            self._own.setsockopt(socket.IPPROTO_TCP, _NOTSENT_LOWAT, _UNSENT_BYTES)

    def _shake_hands(self, session: tls.Session) -> None:
        """Continue the TLS handshake; send the greeting once it is done.

        Raises:
            NetError: the handshake failed; this end has sent an alert.
        """
        try:
            session.shake_hands()
        finally:
            if said := session.to_send():
                self._transport.write(said)
        if session.is_ready:
            self.identity = session.identity
            self._outflow.opened(encode_greeting(self.own_challenge))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer if self._tls is None else self._tls.staging

    def buffer_updated(self, nbytes: int) -> None:
        reader = self._reader
        now_s = self._loop.time()
        if now_s - self._heard_s > _HEARD_S:
            self._heard_s = now_s
            self._liveness.heard(now_s)
        for reads_left in reversed(range(_READS)):
            room = len(self.get_buffer(0))
            try:
                self._advance(nbytes)
            except Exception as error:  # the peer's fault, or our own: either ends the stream
                self._fail(error)
                return
            if self._closing:
                return
            if reader.challenge is not None and not self._greeted.done():
                self._greeted.set_result(None)
            if nbytes < room or reads_left == 0 or self._socket is None:
                break  # the socket is empty, or this connection has had its turn
            try:
                nbytes = self._socket.recv_into(self.get_buffer(0))
            except OSError:
                break  # the socket is empty, or it broke, which the transport will notice
            if nbytes == 0:
                return  # the transport will notice the end too
        if self._outgoing is not None:
            self._outflow.room.set()
        if self._incoming is not None and (read := self._incoming.to_free()):
            self._outflow.post(encode_freed(read))
        # TLS may hold a part of the awaited bytes, in a record that is incomplete.
        unread = 0 if self._tls is None else tls.RECORD_BYTES
        self._await_bytes(reader.awaited_bytes - unread)

    def _advance(self, count: int) -> None:
        """Process ``count`` bytes that were read."""
        session = self._tls
        if session is None:
            self._reader.advance(count)
            return
        session.take(count)
        if not session.is_ready:
            self._shake_hands(session)
        while session.is_ready and not self._closing:
            got = session.read_into(self._reader.buffer)
            if not got:
                break
            self._reader.advance(got)
        if not self._closing:
            self._outflow.answer(session)

    def _await_bytes(self, count: int) -> None:
        """Have the kernel wake the loop once so many bytes, or the end, have arrived."""
        if self._socket is None:
            return
        count = 1 if count < _LEAST_AWAITED_BYTES else min(count, _MOST_AWAITED_BYTES)
        if count != self._awaited_bytes:
            self._awaited_bytes = count
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def eof_received(self) -> None:
        if not self._reader.between_frames:
            self.failure = LinkError(f"{self.peer} closed the connection inside a message")

    def pause_writing(self) -> None:
        self._outflow.flushed.clear()

    def resume_writing(self) -> None:
        self._outflow.flushed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._liveness.end()
        _open.discard(ref(self))
        if self._listener is not None:
            self._listener.forget(self)
        if self.failure is None and not self._closing:
            self._read_the_rest()
        if self.failure is None and not self._closing:
            cause = f": {exc}" if exc else ""
            self.failure = LinkError(f"{self.peer} closed the connection{cause}")
        self._outflow.end()
        if self._socket is not None:
            self._socket.close()
        self._incoming = self._outgoing = None  # releases the shared memory
        self._reader.share_no_more()
        if not self._greeted.done():
            self._greeted.set_exception(self.failure or LinkError(f"{self.peer} is gone"))
        elif not self._greeted.cancelled():
            self._receiver.on_closed(self.failure)

    @property
    def their_challenge(self) -> bytes:
        """See :class:`anabranch.net.network.Connection`."""
        return self._reader.challenge or b""

    def is_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether this end lives in that loop."""
        return self._loop is loop

    @property
    def is_proven(self) -> bool:
        """Whether the TLS handshake is complete; True without TLS."""
        return self._tls is None or self._tls.is_ready

    def cut(self) -> None:
        """Close at once, and drop unsent data."""
        self._transport.abort()

    def filenos(self) -> list[int]:
        """Return the descriptors of this end; negative once it is closed."""
        around = [] if self._socket is None else [self._socket.fileno()]
        return [self._own.fileno(), *around]

    def _read_the_rest(self) -> None:
        """Read data that arrived before the end, which is unread if a write noticed the end.

        A peer's last message often tells why it closes.
        """
        fileno = self._own.fileno()
        try:
            while not self._closing and (count := os.readv(fileno, [self.get_buffer(0)])):
                self._advance(count)
        except OSError:
            pass  # no data is left
        except Exception as error:  # the peer's fault, or our own
            self.failure = error

    # --- the protocol's side

    async def greeted(self) -> None:
        """Wait for the callee's greeting; close if none comes in time, or the wait is cancelled.

        Raises:
            NetError: the callee is gone, sent no greeting in time, or speaks another protocol.
        """
        try:
            async with within(_GREETING_S):
                await self._greeted
        except TimeoutError:
            raise LinkError(f"it said nothing in {_GREETING_S:g} s") from None
        finally:
            if self._greeted.cancelled():
                self.close()

    def send(
        self, message: Message, payload: Payload = b"", head_first: bool = False
    ) -> Coroutine[Any, Any, None]:
        """See :meth:`anabranch.net.network.Connection.send`."""
        return self._outflow.send(message, payload, head_first)

    def post(self, message: Message) -> None:
        """See :meth:`anabranch.net.network.Connection.post`."""
        self._outflow.post(encode_frame(message))

    def post_payload(self, message: Message, payload: Payload) -> bool:
        """See :meth:`anabranch.net.network.Connection.post_payload`."""
        return self._outflow.post_payload(message, payload)

    def trust(self) -> None:
        self._reader.trust(self._limits)
        if self._tls is not None:
            self._tls.trust()
        if self._listener is not None:
            self._listener.forget(self)

    def close(self) -> None:
        """See :meth:`anabranch.net.network.Connection.close`."""
        self._outflow.say_the_end()
        self._closing = True
        self._liveness.tell(None)
        self._reader.stop()
        self._transport.close()


class _TcpListener:
    def __init__(self) -> None:
        self._server: asyncio.Server
        self._here: asyncio.Server | None = None  # for callers on this machine
        self._closed = False
        # Callers that have not proved their identities, oldest first, with their timeouts.
        self._untrusted: dict[_TcpConnection, Deadline] = {}

    async def begin(
        self,
        make: Callable[[], _TcpConnection],
        address: Address,
        shares_memory: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(make, *address)
        if shares_memory and is_loopback(self.address[0]):
            path = shared_memory.name_of(self.address)
            try:
                self._here = await loop.create_unix_server(make, path)
            except OSError:
                pass  # another user has the name, or such sockets are forbidden: use TCP only
            except BaseException:
                self._server.close()
                raise

        _note_open(self)

    def filenos(self) -> list[int]:
        """Return the descriptors on which it listens."""
        servers = filter(None, (self._server, self._here))
        return [listening.fileno() for server in servers for listening in server.sockets]

    @property
    def address(self) -> Address:
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def accepted(self, connection: _TcpConnection) -> None:
        if self._closed:  # the loop had accepted it before
            connection.close()
            return
        self._untrusted[connection] = after(_UNAUTHENTICATED_S, connection.close)
        if len(self._untrusted) > _MOST_UNAUTHENTICATED:
            unproven = (each for each in self._untrusted if not each.is_proven)
            earliest = next(unproven, next(iter(self._untrusted)))
            self.forget(earliest)
            earliest.close()

    def forget(self, connection: _TcpConnection) -> None:
        """Cancel the timeout of a caller that has proved its identity, or is gone."""
        timer = self._untrusted.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        self._closed = True
        for server in filter(None, (self._server, self._here)):
            loop = server.get_loop()
            if not loop.is_running():
                server.close()
                continue
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
            # A server that closes in the same turn would leak connections it has just accepted.
            loop.call_soon(server.close)
        for connection, timer in self._untrusted.items():
            timer.cancel()
            connection.close()
        self._untrusted.clear()


def set_congestion_control(connection: socket.socket, name: str) -> bool:
    """Ask the kernel for a congestion control; return whether the kernel permits it."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError:
        return False
    return True


def may_set_congestion_control(name: str) -> bool:
    """Return whether this process may choose a congestion control for its connections."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as unconnected:
        return set_congestion_control(unconnected, name)


def _is_here(connection: socket.socket) -> bool:
    """Return whether the other end is on this machine's loopback, which nothing congests."""
    try:
        return is_loopback(connection.getpeername()[0])
    except OSError:
        return True  # gone already


class TcpNetwork:
    """Connections over TCP.

    Args:
        limits: the largest message and payload accepted from a peer.
        congestion_control: the congestion control of connections made to other machines, by
            address. Other connections keep the kernel's default, and so does one where the kernel
            permits no choice; see :func:`may_set_congestion_control`.
        shares_memory: whether payloads go through shared memory, if the peer is on this machine's
            loopback and offers it.
        least_silence_s: the least silence after which a peer counts as lost; see
            :mod:`anabranch.net.silence`.
        heartbeat_s: how often each end sends something; the same at both ends.
        credentials: for TLS; None for none. With TLS no payload goes through shared memory.
        stillness_s: the least silence after which a peer counts as lost while its kernel answers.
        ends_with_way: whether connections made here end with :class:`SilentWay` soon after the path
            to the peer fails; for a caller that connects again at once.
    """

    heads_go_ahead = True

    def __init__(
        self,
        limits: Limits,
        congestion_control: Mapping[Address, str] | None = None,
        shares_memory: bool = True,
        least_silence_s: float = LANE_SILENCE_S,
        credentials: tls.Credentials | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        stillness_s: float = STILLNESS_S,
        ends_with_way: bool = False,
    ) -> None:
        self._patience = Patience(least_silence_s, heartbeat_s, stillness_s, ends_with_way)
        self._credentials = credentials
        shares_memory = shares_memory and credentials is None
        self._limits = limits
        self._shares_memory = shares_memory and shared_memory.is_possible()
        self._congestion_control = congestion_control or {}

    def give_up_after(self, least_silence_s: float, stillness_s: float = STILLNESS_S) -> None:
        """Set the least silences for connections made from now on.

        Args:
            least_silence_s, stillness_s: as for the class.
        """
        self._patience = replace(
            self._patience, least_silence_s=least_silence_s, stillness_s=stillness_s
        )

    async def connect(self, address: Address, receiver: Receiver) -> Connection:
        """See :meth:`anabranch.net.network.Network.connect`."""
        loop = asyncio.get_running_loop()
        make = partial(self._calling(receiver), self._congestion_control.get(address))
        is_near = self._shares_memory and is_loopback(address[0])
        here = await shared_memory.call(address) if is_near else None
        try:
            if here is not None:
                called, ring = here
                _, connection = await loop.create_unix_connection(
                    partial(make, outgoing=ring), sock=called
                )
            else:
                # For a host that does not answer, the kernel's own timeout takes some 20 s.
                longest_s = _CONNECT_SILENCES * self._patience.least_silence_s
                try:
                    async with within(longest_s):
                        _, connection = await loop.create_connection(make, *address)
                except TimeoutError:
                    raise LinkError(f"nothing answered in {longest_s:g} s") from None
            await connection.greeted()
        except (OSError, NetError) as error:
            kind = type(error) if isinstance(error, PeerError) else LinkError
            raise kind(f"cannot connect to {show(address)}: {error}") from error
        return connection

    def _calling(self, receiver: Receiver) -> Callable[..., _TcpConnection]:
        """Return a factory for connections that this process makes."""
        make_session: Callable[[], tls.Session] | None = None
        if self._credentials is not None:
            context = self._credentials.context(ssl.Purpose.SERVER_AUTH)
            make_session = partial(tls.Session, context, is_called=False)
        return partial(
            _TcpConnection,
            lambda _: receiver,
            self._limits,
            self._patience,
            None,
            make_session=make_session,
        )

    async def connect_through(self, end: pipe.End, peer: str, receiver: Receiver) -> Connection:
        """See :meth:`anabranch.net.network.Network.connect_through`."""
        ours, theirs = socket.socketpair()
        try:
            _start(end, await pipe.streams(theirs))
            _, connection = await asyncio.get_running_loop().create_unix_connection(
                partial(self._calling(receiver), through=peer), sock=ours
            )
            await connection.greeted()
        except (OSError, NetError) as error:
            kind = type(error) if isinstance(error, PeerError) else LinkError
            raise kind(f"cannot connect to {peer}: {error}") from error
        return connection

    async def pipe_to(self, address: Address, end: pipe.End) -> None:
        """See :meth:`anabranch.net.network.Network.pipe_to`."""
        try:
            async with within(_CONNECT_SILENCES * self._patience.least_silence_s):
                ends = await asyncio.open_connection(*address)
        except (OSError, TimeoutError) as error:
            raise LinkError(f"cannot connect to {show(address)}: {error}") from error
        _start(end, ends)

    def _called(self, credentials: tls.Credentials) -> Callable[[], tls.Session]:
        """Return a factory for a listener's TLS sessions; it reads the certificates each time."""
        context = credentials.context(ssl.Purpose.CLIENT_AUTH)

        def make() -> tls.Session:
            nonlocal context
            with suppress(tls.TlsError):  # while files are being replaced, the old ones serve
                context = credentials.context(ssl.Purpose.CLIENT_AUTH)
            return tls.Session(context, is_called=True)

        return make

    def adopt(self, connection: Connection, address: Address) -> Connection:
        """See :meth:`anabranch.net.network.Network.adopt`."""
        assert isinstance(connection, _TcpConnection)
        connection.give_up_after(self._patience.least_silence_s, self._patience.stillness_s)
        control = self._congestion_control.get(address)
        if control is not None:
            connection.send_by(control)
        return connection

    async def listen(
        self, address: Address, welcome: Callable[[Connection], Receiver]
    ) -> _TcpListener:
        """See :meth:`anabranch.net.network.Network.listen`; port 0 takes a free one."""
        listener = _TcpListener()
        credentials = self._credentials
        make_session = None if credentials is None else self._called(credentials)

        def make() -> _TcpConnection:
            # Only the caller connects again at once; the callee waits for that.
            patience = replace(self._patience, ends_with_way=False)
            return _TcpConnection(
                welcome, self._limits, patience, listener, make_session=make_session
            )

        try:
            await listener.begin(make, address, self._shares_memory)
        except OSError as error:
            raise LinkError(f"cannot listen on {show(address)}: {error}") from error
        return listener


# Connections of a lane where the kernel permits no choice of congestion control. At 30 ms and
# 0.02 % of loss, one connection under the default carries a quarter of 155 Mbit/s, and four carry
# three fifths.
STRANDS_INSTEAD = 4
# Connections of a lane under bbr, which every ten seconds nearly stops sending, to measure the
# path. On internet2-9 with that latency and loss, packed trees reached .876 of the limit with one
# connection, .908 and .910 with two, and .903 with three (one run each by hand, two with two).
_STRANDS_OF_BBR = 2
_MOST_STRANDS = 16
_USUAL_WINDOW_BYTES = 1 << 22
_NEAR_S = 1e-3  # one-way latency within a building
BY_ROUND_TRIP = "by round trip"
"""In place of a congestion control's name: the one that suits the round trip of each connection, as
it is made. For links whose latency is not known."""


def suits(link: Link) -> str:
    """Return the congestion control that suits a link, by the kernel's name for it.

    With 30 ms and 0.02 % of loss, bbr carries .94 of 155 Mbit/s and cubic .23. But bbr paces by
    timers. If dozens of lanes without delay share a machine, some bbr lanes stay at two thirds of
    their rate for seconds, whereas cubic fills all of them.

    >>> suits(Link(0, 1, 1e8, latency_s=0.03)), suits(Link(0, 1, 1e8))
    ('bbr', 'cubic')
    """
    return _suits(link.latency_s, link.loss)


def _suits(latency_s: float, loss: float = 0.0) -> str:
    return "bbr" if latency_s >= _NEAR_S or loss else "cubic"


def strands_of(controls: Mapping[Address, str]) -> int:
    """Return the number of connections per lane of a site.

    Args:
        controls: the suitable congestion control by address. Loopback addresses are ignored, since
            nothing congests them.

    >>> strands_of({("127.0.0.1", 7700): "bbr"})
    1
    """
    wanted = {control for (host, _), control in controls.items() if not is_loopback(host)}
    if BY_ROUND_TRIP in wanted:
        wanted = {"bbr", "cubic"}  # both may be
    if not all(map(may_set_congestion_control, wanted)):
        return STRANDS_INSTEAD
    return _STRANDS_OF_BBR if "bbr" in wanted else 1


def window_bytes() -> int:
    """Return how much one connection may have on its way, by the kernel's bounds of its buffers.

    The peer's kernel is taken to have the same bounds. Half of a receiver's buffer is for what the
    kernel keeps beside the data.
    """
    bounds = []
    for name, share in (("tcp_wmem", 1.0), ("tcp_rmem", 0.5)):
        try:
            most = Path("/proc/sys/net/ipv4", name).read_bytes().split()[-1]
        except OSError:  # another system than Linux
            return _USUAL_WINDOW_BYTES
        bounds.append(int(share * int(most)))
    return min(bounds)


def strands_to_fill(link: Link, each_bytes: int) -> int:
    """Return how many connections, 16 at most, cover a link's round trip with their windows.

    Args:
        link: its rate and latency.
        each_bytes: the window of one connection.

    >>> one_gigabit, ten = Link(0, 1, 1e9, latency_s=0.03), Link(0, 1, 1e10, latency_s=0.1)
    >>> strands_to_fill(one_gigabit, 4_194_304), strands_to_fill(ten, 16_777_216)
    (2, 15)
    """
    on_its_way_bytes = link.rate_bps / 8 * 2 * link.latency_s
    return min(_MOST_STRANDS, math.ceil(on_its_way_bytes / each_bytes))


class Networks:
    """The networks of a site's process: to the scheduler, and to other sites.

    Args:
        lane_limits: the largest message and payload accepted from another site.
        credentials: for TLS; None for none.

    Attributes:
        control: the network to the scheduler.
        data: the network on which this site accepts lanes.
    """

    def __init__(self, lane_limits: Limits, credentials: tls.Credentials | None = None) -> None:
        self._lane_limits = lane_limits
        self._credentials = credentials
        self.control = TcpNetwork(
            CONTROL_LIMITS,
            least_silence_s=CONTROL_SILENCE_S,
            credentials=credentials,
            ends_with_way=True,
        )
        self.data = TcpNetwork(lane_limits, credentials=credentials, heartbeat_s=LANE_HEARTBEAT_S)
        self._suits: dict[int, str] = {}  # congestion controls, by a link's target
        self._controls: dict[Address, str] = {}

    def lanes(
        self,
        overlay: Overlay,
        site: int,
        addresses: Mapping[int, Address],
        least_silence_s: float,
        stillness_s: float,
        congestion_control: str | None = None,
    ) -> tuple[TcpNetwork, int]:
        """Return the network for a site's outgoing lanes, and the number of connections per lane.

        Args:
            overlay: describes the links.
            site: the site that opens the lanes.
            addresses: of the neighbours, by index; see ``moved``.
            least_silence_s: the least silence that ends a lane, at either end.
            stillness_s: the least silence that ends a lane while the peer's kernel answers.
            congestion_control: of every lane, or :data:`BY_ROUND_TRIP`; None to choose by link, see
                :func:`suits`.
        """
        # Incoming lanes need the same silences: a lane that one end gives up is lost to both.
        self.data.give_up_after(least_silence_s, stillness_s)
        links = [link for link in overlay.links if link.source == site]
        self._suits = {link.target: congestion_control or suits(link) for link in links}
        self._controls = {}
        for target, address in addresses.items():
            self.moved(target, address)
        network = TcpNetwork(
            self._lane_limits,
            self._controls,
            least_silence_s=least_silence_s,
            credentials=self._credentials,
            heartbeat_s=LANE_HEARTBEAT_S,
            stillness_s=stillness_s,
        )
        window = window_bytes()
        fill = [
            strands_to_fill(link, window)
            for link in links
            if link.target in addresses and not is_loopback(addresses[link.target][0])
        ]
        # A neighbour's listener holds so many callers that have not proved their identity.
        most = max(1, _MOST_UNAUTHENTICATED // max(1, len(links)))
        return network, max(strands_of(self._controls), min(most, max(fill, default=1)))

    def moved(self, site: int, address: Address) -> None:
        """Set the address of a site that joined late, or joined again as another process."""
        if site in self._suits:
            self._controls[address] = self._suits[site]
