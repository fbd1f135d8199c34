"""Converts 16-bit floats to float32 and back: with PyTorch where it is loaded, else with NumPy.

Both round to the nearest, ties to even. Each NaN becomes one and the same: PyTorch's bits of a NaN
depend on its place in an array, and every member must get the same bits. PyTorch is faster, but is
not imported for that: an import takes seconds, in which the event loop would stand still.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from anabranch._lazy import loaded
from anabranch.exchange.terms import Wire

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]
_NAN = {Wire.FLOAT16: 0x7E00, Wire.BFLOAT16: 0x7FC0}
# Bits of a float32 without its sign.
_LEAST_NORMAL = 0x38800000  # 2**-14, the least normal float16
_INFINITE = 0x47800000  # 2**16, which is infinite in float16
_ONE_HALF = 0x3F000000
_MORE_EXPONENT = 0x38000000  # float16's exponents are offset by 15, and not by 127


def to_float32(data: memoryview, wire: Wire) -> Floats:
    """Return the values of 16-bit floats, in memory of their own."""
    if (torch := loaded("torch")) is not None:
        # PyTorch warns about read-only memory, which some networks deliver. So that is copied.
        bits = np.frombuffer(bytearray(data) if data.readonly else data, np.int16)
        values: Floats = torch.from_numpy(bits).view(_type(torch, wire)).float().numpy()
    elif wire == Wire.FLOAT16:
        return np.take(_each_float16(), np.frombuffer(data, np.uint16))
    else:
        wide = np.frombuffer(data, np.uint16).astype(np.uint32)
        wide <<= 16
        values = wide.view(np.float32)
    if _has_nan(values):
        values[np.isnan(values)] = np.nan
    return values


def to_halves(values: Floats, wire: Wire) -> memoryview:
    """Return values as 16-bit floats; those out of range become infinite."""
    halves: Bits
    if (torch := loaded("torch")) is not None:
        kind = _type(torch, wire)
        halves = torch.from_numpy(values).to(kind).view(torch.int16).numpy().view(np.uint16)
    else:
        halves = _float16(values) if wire == Wire.FLOAT16 else _bfloat16(values)
    if _has_nan(values):
        halves[np.isnan(values)] = _NAN[wire]
    return halves.data.cast("B")


def _has_nan(values: Floats) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(values.min(initial=0.0)))  # NumPy's minimum is NaN if any value is


@cache
def _each_float16() -> Floats:
    """Return the values of all float16, by their bits: NumPy converts small ones slowly."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    values[np.isnan(values)] = np.nan
    return values


def _float16(values: Floats) -> Bits:
    """Convert by integers, since NumPy's own conversion takes 20 times as long for small values."""
    bits = values.view(np.int32)
    size = bits & 0x7FFFFFFF
    np.minimum(size, _INFINITE, out=size)
    halves = size >> 13
    halves &= 1  # ties to even
    halves += size
    halves -= _MORE_EXPONENT - 0xFFF
    halves >>= 13
    # Of small values this is too little. They lie evenly, as floats between 0.5 and 1 do.
    small = np.minimum(size, _LEAST_NORMAL).view(np.float32) + np.float32(0.5)
    np.maximum(halves, small.view(np.int32) - _ONE_HALF, out=halves)
    halves |= (bits >> 16) & 0x8000  # the sign
    return halves.astype(np.uint16)


def _bfloat16(values: Floats) -> Bits:
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1  # ties to even
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded.astype(np.uint16)


def _type(torch: Any, wire: Wire) -> Any:
    return torch.float16 if wire == Wire.FLOAT16 else torch.bfloat16
