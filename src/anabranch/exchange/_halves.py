"""Converts 16-bit floats to float32 and back: with PyTorch where it is loaded, else with NumPy.

Both round to the nearest, ties to even, so their bits are the same, except a NaN's. PyTorch is
faster, but is not imported for that: an import takes seconds, in which the event
loop would stand still.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from anabranch._lazy import loaded
from anabranch.exchange.terms import Wire

Floats = npt.NDArray[np.float32]
_NAN = 0x7FC0  # in bfloat16


def to_float32(data: memoryview, wire: Wire) -> Floats:
    """Return the values of 16-bit floats, in memory of their own."""
    if (torch := loaded("torch")) is not None:
        # PyTorch warns about read-only memory, which some networks deliver. So that is copied.
        writable = bytearray(data) if data.readonly else data
        found: Floats = torch.frombuffer(writable, dtype=_type(torch, wire)).float().numpy()
        return found
    if wire == Wire.FLOAT16:
        return np.frombuffer(data, np.float16).astype(np.float32)
    bits = np.frombuffer(data, np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32)


def to_halves(values: Floats, wire: Wire) -> memoryview:
    """Return values as 16-bit floats; those out of range become infinite."""
    if (torch := loaded("torch")) is not None:
        halves = torch.from_numpy(values).to(_type(torch, wire)).view(torch.int16)
        return memoryview(halves.numpy()).cast("B")
    if wire == Wire.FLOAT16:
        with np.errstate(all="ignore"):
            return values.astype(np.float16).data.cast("B")
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1  # ties to even
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    rounded[np.isnan(values)] = _NAN  # its own bits could round to those of a number
    return rounded.astype(np.uint16).data.cast("B")


def _type(torch: Any, wire: Wire) -> Any:
    return torch.float16 if wire == Wire.FLOAT16 else torch.bfloat16
