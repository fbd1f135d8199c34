"""Actions: the values by which an exchange tells its site what to do next. Pure.

The pure part sends nothing and calls no owner back. Each call returns a list of actions, in the
order in which the site must execute them. So a test needs no network, and a reader sees every
effect of a call in its return value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from anabranch.exchange.arithmetic import Floats, Payload, Piece
from anabranch.net.messages import ChunkMessage
from anabranch.plan import Chunk


@dataclass(slots=True, eq=False)
class Unsent:
    """Counts the messages of an exchange that still refer to its buffer.

    An exchange ends at a site only at zero: a caller that got its buffer back earlier would change
    bytes that are yet to be sent.

    Attributes:
        none_left: called each time the count reaches zero.
        count: messages not sent yet.
    """

    none_left: Callable[[], None]
    count: int = 0


@dataclass(slots=True, eq=False)
class Send:
    """Send a chunk message along its path.

    A message whose lane is lost ends like a message that was sent: ``free`` and ``then`` are
    called, and ``counted`` is decreased. Otherwise its exchange would wait for ever.

    Attributes:
        message, payload: what to send.
        has_left: whether the lane has begun to send it; set by the lane.
        free: returns the payload's memory to the scratch; called once it has been sent. Or None.
        then: called with this object once it has been sent; or None.
        counted: counts it until it has been sent; or None.
        is_spare: whether it yields to all other traffic on its lane.
    """

    message: ChunkMessage
    payload: Payload
    has_left: bool = False
    free: Callable[[], None] | None = None
    then: Callable[[Send], None] | None = None
    counted: Unsent | None = None
    is_spare: bool = False


@dataclass(slots=True)
class Total:
    """At a root: the complete sum of a chunk.

    Args:
        chunk: the chunk.
        values: the sum, shape (elements,).
        weight: the sum of all contributions' weights.
        divisor: ``values / divisor`` is the mean.
        sender: the child whose sum arrived last; None where the root had no child to wait for.
        is_scratch: whether the values' memory must go back to the scratch after use.
    """

    chunk: Chunk
    values: Floats
    weight: float
    divisor: float
    sender: int | None
    is_scratch: bool = False


@dataclass(slots=True)
class ChunkFinished:
    """A chunk's result is in the buffer, or was passed on at a site without one.

    Args:
        chunk: the chunk.
        sender: the neighbour that sent it; at its root the child whose sum arrived last, or None.
    """

    chunk: Chunk
    sender: int | None


@dataclass(frozen=True, slots=True)
class Stray:
    """Early data was dropped, because it does not belong to the exchange.

    Args:
        sender: the site that made it.
        why: what was wrong with it.
    """

    sender: int
    why: str


@dataclass(frozen=True, slots=True)
class UpdateArrived:
    """At a server: every chunk of its part of a worker's update has arrived."""

    worker: int
    update: int


@dataclass(frozen=True, slots=True)
class ModelArrived:
    """At a worker: every chunk of the model for one of its updates has arrived."""

    update: int


@dataclass(frozen=True, slots=True)
class Drained:
    """No payload is being written into this site's model any more for a retired group."""


@dataclass(frozen=True, slots=True)
class LetterArrived:
    """Every chunk of a neighbour's letter or answer has arrived; may repeat after a resend.

    Args:
        sender: the neighbour.
        number: the letter's number.
        is_answer: whether it is an answer to this site's letter.
    """

    sender: int
    number: int
    is_answer: bool


@dataclass(frozen=True, slots=True)
class LetterTruncated:
    """Only part of a letter was sent, and this site dropped the rest: tell the receiver."""

    receiver: int
    number: int


class PayloadOwner(Protocol):
    """An object that issued a receipt and takes its payload."""

    def received(self, receipt: Receipt) -> list[Action]:
        """Act on a complete payload."""


@dataclass(slots=True)
class Receipt:
    """Where a payload goes. The site returns it to its owner once the payload is complete.

    Attributes:
        message: the message that announced the payload.
        target: memory of exactly the payload's size; or None.
        piece: where there is no target, called with each piece and its offset in bytes. None
            discards the payload.
        into: the issuer's opaque key.
        owner: the object to return it to; None if the payload is void.
    """

    message: ChunkMessage
    target: memoryview | None = None
    piece: Piece | None = None
    into: object = None
    owner: PayloadOwner | None = None


Action = (
    Send
    | ChunkFinished
    | Stray
    | UpdateArrived
    | ModelArrived
    | Drained
    | LetterArrived
    | LetterTruncated
)
