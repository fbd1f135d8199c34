"""Everything that sites and the scheduler say to each other, typed.

A message travels as a msgpack array ``[type, field, ...]``; bulk data follows it as a raw payload
(see :mod:`anabranch.net.frames`). Sites are named by their index in the overlay.
"""

from __future__ import annotations

import msgspec

from anabranch.net.errors import MalformedMessage

WIRE_VERSION = 1


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of every message."""


# --- between sites ---------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First on a lane: who speaks, and to whom it believes it speaks."""

    token: str
    source: int
    target: int


class ChunkMessage(Message, frozen=True):
    """A chunk on its way; the payload is its float32 elements.

    ``path`` holds every site from the one that made the message to the one that consumes it. A
    site that is not the last on it relays, whatever its own plan says, so a message in flight
    survives a change of plan.
    """

    round: int
    version: int
    chunk: int
    path: tuple[int, ...]


class PartialSum(ChunkMessage, frozen=True):
    """Up a tree: the weighted sum of a chunk over the sites below, and the sum of their weights."""

    weight: float


class Mean(ChunkMessage, frozen=True):
    """Down a tree: the finished weighted mean of a chunk."""


class Credit(Message, frozen=True):
    """From a relay to the hop before it: one chunk of this route has been passed on."""

    path: tuple[int, ...]


class Refusal(Message, frozen=True):
    """To a peer: your message was refused; ``error`` names the kind, ``detail`` what was wrong.

    ``chunk`` is its (round, version, chunk) if it was a chunk: a site that really sent that one
    knows that its round cannot end.
    """

    error: str
    detail: str
    chunk: tuple[int, int, int] | None = None


# --- between a site and the scheduler ----------------------------------------------------------


class Join(Message, frozen=True):
    """A site asks to take part, and says where its peers reach it."""

    token: str
    name: str
    host: str
    port: int
    wire_version: int = WIRE_VERSION


class Welcome(Message, frozen=True):
    """Everybody has joined: who you are, the overlay, the plan, where the others are.

    Attributes:
        site: the receiver's index.
        overlay_toml: the overlay, as ``anabranch.overlay.dumps`` writes it.
        plan_json: the first plan, as ``anabranch.plan.dumps`` writes it.
        addresses: (host, port) of every site, by index.
        work: what to do, opaque to the network and the scheduler.
    """

    site: int
    overlay_toml: str
    plan_json: str
    addresses: tuple[tuple[str, int], ...]
    work: str


class Ready(Message, frozen=True):
    """A site can begin; its rounds will exchange at most this many float32 elements."""

    buffer_elements: int


class Start(Message, frozen=True):
    """Every site is ready: the run's clock starts now."""


class RoundRequest(Message, frozen=True):
    """A site asks under which plan version a round runs (NetStorm's TRP, section VII-A)."""

    round: int


class RoundGrant(Message, frozen=True):
    """The version that round runs under; ``plan_json`` is empty if the site has that plan."""

    round: int
    version: int
    plan_json: str


class NoMoreRounds(Message, frozen=True):
    """The answer to a request for a round that the scheduler decided not to hold."""

    round: int


class RoundEnded(Message, frozen=True):
    """A site holds the result of a round; ``checksum`` covers its model or buffer."""

    round: int
    version: int
    seconds: float
    checksum: int | None


class Report(Message, frozen=True):
    """Events for the log, each an encoded record, opaque to the scheduler."""

    events: tuple[bytes, ...]


class Leave(Message, frozen=True):
    """A site has finished its work."""


class Failed(Message, frozen=True):
    """A site cannot go on, through no fault of another; ``reason`` says why."""

    reason: str


class Farewell(Message, frozen=True):
    """Everybody has finished; the site may close."""


class Abort(Message, frozen=True):
    """From the scheduler: the run is over, early; ``reason`` names who or what caused it.

    From a site: a lane of mine has broken; the scheduler decides who is to blame.
    """

    reason: str


AnyMessage = (
    Hello
    | PartialSum
    | Mean
    | Credit
    | Refusal
    | Join
    | Welcome
    | Ready
    | Start
    | RoundRequest
    | RoundGrant
    | NoMoreRounds
    | RoundEnded
    | Report
    | Leave
    | Failed
    | Farewell
    | Abort
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


def encode(message: Message) -> bytes:
    """Return a message's bytes."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> AnyMessage:
    """Return the message these bytes hold.

    Raises:
        MalformedMessage: they hold none; names the field and what is wrong with it.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: e.g. invalid UTF-8
        raise MalformedMessage(f"not a message of this protocol: {error}") from None
