"""What follows from a message or a call, as values: what an exchange answers by. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from anabranch.exchange.arithmetic import Floats, Payload, Piece
from anabranch.net.messages import ChunkMessage
from anabranch.plan import Chunk


@dataclass(slots=True, eq=False)
class Unsent:
    """Counts the messages that must be sent before an exchange has ended here.

    Attributes:
        none_left: called each time that the last of them has been sent.
        count: those that have not been sent.
    """

    none_left: Callable[[], None]
    count: int = 0


@dataclass(slots=True, eq=False)
class Send:
    """Send this.

    A message that never will be sent, as its lane is gone, ends like one that has been.

    Attributes:
        has_left: whether it has begun to leave this site; the lane that sends it says so here.
        free: gives the payload's memory to other sums; called once it has been sent. Or None.
        then: called with it once it has been sent; or None.
        counted: counts it until it has been sent; or None.
        is_spare: whether it uses what other exchanges leave of its lane.
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
    """At a root: the sum of a chunk is whole.

    Args:
        chunk: which.
        values: shape (elements,).
        weight: of all contributions.
        divisor: what makes a mean of the values.
        sender: the child whose part came last; None where none did.
        is_scratch: whether the values' memory serves other sums once this one has been used.
    """

    chunk: Chunk
    values: Floats
    weight: float
    divisor: float
    sender: int | None
    is_scratch: bool = False


@dataclass(slots=True)
class Held:
    """A chunk's result is in the buffer.

    Args:
        chunk: which.
        sender: the neighbour that it came from; None at its root.
    """

    chunk: Chunk
    sender: int | None


@dataclass(frozen=True, slots=True)
class Stray:
    """Early data that turned out not to belong to the exchange, and was thrown away.

    Args:
        sender: the site that made it.
        why: what was wrong with it.
    """

    sender: int
    why: str


@dataclass(frozen=True, slots=True)
class UpdateHere:
    """At a server: all of its part of a worker's update is here."""

    worker: int
    update: int


@dataclass(frozen=True, slots=True)
class ModelHere:
    """At a worker: all of the model is here that an update will be computed on."""

    update: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing comes any more for a part of this site that was retired."""


@dataclass(frozen=True, slots=True)
class LetterHere:
    """All of a neighbour's letter is here, or all of its answer; perhaps once more.

    Args:
        sender: whose.
        number: the letter's.
        is_answer: which of the two.
    """

    sender: int
    number: int
    is_answer: bool


@dataclass(frozen=True, slots=True)
class LetterCut:
    """Part of a letter was sent, and the rest never will be: its receiver is to hear that."""

    receiver: int
    number: int


class Taker(Protocol):
    """A part of a site that payloads are for."""

    def received(self, receipt: Receipt) -> list[Action]:
        """Act on a payload all of which is there."""


@dataclass(slots=True)
class Receipt:
    """Where a payload goes; hand it back when all of it is there.

    Attributes:
        message: that announced it.
        target: memory of exactly its size; or None.
        piece: takes it piece by piece, where there is no target; None throws it away.
        into: what the one who gave it out knows it by.
        owner: whom to hand it back to; None where it is void.
    """

    message: ChunkMessage
    target: memoryview | None = None
    piece: Piece | None = None
    into: object = None
    owner: Taker | None = None


Action = Send | Held | Stray | UpdateHere | ModelHere | Quiet | LetterHere | LetterCut
