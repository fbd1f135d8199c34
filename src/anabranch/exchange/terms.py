"""Terms: what the members of an exchange must agree on, besides its plan. Pure."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum

from anabranch.net.errors import MalformedMessage
from anabranch.net.messages import Signature


class Op(IntEnum):
    """What the root of a tree makes of a chunk's sum."""

    MEAN = 0
    """The root divides it by the sum of the weights."""
    SUM = 1
    """The root keeps it as it is: the sum of the contributions times their weights."""
    MAX = 2
    """The root keeps it as it is: the largest value of each element; weights are ignored."""
    STEP = 3
    """A server takes a step of the model with it, once the pace grants the step."""
    COPY = 4
    """The root keeps it as it is: the bits of the one contributor's elements."""
    LETTER = 5
    """No root: each site mixes neighbours' models into its own (gossip)."""
    MIN = 6
    """The root keeps it as it is: the least value of each element; weights are ignored."""


OPS = 8
"""The number of ops that a code of terms can express."""

EXTREMES = Op.MAX, Op.MIN
"""The ops that keep one contribution of each element: weights are ignored, NaN is a value."""

EXCHANGED = Op.MEAN, Op.SUM, Op.MAX, Op.MIN, Op.COPY
"""The ops of exchanges. Each element has one result, the same at every receiver."""


class Wire(IntEnum):
    """The format of elements on the wire. Sums are always computed in float32."""

    FLOAT32 = 0
    FLOAT16 = 1
    BFLOAT16 = 2
    SIZES = 3
    """Payloads as long as float32, without numbers: for simulations that only measure time."""
    INT8 = 4
    """Integers from -127 to 127. Any other value or sum is an error, and is never rounded."""
    BLOCKS8 = 5
    """Blocks of 256 elements: a scale, and 8 bits an element. Only means; each hop rounds."""
    BLOCKS4 = 6
    """The same with 4 bits an element."""
    BLOCKS2 = 7
    """The same with 2 bits an element."""
    TOP2 = 8
    """Blocks of 4096 elements: two magnitudes, the places of the 64 largest, 2 bits for each."""

    @property
    def block_elements(self) -> int:
        """The elements of a block, which travels whole; 1 for formats without blocks."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return _BLOCKS[self][1]

    @property
    def has_blocks(self) -> bool:
        """Whether elements travel in blocks, and lose bits that a site may keep for later."""
        return self.block_elements > 1

    def bytes_of(self, elements: int) -> int:
        """Return the bytes of whole blocks."""
        block_elements, block_bytes = _BLOCKS[self]
        return elements // block_elements * block_bytes

    def elements_of(self, size_bytes: int) -> int:
        """Return the elements of the whole blocks that some bytes have."""
        block_elements, block_bytes = _BLOCKS[self]
        return size_bytes // block_bytes * block_elements

    def padded(self, elements: int) -> int:
        """Return the elements of the blocks that some elements fill."""
        return -(-elements // self.block_elements) * self.block_elements


TOP = 64
"""The elements of a block of :attr:`Wire.TOP2` that travel."""
SCALE_BYTES = 4
"""Bytes of a scale or a magnitude, a float32."""
PLACE_BYTES = TOP * 12 // 8
"""Bytes of the places of these elements among 4096."""
_BLOCKS = {  # the elements and bytes of a block
    Wire.FLOAT32: (1, 4),
    Wire.FLOAT16: (1, 2),
    Wire.BFLOAT16: (1, 2),
    Wire.SIZES: (1, 4),
    Wire.INT8: (1, 1),
    Wire.BLOCKS8: (256, SCALE_BYTES + 256),
    Wire.BLOCKS4: (256, SCALE_BYTES + 256 // 2),
    Wire.BLOCKS2: (256, SCALE_BYTES + 256 // 4),
    Wire.TOP2: (4096, 2 * SCALE_BYTES + PLACE_BYTES + TOP * 2 // 8),
}
MOST_BLOCK_BYTES = 4 * max(block_elements for block_elements, _ in _BLOCKS.values())
"""Bytes of the largest block of any format, as float32."""
_WIRE_BITS = 4  # of a code of terms, above three for the op
_WIRE_CODES = (1 << _WIRE_BITS) - 1


@dataclass(frozen=True, slots=True)
class Terms:
    """The operation, format and size of an exchange.

    Every chunk message carries the terms' code. A site refuses a chunk of other terms before it
    adds any of its elements to a sum.

    Args:
        op: what the root makes of a sum.
        wire: the format of elements on the wire.
        elements: the number of elements in the buffer.
        source: the only contributor, in a broadcast; None otherwise.
        receivers: the members that get the state that all others have, in a transfer; otherwise
            empty.
        tensors: the elements of each tensor in the buffer, if no chunk has elements of two tensors;
            otherwise empty.
        unit: a chunk has a multiple of so many elements. It is more than one where blocks travel,
            and where a repair copies what has travelled in blocks.

    >>> Terms(Op.MEAN, Wire.FLOAT32, 1000) == Terms(Op.MEAN, Wire.FLOAT32, 1000, None, (), ())
    True
    >>> print(Terms(Op.SUM, Wire.BFLOAT16, 10))
    sum of 10 elements (bfloat16 on the wire)
    """

    op: Op
    wire: Wire
    elements: int
    source: int | None = None
    receivers: tuple[int, ...] = ()
    tensors: tuple[int, ...] = ()
    unit: int = 0

    def __post_init__(self) -> None:
        unit = self.unit or self.wire.block_elements
        object.__setattr__(self, "unit", unit)

    @property
    def code(self) -> int:
        """Op and wire format in the low seven bits, a 24-bit hash of the rest above."""
        told = f"{self.elements} {self.source} {self.receivers}"
        if self.tensors:
            told += f" {self.tensors}"
        rest = zlib.crc32(told.encode()) & 0xFFFFFF
        return (rest << _WIRE_BITS | self.wire) << 3 | self.op

    @property
    def planned_elements(self) -> int:
        """See :func:`planned_elements`."""
        return planned_elements(self)

    def place_of(self, planned: int) -> int:
        """Return where a place of the planned buffer lies in this one, at a block's beginning.

        >>> terms = Terms(Op.MEAN, Wire.BLOCKS4, 2560)
        >>> [terms.place_of(planned) for planned in (0, 32, 33, 100, 330)]
        [0, 0, 256, 768, 2560]
        """
        if self.wire.has_blocks:
            planned = self.wire.elements_of(4 * planned)
        return min(planned // self.unit * self.unit, self.elements)

    def __str__(self) -> str:
        what = self.op.name.lower() if self.source is None else f"broadcast from {self.source}"
        if self.receivers:
            what = f"transfer to {', '.join(map(str, self.receivers))}"
        how = f"{self.elements} elements"
        if self.tensors:
            how += f" in tensors of {_listed(self.tensors)}"
        return f"{what} of {how} ({self.wire.name.lower()} on the wire)"


def planned_elements(terms: Terms | Signature) -> int:
    """Return the elements of four bytes that an exchange is planned for.

    Blocks are planned by their bytes. 16-bit floats are planned as float32.

    >>> [planned_elements(Terms(Op.MEAN, wire, 2560)) for wire in (Wire.BLOCKS4, Wire.BFLOAT16)]
    [330, 2560]
    """
    wire = Wire(terms.wire)
    return -(-wire.bytes_of(terms.elements) // 4) if wire.has_blocks else terms.elements


def _listed(tensors: tuple[int, ...], most: int = 8) -> str:
    told = ", ".join(map(str, tensors[:most]))
    return told if len(tensors) <= most else f"{told} and so on, {len(tensors)} in all"


def signature_of(terms: Terms) -> Signature:
    """Return terms as a message has them."""
    return Signature(
        terms.op, terms.wire, terms.elements, terms.source, terms.receivers, terms.tensors
    )


def terms_of(signature: Signature) -> Terms:
    """Return the terms that a message has, whose operation and format have been checked."""
    return Terms(
        Op(signature.op),
        Wire(signature.wire),
        signature.elements,
        signature.source,
        signature.receivers,
        signature.tensors,
    )


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
        return Wire(code >> 3 & _WIRE_CODES)
    except ValueError:
        raise MalformedMessage(f"terms {code} name no wire format") from None


def has_numbers(code: int) -> bool:
    """Return whether payloads under a code of terms have numbers; true for an unknown format."""
    return code >> 3 & _WIRE_CODES != Wire.SIZES
