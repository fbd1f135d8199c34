"""Small values that are gathered: what can be, and what cannot is refused by one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from anabranch.group._packed import packed


def nested(depth: int, inside: Callable[[Any], Any] = lambda value: [value]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = inside(value)
    return value


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (np.float32(1.5), 1.5),
        (np.float16(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.int64(-3), -3),
        (np.uint8(3), 3),
        (np.bool_(True), True),
        ({"loss": np.float32(2.0), "steps": [np.int32(7)]}, {"loss": 2.0, "steps": [7]}),
        ((1, "a", b"b", None), [1, "a", b"b", None]),
        (nested(99), nested(99)),
        (-(2**63), -(2**63)),
        (2**64 - 1, 2**64 - 1),
    ],
    ids=str,
)
def test_numbers_of_numpy_are_read_as_python_s(value: Any, read: Any) -> None:
    found = msgspec.msgpack.decode(packed(value))
    assert found == read
    assert type(found) is type(read)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (nested(101), "nested more than 100 deep"),
        (nested(100_000), "nested more than 100 deep"),
        (nested(101, lambda value: {"a": value}), "nested more than 100 deep"),
        ("\ud800", "surrogates not allowed"),
        (["a\udfff"], "surrogates not allowed"),
        ({"\ud800": 1}, "surrogates not allowed"),
        (2**64, "the value cannot be gathered"),
        (10**400, "the value cannot be gathered"),
    ],
    ids=lambda value: "" if isinstance(value, list | dict) else repr(value)[:20],
)
def test_what_msgpack_cannot_hold_is_a_value_error(value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"^the value cannot be gathered: .*{said}|{said}"):
        packed(value)


@pytest.mark.parametrize(
    "value",
    [torch.ones(2), np.ones(2), 1j, object(), [np.complex64(1)], np.longdouble(1)],
    ids=lambda value: type(value).__name__,  # an object's text has its address
)
def test_what_is_no_such_value_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"the value cannot be gathered: .*; give numbers, strings"):
        packed(value)
