"""Processes that run Python, forked from one that has imported what a site that trains needs.

Importing it takes nearly two seconds of a core, a process. Tests of how a command starts and ends
start the commands themselves, and so do those that compare bits: what is imported
before decides how PyTorch adds up.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.reduction import DupFd
from threading import Thread
from typing import IO, Any

# One process forks for all tests of a worker: what the first that starts it asks for, it imports.
_PRELOADED = [
    *("torch._dynamo", "anabranch.torch.backend"),  # for ranks of a process group
    *(
        "anabranch.cli",
        "anabranch_lab.run._site",
        "anabranch_lab.tasks.train",
        "anabranch_lab.tasks.kinds",
    ),
    *("anabranch.group.serve", "anabranch.group.blocking_group", "anabranch.group.group_file"),
    "anabranch.group.service",
    *("anabranch_lab.run.control", "anabranch_lab.run.worker"),
    *("anabranch_lab.cli.runs", "anabranch_lab.cli._results", "anabranch_lab.cli._explore"),
    # What commands import when they are called, and planners when they plan.
    *("typer._adapters", "scipy.sparse.csgraph", "scipy.optimize"),
]


def forking() -> Any:
    """Return the context of multiprocessing whose processes are such forks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


class Forked:
    """Takes the place of ``subprocess.Popen`` for a command that begins with `sys.executable`.

    What follows there is ``-m anabranch`` and its arguments, ``-c`` and a program, or a script and
    its arguments.

    Args:
        command: the command.
        env: its whole environment.
        stdin, stdout, stderr: ``PIPE``, ``DEVNULL``, or a file.
        text: True: pipes are of text.
        start_new_session: it always has a session of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[Any],
        stderr: int | IO[Any],
        text: bool = True,
        start_new_session: bool = True,
    ) -> None:
        assert command[0] == sys.executable
        assert text
        assert start_new_session
        self.args = command
        theirs, ours = zip(*map(_stream, (stdin, stdout, stderr), "wrr"), strict=True)
        self.stdin, self.stdout, self.stderr = ours
        self._process = forking().Process(target=_Command(command[1:], env, theirs))
        self._process.start()
        for given, stream in zip((stdin, stdout, stderr), theirs, strict=True):
            if isinstance(given, int):
                os.close(stream)
        self.pid: int = self._process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, if there is one."""
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, once there is one."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what is left of its output and of its errors, once it has ended."""

        def rest(stream: IO[str] | None) -> str:
            if stream is None or stream.closed:
                return ""
            with stream:
                return stream.read()

        with ThreadPoolExecutor(1) as pool:  # both at once: a full pipe would hold it up
            errors = pool.submit(rest, self.stderr)
            output = rest(self.stdout)
        self.wait(timeout)
        return output, errors.result()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self._process.kill()


def _stream(given: int | IO[Any], mode: str) -> tuple[int, IO[str] | None]:
    """Return the descriptor of a stream that is asked for, and the other end, if it is a pipe's."""
    if given == subprocess.PIPE:
        read, write = os.pipe()
        theirs, ours = (write, read) if mode == "r" else (read, write)
        return theirs, os.fdopen(ours, mode)
    if given == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    assert not isinstance(given, int)
    return given.fileno(), None


class _Command:
    """A command, as the fork runs it. Its streams go there when it is pickled for that."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]
    ) -> None:
        self._arguments, self._environment = [*arguments], dict(environment)
        self._folder, self._tests = os.getcwd(), os.getpid()
        self._streams: Sequence[Any] = streams

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_streams": [DupFd(each) for each in self._streams]}

    def __call__(self) -> None:
        # Else what pytest leaves when it is killed runs on: in a session of its own, and for ever.
        Thread(target=_end_after, args=(self._tests,), daemon=True).start()
        for number, stream in enumerate(self._streams):
            os.dup2(stream.detach(), number)
        sys.stdin = os.fdopen(0)
        os.setsid()
        os.chdir(self._folder)
        os.environ.clear()
        os.environ.update(self._environment)
        head, *sys.argv = self._arguments
        if head == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif head == "-c":
            exec(sys.argv[0], {"__name__": "__main__"})
        else:
            sys.argv = self._arguments
            runpy.run_path(head, run_name="__main__")


def _end_after(pid: int) -> None:
    """Kill this process when another ends."""
    with suppress(ProcessLookupError):
        select.select([os.pidfd_open(pid)], [], [])
    os.kill(os.getpid(), signal.SIGKILL)
