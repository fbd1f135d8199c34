"""Hold a link to its rate and latency, in the sender, without privileges (local world only).

A link is modelled as it is in the overlay: bytes leave one after the other at the link's goodput,
and each arrives its latency later. A message is handed to TCP as a whole at the moment its last
byte would arrive, so the receiver sees it when it would over the real link, as long as the
machine's own transport is much faster.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping

from anabranch.net.errors import LinkError, PeerError
from anabranch.net.frames import DISCARD, Sink, encode_frame
from anabranch.net.messages import AnyMessage, Message
from anabranch.net.network import Address, Connection, Listener, Network, Payload, Receiver, frozen
from anabranch.overlay import Latency, Link


def serialised_s(link: Link, start_s: float, size_bytes: int) -> float:
    """Return when the last byte of a message has left, if its first leaves at ``start_s``.

    Follows the link's trace, if it has one, across changes of rate.

    >>> serialised_s(Link(0, 1, rate_bps=8e6), start_s=1.0, size_bytes=500_000)
    1.5
    """
    bits = 8.0 * size_bytes / (1.0 - link.loss)
    if link.trace is None:
        return start_s + bits / link.rate_bps
    now_s = start_s
    for change_s in (*link.trace.starts_s[1:], math.inf):
        if change_s > now_s:
            rate_bps = link.trace.rate_bps(now_s)
            if now_s + bits / rate_bps <= change_s:
                return now_s + bits / rate_bps
            bits -= (change_s - now_s) * rate_bps
            now_s = change_s
    raise AssertionError("the last piece of a trace lasts for ever")


class TokenBucket:
    """When bytes may leave on a link whose past use is known. Pure: time is handed in.

    An event loop wakes a sender a little late every time. What one message lost so, the next may
    make up for, and no more: a busy link keeps exactly its rate, and an idle one saves nothing up.

    >>> bucket = TokenBucket(Link(0, 1, rate_bps=8e6))
    >>> bucket.leave_s(1.0, size_bytes=100_000)
    1.1
    >>> bucket.woke(1.125)
    >>> round(bucket.leave_s(1.125, size_bytes=100_000), 3)
    1.2
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._free_s = -math.inf  # when the last byte of what was sent so far has left
        self._late_s = 0.0  # how much later than that the sender woke

    def leave_s(self, now_s: float, size_bytes: int) -> float:
        """Book a message; return the moment its last byte has left, seconds."""
        start_s = max(self._free_s, now_s - self._late_s)
        self._free_s = serialised_s(self._link, start_s, size_bytes)
        return self._free_s

    def woke(self, now_s: float) -> None:
        """Take note of when the sender saw that the message booked last has left."""
        self._late_s = max(0.0, now_s - self._free_s)


class ShapedConnection:
    """A connection whose sending direction behaves like an overlay link.

    Args:
        connection: a fast connection to the same peer.
        link: the rate, latency and loss to keep.
        latency: of the link's messages, one after the other.
        began_s: the loop's time at which the run began; the link's trace counts from there.
    """

    def __init__(
        self, connection: Connection, link: Link, latency: Latency, began_s: float
    ) -> None:
        self._connection = connection
        self.own_challenge = connection.own_challenge
        self.their_challenge = connection.their_challenge
        self.identity = connection.identity
        self._latency = latency
        self._post_s = link.latency_s
        self._bucket = TokenBucket(link)
        self._began_s = began_s
        self._loop = asyncio.get_running_loop()
        self._flying: deque[tuple[float, Message, Payload]] = deque()  # left, not yet arrived
        self._left = asyncio.Event()
        self._failure: BaseException | None = None
        self._delivery = self._loop.create_task(self._deliver(), name="link latency")

    @property
    def peer(self) -> str:
        """See :class:`anabranch.net.network.Connection`."""
        return self._connection.peer

    async def send(
        self, message: Message, payload: Payload = b"", head_first: bool = False
    ) -> None:
        """See :class:`anabranch.net.network.Connection`; returns when the last byte has left."""
        if self._failure is not None:
            raise self._failure
        size_bytes = len(encode_frame(message)) + memoryview(payload).nbytes
        now_s = self._now_s()
        leave_s = self._bucket.leave_s(now_s, size_bytes)
        await asyncio.sleep(leave_s - now_s)
        self._bucket.woke(self._now_s())
        # A link holds what is on its way, so that the sender may use its memory again.
        self._flying.append((leave_s + self._latency.next_s(), message, frozen(payload)))
        self._left.set()

    def _now_s(self) -> float:
        return self._loop.time() - self._began_s

    async def _deliver(self) -> None:
        try:
            while True:
                while not self._flying:
                    self._left.clear()
                    await self._left.wait()
                arrive_s, message, payload = self._flying[0]
                await asyncio.sleep(arrive_s - self._now_s())
                await self._connection.send(message, payload)
                self._flying.popleft()
        except Exception as error:  # the receiver hears of a lost connection; this is for senders
            self._failure = error

    def post(self, message: Message) -> None:
        """See :class:`anabranch.net.network.Connection`; it takes the latency at the start."""
        self._flying.append((self._now_s() + self._post_s, message, b""))
        self._left.set()

    def tell_silence(self, told: Callable[[bool], None]) -> None:
        """See :class:`anabranch.net.network.Connection`."""
        self._connection.tell_silence(told)

    def bear(self, silence_s: float) -> None:
        """See :class:`anabranch.net.network.Connection`."""
        self._connection.bear(silence_s)

    def trust(self) -> None:
        """See :class:`anabranch.net.network.Connection`."""
        self._connection.trust()

    def close(self) -> None:
        """Close at once: what is still on the link is lost."""
        self._delivery.cancel()
        self._connection.close()


class _FromAfar:
    """Hears what comes back on a connection, its latency later; it carries no payloads."""

    def __init__(self, receiver: Receiver, latency_s: float) -> None:
        self._receiver = receiver
        self._latency_s = latency_s
        self._loop = asyncio.get_running_loop()

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        self._loop.call_later(self._latency_s, self._hear, message)
        return DISCARD

    def _hear(self, message: AnyMessage) -> None:
        try:
            self._receiver.on_message(message, 0)
        except PeerError as error:
            self._receiver.on_refused(message, error)

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        raise AssertionError("nothing is refused before it is heard")

    def on_closed(self, error: Exception | None) -> None:
        self._receiver.on_closed(error)


class ShapedNetwork:
    """A network whose connections behave like the links they stand for.

    What is sent keeps the rate and latency of the link there. What comes back, credits and
    refusals, is held back by the latency of the link back, as it was at the start.

    Args:
        network: makes the connections; must be much faster than the links.
        links: the links there and back, by the address that the first leads to; None for a link
            back that there is not. Other addresses are left alone.
        seed: of latencies that drift.
        began: the loop's time at which the run began, once it has; nobody connects before.
    """

    heads_go_ahead = False

    def __init__(
        self,
        network: Network,
        links: Mapping[Address, tuple[Link, Link | None]],
        seed: int,
        began: asyncio.Future[float],
    ) -> None:
        self._network = network
        self._links = links
        self._seed = seed
        self._began = began

    async def connect(self, address: Address, receiver: Receiver) -> Connection:
        """See :meth:`anabranch.net.network.Network.connect`."""
        began_s = await self._began
        if address not in self._links:
            return await self._network.connect(address, receiver)
        there, back = self._links[address]
        from_afar = _FromAfar(receiver, (back or there).latency_s)
        connection = await self._network.connect(address, from_afar)
        return ShapedConnection(connection, there, Latency(there, self._seed), began_s)

    def adopt(self, connection: Connection, address: Address) -> Connection:
        """See :meth:`anabranch.net.network.Network.adopt`; here sites take connections.

        Raises:
            LinkError: always.
        """
        raise LinkError(f"{connection.peer} takes no connections, where links are shaped")

    async def listen(self, address: Address, welcome: Callable[[Connection], Receiver]) -> Listener:
        """See :meth:`anabranch.net.network.Network.listen`; what comes in is not held back."""
        return await self._network.listen(address, welcome)
