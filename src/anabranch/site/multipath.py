"""Which path a chunk takes to a tree neighbour: the primary or an auxiliary one (NetStorm, VI).

Chunks for one neighbour wait in one pool and are bound to a path as late as can be, when a path has
room. The paper binds a chunk when it becomes ready, and where every path is busy falls back on the
primary one; but a site without children has all its chunks ready at once, and would bind nearly all
of them to the primary path before the first auxiliary one had carried anything. While chunks become
ready one after the other the two are the same.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec import structs

from anabranch.site.aggregation import Send
from anabranch.site.lane import Path, priority


def choose(
    primary_queued: int, auxiliary_queued: Sequence[int], busy_bound: int, queue_length: int
) -> int | None:
    """Return which path the next chunk takes.

    Args:
        primary_queued: chunks on the primary path.
        auxiliary_queued: chunks on each auxiliary path, the fastest path first.
        busy_bound: chunks at which the primary path is busy (PRIMARY_BUSY_BOUND).
        queue_length: chunks that an auxiliary path takes (AUXILIARY_QUEUE_LENGTH).

    Returns:
        -1 for the primary path, the index of an auxiliary one, or None while all are full.

    >>> choose(1, [0, 0], busy_bound=2, queue_length=1)
    -1
    >>> choose(2, [1, 0], busy_bound=2, queue_length=1)
    1
    """
    if primary_queued < busy_bound:
        return -1
    for index, queued in enumerate(auxiliary_queued):
        if queued < queue_length:
            return index
    return None


class Fork:
    """The chunks that this site has for one tree neighbour, and the paths they may take.

    Args:
        busy_bound, queue_length: see :func:`choose`.
        put: hands a chunk, bound to a path, to the lane that the path begins with.
    """

    def __init__(self, busy_bound: int, queue_length: int, put: Callable[[Send], None]) -> None:
        self._busy_bound = busy_bound
        self._queue_length = queue_length
        self._put = put
        self._auxiliary: tuple[Path, ...] = ()
        self._waiting: list[tuple[int, bool, int, bool, int, Send]] = []
        self._entries = 0
        self._primary_queued = 0
        self._auxiliary_queued: Counter[Path] = Counter()

    def add(self, send: Send) -> None:
        """Take a chunk whose message names its primary path."""
        self._entries += 1
        heapq.heappush(self._waiting, (*priority(send.message), self._entries, send))
        self._bind()

    def use(self, auxiliary: tuple[Path, ...]) -> None:
        """Let chunks that are not bound yet take these auxiliary paths, fastest first."""
        self._auxiliary = auxiliary
        self._bind()

    def credited(self, path: Path) -> None:
        """Take note that the first relay of an auxiliary path has passed a chunk on."""
        if self._auxiliary_queued[path]:
            self._auxiliary_queued[path] -= 1
            self._bind()

    def _bind(self) -> None:
        while self._waiting:
            queued = [self._auxiliary_queued[path] for path in self._auxiliary]
            choice = choose(self._primary_queued, queued, self._busy_bound, self._queue_length)
            if choice is None:
                return
            send = heapq.heappop(self._waiting)[-1]
            if choice < 0:
                self._primary_queued += 1
                self._put(replace(send, sent=self._then(send.sent, self._primary_sent)))
                continue
            path = self._auxiliary[choice]
            self._auxiliary_queued[path] += 1
            sent = send.sent
            if len(path) == 2:  # nobody relays, so nobody gives a credit
                sent = self._then(sent, lambda path=path: self.credited(path))  # type: ignore[misc]
            message = structs.replace(send.message, path=path, is_aux=True)
            self._put(replace(send, message=message, sent=sent))

    def _primary_sent(self) -> None:
        self._primary_queued -= 1
        self._bind()

    @staticmethod
    def _then(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
        def both() -> None:
            first()
            second()

        return both
