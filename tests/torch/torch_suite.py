"""PyTorch's own tests of its backends, ``DistributedTest`` of its wheel, against ours.

    python tests/torch/torch_suite.py anabranch RANKS [unittest's arguments]

The tests skip by the backend's name what it cannot do, so they are told ``gloo``, and the process
group that they make is the backend anabranch's; or gloo's, to compare. Each test makes a group: its
scheduler is forked, as its ranks are, since the command takes a second of a core to start.
"""

from __future__ import annotations

import os
import sys
import unittest
from datetime import timedelta
from typing import Any

OURS, RANKS = sys.argv.pop(1), sys.argv.pop(1)
os.environ.update(BACKEND="gloo", WORLD_SIZE=RANKS)
os.environ.setdefault("TEMP_DIR", os.environ.get("TMPDIR", "/tmp"))

import scheduler_forked  # type: ignore[import-not-found]  # noqa: E402  # beside this script
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

import anabranch.torch.backend  # noqa: E402, F401  # once, and not in each forked rank

_MAKE = dist.init_process_group
_PART = dist.new_group


def init_process_group(*given: Any, backend: str | None = None, **named: Any) -> None:
    """Make a process group of the backend anabranch whatever the test asks for."""
    if given:
        backend, given = given[0], given[1:]
    assert backend == "gloo", backend
    _MAKE(OURS, *given, **named)


def new_group(*given: Any, backend: str | None = None, **named: Any) -> Any:
    """Likewise, of some ranks."""
    return _PART(*given, backend=OURS if backend == "gloo" else backend, **named)


scheduler_forked.use()
sys.dont_write_bytecode = True  # from here on: tests of PyTorch's import this file by name
dist.init_process_group = init_process_group
dist.new_group = new_group
distributed_test.default_pg_timeout = timedelta(seconds=60).total_seconds()


class TestOverAGroup(
    distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase
):
    """Those of the wheel, each in processes forked from this one."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


if __name__ == "__main__":
    unittest.main()
