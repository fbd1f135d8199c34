"""Rings: pieces of payloads in memory that a sender and a receiver share. Pure.

The sender copies pieces in and says where each lies; the receiver reads them, in that order, and
says, now and then, how many it needs no more.
"""

from __future__ import annotations

import struct
from collections import deque

from anabranch.net.errors import MalformedMessage

RING_BYTES = 1 << 23
PIECE_BYTES = 1 << 21
"""The most of a piece. A quarter of the ring, so that one always fits beside what is not said to be
free yet."""
PLACE = struct.Struct(">II")
"""What the stream says of a piece: where in the ring it begins, and its length, bytes."""
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
        """Copy the front of a payload to where there is room; return its place, b"" if none is."""
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
        """Use the oldest so many pieces' memory again.

        Raises:
            MalformedMessage: there are not so many.
        """
        if count > len(self._full):
            raise MalformedMessage(f"{count} pieces are said to be read, of {len(self._full)} sent")
        for _ in range(count):
            self._full.popleft()


class IncomingRing:
    """The receiver's end of a ring."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._read = self._read_bytes = 0  # pieces that the sender does not know of yet

    def piece(self, start: int, size: int) -> memoryview:
        """Return a piece that the sender has put.

        Raises:
            MalformedMessage: it does not lie in the ring.
        """
        if start % _LINE_BYTES or not 0 < size <= PIECE_BYTES or start + size > len(self._memory):
            raise MalformedMessage(f"a piece of {size} bytes at {start} of shared memory")
        self._read += 1
        self._read_bytes += size + -size % _LINE_BYTES
        return self._memory[start : start + size]

    def to_free(self) -> int:
        """Return how many pieces the sender may free now; 0 while that is not worth a message."""
        if self._read_bytes < PIECE_BYTES:
            return 0
        count, self._read, self._read_bytes = self._read, 0, 0
        return count
