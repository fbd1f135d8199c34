"""A lane: the sending queue towards one neighbour.

What bounds the queues, however slow the link:

- what a site sends of its own (its sums, the results it passes down) is at most one entry for each
  chunk and neighbour, and the entry refers to memory that the exchange holds anyway;
- what it relays is bounded by credit: the hop before a relay may have a window of chunks of each
  route there, and gets one back when the relay has passed a chunk on. The credits of one route do
  not touch another's, and a receiver always takes what it is sent, so no circle of relays can come
  to wait for itself and a slow link holds up nothing but what must cross it.

What is *spare* (the state of training, handed to a newcomer while the others go on) uses what all
else leaves of the link, and one message in ten at least, so that it arrives however busy that is.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain

from msgspec import structs

from anabranch.exchange.actions import Send
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.net.messages import ChunkMessage, Letter, Message, Result, Stamp
from anabranch.net.network import Connection
from anabranch.overlay import Link

Path = tuple[int, ...]

_NOTHING = memoryview(b"")
_REMEMBERED = 1 << 16  # chunks that were sent, for a peer that refuses one
_BEFORE_SPARE = 9  # messages that are sent before a spare one that waits


def relay_window(there: Link, back: Link | None, chunk_bytes: int) -> int:
    """Return how many chunks of one route may be at the relay that a link leads to.

    One is being received, one is being passed on; beyond those, as many as the link carries at its
    fastest while a chunk travels there and its credit back, so that the credit is never what limits
    the rate. (Latencies that drift count as they are at the start.)

    Args:
        there: the link to the relay.
        back: the link that credits come back on; None where it has none of its own, and takes as
            long as the other.
        chunk_bytes: the most bytes of a chunk.

    >>> there, back = Link(0, 1, 80e6, latency_s=0.05), Link(1, 0, 10e6, latency_s=0.15)
    >>> relay_window(there, back, chunk_bytes=1_000_000)
    4
    """
    fastest_bps = there.rate_bps if there.trace is None else max(there.trace.rates_bps)
    round_trip_s = there.latency_s + (there if back is None else back).latency_s
    return 2 + math.ceil(round_trip_s * fastest_bps / (8 * chunk_bytes))


def priority(message: ChunkMessage) -> tuple[int, bool, int, bool]:
    """Return a message's place in a lane, lowest first.

    The oldest exchange goes first, and its chunks in the order of the deal, because it ends with
    its last one; of the same chunk the result goes before the sum, because it is nearer to being of
    use. What takes an auxiliary path uses what the primary paths leave, so it goes last in its
    exchange.
    """
    return message.exchange, message.is_aux, message.chunk, not isinstance(message, Result)


def _is_letter(message: ChunkMessage) -> bool:
    return type(message) is Letter and not message.is_answer


_Entry = tuple[int, bool, int, bool, int, Send]  # its priority, its place between equals, and what


class _Ready:
    """What may be sent now, in order: what is spare in the gaps of all else, and now and then."""

    def __init__(self) -> None:
        self._urgent: list[_Entry] = []
        self._spare: list[_Entry] = []
        self._before = 0  # messages that were sent while a spare one waited

    def __bool__(self) -> bool:
        return bool(self._urgent or self._spare)

    def __iter__(self) -> Iterator[_Entry]:
        return chain(self._urgent, self._spare)

    def push(self, entry: _Entry) -> None:
        """Add one."""
        heapq.heappush(self._spare if entry[-1].is_spare else self._urgent, entry)

    def pop(self) -> Send:
        """Take out what is to be sent next."""
        if self._urgent and not (self._spare and self._before >= _BEFORE_SPARE):
            self._before += bool(self._spare)
            return heapq.heappop(self._urgent)[-1]
        self._before = 0
        return heapq.heappop(self._spare)[-1]

    def keep(self, entries: list[_Entry]) -> None:
        """Forget all but these."""
        self._urgent = [entry for entry in entries if not entry[-1].is_spare]
        self._spare = [entry for entry in entries if entry[-1].is_spare]
        heapq.heapify(self._urgent)
        heapq.heapify(self._spare)


def end(send: Send, progressed: Callable[[], None] | None) -> None:
    """Act on a message that has been sent, or never will be; ``progressed`` is told, or is None."""
    if progressed is not None:
        progressed()
    send.payload = _NOTHING  # its exchange remembers what was sent, not the memory
    if send.free is not None:
        send.free()
        send.free = None
    if send.then is not None:
        send.then(send)
    if send.counted is not None:
        send.counted.count -= 1
        if not send.counted.count:
            send.counted.none_left()


class Lane:
    """The queue towards one neighbour and the tasks that empty it.

    Args:
        site: this site.
        name: of the lane's tasks, which a debugger or a Deadlock shows.
        connect: makes a connection to the neighbour, given its strand; nothing else sends payloads
            on it.
        window: chunks of one route that may be at the neighbour if it relays.
        failed: called once with the error that ended the lane.
        progressed: called with each message that has been sent, or never will be; or None.
        strands: how many connections the lane's messages share.
        stamp: makes the stamp of a chunk that begins to leave, told whether the strand has sent
            without a pause since the one before; None for no stamps.
    """

    def __init__(
        self,
        site: int,
        name: str,
        connect: Callable[[int], Awaitable[Connection]],
        window: int,
        failed: Callable[[Exception], None],
        progressed: Callable[[], None] | None = None,
        strands: int = 1,
        stamp: Callable[[bool], Stamp] | None = None,
    ) -> None:
        self._site = site
        self._connect = connect
        self._connections: dict[int, Connection] = {}  # by strand
        self._unsaid: list[Message] = []  # before there is one
        self._failed = failed
        self._progressed = progressed
        self._stamp = stamp
        self._ready = _Ready()
        self._parked: defaultdict[Path, deque[_Entry]] = defaultdict(deque)  # waits for credit
        self._window = window
        self._credit: defaultdict[Path, int] = defaultdict(lambda: window)
        self._sent: dict[tuple[int, int, int], None] = {}  # the latest
        self._leaving: dict[int, Send] = {}  # by strand
        self._entries = 0
        self._wake = asyncio.Event()
        self.payload_bytes = 0  # sent so far
        self._has_failed = False
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(strand), name=name) for strand in range(strands)]

    def put(self, send: Send) -> None:
        """Queue a message."""
        self._entries += 1
        entry = (*priority(send.message), self._entries, send)
        path = send.message.path
        if path[-2] != self._site:  # the neighbour will relay it
            if self._credit[path] == 0:
                self._parked[path].append(entry)
                return
            self._credit[path] -= 1
        self._ready.push(entry)
        self._wake.set()

    def credit(self, path: Path) -> None:
        """Take note that the neighbour has passed on a chunk of this route.

        Raises:
            OutOfPlaceMessage: it has none of ours.
        """
        if self._credit.get(path, self._window) >= self._window:
            raise OutOfPlaceMessage(f"a credit for {path}, of which nothing is outstanding")
        if self._parked.get(path):
            self._ready.push(self._parked[path].popleft())
            self._wake.set()
        else:
            self._credit[path] += 1

    def post(self, message: Message) -> None:
        """Send a message without payload beside the queue; it is lost while there is no lane."""
        if 0 in self._connections:
            self._connections[0].post(message)

    def say(self, message: Message) -> None:
        """Like ``post``, but kept until there is a lane, or it has ended."""
        if 0 in self._connections:
            self._connections[0].post(message)
        else:
            self._unsaid.append(message)

    async def _run(self, strand: int) -> None:
        try:
            connection = self._connections[strand] = await self._connect(strand)
            if strand == 0:
                for said in self._unsaid:
                    connection.post(said)
                self._unsaid.clear()
            backlogged = False
            while True:
                while not self._ready:
                    backlogged = False
                    self._wake.clear()
                    await self._wake.wait()
                send = self._leaving[strand] = self._ready.pop()
                send.has_left = True
                self._note(send.message)
                message, measured = send.message, self._stamp is not None
                if self._stamp is not None:
                    message = structs.replace(message, stamp=self._stamp(backlogged))
                # What a head shows of a link counts only where no chunk is on it before.
                payload = send.payload() if callable(send.payload) else send.payload
                await connection.send(message, payload, measured and not backlogged)
                backlogged = True
                self.payload_bytes += len(payload)
                del self._leaving[strand]
                end(send, self._progressed)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._failed(error)

    def _note(self, message: ChunkMessage) -> None:
        self._sent[message.exchange, message.version, message.chunk] = None
        if len(self._sent) > _REMEMBERED:
            del self._sent[next(iter(self._sent))]

    def has_sent(self, chunk: tuple[int, int, int] | None) -> bool:
        """Return whether this (exchange, version, chunk) went out here lately."""
        return chunk in self._sent

    def withdraw(self, exchange: int) -> list[Send]:
        """Forget what this site says of an exchange and has not begun to send; return it."""
        withdrawn: list[Send] = []
        kept: list[_Entry] = []
        for entry in self._ready:
            path = entry[-1].message.path
            if entry[0] != exchange or path[0] != self._site:
                kept.append(entry)
                continue
            withdrawn.append(entry[-1])
            if path[-2] != self._site:
                self._credit[path] += 1
        self._ready.keep(kept)
        for path, waiting in self._parked.items():
            if path[0] == self._site:
                withdrawn += [entry[-1] for entry in waiting if entry[0] == exchange]
                self._parked[path] = deque(entry for entry in waiting if entry[0] != exchange)
        for path in [path for path, waiting in self._parked.items() if waiting]:
            while self._parked[path] and self._credit[path]:
                self._credit[path] -= 1
                self._ready.push(self._parked[path].popleft())
                self._wake.set()
        return withdrawn

    def withdraw_letters(self) -> list[Send]:
        """Forget what of this site's letter it has not begun to send; return it. Answers go on."""
        entries = [*self._ready]
        withdrawn = [entry for entry in entries if _is_letter(entry[-1].message)]
        self._ready.keep([entry for entry in entries if not _is_letter(entry[-1].message)])
        return [entry[-1] for entry in withdrawn]

    def drop(self) -> None:
        """Close for good; what waits here will not be sent, and is handed back as if it had been.

        No process receives it any more, and others' credit must not be lost with it.
        """
        self.close()
        parked = chain.from_iterable(self._parked.values())
        waiting = [*self._leaving.values(), *(entry[-1] for entry in chain(self._ready, parked))]
        self._leaving, self._ready, self._parked = {}, _Ready(), defaultdict(deque)
        for send in waiting:
            end(send, self._progressed)

    def close(self) -> None:
        """Stop sending and close the connection."""
        for task in self._tasks:
            task.cancel()
        for connection in self._connections.values():
            connection.close()
