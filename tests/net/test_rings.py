"""Rings in shared memory: a sender overwrites no unread piece, and gets room in the end."""

from __future__ import annotations

import os
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.net._rings import PIECE_BYTES, PLACE, RING_BYTES, IncomingRing, OutgoingRing
from anabranch.net.errors import MalformedMessage

SIZES = st.one_of(st.integers(1, 4096), st.integers(1, PIECE_BYTES), st.just(PIECE_BYTES))


@settings(deadline=None, max_examples=200)
@given(sizes=st.lists(SIZES, max_size=60), reads=st.lists(st.integers(0, 5), min_size=1))
def test_no_piece_lies_where_another_waits_and_a_sender_always_gets_room(
    sizes: list[int], reads: list[int]
) -> None:
    memory = memoryview(bytearray(RING_BYTES))
    outgoing, incoming = OutgoingRing(memory), IncomingRing(memory)
    payload = memoryview(bytes(PIECE_BYTES))
    waiting: deque[tuple[int, int]] = deque()
    for turn, size in enumerate(sizes):
        place = outgoing.put(payload[:size])
        while not place:
            assert waiting, "the sender waits, and the receiver has nothing left to read"
            read(incoming, outgoing, waiting)
            place = outgoing.put(payload[:size])
        start, length = PLACE.unpack(place)
        assert length == size
        assert not any(begin < start + length and start < end for begin, end in waiting)
        waiting.append((start, start + length))
        for _ in range(min(reads[turn % len(reads)], len(waiting))):
            read(incoming, outgoing, waiting)


def read(incoming: IncomingRing, outgoing: OutgoingRing, waiting: deque[tuple[int, int]]) -> None:
    start, end = waiting.popleft()
    assert len(incoming.piece(start, end - start)) == end - start
    if count := incoming.to_free():
        outgoing.free(count)


def test_a_large_payload_goes_in_pieces_and_comes_as_it_was() -> None:
    memory = memoryview(bytearray(RING_BYTES))
    outgoing, incoming = OutgoingRing(memory), IncomingRing(memory)
    payload = memoryview(os.urandom(2 * PIECE_BYTES + 100))
    places = [
        PLACE.unpack(outgoing.put(payload[at:])) for at in range(0, len(payload), PIECE_BYTES)
    ]
    assert [size for _, size in places] == [PIECE_BYTES, PIECE_BYTES, 100]
    assert b"".join(incoming.piece(*place) for place in places) == payload


def test_frees_are_said_once_for_many_small_pieces() -> None:
    memory = memoryview(bytearray(RING_BYTES))
    outgoing, incoming = OutgoingRing(memory), IncomingRing(memory)
    counts = []
    for _ in range(2 * PIECE_BYTES // 1024):
        incoming.piece(*PLACE.unpack(outgoing.put(memoryview(bytes(1024)))))
        counts.append(incoming.to_free())
    assert [count for count in counts if count] == [PIECE_BYTES // 1024] * 2
    outgoing.free(sum(counts))
    with pytest.raises(MalformedMessage, match="1 pieces are said to be read, of 0 sent"):
        outgoing.free(1)


@pytest.mark.parametrize(
    ("start", "size"),
    [(0, 0), (0, PIECE_BYTES + 1), (32, 64), (RING_BYTES, 4), (RING_BYTES - 64, 128)],
)
def test_a_piece_outside_the_ring_is_refused(start: int, size: int) -> None:
    ring = IncomingRing(memoryview(bytearray(RING_BYTES)))
    with pytest.raises(MalformedMessage, match=f"a piece of {size} bytes at {start}"):
        ring.piece(start, size)
