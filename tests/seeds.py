"""Parameters of which the fast tests try a few, and the slow ones all others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow_after(fast: int, values: Iterable[Any]) -> list[ParameterSet]:
    """Return parameters for each value, several for a tuple; all but the first are slow."""
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[] if k < fast else [pytest.mark.slow],
        )
        for k, value in enumerate(values)
    ]


def seeds(fast: int, count: int) -> pytest.MarkDecorator:
    """Give a test so many seeds; all but the first are slow.

    Args:
        fast: how many of them the fast tests try.
        count: how many there are.
    """
    return pytest.mark.parametrize("seed", slow_after(fast, range(count)))
