"""Data for the tests of `train`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anabranch_lab.tasks.kinds import Task, load_task


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
