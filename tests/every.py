"""Claims about each of several things, which do not hold of nothing."""

from __future__ import annotations

from collections.abc import Iterable


def every(claims: Iterable[object]) -> bool:
    """Return whether all of these are true.

    Raises:
        AssertionError: there is none, so that nothing was checked; ``all`` is true then.
    """
    found = [bool(claim) for claim in claims]
    assert found, "there is nothing of which this could be true"
    return all(found)
