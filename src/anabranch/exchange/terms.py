"""What the members of an exchange must agree on, besides its plan. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum

from anabranch.net.errors import MalformedMessage


class Op(IntEnum):
    """What happens to a chunk's sum at the root of its tree."""

    MEAN = 0
    """It is divided by the sum of the weights."""
    SUM = 1
    """Nothing: contributions are multiplied by their weights and added up."""
    MAX = 2
    """Nothing: of each element the largest is kept, whatever the weights."""
    STEP = 3
    """A server takes a step of the model with it, when the pace says so."""
    COPY = 4
    """Nothing: there is one contributor, whose elements arrive bit for bit."""
    LETTER = 5
    """There is no root: neighbours send each other their models, and each uses what comes."""


OPS = 8
"""How many ops a code of terms has room for."""

EXCHANGED = Op.MEAN, Op.SUM, Op.MAX, Op.COPY
"""What members of a group exchange; each element has one result."""


class Wire(IntEnum):
    """The format of elements on the wire. Sums are computed in float32, whatever it is."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    SIZES = 3
    """As long as float32, and nothing in it: a simulation that asks only how long things take."""
    INT8 = 4
    """Integers from -127 to 127, and nothing else: a value or sum that is none is an error."""

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return _ITEM_BYTES[self]


_ITEM_BYTES = {
    Wire.FLOAT32: 4,
    Wire.FLOAT16: 2,
    Wire.BFLOAT16: 2,
    Wire.SIZES: 4,
    Wire.INT8: 1,
}


@dataclass(frozen=True, slots=True)
class Terms:
    """What is exchanged.

    Every chunk carries the terms' code, so that a chunk of other terms is refused before any of it
    is added up.

    Args:
        op: what happens at the root.
        wire: how elements travel.
        elements: how many the buffer has.
        source: the one contributor, where only one has something to say (a broadcast); or None.
        receivers: the members that get what all others have alike (a transfer); empty otherwise.

    >>> Terms(Op.MEAN, Wire.FLOAT32, 1000)
    Terms(op=<Op.MEAN: 0>, wire=<Wire.FLOAT32: 0>, elements=1000, source=None, receivers=())
    >>> print(Terms(Op.SUM, Wire.BFLOAT16, 10))
    sum of 10 elements (bfloat16 on the wire)
    """

    op: Op
    wire: Wire
    elements: int
    source: int | None = None
    receivers: tuple[int, ...] = ()

    @property
    def code(self) -> int:
        """Op and wire format in the low six bits, a hash of the rest above."""
        rest = zlib.crc32(f"{self.elements} {self.source} {self.receivers}".encode()) & 0x1FFFFFF
        return rest << 6 | self.wire << 3 | self.op

    def __str__(self) -> str:
        what = self.op.name.lower() if self.source is None else f"broadcast from {self.source}"
        if self.receivers:
            what = f"transfer to {', '.join(map(str, self.receivers))}"
        return f"{what} of {self.elements} elements ({self.wire.name.lower()} on the wire)"


def op_of(code: int) -> Op:
    """Return the op of a code of terms.

    Raises:
        MalformedMessage: it names none.
    """
    try:
        return Op(code % OPS)
    except ValueError:
        raise MalformedMessage(f"terms {code} name no operation") from None


def wire_of(code: int) -> Wire:
    """Return the wire format of a code of terms.

    Raises:
        MalformedMessage: it names none.
    """
    try:
        return Wire(code >> 3 & 7)
    except ValueError:
        raise MalformedMessage(f"terms {code} name no wire format") from None


def has_numbers(code: int) -> bool:
    """Return whether chunks of a code of terms have more than a size; so has any unknown one."""
    return code >> 3 & 7 != Wire.SIZES
