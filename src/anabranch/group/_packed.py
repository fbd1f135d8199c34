"""Small values that a program gives to its group: checked numbers, and msgpack bytes. Pure."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import msgspec
import numpy as np

MOST_COUNTED = 2**63 - 1  # the largest count that messages carry
_MOST_NESTED = 100  # deep; a reader's own stack may be nearly full


def number_of(name: str, given: Any, should_be: str = "a number") -> float:
    """Return a number, a tensor or an array of one element as a float; infinite where too large.

    Args:
        name: the argument's name, for errors.
        given: the program's value.
        should_be: the valid values in words, for errors.

    Raises:
        ValueError: the value is none of these.
    """
    if hasattr(given, "detach"):
        given = given.detach()
    try:
        if isinstance(given, str | bytes | bytearray):
            raise TypeError
        return float(given)
    except OverflowError:  # as of 10**400
        return math.inf
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of two elements
        raise ValueError(f"{name} is {given!r}, must be {should_be}") from None


def count_of(name: str, given: Any, least: int) -> int:
    """Return a count.

    Args:
        name: the argument's name, for errors.
        given: the program's value.
        least: the smallest valid count.

    Raises:
        ValueError: the value is no integer, or out of range.
    """
    if not isinstance(given, Integral) or not least <= int(given) <= MOST_COUNTED:
        raise ValueError(f"{name} is {given!r}, must be an integer from {least} to {MOST_COUNTED}")
    return int(given)


def packed(value: Any) -> bytes:
    """Return a value's bytes.

    Args:
        value: see :meth:`anabranch.group.blocking_group.Group.all_gather`.

    Raises:
        TypeError: the value is of a type that msgpack does not know.
        ValueError: msgpack cannot encode the value, or a reader could not decode it; says why.
    """
    try:
        data = msgspec.msgpack.encode(value, enc_hook=_plain)
        depth = _depth(msgspec.msgpack.decode(data))
    except (OverflowError, UnicodeEncodeError, msgspec.DecodeError) as error:
        raise ValueError(f"the value cannot be gathered: {error}") from None
    except RecursionError:
        depth = _MOST_NESTED + 1
    except TypeError as error:
        raise TypeError(
            f"the value cannot be gathered: {error}; give numbers, strings, bytes, lists or "
            "dictionaries of such; tensors are exchanged by all_reduce or broadcast"
        ) from None
    if depth > _MOST_NESTED:
        raise ValueError(
            f"the value cannot be gathered: it is nested more than {_MOST_NESTED} deep; make a "
            "flat list of it"
        )
    return data


def _plain(value: Any) -> Any:
    """Return a NumPy number as a Python number."""
    found = value.item() if isinstance(value, np.generic) else value
    if isinstance(found, np.generic) or not isinstance(value, np.generic):
        raise TypeError(f"values of type {type(value).__name__} are not supported")
    return found


def _depth(value: Any) -> int:
    depth, here = 0, [value]
    while here:
        depth += 1
        inside: list[Any] = []
        for each in here:
            if isinstance(each, dict):
                inside += [*each.keys(), *each.values()]
            elif isinstance(each, list | tuple):
                inside += each
        here = inside
    return depth
