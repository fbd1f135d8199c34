"""What holds after each file of this folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest


def named() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("anabranch")}


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """No thread of a group outlives it, also where the group was refused."""
    before = named()
    yield
    assert named() <= before
