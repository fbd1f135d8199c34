"""Where temporary files go, what interrupts do, how long examples take, that groups stay groups.

And how many threads torch has, what the garbage collector leaves out, and how the processes of real
runs start.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings

# Simulated runs write many small logs, and SQLite waits for the disk as each is made and closed.
_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 2 << 30
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# A shell lets what it runs in the background ignore interrupts, and so would processes that tests
# start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests share the cores, and a team of torch threads waits for the one whose core another test has.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes depends on what the other worker does meanwhile. Each run draws others.
settings.register_profile("anabranch", deadline=None, max_examples=50)
settings.load_profile("anabranch")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse to go on where pytest-xdist was asked to keep groups together, and does not."""
    for item in items if getattr(config.option, "loadgroup", False) else ():
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid.rpartition("]")[2]:
            raise pytest.UsageError(
                f"{item.nodeid} would not run with its group: pytest {pytest.__version__} and this "
                "pytest-xdist do not agree; install what constraints.txt says"
            )


def pytest_collection_finish() -> None:
    """Let no garbage collection look through modules and tests, most of what a worker holds."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `run_locally` fork its processes, in place of starting commands."""
    from anabranch_lab.run import launch

    from .forked import Forked

    names = {name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")}
    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(Popen=Forked, **names))
