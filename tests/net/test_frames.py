"""Frames: any cut of the stream gives the same messages; what is not a frame is refused by name."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.net._rings import PLACE, RING_BYTES, IncomingRing, OutgoingRing
from anabranch.net.errors import (
    DuplicateMessage,
    MalformedMessage,
    OtherRelease,
    OversizedMessage,
    PeerError,
)
from anabranch.net.frames import (
    DISCARD,
    PIECE_BYTES,
    FrameReader,
    Limits,
    Sink,
    encode_frame,
    encode_freed,
    encode_greeting,
)
from anabranch.net.identity import CHALLENGE_BYTES
from anabranch.net.messages import (
    WIRE_VERSION,
    AnyMessage,
    Leave,
    Message,
    PartialSum,
    Ready,
    Result,
    Start,
    encode,
)

LIMITS = Limits(message_bytes=1 << 12, payload_bytes=1 << 22)


class Recorder:
    """Collects messages and their payloads, half of them in place and half in pieces."""

    def __init__(
        self, incoming: IncomingRing | None = None, outgoing: OutgoingRing | None = None
    ) -> None:
        self.messages: list[Message] = []
        self.payloads: list[bytes] = []
        self.pieces: list[int] = []
        self.refused: list[PeerError] = []
        self.reader = FrameReader(self.accept, self.refuse, LIMITS, incoming, outgoing)

    def accept(self, message: AnyMessage, payload_bytes: int) -> Sink:
        self.messages.append(message)
        received = bytearray(payload_bytes)

        def piece(offset: int, data: memoryview) -> None:
            assert offset % 4 == 0
            received[offset : offset + len(data)] = data
            self.pieces.append(len(data))

        def done() -> None:
            self.payloads.append(bytes(received))

        if isinstance(message, Result):
            return Sink(target=memoryview(received), done=done)
        return Sink(piece=piece, done=done)

    def refuse(self, message: AnyMessage, error: PeerError) -> None:
        self.refused.append(error)

    def feed(self, data: bytes, cut: int) -> None:
        view = memoryview(data)
        while view:
            room = self.reader.buffer
            count = min(len(room), len(view), cut)
            assert count > 0
            room[:count] = view[:count]
            self.reader.advance(count)
            view = view[count:]


def sum_message(chunk: int) -> PartialSum:
    return PartialSum(1, 1, chunk, (3, 4), 16)


def result_message(chunk: int) -> Result:
    return Result(1, 1, chunk, (3, 4), 16)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 3 * PIECE_BYTES).map(lambda n: n - n % 4), max_size=4),
    in_place=st.lists(st.booleans(), min_size=4, max_size=4),
    cut=st.one_of(st.integers(1, 64), st.integers(1000, 1 << 19)),
)
def test_any_cut_of_the_stream_gives_the_same_messages(
    sizes: list[int], in_place: list[bool], cut: int
) -> None:
    if cut < 65:
        sizes = [size % 400 * 4 for size in sizes]  # small cuts of large payloads only cost time
    stream, messages, payloads = b"", [], []
    for chunk, size in enumerate(sizes):
        message = result_message(chunk) if in_place[chunk] else sum_message(chunk)
        payload = np.random.default_rng(chunk).bytes(size)
        stream += encode_frame(message, size) + payload
        messages.append(message)
        payloads.append(payload)
    recorder = Recorder()
    recorder.feed(stream, cut)
    assert recorder.messages == messages
    assert recorder.payloads == payloads
    assert recorder.reader.between_frames


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 1 << 22).map(lambda n: n - n % 4), max_size=4),
    in_place=st.lists(st.booleans(), min_size=4, max_size=4),
    cut=st.integers(1, 100),
)
def test_payloads_in_shared_memory_are_as_good_as_those_in_the_stream(
    sizes: list[int], in_place: list[bool], cut: int
) -> None:
    memory = memoryview(bytearray(RING_BYTES))
    incoming, outgoing = IncomingRing(memory), OutgoingRing(memory)
    recorder, sender = Recorder(incoming), Recorder(outgoing=outgoing)
    messages, payloads = [], []
    for chunk, size in enumerate(sizes):
        message = result_message(chunk) if in_place[chunk] else sum_message(chunk)
        payload = np.random.default_rng(chunk).bytes(size)
        recorder.feed(encode_frame(message, size), cut)
        left = memoryview(payload)
        while left:
            place = outgoing.put(left)
            left = left[PLACE.unpack(place)[1] :]
            recorder.feed(place, cut)
            if count := incoming.to_free():
                sender.feed(encode_freed(count), cut)
        messages.append(message)
        payloads.append(payload)
    assert recorder.messages == messages
    assert recorder.payloads == payloads
    assert recorder.reader.between_frames


@pytest.mark.parametrize(("start", "size"), [(0, 8), (0, 3), (4, 4), (RING_BYTES, 4)])
def test_a_place_that_cannot_be_is_refused(start: int, size: int) -> None:
    recorder = Recorder(IncomingRing(memoryview(bytearray(RING_BYTES))))
    recorder.feed(encode_frame(sum_message(0), 4), 100)
    with pytest.raises(MalformedMessage, match=f"a piece of {size} bytes"):
        recorder.feed(PLACE.pack(start, size), 100)


def test_only_who_shares_memory_is_told_of_it() -> None:
    with pytest.raises(MalformedMessage, match="a frame begins with b'AF'"):
        Recorder().feed(encode_freed(1), 100)


@settings(deadline=None, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 3 * PIECE_BYTES).map(lambda n: n - n % 4), max_size=4),
    in_place=st.booleans(),
    cut=st.integers(1000, 1 << 19),
)
def test_no_more_bytes_are_awaited_than_the_frame_still_has(
    sizes: list[int], in_place: bool, cut: int
) -> None:
    recorder = Recorder()
    for chunk, size in enumerate(sizes):
        message = result_message(chunk) if in_place else sum_message(chunk)
        frame = memoryview(encode_frame(message, size) + bytes(size))
        while frame:
            assert 1 <= recorder.reader.awaited_bytes <= len(frame)
            recorder.feed(bytes(frame[:cut]), cut)
            frame = frame[cut:]
        assert recorder.reader.awaited_bytes == 1
    assert [len(payload) for payload in recorder.payloads] == sizes


def test_a_large_payload_comes_in_large_aligned_pieces() -> None:
    size = 8 * PIECE_BYTES
    recorder = Recorder()
    recorder.feed(encode_frame(Start()) + encode_frame(sum_message(0), size) + bytes(size), 65536)
    assert min(recorder.pieces[:-1]) >= PIECE_BYTES
    assert sum(recorder.pieces) == size


def test_a_refused_message_is_skipped_and_the_stream_goes_on() -> None:
    recorder = Recorder()

    def accept(message: AnyMessage, payload_bytes: int) -> Sink:
        if message == sum_message(0):
            raise DuplicateMessage("chunk 0")
        return Recorder.accept(recorder, message, payload_bytes)

    recorder.reader = FrameReader(accept, recorder.refuse, LIMITS)
    stream = encode_frame(sum_message(0), 4000) + bytes(4000)
    stream += encode_frame(sum_message(1), 4) + b"good"
    recorder.feed(stream, 999)
    assert [type(error) for error in recorder.refused] == [DuplicateMessage]
    assert recorder.payloads == [b"good"]


def test_a_message_larger_than_the_reading_buffer_is_read_whole() -> None:
    recorder = Recorder()
    recorder.reader.trust(Limits(message_bytes=1 << 22, payload_bytes=0))
    long = PartialSum(1, 1, 0, tuple(range(100_000)), 16)
    recorder.feed(encode_frame(long) + encode_frame(Start()), 1 << 20)
    assert recorder.messages == [long, Start()]


def prefix(message_bytes: int, payload_bytes: int) -> bytes:
    return struct.pack(">2sBxIQ", b"AB", WIRE_VERSION, message_bytes, payload_bytes)


CHALLENGE = bytes(range(CHALLENGE_BYTES))


def greeting(wire_version: int, name: bytes, payload_bytes: int = 0) -> bytes:
    size = CHALLENGE_BYTES + len(name)
    prefix = struct.pack(">2sBxIQ", b"AV", wire_version, size, payload_bytes)
    return prefix + CHALLENGE + name


@pytest.mark.parametrize(
    ("stream", "error", "named"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", MalformedMessage, "begins with b'GE'"),
        (b"AB\x02" + bytes(13), OtherRelease, "an older release of anabranch (wire version 2)"),
        (greeting(99, b"9.1"), OtherRelease, "anabranch 9.1 (wire version 99), this one anabranch"),
        (greeting(99, b"\x1b[2J"), OtherRelease, "anabranch \\u001b[2J (wire version 99)"),
        (greeting(WIRE_VERSION, bytes(65)), MalformedMessage, "a greeting of 81 bytes, and 0"),
        (greeting(WIRE_VERSION, b"", 8), MalformedMessage, "a greeting of 16 bytes, and 8 more"),
        (b"AV\x03" + bytes(4) + b"\x0f" + bytes(8), MalformedMessage, "a greeting of 15 bytes"),
        (
            prefix(1 << 20, 0),
            OversizedMessage,
            "1048576 bytes",
        ),
        (prefix(4, 1 << 40), OversizedMessage, "payload"),
        (
            prefix(3, 0) + b"\xc1\xc1\xc1",
            MalformedMessage,
            "not a",
        ),
        (
            prefix(6, 0) + b"\x91\xa4Hack",
            MalformedMessage,
            "not a",
        ),
    ],
)
def test_bytes_that_are_no_frame_are_refused_by_name(
    stream: bytes, error: type[PeerError], named: str
) -> None:
    with pytest.raises(error, match=re.escape(named)):
        Recorder().feed(stream, 1 << 16)


@pytest.mark.parametrize("cut", [1, 7, 1 << 16])
def test_a_stream_that_begins_with_this_release_is_read_on(cut: int) -> None:
    recorder = Recorder()
    assert recorder.reader.challenge is None
    recorder.feed(encode_greeting(CHALLENGE) + encode_frame(sum_message(1), 4) + b"good", cut)
    assert recorder.reader.challenge == CHALLENGE
    assert recorder.payloads == [b"good"]
    another = greeting(WIRE_VERSION, b"some other release that speaks the same version")
    recorder.feed(another + encode_frame(Start()), cut)
    assert recorder.messages == [sum_message(1), Start()]


def test_a_buffer_is_small_whatever_is_allowed_and_grows_by_what_comes() -> None:
    taken = bytearray()

    def accept(message: AnyMessage, payload_bytes: int) -> Sink:
        return Sink(piece=lambda offset, piece: taken.extend(piece))

    reader = FrameReader(accept, lambda message, error: None, Limits(1 << 26, 1 << 40))
    assert len(reader.buffer) <= 1 << 14
    for size in (4000, 1 << 22):
        stream = encode_frame(sum_message(1), size) + bytes(size)
        while stream:
            count = min(len(reader.buffer), len(stream))
            reader.buffer[:count] = stream[:count]
            stream = stream[count:]
            reader.advance(count)
        assert len(taken) == size
        taken.clear()
    assert 1 << 18 < len(reader.buffer) <= 1 << 20  # for pieces that are worth adding up


def test_a_stream_may_announce_more_once_it_is_trusted() -> None:
    small = Limits(message_bytes=100, payload_bytes=0)
    recorder = Recorder()

    def accept(message: AnyMessage, payload_bytes: int) -> Sink:
        recorder.reader.trust(LIMITS)  # while more of the stream is in the buffer already
        return recorder.accept(message, payload_bytes)

    recorder.reader = FrameReader(accept, recorder.refuse, small)
    stream = encode_frame(Start()) + encode_frame(sum_message(1), 8000) + bytes(8000)
    recorder.feed(stream, 1 << 16)
    assert recorder.messages == [Start(), sum_message(1)]
    assert recorder.payloads == [b"", bytes(8000)]


@settings(deadline=None)
@given(st.binary(max_size=400), st.integers(1, 50))
def test_noise_is_refused_or_waits_for_more_but_never_breaks_the_reader(
    noise: bytes, cut: int
) -> None:
    for stream in (noise, encode_frame(Start())[:16] + noise):
        recorder = Recorder()
        try:
            recorder.feed(stream, cut)
        except PeerError:
            continue
        assert not [each for each in recorder.messages if not isinstance(each, Message)]


@settings(deadline=None)
@given(st.integers(0, 200), st.integers(0, 255))
def test_a_flipped_byte_of_a_message_is_refused_or_gives_a_typed_message(
    place: int, value: int
) -> None:
    frame = bytearray(encode_frame(sum_message(7)))
    frame[16 + place % (len(frame) - 16)] = value
    recorder = Recorder()
    try:
        recorder.feed(bytes(frame), 1 << 16)
    except PeerError:
        return
    assert not [each for each in recorder.messages if not isinstance(each, Message)]


def test_a_stopped_reader_consumes_nothing_more() -> None:
    recorder = Recorder()

    def accept(message: AnyMessage, payload_bytes: int) -> Sink:
        recorder.reader.stop()
        return Recorder.accept(recorder, message, payload_bytes)

    recorder.reader = FrameReader(accept, recorder.refuse, LIMITS)
    recorder.feed(encode_frame(Start()) * 5, 1 << 16)
    assert recorder.messages == [Start()]


def test_discard_takes_anything_and_keeps_nothing() -> None:
    reader = FrameReader(lambda message, size: DISCARD, lambda message, error: None, LIMITS)
    frame = encode_frame(Ready(5), 1 << 20) + bytes(1 << 20)
    view = memoryview(frame)
    while view:
        room = reader.buffer
        count = min(len(room), len(view))
        room[:count] = view[:count]
        reader.advance(count)
        view = view[count:]
    assert reader.between_frames


def test_a_message_costs_few_bytes_beside_its_chunk() -> None:
    assert len(encode_frame(sum_message(200), 1 << 20)) < 64
    assert len(encode(Leave())) < 16
