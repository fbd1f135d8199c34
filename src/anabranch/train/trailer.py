"""The trailer of an averaged model: numbers whose mean shows whether all sites agree. Pure.

The trailer travels after the model, and is averaged with it:

- the first number is 1 while the site makes steps: its mean is 0 once all sites have finished;
- the second is the count of steps since the last average;
- the others are the bits, as 1 and -1, of two checksums: of the site's averaging rules, and of the
  model after the last average. If sites differ in a bit, its mean is neither 1 nor -1, at every
  site.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from anabranch.train.averaging import Floats

_HOW_BYTES, _BASE_BYTES = 4, 8
_HOW = slice(2, 2 + 8 * _HOW_BYTES)
_BASE = slice(_HOW.stop, _HOW.stop + 8 * _BASE_BYTES)
TRAILER_ELEMENTS = _BASE.stop
"""The length of a trailer."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The content of the mean of sites' trailers, the same at every site.

    Args:
        trains: whether any site makes further steps.
        is_fresh: whether any site has made steps since its last average.
        average_alike: whether all sites average by the same rules.
        are_alike: whether the models were equal after the last average.
    """

    trains: bool
    is_fresh: bool
    average_alike: bool
    are_alike: bool


def write_trailer(trains: bool, fresh: int, how: object, base: int) -> Floats:
    """Return a site's trailer, shape (TRAILER_ELEMENTS,).

    Args:
        trains: whether the site makes further steps.
        fresh: steps made since the last average of the same part.
        how: its averaging rules; rules with equal ``repr`` are equal.
        base: a checksum of the model after the last average.
    """
    numbers = np.array([trains, fresh], np.float32)
    rules = _bits(crc32(repr(how).encode()), _HOW_BYTES)
    return np.concatenate([numbers, rules, _bits(base, _BASE_BYTES)])


def read_trailer(mean: Floats, most_off: float) -> Agreement:
    """Return the content of the mean of sites' trailers.

    Args:
        mean: shape (TRAILER_ELEMENTS,).
        most_off: bound on the rounding error of the mean of equal bits.
    """
    trains, fresh = mean[:2].tolist()
    is_off = abs(abs(mean) - 1.0) > most_off
    return Agreement(bool(trains), bool(fresh), not np.any(is_off[_HOW]), not np.any(is_off[_BASE]))


def _bits(number: int, size_bytes: int) -> Floats:
    """Return a number's bits as 1 and -1, shape (8 * bytes,)."""
    raw = np.frombuffer(number.to_bytes(size_bytes), np.uint8)
    bits: Floats = 2 * np.unpackbits(raw).astype(np.float32) - 1
    return bits
