"""A process group's scheduler is forked from its first rank, in place of a command that is started.

Starting the command takes a second of a core. Tests of the command itself start it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from anabranch import cli
from anabranch.torch import _rendezvous

# What the command imports when it is called, and its planner when it plans.
_LATE = "anabranch.group.service", "typer._adapters", "scipy.sparse.csgraph", "scipy.optimize"


def use() -> None:
    """Let process groups that this process and its forks make have such schedulers."""
    for late in _LATE:
        import_module(late)
    _rendezvous.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=Forked, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )


class Forked:
    """Takes the place of ``subprocess.Popen`` for the command that starts a scheduler."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **named: Any) -> None:
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self._process = os.fork()
        if not self._process:
            os.dup2(theirs_in, 0)
            os.dup2(theirs_out, 1)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # the store's port would stay taken
            os.setsid()
            _run(command[2:], env)
        os.close(theirs_in)
        os.close(theirs_out)
        self.stdin, self.stdout = os.fdopen(ours_in, "w"), os.fdopen(ours_out)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, once there is one."""
        until_s = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            process, status = os.waitpid(self._process, 0 if until_s is None else os.WNOHANG)
            if process:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif until_s is not None and time.monotonic() > until_s:
                raise subprocess.TimeoutExpired("the scheduler", timeout or 0.0)
            else:
                time.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        """End it."""
        if self.returncode is None:
            os.kill(self._process, signal.SIGKILL)


def _run(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [*arguments]
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    status: Any = 1
    try:
        cli.main()
        status = 0
    except SystemExit as ended:
        status = ended.code
    finally:
        sys.stdout.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)
