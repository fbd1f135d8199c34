"""Rings: a sender and a receiver on one machine share memory for pieces of payloads. Pure.

The sender copies a piece into the memory and sends its place over the stream. The receiver reads
pieces in that order, and reports now and then how many it has read. Only the sender allocates; only
the receiver's reports free memory. So neither end writes what the other one reads at that time::

    0                                                         RING_BYTES
    |  free  | oldest ... unread or unreported ... newest |  free  |      not wrapped
    |  ... newest |       free       | oldest ...         | (gap)  |      wrapped

- A piece never wraps. If the room behind the newest is too short, the piece goes to the front, and
  the gap stays unused until it is behind the oldest.
- With no piece in the ring, the next one goes to 0: memory that is likely in the cache.
- Without room, ``put`` returns b"", and the sender waits for a report.

**Why the sender never waits for ever.** The receiver reports once it has read ``PIECE_BYTES``. So
when it has read all, unreported pieces take less than that: a quarter of the ring. A gap is shorter
than a piece. So one free run is always long enough for the next piece.

**What must never happen.** The sender reuses a piece before it is reported. So it refuses a report
of more pieces than it has sent. The receiver reads outside the ring, so it checks each place.
"""

from __future__ import annotations

import struct
from collections import deque

from anabranch.net.errors import MalformedMessage

RING_BYTES = 1 << 23
PIECE_BYTES = 1 << 21
"""The longest piece: a quarter of the ring, so that one fits beside pieces not reported yet."""
PLACE = struct.Struct(">II")
"""A piece's place, as sent over the stream: its offset in the ring and its length, in bytes."""
_LINE_BYTES = 64  # pieces begin on cache lines


class OutgoingRing:
    """The sender's end of a ring.

    >>> ring = OutgoingRing(memoryview(bytearray(RING_BYTES)))
    >>> PLACE.unpack(ring.put(memoryview(b"12345678"))), PLACE.unpack(ring.put(memoryview(b"1234")))
    ((0, 8), (64, 4))
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._full: deque[tuple[int, int]] = deque()  # beginning and end of pieces, oldest first

    def put(self, payload: memoryview) -> bytes:
        """Copy the front of a payload into the ring; return its place, or b"" without room."""
        size = min(len(payload), PIECE_BYTES)
        start = self._room(size)
        if start is None:
            return b""
        self._memory[start : start + size] = payload[:size]
        end = start + size
        self._full.append((start, end + -end % _LINE_BYTES))
        return PLACE.pack(start, size)

    def _room(self, size: int) -> int | None:
        if not self._full:
            return 0  # memory that is likely to be in the cache
        (oldest, _), (newest, end) = self._full[0], self._full[-1]
        if newest < oldest:
            return end if end + size <= oldest else None
        if end + size <= len(self._memory):
            return end
        return 0 if size <= oldest else None

    def free(self, count: int) -> None:
        """Free the oldest ``count`` pieces, which the receiver has read.

        Raises:
            MalformedMessage: the ring has fewer pieces.
        """
        if count > len(self._full):
            raise MalformedMessage(f"{count} pieces are said to be read, of {len(self._full)} sent")
        for _ in range(count):
            self._full.popleft()


class IncomingRing:
    """The receiver's end of a ring."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._read = self._read_bytes = 0  # of pieces read and not reported yet

    def piece(self, start: int, size: int) -> memoryview:
        """Return a piece, given its place.

        Raises:
            MalformedMessage: the place is not within the ring.
        """
        if start % _LINE_BYTES or not 0 < size <= PIECE_BYTES or start + size > len(self._memory):
            raise MalformedMessage(f"a piece of {size} bytes at {start} of shared memory")
        self._read += 1
        self._read_bytes += size + -size % _LINE_BYTES
        return self._memory[start : start + size]

    def to_free(self) -> int:
        """Return how many pieces to report as read; 0 while they are not worth a message."""
        if self._read_bytes < PIECE_BYTES:
            return 0
        count, self._read, self._read_bytes = self._read, 0, 0
        return count
