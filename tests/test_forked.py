"""Processes that tests fork end with the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KILLED = """
import os, signal, subprocess, sys
from tests.forked import Forked

nothing = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
sleeps = [sys.executable, "-c", "import time; time.sleep(3600.0)"]
print(Forked(sleeps, env=os.environ, **nothing).pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_a_forked_process_ends_with_a_program_that_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pid = int(done.stdout)
    try:
        while _runs(pid):
            time.sleep(0.01)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
