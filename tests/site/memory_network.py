"""A network inside one event loop: messages arrive whole, at once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from anabranch.net.errors import LinkError, PeerError
from anabranch.net.messages import Message, decode, encode
from anabranch.net.network import Address, Connection, Payload, Receiver

_ports = count(1)


class MemoryConnection:
    """One end; ``other`` is the other one."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.other: MemoryConnection
        self.receiver: Receiver
        self.open = True

    async def send(self, message: Message, payload: Payload = b"") -> None:
        if not self.open:
            raise LinkError(f"the connection to {self.peer} is gone")
        self.other.deliver(message, bytes(payload))
        await asyncio.sleep(0)

    def post(self, message: Message) -> None:
        if self.open:
            self.other.deliver(message, b"")

    def deliver(self, message: Message, payload: bytes) -> None:
        asyncio.get_running_loop().call_soon(self._arrive, encode(message), payload)

    def _arrive(self, data: bytes, payload: bytes) -> None:
        if not self.open:
            return
        message = decode(data)
        try:
            sink = self.receiver.on_message(message, len(payload))
        except PeerError as error:
            self.receiver.on_refused(message, error)
            return
        if sink.target is not None:
            sink.target[:] = payload
        elif sink.piece is not None:
            sink.piece(0, memoryview(payload))
        sink.done()

    def trust(self) -> None:
        pass

    def close(self) -> None:
        if self.open:
            self.open = False
            asyncio.get_running_loop().call_soon(self.receiver.on_closed, None)
            asyncio.get_running_loop().call_soon(self.other.lose, "closed by the other side")

    def lose(self, why: str) -> None:
        if self.open:
            self.open = False
            self.receiver.on_closed(LinkError(why))


class MemoryListener:
    def __init__(self, network: MemoryNetwork, address: Address) -> None:
        self._network = network
        self.address = address

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)


class MemoryNetwork:
    """See :class:`anabranch.net.network.Network`."""

    def __init__(self) -> None:
        self.listeners: dict[Address, Callable[[Connection], Receiver]] = {}

    async def listen(
        self, address: Address, welcome: Callable[[Connection], Receiver]
    ) -> MemoryListener:
        address = address[0], address[1] or next(_ports)
        self.listeners[address] = welcome
        return MemoryListener(self, address)

    async def connect(self, address: Address, receiver: Receiver) -> MemoryConnection:
        if address not in self.listeners:
            raise LinkError(f"nobody listens at {address}")
        here, there = MemoryConnection(f"{address}"), MemoryConnection("caller")
        here.other, there.other = there, here
        here.receiver = receiver
        there.receiver = self.listeners[address](there)
        return here
