"""Ranks end as programs do: with status 0, whatever gloo had under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

RUNS = int(os.environ.get("ANABRANCH_EXITS", "7"))  # each program once; 200 for races
_LIMIT_S = 20.0  # of a run, on a busy machine


@pytest.mark.slow
@pytest.mark.timeout(RUNS * _LIMIT_S + 60)
@pytest.mark.xdist_group("ranks")
def test_no_rank_aborts_when_its_program_ends():
    command = [sys.executable, "-W", "ignore", "-m", "tests.torch.exits", str(RUNS)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as runs:
        try:
            said, _ = runs.communicate(timeout=RUNS * _LIMIT_S)
        finally:
            if runs.poll() is None:
                os.killpg(runs.pid, signal.SIGKILL)
    assert (runs.returncode, said) == (0, "")
