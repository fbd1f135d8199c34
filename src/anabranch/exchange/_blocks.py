"""Converts blocks of float32 to few bits and back.

**A block** of :attr:`Wire.BLOCKS8`, ``BLOCKS4`` and ``BLOCKS2`` is a scale and integers::

    8 or 4 bits   scale = largest magnitude / (2**(bits - 1) - 1)     integer = rint(value / scale)
    2 bits        scale = mean of magnitudes above 0.7 of the mean    integer = -1 or 1 there, or 0

The rule of two bits is of ternary weight networks (Li and Liu, 2016). Integers of 4 or 2 bits
share bytes: byte i has those of elements i, i + 128 (or i + 64) and so on.

**A block of** ``TOP2`` has the 64 elements of largest magnitude; all others travel as zero. Those
below the mean magnitude of the 64 travel as one magnitude, those above as another: the means of
both. So two bits hold an element: its sign, and which magnitude.

A block with NaN or an infinity becomes NaN as a whole, at every site.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from anabranch.exchange.terms import PLACE_BYTES, SCALE_BYTES, TOP, Wire

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int8]

_BITS = {Wire.BLOCKS8: 8, Wire.BLOCKS4: 4, Wire.BLOCKS2: 2}
_LEAST_NORMAL = np.float32(np.finfo(np.float32).tiny)
_LARGEST = 0.9999999 * float(np.finfo(np.float32).max)  # so that scales times integers are finite
_TERNARY = np.float32(0.7)
_AT_ONCE = 1 << 15  # elements


def encode(values: Floats, wire: Wire) -> memoryview:
    """Return the blocks of values.

    Args:
        values: shape (elements,), a multiple of the block's.
        wire: a format that has blocks.
    """
    rows = values.reshape(-1, wire.block_elements)
    blocks = np.empty((len(rows), wire.block_bytes), np.uint8)
    for part in _parts(len(rows), wire):
        if wire == Wire.TOP2:
            _encode_top(rows[part], blocks[part])
        else:
            _encode_integers(rows[part], blocks[part], _BITS[wire])
    return blocks.data.cast("B")


def decode(data: memoryview, wire: Wire) -> Floats:
    """Return the values of blocks, in memory of their own."""
    blocks = np.frombuffer(data, np.uint8).reshape(-1, wire.block_bytes)
    rows = np.empty((len(blocks), wire.block_elements), np.float32)
    for part in _parts(len(blocks), wire):
        if wire == Wire.TOP2:
            _decode_top(blocks[part], rows[part])
        else:
            _decode_integers(blocks[part], rows[part], _BITS[wire])
    return rows.ravel()


def _parts(rows: int, wire: Wire) -> Iterator[slice]:
    """Yield the rows that are converted at once, few enough that their values stay in the cache."""
    step = max(1, _AT_ONCE // wire.block_elements)
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _encode_integers(rows: Floats, blocks: Bytes, bits: int) -> None:
    most = 2 ** (bits - 1) - 1
    scale, integers = _ternary(rows) if bits == 2 else _nearest(rows, most)
    scale[~np.isfinite(scale)] = np.nan
    blocks[:, :SCALE_BYTES] = scale[:, None].view(np.uint8)
    packed = blocks[:, SCALE_BYTES:]
    if bits == 8:
        packed.view(np.int8)[:] = integers
        return
    integers += np.int8(most)
    parts = integers.view(np.uint8).reshape(len(rows), 8 // bits, -1)
    packed[:] = parts[:, 0]
    for place in range(1, 8 // bits):
        packed |= parts[:, place] << np.uint8(bits * place)


def _nearest(rows: Floats, most: int) -> tuple[Floats, Integers]:
    """Return the scales of rows, and the nearest integers from -most to most."""
    scale = np.maximum(rows.max(1), -rows.min(1)) / np.float32(most)
    scale[scale < _LEAST_NORMAL] = 0.0  # its inverse would be infinite
    np.minimum(scale, np.float32(_LARGEST / most), out=scale, where=np.isfinite(scale))
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
    found = rows * inverse[:, None]
    np.rint(found, out=found)
    if not np.isfinite(scale).all():
        found[~np.isfinite(scale)] = 0.0
    return scale, found.astype(np.int8)


def _ternary(rows: Floats) -> tuple[Floats, Integers]:
    """Return the scales of rows, and integers from -1 to 1."""
    sizes = np.abs(rows)
    least = _TERNARY * _sums(sizes, len(rows[0]))
    is_kept = sizes > least
    sizes *= is_kept
    scale = _sums(sizes, is_kept.sum(1, keepdims=True))
    return scale[:, 0], (rows > least).view(np.int8) - (rows < -least).view(np.int8)


def _sums(sizes: Floats, count: npt.NDArray[np.intp] | int) -> Floats:
    """Return each row's sum over a count, shape (rows, 1); infinite only if the row is."""
    divisor = np.maximum(count, 1, dtype=np.float32)
    with np.errstate(over="ignore"):
        found: Floats = sizes.sum(1, keepdims=True) / divisor
    if np.isinf(found).any():  # the sum may be, where the mean is not
        with np.errstate(over="ignore"):
            found = (sizes / divisor).sum(1, keepdims=True)
        found = np.minimum(found, sizes.max(1, keepdims=True))
    return found


def _decode_integers(blocks: Bytes, rows: Floats, bits: int) -> None:
    most = 2 ** (bits - 1) - 1
    scale, packed = _floats(blocks[:, :SCALE_BYTES]), blocks[:, SCALE_BYTES:]
    if bits == 8:
        np.multiply(packed.view(np.int8), scale, out=rows)
        return
    parts = rows.reshape(len(rows), 8 // bits, -1)
    for place in range(8 // bits):
        parts[:, place] = packed >> np.uint8(bits * place) & np.uint8(2**bits - 1)
    rows -= np.float32(most)
    rows *= scale


def _encode_top(rows: Floats, blocks: Bytes) -> None:
    sizes = np.abs(rows)
    places = np.argpartition(sizes, -TOP, axis=1)[:, -TOP:]
    places.sort(axis=1)
    kept = np.take_along_axis(sizes, places, axis=1)
    is_large = kept >= _sums(kept, TOP)
    count = is_large.sum(1, keepdims=True)
    levels = np.concatenate(
        [_sums(kept * ~is_large, TOP - count), _sums(kept * is_large, count)], axis=1
    )
    levels[~np.isfinite(sizes.max(1))] = np.nan
    blocks[:, : 2 * SCALE_BYTES] = levels.view(np.uint8)
    first, second = places[:, ::2], places[:, 1::2]
    of_places = blocks[:, 2 * SCALE_BYTES : 2 * SCALE_BYTES + PLACE_BYTES].reshape(len(rows), -1, 3)
    of_places[:, :, 0] = first & 255
    of_places[:, :, 1] = first >> 8 | (second & 15) << 4
    of_places[:, :, 2] = second >> 4
    is_negative = np.take_along_axis(rows, places, axis=1) < 0
    blocks[:, 2 * SCALE_BYTES : 2 * SCALE_BYTES + PLACE_BYTES] = of_places.reshape(len(rows), -1)
    bits = np.stack([is_negative, is_large], axis=2).reshape(len(rows), -1)
    blocks[:, 2 * SCALE_BYTES + PLACE_BYTES :] = np.packbits(bits, axis=1)


def _decode_top(blocks: Bytes, rows: Floats) -> None:
    levels = _floats(blocks[:, : 2 * SCALE_BYTES])
    packed = blocks[:, 2 * SCALE_BYTES : 2 * SCALE_BYTES + PLACE_BYTES]
    of_places = packed.reshape(len(blocks), -1, 3).astype(np.intp)
    places = np.empty((len(blocks), TOP), np.intp)
    places[:, ::2] = of_places[:, :, 0] | (of_places[:, :, 1] & 15) << 8
    places[:, 1::2] = of_places[:, :, 1] >> 4 | of_places[:, :, 2] << 4
    bits = np.unpackbits(blocks[:, 2 * SCALE_BYTES + PLACE_BYTES :], axis=1)
    is_negative, is_large = bits[:, ::2].astype(bool), bits[:, 1::2].astype(bool)
    kept = np.where(is_large, levels[:, 1:], levels[:, :1])
    rows.fill(0.0)
    rows[np.isnan(levels).any(1)] = np.nan
    np.put_along_axis(rows, places, np.where(is_negative, -kept, kept), axis=1)


def _floats(columns: Bytes) -> Floats:
    """Return the float32 of byte columns, a row each."""
    found: Floats = np.ascontiguousarray(columns).view(np.float32)
    return found
