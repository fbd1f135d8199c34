"""Forks: bind chunks for a tree neighbour to the primary or an auxiliary path (NetStorm, VI).

The chunks for one neighbour wait in one pool. A chunk is bound to a path as late as possible, when
a path has room.

The paper binds a chunk when it becomes ready. If every path is busy, it takes the primary one; a
fork with ``waits=False`` does the same. But all chunks of a leaf are ready at once. Nearly all of
them would be bound to the primary path before an auxiliary path has carried one. If chunks become
ready one after the other, both ways are the same.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from anabranch.exchange.actions import Send
from anabranch.net.messages import ChunkMessage
from anabranch.site._lane import Path, priority


def choose(
    primary_queued: int,
    auxiliary_queued: Sequence[int],
    busy_bound: int,
    queue_length: int,
    *,
    waits: bool,
) -> int | None:
    """Return which path the next chunk takes.

    Args:
        primary_queued: the number of chunks on the primary path.
        auxiliary_queued: the number on each auxiliary path, the fastest path first.
        busy_bound: the number at which the primary path is busy (PRIMARY_BUSY_BOUND).
        queue_length: the most chunks on an auxiliary path (AUXILIARY_QUEUE_LENGTH).
        waits: whether a chunk waits while all paths are full; else it takes the primary path.

    Returns:
        -1 for the primary path, the index of an auxiliary one, or None to wait.

    >>> choose(1, [0, 0], busy_bound=2, queue_length=1, waits=True)
    -1
    >>> choose(2, [1, 0], busy_bound=2, queue_length=1, waits=True)
    1
    >>> choose(2, [1, 1], busy_bound=2, queue_length=1, waits=False)
    -1
    """
    if primary_queued < busy_bound:
        return -1
    for index, queued in enumerate(auxiliary_queued):
        if queued < queue_length:
            return index
    return None if waits else -1


class Fork:
    """This site's chunks for one tree neighbour, and their alternative paths.

    Every method returns the chunks that it has bound to a path, to be put on the path's first lane.

    Args:
        busy_bound, queue_length, waits: see :func:`choose`.
    """

    def __init__(self, busy_bound: int, queue_length: int, *, waits: bool) -> None:
        self._busy_bound = busy_bound
        self._queue_length = queue_length
        self._waits = waits
        self._auxiliary: tuple[Path, ...] = ()
        self._waiting: list[tuple[int, bool, int, bool, int, Send]] = []
        self._entries = 0
        self._primary_queued = 0
        self._auxiliary_queued: Counter[Path] = Counter()

    def add(self, send: Send) -> list[Send]:
        """Take a chunk whose message names its primary path."""
        self._entries += 1
        heapq.heappush(self._waiting, (*priority(send.message), self._entries, send))
        return self._bind()

    def use(self, auxiliary: tuple[Path, ...]) -> list[Send]:
        """Replace the auxiliary paths, fastest first, for chunks that are not bound yet."""
        self._auxiliary = auxiliary
        return self._bind()

    def credited(self, path: Path) -> list[Send]:
        """Note that the first relay of an auxiliary path has passed on a chunk."""
        if self._auxiliary_queued[path]:
            self._auxiliary_queued[path] -= 1
            return self._bind()
        return []

    def sent(self, message: ChunkMessage) -> list[Send]:
        """Note that a chunk has left this site."""
        if not message.is_aux:
            self._primary_queued -= 1
            return self._bind()
        if len(message.path) == 2:  # no relay on it, so no credit will follow
            return self.credited(message.path)
        return []

    def withdraw(self, exchange: int) -> list[Send]:
        """Remove and return the chunks of an exchange that are not bound yet."""
        withdrawn = [entry[-1] for entry in self._waiting if entry[0] == exchange]
        self._waiting = [entry for entry in self._waiting if entry[0] != exchange]
        heapq.heapify(self._waiting)
        return withdrawn

    def _bind(self) -> list[Send]:
        bound: list[Send] = []
        while self._waiting:
            queued = [self._auxiliary_queued[path] for path in self._auxiliary]
            choice = choose(
                self._primary_queued,
                queued,
                self._busy_bound,
                self._queue_length,
                waits=self._waits,
            )
            if choice is None:
                break
            send = heapq.heappop(self._waiting)[-1]
            if choice < 0:
                self._primary_queued += 1
            else:
                path = self._auxiliary[choice]
                self._auxiliary_queued[path] += 1
                send.message = structs.replace(send.message, path=path, is_aux=True)
            bound.append(send)
        return bound
