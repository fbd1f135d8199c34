"""What holds after each file of this folder, and processes that start at once."""

from __future__ import annotations

import multiprocessing.connection
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from anabranch.group import _local

from ..forked import forking


def named() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("anabranch")}


@pytest.fixture(scope="module", autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """No thread of a group outlives it, also where the group was refused."""
    before = named()
    yield
    assert named() <= before


@pytest.fixture
def spawned_by_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `spawn` fork its processes from one that has imported PyTorch."""
    forks = SimpleNamespace(
        get_context=lambda method: forking(), connection=multiprocessing.connection
    )
    monkeypatch.setattr(_local, "multiprocessing", forks)
