"""Small values of a user's as msgpack, which every member can read. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

MOST_COUNTED = 2**63 - 1  # the largest count that messages carry
_MOST_NESTED = 100  # deep; a reader's own stack may be nearly full


def packed(value: Any) -> bytes:
    """Return a value's bytes.

    Args:
        value: see :meth:`anabranch.group._group.Group.all_gather`.

    Raises:
        TypeError: a value of a kind that msgpack does not know.
        ValueError: one that it cannot hold, or that no reader could take; says why.
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
    """Return one of NumPy's numbers as Python's."""
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
