"""Data for the tests of `train`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from anabranch_lab.tasks.kinds import Task, load_task


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """One torch thread: models this small lose more to waiting for a second than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def digits() -> Task:
    return load_task("digits")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of the official files; a test that wants it skips where there is none."""
    named = os.environ.get("ANABRANCH_DATA")
    if not named:
        pytest.skip(
            "ANABRANCH_DATA does not name a directory with mnist/, fashion-mnist/, cifar10/, fsdd/"
        )
    return Path(named)
