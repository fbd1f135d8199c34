"""Hold a link to its rate and latency, in the sender, without privileges (local world only).

A link is modelled as it is in the overlay: bytes leave one after the other at the link's goodput,
and each arrives its latency later. A message is handed to TCP as a whole at the moment its last
byte would arrive, so the receiver sees it when it would over the real link, as long as the
machine's own transport is much faster.

What scripted faults leave of a link is a `Course`. A cut link carries nothing: what waits for it
waits on, what has left it arrives, and no heartbeat crosses it either, so that it is as silent as a
real one. Only that an end has closed is heard at once.
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
    """What is left of a link's rate as time goes on, drawn as far as is asked. Pure.

    Args:
        changes: from when on what factor holds, seconds since the run began; moments never fall.
            Before the first the factor is 1, the last holds for ever.

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
        """Return the factor at a moment, and until when it holds, which is later."""
        while self._starts_s[-1] <= at_s:
            start_s, factor = next(self._coming, (math.inf, 1.0))
            self._starts_s.append(start_s)
            self._factors.append(factor)
        index = bisect_right(self._starts_s, at_s)
        return self._factors[index - 1], self._starts_s[index]

    def is_cut(self, at_s: float) -> bool:
        """Return whether the link carries nothing at a moment."""
        return self.piece(at_s)[0] == 0.0

    def whole_s(self, at_s: float) -> float:
        """Return the first moment, from one on, at which the link carries something."""
        factor, until_s = self.piece(at_s)
        while factor == 0.0 and until_s < math.inf:
            at_s = until_s
            factor, until_s = self.piece(at_s)
        return at_s if factor else math.inf


def serialised_s(
    link: Link, start_s: float, size_bytes: int, course: Course | None = None
) -> float:
    """Return when the last byte of a message has left, if its first leaves at ``start_s``.

    Follows the link's trace, and its course, if it has them, across changes of rate. Infinite
    where the link is cut for ever before that.

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
    """When bytes may leave on a link whose past use is known. Pure: time is handed in.

    An event loop wakes a sender a little late every time. What one message lost so, the next may
    make up for, and no more: a busy link keeps exactly its rate, and an idle one saves nothing up.

    Args:
        link: its rate, loss and trace.
        course: what is left of its rate; None where all of it always is.

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
        self._free_s = -math.inf  # when the last byte of what was sent so far has left
        self._late_s = 0.0  # how much later than that the sender woke

    def leave_s(self, now_s: float, size_bytes: int) -> float:
        """Book a message; return the moment its last byte has left, seconds."""
        start_s = max(self._free_s, now_s - self._late_s)
        self._free_s = serialised_s(self._link, start_s, size_bytes, self._course)
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
        course: what is left of the link's rate.
        began_s: the loop's time at which the run began; the link's trace and course count from
            there.
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
        left_s = self._course.whole_s(self._now_s())
        if left_s < math.inf:  # else it never leaves
            self._flying.append((left_s + self._post_s, message, b""))
            self._left.set()

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
        """Close at once: what is still on the link is lost."""
        self._delivery.cancel()
        self._connection.close()


class _FromAfar:
    """Hears what comes back on a connection, its latency after the link carries it.

    No payloads come back.
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
    """A network whose connections behave like the links they stand for.

    What is sent keeps the rate and latency of the link there. What comes back, credits and
    refusals, is held back by the latency of the link back, as it was at the start. Over a link that
    is cut no connection is made.

    Args:
        network: makes the connections; must be much faster than the links.
        links: the links there and back, by the address that the first leads to; None for a link
            back that there is not. Other addresses are left alone.
        seed: of latencies that drift.
        began: the loop's time at which the run began, once it has; no site connects before.
        course: returns what is left of the rate of a link, by its source and target.
        connect_s: how long a link that is cut is waited for where a connection is to be made.
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
        """See :meth:`anabranch.net.network.Network.adopt`; here sites take connections.

        Raises:
            LinkError: always.
        """
        raise LinkError(f"{connection.peer} takes no connections, where links are shaped")

    async def listen(self, address: Address, welcome: Callable[[Connection], Receiver]) -> Listener:
        """See :meth:`anabranch.net.network.Network.listen`; what comes in is not held back."""
        return await self._network.listen(address, welcome)
