"""Measures links by a short burst over each, as a group begins.

A group of which only the sites' names are known would plan its first exchanges for links that are
all alike. So each site measures the links to its neighbours as soon as the group begins::

    this site                              neighbour
      BurstChunk 0, without payload  ────────▶        opens the lane
      ◀──────────────────────────── BurstHeard 0
      BurstChunk 1, without payload  ────────▶        the round trip, while links are idle;
      ◀──────────────────────────── BurstHeard 1      the least of a few
      BurstChunk n, n + 1, ... last  ────────▶        notes when each has arrived
      ◀─────────────────────── BurstHeard, last       tells the scheduler rate and latency

Bursts cross all links at once, as trees do. So links that share a port show their shares. A burst
ends after a second, or after the bytes that the scheduler allows. The rate is that of its second
half, since a TCP connection begins slowly. The latency is half the round trip, until clocks are
known well enough for more.

Where plans depend on the size of a buffer that is not known yet, the scheduler makes the first plan
once all sites have said `BurstsOver`. A site says it after five seconds in any case, so a
neighbour that does not answer costs no more than that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from anabranch.exchange.actions import Send
from anabranch.exchange.terms import Op
from anabranch.net.addresses import takes_calls
from anabranch.net.deadline import within
from anabranch.net.errors import MalformedMessage
from anabranch.net.frames import Sink
from anabranch.net.messages import BurstChunk, LinkRate
from anabranch.net.throughput import burst_rate_bps
from anabranch.site._lanes import Lanes
from anabranch.site.neighbourhood import DataPlaneConfig, Neighbourhood

_QUIET_S = 0.2  # at least, in which round trips are measured
_LEAST_ROUND_TRIPS = 3
_LEAST_PAUSE_S = 0.01  # between them
_BURST_S = 1.0
_LONGEST_S = 5.0  # from the first chunk to the last answer, also where a neighbour stays away
_FIRST_CHUNK_BYTES, _CHUNK_BYTES = 1 << 10, 1 << 16  # they double, as a link may be very slow
_MOST_CHUNKS = 1 << 16  # that count of a neighbour's burst
_EXCHANGE = 0  # no exchange has this number
_ELEMENT_BYTES = 4
_NOTHING = memoryview(b"")


class Bursts:
    """The bursts from and to one site.

    Args:
        config: the data plane's configuration.
        neighbourhood: the state of the neighbours.
        most_bytes: of each burst.
        lanes: to the neighbours.
        answer: tells a neighbour that this site has one of its chunks, by the chunk's index.
        found: called with each measured link, and with the round trip over it.
    """

    def __init__(
        self,
        config: DataPlaneConfig,
        neighbourhood: Neighbourhood,
        most_bytes: int,
        lanes: Lanes,
        answer: Callable[[int, int], None],
        found: Callable[[LinkRate, float], None],
    ) -> None:
        self._config, self._neighbourhood = config, neighbourhood
        self._most_bytes = most_bytes
        self._lanes, self._answer, self._found = lanes, answer, found
        self._loop = asyncio.get_running_loop()
        self._awaited: dict[tuple[int, int], asyncio.Future[None]] = {}  # by neighbour and chunk
        self._arrivals: dict[int, list[tuple[float, int]]] = {}
        self._sources = {*config.overlay.sources[config.site]}  # whose bursts are yet to end
        self._have_ended = asyncio.Event()
        self._sending: dict[int, asyncio.Task[None]] = {}  # by neighbour

    async def run(self) -> None:
        """Send all bursts; return once those of the neighbours have come, or after five seconds."""
        for source in [*self._sources]:
            if not self._is_there(source):
                self._no_longer_await(source)
        if not self._sources:
            self._have_ended.set()
        for target in filter(self._is_there, self._config.overlay.targets[self._config.site]):
            burst = self._burst(target)
            self._sending[target] = self._loop.create_task(burst, name=f"burst to site {target}")
        try:
            async with within(_LONGEST_S):
                # Of a lost neighbour, the burst is cancelled.
                ends = await asyncio.gather(*self._sending.values(), return_exceptions=True)
                for error in ends:
                    if isinstance(error, Exception):
                        raise error
                await self._have_ended.wait()
        except TimeoutError:
            pass  # a neighbour is late, or lost; its links are measured as they are used
        finally:
            for each in self._sending.values():
                each.cancel()
            self._lanes.withdraw(_EXCHANGE)  # else filler would precede the first exchange

    def _is_there(self, neighbour: int) -> bool:
        """Return whether a neighbour has joined, is not lost, and one of both takes connections."""
        known, site = self._neighbourhood, self._config.site
        has_joined = known.addresses[neighbour][0] != ""
        ends = known.addresses[neighbour], known.addresses[site]
        return has_joined and neighbour not in known.lost and any(map(takes_calls, ends))

    def lost(self, neighbour: int) -> None:
        """Wait for a neighbour no longer: it is lost."""
        if neighbour in self._sending:
            self._sending[neighbour].cancel()
        self._no_longer_await(neighbour)

    async def _burst(self, target: int) -> None:
        await self._ask(target, 0)
        round_trip_s, quiet_until_s = math.inf, self._loop.time() + _QUIET_S
        chunk = 1
        while chunk <= _LEAST_ROUND_TRIPS or self._loop.time() < quiet_until_s:
            began_s = self._loop.time()
            await self._ask(target, chunk)
            round_trip_s = min(round_trip_s, self._loop.time() - began_s)
            chunk += 1
            await asyncio.sleep(max(round_trip_s / 4, _LEAST_PAUSE_S))
        until_s = self._loop.time() + _BURST_S
        most_bytes = min(_CHUNK_BYTES, _ELEMENT_BYTES * self._config.most_chunk_elements)
        filler = memoryview(bytes(most_bytes))
        size_bytes = min(_FIRST_CHUNK_BYTES, most_bytes)
        # One chunk more than there are connections is queued, so that none of these is idle.
        places = asyncio.Semaphore(self._config.strands + 1)
        left_bytes = self._most_bytes
        while left_bytes > 2 * size_bytes and self._loop.time() < until_s:
            await places.acquire()
            self._send(target, chunk, filler[:size_bytes], then=lambda _: places.release())
            chunk, left_bytes = chunk + 1, left_bytes - size_bytes
            size_bytes = min(2 * size_bytes, most_bytes)
        await self._ask(target, chunk, filler[:_FIRST_CHUNK_BYTES], round_trip_s)

    async def _ask(
        self,
        target: int,
        chunk: int,
        payload: memoryview = _NOTHING,
        round_trip_s: float | None = None,
    ) -> None:
        """Send a chunk, and wait for the answer to it."""
        heard = self._awaited[target, chunk] = self._loop.create_future()
        self._send(target, chunk, payload, round_trip_s, is_answered=True)
        await heard

    def _send(
        self,
        target: int,
        chunk: int,
        payload: memoryview,
        round_trip_s: float | None = None,
        is_answered: bool = False,
        then: Callable[[Send], None] | None = None,
    ) -> None:
        path = self._config.site, target
        message = BurstChunk(
            *(_EXCHANGE, 0, chunk, path, Op.COPY),
            is_answered=is_answered,
            round_trip_s=round_trip_s,
        )
        self._lanes.put(Send(message, payload, then=then))

    def heard(self, target: int, chunk: int) -> None:
        """Note a neighbour's answer to a chunk."""
        heard = self._awaited.pop((target, chunk), None)
        if heard is not None and not heard.done():
            heard.set_result(None)

    def receive(self, source: int, message: BurstChunk, payload_bytes: int) -> Sink:
        """Return where a neighbour's chunk goes.

        Raises:
            MalformedMessage: its round trip is impossible.
        """
        round_trip_s = message.round_trip_s
        if round_trip_s is not None and not 0 <= round_trip_s <= _LONGEST_S:
            raise MalformedMessage(f"a burst over a round trip of {round_trip_s} s")
        if source not in self._sources:
            return Sink()  # its burst has ended, or it counts as lost
        return Sink(done=lambda: self._arrived(source, message, payload_bytes))

    def _arrived(self, source: int, message: BurstChunk, payload_bytes: int) -> None:
        if message.is_answered:
            self._answer(source, message.chunk)
        if payload_bytes:
            arrivals = self._arrivals.setdefault(source, [])
            if len(arrivals) < _MOST_CHUNKS:
                arrivals.append((self._loop.time(), payload_bytes))
        if message.round_trip_s is not None:
            self._end(source, message.round_trip_s)

    def _end(self, source: int, round_trip_s: float) -> None:
        """Tell what a neighbour's burst shows."""
        arrivals = self._arrivals.pop(source, [])
        rate_bps = burst_rate_bps(arrivals)
        if rate_bps is not None:
            link = LinkRate(source, rate_bps, round_trip_s / 2, len(arrivals))
            self._found(link, round_trip_s)
        self._no_longer_await(source)

    def _no_longer_await(self, source: int) -> None:
        self._sources.discard(source)
        if not self._sources:
            self._have_ended.set()
