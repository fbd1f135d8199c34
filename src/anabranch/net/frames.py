"""Frames: the layout of messages and payloads in a byte stream. Bytes in, messages out; no I/O.

A frame is a 16-byte prefix, a message (msgpack), and a raw payload::

    'A' 'B'  wire version (1)  reserved (1)  message bytes (4)  payload bytes (8)   big-endian

The reader owns the buffer that the socket fills. A payload never waits in memory as a whole. Its
sink either names the target memory, which the socket fills directly, or takes the payload in
pieces. A piece has at least ``PIECE_BYTES``, except the last: it is still in the processor's cache
when it is added up. Pieces of shared memory have the sizes that the sender chose.

Frames with other first bytes than ``AB`` have no payload:

- ``AV``, the greeting: the first frame of each side. Its layout is the same in all releases. In
  place of the message are a challenge (:mod:`anabranch.net.identity`) and the release's name. So
  ends with different versions of the protocol can both report that.
- ``AF``, only a prefix: the number of pieces of shared memory that were read, in place of the
  message's length. Within one machine payloads may lie in shared memory (`_rings`); the stream has
  the place of each piece.
- ``AL``, only a prefix: a heartbeat.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from anabranch import __version__
from anabranch.net._rings import PLACE, IncomingRing, OutgoingRing
from anabranch.net.errors import (
    MalformedMessage,
    OtherRelease,
    OversizedMessage,
    PeerError,
    UntrustedPeer,
)
from anabranch.net.identity import CHALLENGE_BYTES
from anabranch.net.messages import NO_MESSAGE, WIRE_VERSION, AnyMessage, Message, decode, encode

PIECE_BYTES = 1 << 18
_STAGING_BYTES = 1 << 19  # of the buffer, once a payload arrives in pieces
_FIRST_STAGING_BYTES = 1 << 14  # before that: a process may have thousands of connections
_PREFIX = struct.Struct(">2sBxIQ")
PREFIX_BYTES = _PREFIX.size
_MAGIC = b"AB"
_FREED = b"AF"
_ALIVE = b"AL"
_GREETING = b"AV"
_LONGEST_RELEASE = 64  # bytes of its name
FIRST_BYTES = 2
"""Bytes that show which protocol the other end speaks."""

_TLS = b"\x15\x03", b"\x16\x03"  # an alert, a handshake (RFC 8446, 5.1)
_ALIGN = 4  # float32: pieces start and end between elements


def encode_frame(message: Message, payload_bytes: int = 0) -> bytes:
    """Return the prefix and message of a frame; the caller sends the payload after it."""
    body = encode(message)
    return _PREFIX.pack(_MAGIC, WIRE_VERSION, len(body), payload_bytes) + body


def encode_freed(pieces: int) -> bytes:
    """Return the frame that tells a sender that so many pieces of shared memory have been read."""
    return _PREFIX.pack(_FREED, WIRE_VERSION, pieces, 0)


def encode_alive() -> bytes:
    """Return the heartbeat frame, which this side sends when it has no other data to send."""
    return _PREFIX.pack(_ALIVE, WIRE_VERSION, 0, 0)


def encode_greeting(challenge: bytes) -> bytes:
    """Return the first frame on every connection: the challenge, and which release this is."""
    greeting = challenge + __version__.encode()
    return _PREFIX.pack(_GREETING, WIRE_VERSION, len(greeting), 0) + greeting


def is_greeting(first: bytes) -> bool:
    """Return whether a stream that begins with these bytes has frames, without TLS."""
    return first == _GREETING


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Sink:
    """Where one payload goes.

    Args:
        target: memory of exactly the payload's size, filled directly; or None.
        piece: called with (offset in bytes, piece) in order of offset, if there is no target.
            Offsets and lengths are multiples of 4, except the last length. A piece is valid only
            during the call. None discards the payload.
        done: called once, when the payload is complete.
    """

    target: memoryview | None = None
    piece: Callable[[int, memoryview], None] | None = None
    done: Callable[[], None] = _nothing


DISCARD = Sink()


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest message and payload a receiver accepts on a connection, bytes."""

    message_bytes: int
    payload_bytes: int


CONTROL_LIMITS = Limits(message_bytes=1 << 26, payload_bytes=0)
"""The limits of a connection to a scheduler, at both ends."""


class FrameReader:
    """Turns a byte stream into messages: fill ``buffer``, then tell ``advance`` how much.

    Args:
        accept: called with (message, payload bytes) as soon as the message is complete; returns
            the sink of its payload. If it raises PeerError, the payload is discarded, ``refuse`` is
            called, and the stream continues.
        refuse: called with (message, error) for each message that ``accept`` refused.
        limits: the largest message and payload; see ``trust``.
        incoming: the ring with the peer's payloads; None where they are in the stream.
        outgoing: the ring with this side's payloads, freed as the peer reports; or None.

    Attributes:
        buffer: the memory for the next bytes of the stream, never empty.
        awaited_bytes: the least number of bytes with which ``advance`` can do anything.
        challenge: the challenge in the other end's greeting; None before that has arrived.
    """

    def __init__(
        self,
        accept: Callable[[AnyMessage, int], Sink],
        refuse: Callable[[AnyMessage, PeerError], None],
        limits: Limits,
        incoming: IncomingRing | None = None,
        outgoing: OutgoingRing | None = None,
    ) -> None:
        self._accept = accept
        self._refuse = refuse
        self._limits = limits
        self._incoming = incoming
        self._outgoing = outgoing
        # Grows on demand: frames as large as the limits allow are rare.
        self._staging = memoryview(bytearray(_FIRST_STAGING_BYTES))
        self._held = 0  # bytes at the front of the staging buffer that are not yet consumed
        self._sink: Sink | None = None  # of the payload being read; None between frames
        self._size = 0  # of that payload
        self._offset = 0  # bytes of it that have gone to the sink
        self._stopped = False
        self.buffer = self._staging
        self.awaited_bytes = 1
        self.challenge: bytes | None = None

    def stop(self) -> None:
        """Consume nothing more, not even bytes that have arrived."""
        self._stopped = True

    def trust(self, limits: Limits) -> None:
        """Replace the limits."""
        self._limits = limits

    def share_no_more(self) -> None:
        """Release the shared memory: the stream has ended."""
        self._incoming = self._outgoing = None

    @property
    def between_frames(self) -> bool:
        """Whether the stream could end here without cutting a frame short."""
        return self._sink is None and self._held == 0

    def advance(self, count: int) -> None:
        """Take note that ``count`` bytes were put into ``buffer``, and act on them.

        Raises:
            MalformedMessage: the stream is not of this protocol; it cannot be read on.
            OversizedMessage: a frame is larger than the limits; it cannot be read on.
            OtherRelease: the other end speaks another version of the protocol.
            UntrustedPeer: it speaks TLS.
        """
        sink = self._sink
        if sink is not None and sink.target is not None and self._incoming is None:
            self._offset += count
            if self._offset == self._size:
                self._end_payload()
        else:
            self._held += count
            while self._consume_staged() and self._held:
                pass
        sink = self._sink
        if sink is None:
            self.buffer, self.awaited_bytes = self._staging[self._held :], 1
            return
        left = self._size - self._offset
        if self._incoming is not None:
            self.buffer, self.awaited_bytes = self._staging[self._held :], PLACE.size - self._held
        elif sink.target is None:
            self.buffer = self._staging[self._held :]
            self.awaited_bytes = min(left, PIECE_BYTES) - self._held
        else:
            self.buffer, self.awaited_bytes = sink.target[self._offset :], left

    def _consume_staged(self) -> bool:
        """Consume what can be consumed, move the rest to the front; return whether any was."""
        used = 0
        while used < self._held and (taken := self._take(used)) > 0:
            used += taken
        if used:
            self._held -= used
            self._staging[: self._held] = self._staging[used : used + self._held]
        return used > 0

    def _take(self, used: int) -> int:
        """Consume one message or piece from the staging buffer; return its length, 0 if none."""
        if self._stopped:
            return 0
        if self._sink is None:
            return self._take_message(used)
        if self._incoming is not None:
            return self._take_place(self._incoming, used)
        ready = min(self._held - used, self._size - self._offset)
        if self._sink.target is None and ready < self._size - self._offset:
            if ready < PIECE_BYTES or used % _ALIGN:
                return 0  # the rest moves to the front, aligned, and grows there
            ready -= ready % _ALIGN
        self._hand_over(self._sink, self._staging[used : used + ready])
        return ready

    def _take_place(self, incoming: IncomingRing, used: int) -> int:
        """Consume the place of one piece, and the piece that lies there; see ``_take``."""
        if self._held - used < PLACE.size:
            return 0
        start, size = PLACE.unpack_from(self._staging, used)
        left = self._size - self._offset
        if size > left or (size % _ALIGN and size < left):
            raise MalformedMessage(f"a piece of {size} bytes, where {left} of a payload are left")
        assert self._sink is not None
        self._hand_over(self._sink, incoming.piece(start, size))
        return PLACE.size

    def _hand_over(self, sink: Sink, piece: memoryview) -> None:
        end = self._offset + len(piece)
        if sink.target is not None:
            sink.target[self._offset : end] = piece
        elif sink.piece is not None:
            sink.piece(self._offset, piece)
        self._offset = end
        if end == self._size:
            self._end_payload()

    def _take_message(self, used: int) -> int:
        if self.challenge is None and self._staging[used : used + FIRST_BYTES] in _TLS:
            raise UntrustedPeer(
                "the other end speaks TLS, and this one has no certificate; give this one its own "
                "(--tls FOLDER, or tls= of join), or start both without"
            )
        if self._held - used < _PREFIX.size:
            return 0
        magic, wire_version, message_bytes, payload_bytes = _PREFIX.unpack_from(self._staging, used)
        if magic == _FREED and self._outgoing is not None:
            self._outgoing.free(message_bytes)
            return _PREFIX.size
        if magic == _ALIVE:
            return _PREFIX.size
        self._check_prefix(magic, wire_version, message_bytes, payload_bytes)
        length: int = _PREFIX.size + message_bytes
        if self._held - used < length:
            self._make_room(length)
            return 0
        if magic == _GREETING:
            self._greet(wire_version, bytes(self._staging[used + _PREFIX.size : used + length]))
            return length
        try:
            message = decode(self._staging[used + _PREFIX.size : used + length])
        except NO_MESSAGE as error:
            raise MalformedMessage(f"not a message of this protocol: {error}") from None
        try:
            sink = self._accept(message, payload_bytes)
        except PeerError as error:
            self._refuse(message, error)
            sink = DISCARD
        self._sink, self._size, self._offset = sink, payload_bytes, 0
        if not payload_bytes:
            self._end_payload()
        elif sink.target is None and self._incoming is None:
            self._make_room(min(payload_bytes, _STAGING_BYTES))
        return length

    def _check_prefix(self, magic: bytes, version: int, message: int, payload: int) -> None:
        if magic == _GREETING:
            if not 0 <= message - CHALLENGE_BYTES <= _LONGEST_RELEASE or payload:
                raise MalformedMessage(f"a greeting of {message} bytes, and {payload} more")
            return
        if magic != _MAGIC:
            raise MalformedMessage(f"a frame begins with {magic!r}, not {_MAGIC!r}")
        if version != WIRE_VERSION:
            raise _other_release("an older release of anabranch", version)
        if message > self._limits.message_bytes:
            raise OversizedMessage(
                f"a message of {message} bytes, at most {self._limits.message_bytes} are allowed"
            )
        if payload > self._limits.payload_bytes:
            raise OversizedMessage(
                f"a payload of {payload} bytes, at most {self._limits.payload_bytes} are allowed"
            )

    def _greet(self, version: int, greeting: bytes) -> None:
        self.challenge = greeting[:CHALLENGE_BYTES]
        if version != WIRE_VERSION:
            name = greeting[CHALLENGE_BYTES:].decode("ascii", "replace")
            raise _other_release(f"anabranch {name}", version)

    def _make_room(self, length: int) -> None:
        if length > len(self._staging):
            grown = memoryview(bytearray(length))
            grown[: self._held] = self._staging[: self._held]
            self._staging = grown

    def _end_payload(self) -> None:
        sink, self._sink = self._sink, None
        assert sink is not None
        sink.done()


def _other_release(which: str, version: int) -> OtherRelease:
    return OtherRelease(
        f"the other end runs {which} (wire version {version}), this one anabranch {__version__} "
        f"(wire version {WIRE_VERSION}); run the same release everywhere"
    )
