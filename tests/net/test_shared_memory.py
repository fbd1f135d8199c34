"""Memory shared by two ends of a connection: handed over, sealed, and gone with them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket

import pytest

from anabranch.net._rings import PLACE
from anabranch.net._shared_memory import call, is_possible, name_of, offer, other_end

on_linux = pytest.mark.skipif(not is_possible(), reason="needs Linux")


@on_linux
def test_both_ends_see_the_same_memory_and_no_descriptor_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))

    async def play() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name_of(("127.0.0.1", os.getpid())))
            listener.listen()
            calling = asyncio.ensure_future(call(("127.0.0.1", os.getpid())))
            await asyncio.sleep(0)
            called, _ = listener.accept()
            incoming = offer(called)
            found = await calling
            assert found is not None
            caller, outgoing = found
            place = outgoing.put(memoryview(b"as it was put"))
            assert incoming.piece(*PLACE.unpack(place)) == b"as it was put"
            assert other_end(caller) == f"process {os.getpid()} of this machine"
            caller.close()
            called.close()

    asyncio.run(play())
    assert len(os.listdir("/proc/self/fd")) == before


@on_linux
def test_the_memory_cannot_be_taken_away_from_a_reader() -> None:
    called, caller = socket.socketpair()
    with called, caller:
        offer(called)
        _, (memory,), _, _ = socket.recv_fds(caller, 1, 1)
        assert fcntl.fcntl(memory, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
        with pytest.raises(PermissionError):
            os.ftruncate(memory, 0)
        os.close(memory)


@on_linux
def test_who_calls_where_nobody_or_somebody_else_listens_gets_nothing() -> None:
    async def play() -> None:
        address = ("127.0.0.1", os.getpid())
        assert await call(address) is None
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(name_of(address))
            listener.listen()
            calling = asyncio.ensure_future(call(address))
            await asyncio.sleep(0)
            unauthenticated, _ = listener.accept()
            unauthenticated.sendall(b"\0")  # and no memory
            assert await calling is None
            unauthenticated.close()

    asyncio.run(play())


@on_linux
def test_another_users_listener_gets_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    address = ("127.0.0.1", os.getpid())
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name_of(address))
        listener.listen()
        monkeypatch.setattr(os, "geteuid", lambda: 12345)  # the listener then is another user's
        assert asyncio.run(call(address)) is None
