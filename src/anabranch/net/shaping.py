"""Emulates a link's rate and latency in the sender, without privileges (for one machine only).

The model is the overlay's: bytes leave one after the other at the link's goodput, and each arrives
one latency later. TCP gets a message as a whole, when its last byte would arrive over the real
link. So the receiver sees it at the right time, if the machine's transport is much faster.

A `Course` holds the effects of scripted faults on a link. A cut link carries no messages and no
heartbeats, so that it is as silent as a real one. Messages that wait for it keep waiting, and
messages that have left arrive. One thing is unlike a real cut: a close is noticed at once.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from anabranch.net.addresses import show
from anabranch.net.errors import LinkError, PeerError
from anabranch.net.frames import DISCARD, Sink, encode_frame
from anabranch.net.messages import AnyMessage, Message
from anabranch.net.network import Address, Connection, Listener, Network, Payload, Receiver, frozen
from anabranch.overlay import Latency, Link


class Course:
    """The factor on a link's rate over time; changes are read as needed. Pure.

    Args:
        changes: (start, factor), starts in seconds since the run began, in rising order. Before the
            first start the factor is 1; the last factor holds for ever.

    >>> course = Course([(5.0, 0.0), (7.0, 1.0)])
    >>> course.piece(6.0), course.piece(7.0)
    ((0.0, 7.0), (1.0, inf))
    >>> course.is_cut(6.0), course.whole_s(6.0)
    (True, 7.0)
    """

    def __init__(self, changes: Iterable[tuple[float, float]] = ()) -> None:
        self._coming = iter(changes)
        self._starts_s = [-math.inf]
        self._factors = [1.0]

    def piece(self, at_s: float) -> tuple[float, float]:
        """Return the factor at a time, and the later time at which it ends."""
        while self._starts_s[-1] <= at_s:
            start_s, factor = next(self._coming, (math.inf, 1.0))
            self._starts_s.append(start_s)
            self._factors.append(factor)
        index = bisect_right(self._starts_s, at_s)
        return self._factors[index - 1], self._starts_s[index]

    def is_cut(self, at_s: float) -> bool:
        """Return whether the link carries nothing at a time."""
        return self.piece(at_s)[0] == 0.0

    def whole_s(self, at_s: float) -> float:
        """Return the first time, ``at_s`` or later, at which the link carries data."""
        factor, until_s = self.piece(at_s)
        while factor == 0.0 and until_s < math.inf:
            at_s = until_s
            factor, until_s = self.piece(at_s)
        return at_s if factor else math.inf


def serialised_s(
    link: Link, start_s: float, size_bytes: int, course: Course | None = None
) -> float:
    """Return when the last byte of a message leaves, if its first leaves at ``start_s``.

    It follows the changes of rate in the link's trace and course, if any. The result is infinite if
    the link is cut for ever before that.

    >>> serialised_s(Link(0, 1, rate_bps=8e6), start_s=1.0, size_bytes=500_000)
    1.5
    """
    bits = 8.0 * size_bytes / (1.0 - link.loss)
    now_s = start_s
    while now_s < math.inf:
        rate_bps, change_s = link.rate_bps, math.inf
        if link.trace is not None:
            starts_s = link.trace.starts_s
            later = bisect_right(starts_s, now_s, lo=1)
            rate_bps = link.trace.rates_bps[later - 1]
            change_s = starts_s[later] if later < len(starts_s) else math.inf
        if course is not None:
            factor, until_s = course.piece(now_s)
            rate_bps, change_s = rate_bps * factor, min(change_s, until_s)
        if rate_bps and now_s + bits / rate_bps <= change_s:
            return now_s + bits / rate_bps
        bits -= (change_s - now_s) * rate_bps if rate_bps else 0.0
        now_s = change_s
    return math.inf


class TokenBucket:
    """Computes when messages may leave on a link. Pure: times are passed in.

    An event loop wakes a sender a little late every time. The next message makes up for exactly
    that delay. So a busy link keeps exactly its rate, and an idle link accumulates no credit.

    Args:
        link: gives the rate, loss and trace.
        course: the factor on the rate; None for 1.

    >>> bucket = TokenBucket(Link(0, 1, rate_bps=8e6))
    >>> bucket.leave_s(1.0, size_bytes=100_000)
    1.1
    >>> bucket.woke(1.125)
    >>> round(bucket.leave_s(1.125, size_bytes=100_000), 3)
    1.2
    """

    def __init__(self, link: Link, course: Course | None = None) -> None:
        self._link = link
        self._course = course
        self._free_s = -math.inf  # when the last byte of all messages so far has left
        self._late_s = 0.0  # how much later the sender woke

    def leave_s(self, now_s: float, size_bytes: int) -> float:
        """Add a message; return when its last byte has left, seconds."""
        start_s = max(self._free_s, now_s - self._late_s)
        self._free_s = serialised_s(self._link, start_s, size_bytes, self._course)
        return self._free_s

    def woke(self, now_s: float) -> None:
        """Note when the sender woke after the last message had left."""
        self._late_s = max(0.0, now_s - self._free_s)


class ShapedConnection:
    """A connection whose sending direction behaves like an overlay link.

    Args:
        connection: a fast connection to the same peer.
        link: the rate, latency and loss to emulate.
        latency: gives the latency of each message, in order.
        course: the factor on the link's rate.
        began_s: the loop's time when the run began; times in the link's trace and course count from
            it.
    """

    def __init__(
        self,
        connection: Connection,
        link: Link,
        latency: Latency,
        course: Course,
        began_s: float,
    ) -> None:
        self._connection = connection
        self.own_challenge = connection.own_challenge
        self.their_challenge = connection.their_challenge
        self.identity = connection.identity
        self.hosts = connection.hosts
        self.process = connection.process
        self._latency = latency
        self._post_s = link.latency_s
        self._bucket = TokenBucket(link, course)
        self._course = course
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
        """See :class:`anabranch.net.network.Connection`; it returns once the last byte has left."""
        if self._failure is not None:
            raise self._failure
        size_bytes = len(encode_frame(message)) + memoryview(payload).nbytes
        now_s = self._now_s()
        leave_s = self._bucket.leave_s(now_s, size_bytes)
        await asyncio.sleep(leave_s - now_s)
        self._bucket.woke(self._now_s())
        # The emulated link keeps a copy, so that the sender may reuse its memory.
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
        except Exception as error:  # for senders; the receiver gets `on_closed` anyway
            self._failure = error

    def post(self, message: Message) -> None:
        """See :class:`anabranch.net.network.Connection`; the delay is the link's first latency."""
        left_s = self._course.whole_s(self._now_s())
        if left_s < math.inf:  # else it never leaves
            self._flying.append((left_s + self._post_s, message, b""))
            self._left.set()

    def post_payload(self, message: Message, payload: Payload) -> bool:
        """See :class:`anabranch.net.network.Connection`; each payload waits for the link."""
        return False

    def tell_silence(self, told: Callable[[bool], None]) -> None:
        """See :class:`anabranch.net.network.Connection`."""
        self._connection.tell_silence(told)

    def bear(self, silence_s: float) -> None:
        """See :class:`anabranch.net.network.Connection`."""
        self._connection.bear(silence_s)

    def fall_silent(self, is_mute: Callable[[], bool], is_deaf: Callable[[], bool]) -> None:
        """See :class:`anabranch.net.network.Connection`."""
        self._connection.fall_silent(is_mute, is_deaf)

    def trust(self) -> None:
        """See :class:`anabranch.net.network.Connection`."""
        self._connection.trust()

    def close(self) -> None:
        """Close at once; messages still in flight are lost."""
        self._delivery.cancel()
        self._connection.close()


class _FromAfar:
    """Delays messages that come back on a connection by the latency of the link back.

    They have no payloads. While that link is cut, they wait.
    """

    def __init__(
        self, receiver: Receiver, latency_s: float, course: Course, began_s: float
    ) -> None:
        self._receiver = receiver
        self._latency_s = latency_s
        self._course = course
        self._began_s = began_s
        self._loop = asyncio.get_running_loop()

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        left_s = self._course.whole_s(self._loop.time() - self._began_s)
        if left_s < math.inf:
            self._loop.call_at(self._began_s + left_s + self._latency_s, self._hear, message)
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
    """A network whose connections behave like the links that they emulate.

    Sent messages get the rate and latency of the link there. Credits and refusals that come back
    get the latency of the link back, as it was at the start. While either link is cut, no
    connection is made.

    Args:
        network: makes the connections; must be much faster than the links.
        links: (the link there, the link back or None), by the address of the first one's target.
            Connections to other addresses are not shaped.
        seed: seeds the drift of latencies.
        began: the loop's time when the run began, once it has; no site connects before.
        course: returns the factor on a link's rate, by the link's source and target.
        connect_s: how long a connection attempt waits for a cut link.
    """

    heads_go_ahead = False

    def __init__(
        self,
        network: Network,
        links: Mapping[Address, tuple[Link, Link | None]],
        seed: int,
        began: asyncio.Future[float],
        course: Callable[[tuple[int, int]], Course] = lambda link: Course(),
        connect_s: float = math.inf,
    ) -> None:
        self._network = network
        self._links = links
        self._seed = seed
        self._began = began
        self._course = course
        self._connect_s = connect_s

    async def connect(self, address: Address, receiver: Receiver) -> Connection:
        """See :meth:`anabranch.net.network.Network.connect`."""
        began_s = await self._began
        if address not in self._links:
            return await self._network.connect(address, receiver)
        there, back = self._links[address]
        way = self._course((there.source, there.target))
        way_back = self._course((there.target, there.source))

        def now_s() -> float:
            return asyncio.get_running_loop().time() - began_s

        for each in (way, way_back):
            missing_s = each.whole_s(now_s()) - now_s()
            if missing_s > self._connect_s:
                await asyncio.sleep(self._connect_s)
                raise LinkError(
                    f"cannot connect to {show(address)}: nothing answered in {self._connect_s:g} s"
                )
            await asyncio.sleep(missing_s)
        from_afar = _FromAfar(receiver, (back or there).latency_s, way_back, began_s)
        connection = await self._network.connect(address, from_afar)
        connection.fall_silent(lambda: way.is_cut(now_s()), lambda: way_back.is_cut(now_s()))
        return ShapedConnection(connection, there, Latency(there, self._seed), way, began_s)

    def adopt(self, connection: Connection, address: Address) -> Connection:
        """See :meth:`anabranch.net.network.Network.adopt`; unsupported, since all sites listen.

        Raises:
            LinkError: always.
        """
        raise LinkError(f"{connection.peer} takes no connections, where links are shaped")

    async def listen(self, address: Address, welcome: Callable[[Connection], Receiver]) -> Listener:
        """See :meth:`anabranch.net.network.Network.listen`; incoming messages are not delayed."""
        return await self._network.listen(address, welcome)
