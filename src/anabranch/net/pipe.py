"""Pipes: a byte stream inside a connection's messages, which its two ends pass on as it is.

A site that does not reach the scheduler gets there through a neighbour: the neighbour connects to
the scheduler's listener, and what either says goes through the connection between the two sites in
pieces. The conversation inside, its TLS and its heartbeats are between the site and the scheduler.
With TLS the neighbour can neither read nor change it; without TLS it can do both.

Each end pumps between the connection and a stream of bytes: at the site that is a pair of sockets
of its own, at the neighbour a connection to the scheduler. An end keeps at most :data:`WINDOW`
pieces that its stream has not taken, and says when one has left; an end that sends more is refused.
When a stream ends, the pipe sends what that stream said, and drops what still waits for it. When
the connection ends, pieces that have come are written first.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from anabranch.net.errors import LinkError, OutOfPlaceMessage, PeerError
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.messages import AnyMessage, Piece, PieceTaken, Piped, Refusal
from anabranch.net.network import Connection

PIECE_BYTES = 1 << 15
WINDOW = 8

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def streams(own: socket.socket) -> Streams:
    """Return what reads and writes a connected socket."""
    return await asyncio.open_unix_connection(sock=own)


class End:
    """One end of a pipe; it receives what the connection that carries the pipe says.

    Args:
        connection: which; where this side makes it, as soon as it is made.

    Attributes:
        connection: see above.
        opened: done once the neighbour has the scheduler at its end; fails where it has not.
        ended: set once nothing passes any more.
    """

    def __init__(self, connection: Connection | None = None) -> None:
        self.connection = connection
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self._came: asyncio.Queue[bytes] = asyncio.Queue()  # empty bytes: nothing follows
        self._room = asyncio.Semaphore(WINDOW)
        self._unanswered = 0  # pieces that were sent, and have not left the pipe
        self._pump: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    # --- what the connection says

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        """See :class:`anabranch.net.network.Receiver`."""
        match message:
            case Piped() if not self.opened.done():
                self.opened.set_result(None)
            case Refusal():
                self._fail(LinkError(message.detail))
            case Piece() if len(message.data) > PIECE_BYTES or self._came.qsize() >= WINDOW:
                raise OutOfPlaceMessage(
                    f"a piece of {len(message.data)} bytes, where {self._came.qsize()} wait; at "
                    f"most {WINDOW} of {PIECE_BYTES} may"
                )
            case Piece(data) if data:
                self._came.put_nowait(data)
            case PieceTaken() if self._unanswered:
                self._unanswered -= 1
                self._room.release()
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__} in a pipe")
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        """See :class:`anabranch.net.network.Receiver`."""
        self._fail(error)
        self.close()

    def on_closed(self, error: Exception | None) -> None:
        """See :class:`anabranch.net.network.Receiver`."""
        self._fail(error or LinkError("the pipe is closed"))
        self._came.put_nowait(b"")
        if self._pump is None:
            self.ended.set()

    def _fail(self, error: Exception) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
            self.opened.exception()  # a neighbour's own end awaits no answer

    # --- the stream

    def start(self, ends: Streams) -> None:
        """Pump between the connection and a stream from now on, until either ends."""
        self._socket = ends[1].get_extra_info("socket")
        self._pump = asyncio.get_running_loop().create_task(self._run(*ends), name="pipe")

    def filenos(self) -> list[int]:
        """Return the stream's descriptor; negative once it is closed."""
        return [] if self._socket is None else [self._socket.fileno()]

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        pumps = [loop.create_task(self._send(reader)), loop.create_task(self._write(writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            writer.close()
        finally:
            for pump in pumps:
                pump.cancel()
            if not writer.is_closing():
                writer.transport.abort()
            self.close()

    async def _send(self, reader: asyncio.StreamReader) -> None:
        assert self.connection is not None
        with suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                await self._room.acquire()
                self._unanswered += 1
                self.connection.post(Piece(data))

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        assert self.connection is not None
        with suppress(OSError):
            while data := await self._came.get():
                writer.write(data)
                await writer.drain()
                self.connection.post(PieceTaken())

    def cut(self) -> None:
        """End at once, whatever has not left."""
        if self._pump is not None:
            self._pump.cancel()
        self.close()

    def close(self) -> None:
        """End once what was sent before has left."""
        self._fail(LinkError("the pipe is closed"))
        self.ended.set()
        if self.connection is not None:
            self.connection.close()
