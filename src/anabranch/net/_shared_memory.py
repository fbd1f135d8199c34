"""Shared memory for the payloads of a connection within one machine.

The caller sends payloads through it (`_rings`), with one copy. A socket makes two copies, and wakes
the receiver for every few of its buffers. The callee sends its data through the socket.

The callee makes the memory, and passes its descriptor with the first byte of the stream. The memory
is sealed against shrinking, so that no peer can unmap it under a reader.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import socket
import struct
import sys
from asyncio.trsock import TransportSocket
from typing import NamedTuple

from anabranch.net._rings import RING_BYTES, IncomingRing, OutgoingRing
from anabranch.net.deadline import within

_ANSWER_S = 5.0  # how long a caller waits for the memory before it uses TCP
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


def is_possible() -> bool:
    """Return whether this system supports it; Linux does."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def offer(own: TransportSocket) -> IncomingRing | None:
    """Make memory, and pass its descriptor to the caller with the first byte of the stream.

    Args:
        own: the callee's socket.

    Returns:
        The ring to read from; None if the memory could not be made or passed.
    """
    try:
        memory = os.memfd_create("anabranch", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(memory, RING_BYTES)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            ring = IncomingRing(memoryview(mmap.mmap(memory, RING_BYTES)))
            with own.dup() as caller:
                socket.send_fds(caller, [b"\0"], [memory])
        finally:
            os.close(memory)
    except OSError:
        return None
    return ring


async def call(address: tuple[str, int]) -> tuple[socket.socket, OutgoingRing] | None:
    """Connect to a listener on this machine, and map the memory that it offers.

    Returns:
        A connected socket and the ring to send through; None if no such listener answers in time,
        or if it belongs to another user. Another user can take the name, but not a port in use.
    """
    try:
        caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        caller.setblocking(False)
        caller.connect(name_of(address))
        if _credentials(caller).user == os.geteuid():
            async with within(_ANSWER_S):
                await _readable(caller)
            _, descriptors, _, _ = socket.recv_fds(caller, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if descriptors:
                return caller, OutgoingRing(_mapped(descriptors[0]))
    except (OSError, ValueError):
        pass  # no listener answered, or its memory cannot be mapped
    except BaseException:
        caller.close()
        raise
    caller.close()
    return None


def _mapped(memory: int) -> memoryview:
    try:
        return memoryview(mmap.mmap(memory, RING_BYTES))
    finally:
        os.close(memory)


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


class _Credentials(NamedTuple):
    process: int
    user: int
    group: int


def _credentials(connection: socket.socket) -> _Credentials:
    """Return the credentials of a Unix-domain socket's peer; a listener's from when it began.

    Raises:
        OSError: the socket has no peer.
    """
    layout = struct.Struct("3i")
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return _Credentials(*layout.unpack(said))


def process_of(connection: socket.socket) -> int | None:
    """Return the process at the other end of a Unix-domain socket; None if unknown."""
    try:
        return _credentials(connection).process or None  # 0: in another PID namespace
    except OSError:
        return None


def other_end(connection: socket.socket) -> str:
    """Return a description of a Unix-domain socket's peer, for error messages."""
    process = process_of(connection)
    return "a process of this machine" if process is None else f"process {process} of this machine"
