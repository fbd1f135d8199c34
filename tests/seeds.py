"""Seeds to try, of which the fast tests take the first few."""

from __future__ import annotations

import pytest


def seeds(fast: int, count: int) -> pytest.MarkDecorator:
    """Give a test so many seeds; all but the first are slow.

    Args:
        fast: how many of them the fast tests try.
        count: how many there are.
    """
    slow = pytest.mark.slow
    return pytest.mark.parametrize(
        "seed", [pytest.param(k, marks=[] if k < fast else [slow]) for k in range(count)]
    )
