"""Memory that both ends of a connection within one machine have mapped, for payloads.

A caller sends through it. It copies a payload into a ring, in pieces, and says in the stream where
each lies; the end that was called reads it there and says, now and then, how many pieces it needs
no more. That is one copy, where a socket makes two and wakes the receiver for every few of its
buffers. What the called end sends goes through the socket.

The end that is called makes the memory and hands it over with the first byte of the stream. It is
sealed against shrinking, so that no peer can take it away from under a reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections import deque

from anabranch.net.errors import MalformedMessage

RING_BYTES = 1 << 23
PIECE_BYTES = 1 << 21
"""The most of a piece. A quarter of the ring, so that one always fits beside what is not said to be
free yet."""
PLACE = struct.Struct(">II")
"""What the stream says of a piece: where in the ring it begins, and its length, bytes."""
_LINE_BYTES = 64  # pieces begin on cache lines
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


def is_possible() -> bool:
    """Return whether this system has what it takes; Linux has."""
    return hasattr(os, "memfd_create")


class OutgoingRing:
    """The sender's end of a ring.

    >>> ring = OutgoingRing(memoryview(bytearray(RING_BYTES)))
    >>> PLACE.unpack(ring.put(memoryview(b"12345678"))), PLACE.unpack(ring.put(memoryview(b"1234")))
    ((0, 8), (64, 4))
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._full: deque[tuple[int, int]] = deque()  # beginning and end of pieces, oldest first

    def put(self, payload: memoryview) -> bytes:
        """Copy the front of a payload to where there is room; return its place, b"" if none is."""
        size = min(len(payload), PIECE_BYTES)
        start = self._room(size)
        if start is None:
            return b""
        self._memory[start : start + size] = payload[:size]
        end = start + size
        self._full.append((start, end + -end % _LINE_BYTES))
        return PLACE.pack(start, size)

    def _room(self, size: int) -> int | None:
        if not self._full:
            return 0  # memory that is likely to be in the cache
        (oldest, _), (newest, end) = self._full[0], self._full[-1]
        if newest < oldest:
            return end if end + size <= oldest else None
        if end + size <= len(self._memory):
            return end
        return 0 if size <= oldest else None

    def free(self, count: int) -> None:
        """Use the oldest so many pieces' memory again.

        Raises:
            MalformedMessage: there are not so many.
        """
        if count > len(self._full):
            raise MalformedMessage(f"{count} pieces are said to be read, of {len(self._full)} sent")
        for _ in range(count):
            self._full.popleft()


class IncomingRing:
    """The receiver's end of a ring."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._read = self._read_bytes = 0  # pieces that the sender does not know of yet

    def piece(self, start: int, size: int) -> memoryview:
        """Return a piece that the sender has put.

        Raises:
            MalformedMessage: it does not lie in the ring.
        """
        if start % _LINE_BYTES or not 0 < size <= PIECE_BYTES or start + size > len(self._memory):
            raise MalformedMessage(f"a piece of {size} bytes at {start} of shared memory")
        self._read += 1
        self._read_bytes += size + -size % _LINE_BYTES
        return self._memory[start : start + size]

    def to_free(self) -> int:
        """Return how many pieces the sender may free now; 0 while that is not worth a message."""
        if self._read_bytes < PIECE_BYTES:
            return 0
        count, self._read, self._read_bytes = self._read, 0, 0
        return count


def _mapped(descriptor: int) -> memoryview:
    """Map shared memory; the descriptor is closed, the mapping lasts as long as the view."""
    try:
        return memoryview(mmap.mmap(descriptor, RING_BYTES))
    finally:
        os.close(descriptor)


def offer(caller: socket.socket) -> IncomingRing:
    """Make memory and hand it to who has just called, with the first byte of the stream."""
    memory = os.memfd_create("anabranch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, RING_BYTES)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    with contextlib.suppress(OSError):  # gone again: reading the stream will tell
        socket.send_fds(caller, [b"\0"], [memory])
    return IncomingRing(_mapped(memory))


async def call(address: tuple[str, int]) -> tuple[socket.socket, OutgoingRing] | None:
    """Call a listener of this machine, and take the memory it offers.

    Returns:
        A connected socket and the ring to send through; None where no such listener is.
    """
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        caller.setblocking(False)
        caller.connect(name_of(address))
        await _readable(caller)
        _, descriptors, _, _ = socket.recv_fds(caller, 1, 1)
        if descriptors:
            return caller, OutgoingRing(_mapped(descriptors[0]))
    except OSError:
        pass  # nobody listens there, or no more
    except BaseException:
        caller.close()
        raise
    caller.close()
    return None


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)


def name_of(address: tuple[str, int]) -> str:
    """Return a listener's name among the Unix-domain sockets of its network namespace."""
    return "\0anabranch/{}:{}".format(*address)


def other_end(connection: socket.socket) -> str:
    """Return which process is at the other end of a Unix-domain socket, for error messages."""
    try:
        said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError:
        return "a process of this machine"
    return f"process {struct.unpack('3i', said)[0]} of this machine"
