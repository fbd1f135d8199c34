"""The network made of TCP: one asyncio ``BufferedProtocol`` a connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from anabranch.net.errors import LinkError, NetError
from anabranch.net.frames import FrameReader, Limits, encode_frame
from anabranch.net.messages import Message
from anabranch.net.network import Address, Connection, Payload, Receiver

# Written at a time: what the kernel does not take at once, the transport copies, so a piece must
# be small beside a payload, and large beside the cost of a system call.
_WRITE_BYTES = 1 << 18


class _TcpConnection(asyncio.BufferedProtocol):
    """One end of a connection; see :class:`anabranch.net.network.Connection`."""

    def __init__(self, welcome: Callable[[Connection], Receiver], limits: Limits) -> None:
        self._welcome = welcome
        self._limits = limits
        self._receiver: Receiver
        self._reader: FrameReader
        self._transport: asyncio.Transport
        self._writable = asyncio.Event()
        self._sending = False
        self._posted: list[bytes] = []  # waits for the end of the send in progress
        self._failure: Exception | None = None
        self._closing = False

    # --- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=_WRITE_BYTES)
        self._writable.set()
        self._receiver = self._welcome(self)
        self._reader = FrameReader(
            self._receiver.on_message, self._receiver.on_refused, self._limits
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        try:
            self._reader.advance(nbytes)
        except NetError as error:
            self._failure = error
            self._transport.abort()

    def eof_received(self) -> None:
        if not self._reader.between_frames:
            self._failure = LinkError(f"{self.peer} closed the connection inside a message")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._failure is None and not self._closing:
            cause = f": {exc}" if exc else ""
            self._failure = LinkError(f"{self.peer} closed the connection{cause}")
        self._writable.set()  # wakes a sender, which then sees the failure
        self._receiver.on_closed(self._failure)

    # --- the protocol's side

    @property
    def peer(self) -> str:
        host, port = (self._transport.get_extra_info("peername") or ("?", 0))[:2]
        return f"{host}:{port}"

    async def send(self, message: Message, payload: Payload = b"") -> None:
        data = memoryview(payload).cast("B")
        self._sending = True
        try:
            self._write(encode_frame(message, len(data)))
            for start in range(0, len(data), _WRITE_BYTES):
                self._write(data[start : start + _WRITE_BYTES])
                if not self._writable.is_set():
                    await self._writable.wait()
        finally:
            self._sending = False
        for frame in self._posted:
            self._write(frame)
        self._posted.clear()

    def _write(self, data: bytes | memoryview) -> None:
        if self._failure is not None or self._transport.is_closing():
            raise LinkError(f"the connection to {self.peer} is gone") from self._failure
        self._transport.write(data)

    def post(self, message: Message) -> None:
        frame = encode_frame(message)
        if self._sending:
            self._posted.append(frame)
        elif not self._transport.is_closing():
            self._transport.write(frame)

    async def drained(self) -> None:
        """Return at once: the transport copies what the kernel has not taken."""

    def close(self) -> None:
        self._closing = True
        self._transport.close()


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def address(self) -> Address:
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def close(self) -> None:
        self._server.close()


class TcpNetwork:
    """Connections over TCP.

    Args:
        limits: the largest message and payload taken from a peer.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    async def connect(self, address: Address, receiver: Receiver) -> Connection:
        """See :meth:`anabranch.net.network.Network.connect`."""
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: _TcpConnection(lambda _: receiver, self._limits), *address
            )
        except OSError as error:
            raise LinkError(f"cannot connect to {address[0]}:{address[1]}: {error}") from error
        return connection

    async def listen(
        self, address: Address, welcome: Callable[[Connection], Receiver]
    ) -> _TcpListener:
        """See :meth:`anabranch.net.network.Network.listen`; port 0 takes a free one."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: _TcpConnection(welcome, self._limits), *address
            )
        except OSError as error:
            raise LinkError(f"cannot listen on {address[0]}:{address[1]}: {error}") from error
        return _TcpListener(server)
