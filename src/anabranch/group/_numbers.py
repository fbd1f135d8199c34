"""Numbers that a program tells its group of: losses, accuracies and counts."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from anabranch.group._packed import MOST_COUNTED


def number_of(name: str, given: Any, should_be: str = "a number") -> float:
    """Return a number, a tensor or an array of one element as a float; infinite where too large.

    Args:
        name: of the argument, for errors.
        given: by the program.
        should_be: what it is to be, for errors.

    Raises:
        ValueError: it is no such.
    """
    if hasattr(given, "detach"):
        given = given.detach()
    try:
        if isinstance(given, str | bytes | bytearray):
            raise TypeError
        return float(given)
    except OverflowError:  # as of 10**400
        return math.inf
    except (TypeError, ValueError, RuntimeError):  # the last as of a tensor of two elements
        raise ValueError(f"{name} is {given!r}, must be {should_be}") from None


def count_of(name: str, given: Any, least: int) -> int:
    """Return a count.

    Args:
        name: of the argument, for errors.
        given: by the program.
        least: what it is at least.

    Raises:
        ValueError: it is no integer, or out of range.
    """
    if not isinstance(given, Integral) or not least <= int(given) <= MOST_COUNTED:
        raise ValueError(f"{name} is {given!r}, must be an integer from {least} to {MOST_COUNTED}")
    return int(given)
