"""Pipes: a byte stream inside a connection's messages; neither end interprets the bytes.

A site that does not reach the scheduler uses a pipe through a neighbour. The neighbour connects to
the scheduler's listener. The connection between the two sites carries the bytes in both directions,
in pieces. TLS and heartbeats inside the stream are between the site and the scheduler. With TLS the
neighbour can neither read nor alter the stream; without TLS it can do both.

Each end pumps between the connection and a byte stream: at the site a socket pair, at the neighbour
a connection to the scheduler. An end buffers at most :data:`WINDOW` pieces that its stream has not
taken, and reports when one has left. It refuses a piece beyond that. When a stream ends, the pipe
sends the bytes that it read from it, and drops those that wait to be written to it. When the
connection ends, the end first writes the pieces that have arrived.
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
    """Return the reader and writer of a connected socket."""
    return await asyncio.open_unix_connection(sock=own)


class End:
    """One end of a pipe; the receiver of the connection that carries it.

    Args:
        connection: the connection; None if this side has yet to make it.

    Attributes:
        connection: see above; set once it is made.
        opened: done once the neighbour has connected to the scheduler; fails if it cannot.
        ended: set once the pipe carries no more data.
    """

    def __init__(self, connection: Connection | None = None) -> None:
        self.connection = connection
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self._came: asyncio.Queue[bytes] = asyncio.Queue()  # empty bytes mark the end
        self._room = asyncio.Semaphore(WINDOW)
        self._unanswered = 0  # sent pieces that have not left the pipe
        self._pump: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None

    # --- messages of the connection

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
            self.opened.exception()  # mark as retrieved: at the neighbour's end no task awaits it

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
        """End at once, and drop the data that has not left."""
        if self._pump is not None:
            self._pump.cancel()
        self.close()

    def close(self) -> None:
        """End once all data that was sent has left."""
        self._fail(LinkError("the pipe is closed"))
        self.ended.set()
        if self.connection is not None:
            self.connection.close()
