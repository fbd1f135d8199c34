"""What sites say beside an average, so that its mean tells each whether all average alike. Pure.

A few numbers travel after the model. The first says whether a site goes on with steps: its mean is
0 once all have finished. The second is how many steps are new. The others are the bits, as 1 and
-1, of two checksums: of how this site averages, and of where the last average left it. Where sites
differ in a bit its mean is neither, at every site alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

import numpy as np

from anabranch.train.averaging import Floats

_HOW_BYTES, _BASE_BYTES = 4, 8
_HOW = slice(2, 2 + 8 * _HOW_BYTES)
_BASE = slice(_HOW.stop, _HOW.stop + 8 * _BASE_BYTES)
SAID_NUMBERS = _BASE.stop
"""How many numbers travel beside a model."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the mean of what sites said tells, the same at each of them.

    Args:
        trains: whether one of them goes on with steps.
        is_fresh: whether one of them has made steps since its last average.
        average_alike: whether all average by the same rules.
        are_alike: whether the last average left the models alike.
    """

    trains: bool
    is_fresh: bool
    average_alike: bool
    are_alike: bool


def say(trains: bool, fresh: int, how: object, base: int) -> Floats:
    """Return what a site says beside its model, shape (SAID_NUMBERS,).

    Args:
        trains: whether it goes on with steps.
        fresh: steps made since the last average of the same part.
        how: by which rules it averages; what prints alike is alike.
        base: a checksum of where the last average left it.
    """
    numbers = np.array([trains, fresh], np.float32)
    rules = _bits(crc32(repr(how).encode()), _HOW_BYTES)
    return np.concatenate([numbers, rules, _bits(base, _BASE_BYTES)])


def hear(mean: Floats, most_off: float) -> Heard:
    """Return what the mean of what sites said tells.

    Args:
        mean: shape (SAID_NUMBERS,).
        most_off: by how much the mean of equal bits may be off, as it is rounded on the way.
    """
    trains, fresh = mean[:2].tolist()
    is_off = abs(abs(mean) - 1.0) > most_off
    return Heard(bool(trains), bool(fresh), not np.any(is_off[_HOW]), not np.any(is_off[_BASE]))


def _bits(number: int, size_bytes: int) -> Floats:
    """Return a number's bits as 1 and -1, shape (8 * bytes,)."""
    raw = np.frombuffer(number.to_bytes(size_bytes), np.uint8)
    bits: Floats = 2 * np.unpackbits(raw).astype(np.float32) - 1
    return bits
