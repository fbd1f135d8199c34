"""A lane: the sending queue towards one neighbour.

**A message on a lane**::

    put --the neighbour is its receiver, or credit is left--> ready --pop--> leaving --> ended
      |                                                         ^                          ^
      |--the neighbour relays it, no credit--> parked --credit--'                          |
      `--small, and the lane is idle: posted, and ended in a later turn--------------------'

- *ready*: a heap in order of ``priority``. A task for each strand (connection) takes the next.
- *parked*: first in, first out, for each route. A credit moves one message on.
- *leaving*: its bytes are being written. ``has_left`` is true from now on. Then a result may
  overwrite a sum's elements: it can only arrive after the whole sum was received.
- *ended*: ``end`` frees its memory and tells what waits for it. ``withdraw`` returns messages that
  have not begun to leave. ``drop`` ends all, as if they had been sent.

**Memory is bounded**, however slow the link:

- A site's own messages (sums, results to pass on) are at most one for each chunk and neighbour.
  They refer to memory that the exchange holds anyway.
- Relayed messages are bounded by credit. The hop before a relay may have a window of chunks of each
  route there. It gets a credit back once the relay has passed a chunk on.

**No deadlock.** Each route has its own credits, and a receiver always accepts what it is sent. So
no circle of relays waits for itself, and a slow link delays only messages that must cross it.

**Spare messages** (the state of training for a newcomer, while the others train) alternate with
other messages where both wait, so each kind gets half of the messages of a busy lane. If spare
messages yielded more, the newcomer would be kept out for longer, and the others would gain little:
the state has the same bytes, over however many steps they are spread.

**What must never happen.** A credit of a withdrawn or dropped message is lost: its route would slow
down for good, or stop. A message is neither sent nor ended: its exchange would never end.
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
_AT_ONCE_BYTES = 1 << 10  # a payload that leaves in the packet of its head
_REMEMBERED = 1 << 16  # chunks sent lately, to tell whether a refusal concerns one of them


def relay_window(there: Link, back: Link | None, chunk_bytes: int, least_bytes: int = 0) -> int:
    """Return how many chunks of one route may be at the relay that a link leads to.

    One is being received, and one is being passed on. Beyond those, the window covers what the link
    carries at its fastest during a round trip, so that credit never limits the rate. Latencies that
    drift count as they are at the start.

    Args:
        there: the link to the relay.
        back: the link by which credits return; None where there is none, which counts as equally
            long.
        chunk_bytes: the most bytes of a chunk.
        least_bytes: the least that the window covers, as latency and rate may not be known.

    >>> there, back = Link(0, 1, 80e6, latency_s=0.05), Link(1, 0, 10e6, latency_s=0.15)
    >>> relay_window(there, back, chunk_bytes=1_000_000)
    4
    """
    fastest_bps = there.rate_bps if there.trace is None else max(there.trace.rates_bps)
    round_trip_s = there.latency_s + (there if back is None else back).latency_s
    under_way_bytes = max(least_bytes, round_trip_s * fastest_bps / 8)
    return 2 + math.ceil(under_way_bytes / chunk_bytes)


def priority(message: ChunkMessage) -> tuple[int, bool, int, bool]:
    """Return a message's place in a lane, lowest first.

    The oldest exchange goes first, since a program waits for it first. Its chunks go in the order
    of the deal. Of the same chunk the result precedes the sum, because it is closer to its use.
    Messages on auxiliary paths go last in their exchange: they use what primary paths leave.
    """
    return message.exchange, message.is_aux, message.chunk, not isinstance(message, Result)


def _is_letter(message: ChunkMessage) -> bool:
    return type(message) is Letter and not message.is_answer


# The four parts of the priority, the order of arrival to break ties, and the message.
_Entry = tuple[int, bool, int, bool, int, Send]


class _Ready:
    """The messages that may be sent now; spare ones and others alternate where both wait."""

    def __init__(self) -> None:
        self._urgent: list[_Entry] = []
        self._spare: list[_Entry] = []
        self._is_spare_due = False  # the latest message was not spare, while a spare one waited

    def __bool__(self) -> bool:
        return bool(self._urgent or self._spare)

    def __iter__(self) -> Iterator[_Entry]:
        return chain(self._urgent, self._spare)

    def push(self, entry: _Entry) -> None:
        """Add a message."""
        heapq.heappush(self._spare if entry[-1].is_spare else self._urgent, entry)

    def pop(self) -> Send:
        """Remove and return the next message."""
        if self._urgent and not (self._spare and self._is_spare_due):
            self._is_spare_due = bool(self._spare)
            return heapq.heappop(self._urgent)[-1]
        self._is_spare_due = False
        return heapq.heappop(self._spare)[-1]

    def keep(self, entries: list[_Entry]) -> None:
        """Remove all messages but these."""
        self._urgent = [entry for entry in entries if not entry[-1].is_spare]
        self._spare = [entry for entry in entries if entry[-1].is_spare]
        heapq.heapify(self._urgent)
        heapq.heapify(self._spare)


def end(send: Send, progressed: Callable[[], None] | None) -> None:
    """End a message that has been sent, or never will be; call ``progressed`` unless it is None."""
    if progressed is not None:
        progressed()
    send.payload = _NOTHING  # its exchange keeps the message, and must not keep the memory
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
        site: this site's index.
        name: the name of the lane's tasks, shown in a dump of waiting tasks.
        connect: makes a connection to the neighbour, given the strand's index. Only the lane sends
            payloads on it.
        window: how many chunks of one route may be at the neighbour if it relays.
        failed: called once with the error that ended the lane.
        progressed: called each time a message has ended; or None.
        strands: the number of parallel connections that share the lane's messages.
        stamp: makes the stamp of a chunk that begins to leave, given whether its strand has sent
            without a pause since the chunk before; None for no stamps.

    Attributes:
        payload_bytes: payload bytes sent so far.
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
        self._unsaid: list[Message] = []  # kept until the first connection is made
        self._failed = failed
        self._progressed = progressed
        self._stamp = stamp
        self._ready = _Ready()
        self._parked: defaultdict[Path, deque[_Entry]] = defaultdict(deque)  # waiting for credit
        self._window = window
        self._credit: defaultdict[Path, int] = defaultdict(lambda: window)
        self._sent: dict[tuple[int, int, int], None] = {}  # the latest, oldest first
        self._leaving: dict[int, Send] = {}  # by strand
        self._entries = 0
        self._wake = asyncio.Event()
        self.payload_bytes = 0
        self._has_failed = False
        self._loop = asyncio.get_running_loop()
        self._tasks = [
            self._loop.create_task(self._run(strand), name=name) for strand in range(strands)
        ]

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
        if not self._try_post(send):
            self._ready.push(entry)
            self._wake.set()

    def _try_post(self, send: Send) -> bool:
        """Post a message past the lane's task, if it is small and the lane idle; return whether."""
        payload = send.payload
        if self._leaving or self._ready or 0 not in self._connections:
            return False
        if callable(payload) or len(payload) > _AT_ONCE_BYTES:
            return False
        # Stamped chunks go through a task, which knows whether its connection was busy.
        if self._stamp is not None or not self._connections[0].post_payload(send.message, payload):
            return False
        send.has_left = True
        self._note(send.message)
        self.payload_bytes += len(payload)
        # Not at once: it may end the exchange while further messages of it are not queued yet.
        self._loop.call_soon(end, send, self._progressed)
        return True

    def credit(self, path: Path) -> None:
        """Note that the neighbour has passed on a chunk of this route.

        Raises:
            OutOfPlaceMessage: the neighbour has no chunk of this route from this site.
        """
        if self._credit.get(path, self._window) >= self._window:
            raise OutOfPlaceMessage(f"a credit for {path}, of which nothing is outstanding")
        if self._parked.get(path):
            self._ready.push(self._parked[path].popleft())
            self._wake.set()
        else:
            self._credit[path] += 1

    def post(self, message: Message) -> None:
        """Send a message without payload, past the queue; drop it while there is no connection."""
        if 0 in self._connections:
            self._connections[0].post(message)

    def say(self, message: Message) -> None:
        """Like ``post``, but keep the message until there is a connection, or the lane ends."""
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
                # After a pause the head leaves in its own packet: its arrival shows the latency.
                # Behind another chunk it would show queueing.
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
        """Return whether this lane sent this (exchange, version, chunk) lately."""
        return chunk in self._sent

    def withdraw(self, exchange: int) -> list[Send]:
        """Remove and return this site's own messages of an exchange that have not begun to leave.

        Relayed messages of the exchange stay: the sites after this one may still need them.
        """
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
        """Remove and return this site's letter messages that have not begun to leave.

        Answers stay.
        """
        entries = [*self._ready]
        withdrawn = [entry for entry in entries if _is_letter(entry[-1].message)]
        self._ready.keep([entry for entry in entries if not _is_letter(entry[-1].message)])
        return [entry[-1] for entry in withdrawn]

    def drop(self) -> None:
        """Close for good, and end all waiting messages as if they had been sent.

        The neighbour is lost, so they have no receiver. Relayed messages must give their credit
        back to the hop before, and own ones must be counted as sent.
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
