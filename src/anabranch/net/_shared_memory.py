"""Memory that both ends of a connection within one machine have mapped, for payloads.

A caller sends through it (`_rings`): one copy, where a socket makes two and wakes
the receiver for every few of its buffers. What the called end sends goes through the socket.

The end that is called makes the memory and hands it over with the first byte of the stream. It is
sealed against shrinking, so that no peer can take it away from under a reader.
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

_ANSWER_S = 5.0  # until a listener that says nothing is called over TCP
_SEALS = getattr(fcntl, "F_SEAL_SHRINK", 0) | getattr(fcntl, "F_SEAL_GROW", 0)


def is_possible() -> bool:
    """Return whether this system has what it takes; Linux has."""
    return sys.platform == "linux" and hasattr(os, "memfd_create")


def offer(own: TransportSocket) -> IncomingRing | None:
    """Make memory and hand it to who has just called, with the first byte of the stream.

    Args:
        own: the socket of the end that was called.

    Returns:
        The ring to read from; None where it could not be made or handed over.
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
    """Call a listener of this machine, and take the memory it offers.

    Returns:
        A connected socket and the ring to send through; None where no such listener answers soon,
        or where it is another user's, who may take a name but not a port that is in use.
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
        pass  # no listener answered, or what it sent cannot be mapped
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
    """Return whose the other end of a Unix-domain socket is; for a listener, at the time it began.

    Raises:
        OSError: there is no other end.
    """
    layout = struct.Struct("3i")
    said = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, layout.size)
    return _Credentials(*layout.unpack(said))


def process_of(connection: socket.socket) -> int | None:
    """Return the process at the other end of a Unix-domain socket; None where it is not known."""
    try:
        return _credentials(connection).process or None  # 0: of another namespace of processes
    except OSError:
        return None


def other_end(connection: socket.socket) -> str:
    """Return which process is at the other end of a Unix-domain socket, for error messages."""
    process = process_of(connection)
    return "a process of this machine" if process is None else f"process {process} of this machine"
