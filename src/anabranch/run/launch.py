"""The local world: start a scheduler and one process per site on this machine, and see them end."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from anabranch.net.errors import RunAborted
from anabranch.overlay import Overlay

TOKEN_VARIABLE = "ANABRANCH_TOKEN"

_POLL_S = 0.05
# Once one process has failed, the others are told by the scheduler or see it gone; those that have
# not ended by then, busy or stopped, are killed.
_MERCY_S = 3.0
_LAST_WORDS_S = 1.0


@dataclass
class _Process:
    name: str
    popen: subprocess.Popen[str]
    stderr: IO[str]

    def account(self) -> str:
        """How it ended, in words: the last line it wrote, or its signal."""
        code = self.popen.returncode
        if code is not None and code < 0:
            return f"{self.name} was killed by {signal.Signals(-code).name}"
        self.stderr.seek(0)
        said = self.stderr.read().strip()
        if "error: " in said:
            return said.rpartition("error: ")[2]
        return said.splitlines()[-1] if said else f"{self.name} exited with {code}"


def run_locally(
    scenario: Path,
    route: int,
    overlay: Overlay,
    log: Path,
    data_dir: Path | None = None,
    on_tick: Callable[[], None] = lambda: None,
    on_started: Callable[[dict[str, int]], None] = lambda pids: None,
) -> None:
    """Run a scenario on this machine, one process for the scheduler and one for each site.

    Whatever happens, no process outlives this call; if this process itself is killed, the
    scheduler notices and ends the run.

    Args:
        scenario: the scenario's file.
        route: which of its routes, from 0.
        overlay: its overlay.
        log: the event log to create.
        data_dir: where data sets are.
        on_tick: called some times a second while the run goes on.
        on_started: called once with the id of every process, by name.

    Raises:
        RunAborted: the run failed; says who or what caused it.
    """
    token = secrets.token_hex(16)
    threads = max(1, (os.cpu_count() or 1) // overlay.size)
    with _processes() as processes:

        def start(name: str, *arguments: str, stdin: int = subprocess.DEVNULL) -> _Process:
            stderr = tempfile.TemporaryFile("w+", prefix="anabranch-")  # noqa: SIM115
            popen = subprocess.Popen(
                [sys.executable, "-m", "anabranch", *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE if stdin == subprocess.PIPE else subprocess.DEVNULL,
                stderr=stderr,
                text=True,
                env={**os.environ, TOKEN_VARIABLE: token},
                start_new_session=True,  # Ctrl-C reaches us alone; we end the others in order
            )
            processes.append(_Process(name, popen, stderr))
            return processes[-1]

        scheduler = start(
            "the scheduler",
            *("scheduler", str(scenario), "--route", str(route), "--log", str(log)),
            "--stop-with-stdin",
            stdin=subprocess.PIPE,
        )
        assert scheduler.popen.stdout is not None
        address = scheduler.popen.stdout.readline().strip()
        if not address:
            scheduler.popen.wait()
            raise RunAborted(scheduler.account())
        options = ["--scheduler", address, "--threads", str(threads)]
        if data_dir is not None:
            options += ["--data-dir", str(data_dir)]
        for site in overlay.sites:
            start(f"site {site.name}", "site", site.name, *options)
        on_started({process.name: process.popen.pid for process in processes})
        _wait(processes, on_tick)


def _wait(processes: list[_Process], on_tick: Callable[[], None]) -> None:
    """Return when every process has ended well; raise RunAborted if one has not."""
    scheduler = processes[0]
    failed_s: float | None = None
    first: _Process | None = None
    while running := [process for process in processes if process.popen.poll() is None]:
        if first is None:
            first = next((p for p in processes if p.popen.returncode not in (None, 0)), None)
            failed_s = time.monotonic()
        elif failed_s is not None and time.monotonic() - failed_s > _MERCY_S:
            break
        on_tick()
        time.sleep(_POLL_S)
    first = first or next((p for p in processes if p.popen.returncode != 0), None)
    on_tick()
    if first is None:
        return
    _stop(processes, _LAST_WORDS_S)
    # The scheduler knows why a run ended; where it was itself the cause, its end says so. A site
    # that fails before it joins is nobody's business but ours.
    told = scheduler not in running and scheduler.popen.returncode != 0
    raise RunAborted((scheduler if told else first).account())


@contextmanager
def _processes() -> Iterator[list[_Process]]:
    """A list of processes that are ended when the block is left."""
    processes: list[_Process] = []
    try:
        yield processes
    finally:
        _stop(processes, _MERCY_S)
        for process in processes:
            for stream in (process.popen.stdin, process.popen.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _stop(processes: list[_Process], mercy_s: float) -> None:
    """End whatever still runs: the scheduler in order, so that its log is whole, then the rest."""
    if processes and processes[0].popen.poll() is None:
        processes[0].popen.terminate()  # the scheduler tells the sites
    deadline_s = time.monotonic() + mercy_s
    for process in processes:
        try:
            process.popen.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
