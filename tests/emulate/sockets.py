"""Sockets that live in a network namespace, made by this process: no test needs another one."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from anabranch_lab.emulate import Emulation

F = TypeVar("F", bound=Callable[..., None])
T = TypeVar("T")

PORT = 5000
_needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="network namespaces can be made by root alone"
)


def emulates(test: F) -> F:
    """Mark a test that emulates links: slow, for root alone, and one at a time."""
    return pytest.mark.slow(pytest.mark.xdist_group("emulation")(_needs_root(test)))


def inside(wan: Emulation, site: int | None, do: Callable[[], T]) -> T:
    """Return what a function returns in a site's namespace, where sockets that it makes stay."""
    found: list[T] = []
    failed: list[BaseException] = []

    def enter() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/run/netns/{wan.inside(site)[-1]}", "rb") as there:
                assert libc.setns(there.fileno(), 0) == 0
            found.append(do())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def connect(wan: Emulation, source: int, target: int) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection between two sites."""
    with inside(wan, target, lambda: socket.create_server((wan.addresses[target], 0))) as server:
        address = server.getsockname()
        here = inside(wan, source, lambda: socket.create_connection(address, timeout=5))
        there, _ = server.accept()
    return here, there


def datagrams(wan: Emulation, site: int) -> socket.socket:
    """Return a UDP socket at a site's address."""

    def make() -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        made.bind((wan.addresses[site], PORT))
        return made

    return inside(wan, site, make)


def goodputs_bps(pairs: list[tuple[socket.socket, socket.socket]], seconds: float) -> list[float]:
    """Send over all connections at once; return what arrives on each in the same while."""
    stop = threading.Event()
    counts = [0] * len(pairs)

    def give(here: socket.socket) -> None:
        data = bytes(1 << 16)
        try:
            while not stop.is_set():
                here.sendall(data)
        except OSError:  # the other end is closed
            return

    def take(index: int, there: socket.socket) -> None:
        buffer = bytearray(1 << 18)
        try:
            while more := there.recv_into(buffer):
                counts[index] += more
        except OSError:
            return

    givers = [threading.Thread(target=give, args=(here,)) for here, _ in pairs]
    takers = [
        threading.Thread(target=take, args=(index, there)) for index, (_, there) in enumerate(pairs)
    ]
    for thread in (*takers, *givers):
        thread.start()
    # What a connection sends at first fills queues, and says nothing of the rate.
    stop.wait(0.3)
    began_s, before = time.monotonic(), counts.copy()
    stop.wait(seconds)
    took_s, after = time.monotonic() - began_s, counts.copy()
    stop.set()
    for each in (there for _, there in pairs):
        with suppress(OSError):  # it may be closed already
            each.shutdown(socket.SHUT_RDWR)
    for thread in (*givers, *takers):
        thread.join()
    for here, there in pairs:
        here.close()
        there.close()
    return [8 * (b - a) / took_s for a, b in zip(before, after, strict=True)]
