"""The local world: start a scheduler and one process per site on this machine; wait for them."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from anabranch.log.events import LinksEmulated
from anabranch.log.store import append_after
from anabranch.net.errors import RunAborted
from anabranch.overlay import Overlay
from anabranch_lab.emulate import Emulation, EmulationError, emulated
from anabranch_lab.run.checkpoints import checkpoints_of, round_of, weights_of

TOKEN_VARIABLE = "ANABRANCH_TOKEN"
BEGAN = "began"
"""The line that a scheduler prints when its run begins."""

_POLL_S = 0.05
# Once one process has failed, the scheduler ends the others, or they see it gone. The launcher
# kills processes that still run after this time, busy or stopped.
_MERCY_S = 3.0
_LAST_WORDS_S = 1.0
_LOG_S = 10.0  # for the scheduler, which must finish its log while other processes use the cores


@dataclass
class _Process:
    name: str
    popen: subprocess.Popen[str]
    stderr: IO[str]

    def account(self) -> str:
        """Return how the process ended: the last line it wrote, or its signal."""
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
    emulate: bool = False,
    seed: int = 0,
    save_every: int | None = None,
    resume: Path | None = None,
    metrics: str | None = None,
    journal: Path | None = None,
) -> None:
    """Run a scenario on this machine, one process for the scheduler and one for each site.

    No process outlives this call. If this process itself is killed, the scheduler notices and ends
    the run.

    Args:
        scenario: the scenario's file.
        route: which of its routes, from 0.
        overlay: its overlay.
        log: the event log to create; weights and checkpoints are left beside it.
        data_dir: where data sets are.
        on_tick: called several times a second during the run.
        on_started: called once with the id of every process, by name.
        emulate: give every site a network namespace, in which the kernel keeps the links' rates.
            Needs root.
        seed: of the draw of packets that emulated links lose.
        save_every: rounds between two checkpoints; None: no checkpoints.
        resume: the folder of the round to resume after; None: begin at the first round.
        metrics: where the scheduler shows metrics, as its option says; not with `emulate`.
        journal: the file from which a killed scheduler starts again and finds its sites; None: the
            run ends with its scheduler.

    Raises:
        RunAborted: the run failed; names the site or the cause.
        EmulationError: this machine cannot emulate the overlay.
    """
    token = secrets.token_hex(16)
    threads = 1 if emulate else max(1, (os.cpu_count() or 1) // overlay.size)
    with ExitStack() as stack:
        wan = stack.enter_context(emulated(overlay, seed=seed)) if emulate else None
        processes = stack.enter_context(_processes())

        def start(
            name: str, at: int | None, *arguments: str, stdout: int = subprocess.DEVNULL
        ) -> _Process:
            inside = [] if wan is None else wan.inside(at)
            stderr = tempfile.TemporaryFile("w+", prefix="anabranch-")  # noqa: SIM115
            popen = subprocess.Popen(
                [*inside, sys.executable, "-m", "anabranch", *arguments],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                text=True,
                env={**os.environ, TOKEN_VARIABLE: token},
                start_new_session=True,  # Ctrl-C reaches this process only, which ends the others
            )
            return _Process(name, popen, stderr)

        def start_scheduler(*options: str) -> tuple[_Process, str]:
            """Start a scheduler; return it and its address, empty if it ended at once."""
            scheduler = start(
                "the scheduler",
                None,
                "host",
                *options,
                "--",
                str(scenario),
                stdout=subprocess.PIPE,
            )
            processes[:1] = [scheduler]
            assert scheduler.popen.stdout is not None
            return scheduler, scheduler.popen.stdout.readline().strip()

        options = ["--stop-with-stdin", "--route", str(route), "--log", str(log)]
        if save_every is not None:
            options += ["--checkpoint-every", str(save_every)]
        if resume is not None:
            options += ["--after-round", str(round_of(resume))]
        if metrics is not None:
            options += ["--metrics", metrics]
        if wan is not None:
            options += ["--emulated", "--listen", f"{wan.control_address}:0", "--insecure"]
        if journal is not None:
            options += ["--journal", str(journal)]
        scheduler, address = start_scheduler(*options)
        again = None
        if journal is not None:
            again = partial(start_scheduler, *options, "--listen", address)
        if not address:
            scheduler.popen.wait()
            raise RunAborted(scheduler.account())
        options = ["--stop-with-stdin", "--scheduler", address, "--threads", str(threads)]
        options += ["--weights", str(weights_of(log))]
        if data_dir is not None:
            options += ["--data-dir", str(data_dir)]
        if save_every is not None:
            options += ["--checkpoints", str(checkpoints_of(log))]
        if resume is not None:
            options += ["--resume", str(resume)]
        for index, site in enumerate(overlay.sites):
            there = [] if wan is None else ["--host", wan.addresses[index], "--insecure"]
            # After "--" a name that begins with a hyphen is no option.
            name = f"site {site.name}"
            processes.append(start(name, index, "site", *options, *there, "--", site.name))
        on_started({process.name: process.popen.pid for process in processes})
        _wait(processes, on_tick, wan, again)
        if wan is not None and (busy := wan.relay_busy) is not None:
            append_after(log, LinksEmulated(at_s=0.0, relay_busy=busy))


def _wait(
    processes: list[_Process],
    on_tick: Callable[[], None],
    wan: Emulation | None,
    start_again: Callable[[], tuple[_Process, str]] | None,
) -> None:
    """Return when every process has ended well; raise RunAborted if one has not.

    Once the run has begun, the scheduler decides whether it goes on without a site.

    Args:
        processes: the scheduler's, and those of the sites.
        on_tick: see :func:`run_locally`.
        wan: the emulation, whose links get their rates when the run begins; None: no emulation.
        start_again: starts the scheduler again if it is killed after its run began, or after it
            rejoined its run; None: the run ends with its scheduler.
    """
    scheduler = processes[0]
    said = scheduler.popen.stdout
    assert said is not None
    begins = [said]
    has_begun = False
    failed_s: float | None = None
    first: _Process | None = None
    while running := [process for process in processes if process.popen.poll() is None]:
        if start_again is not None and not begins and (scheduler.popen.poll() or 0) < 0:
            _close(scheduler)
            scheduler, address = start_again()
            said = scheduler.popen.stdout
            assert said is not None
            begins = [said]
            if not address:  # the new scheduler ended at once, and printed why
                begins, start_again = [], None
            continue
        if first is None:
            # The scheduler decides whether a run goes on without a site, unless all sites are gone.
            is_beginning = begins and not has_begun
            judges = processes if is_beginning or running == [scheduler] else [scheduler]
            first = next((p for p in judges if p.popen.returncode not in (None, 0)), None)
            failed_s = time.monotonic()
        elif failed_s is not None and time.monotonic() - failed_s > _MERCY_S:
            break
        on_tick()
        if wan is not None:
            try:
                wan.check()
            except EmulationError as error:
                raise RunAborted(str(error)) from None
        if select.select(begins, [], [], _POLL_S)[0]:
            line = said.readline().strip()
            if line == BEGAN:
                begins = []
                if wan is not None and not has_begun:
                    wan.begin()
                has_begun = True
            elif not line:
                begins, start_again = [], None  # the scheduler ended before its run began
    on_tick()
    if scheduler.popen.returncode == 0:
        return
    first = first or next(p for p in processes if p.popen.returncode != 0)
    _stop(processes, _LAST_WORDS_S)
    # The scheduler reports why a run ended, also if it was the cause. Only the launcher sees a
    # site that fails before it joins.
    told = scheduler not in running and scheduler.popen.returncode != 0
    raise RunAborted((scheduler if told else first).account())


@contextmanager
def _processes() -> Iterator[list[_Process]]:
    """Yield a list of processes; end them when the block is left."""
    processes: list[_Process] = []
    try:
        yield processes
    finally:
        _stop(processes, _MERCY_S)
        for process in processes:
            _close(process)


def _close(process: _Process) -> None:
    for stream in (process.popen.stdin, process.popen.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _stop(processes: list[_Process], mercy_s: float) -> None:
    """End the processes that still run: first the scheduler, so that its log is whole."""
    if processes and processes[0].popen.poll() is None:
        # On SIGINT the scheduler tells the sites to end. On SIGTERM a scheduler with a journal
        # would leave them for its successor.
        processes[0].popen.send_signal(signal.SIGINT)
        processes[0].popen.send_signal(signal.SIGCONT)  # also where it was stopped
    began_s, given_s = time.monotonic(), _LOG_S
    for process in processes:
        try:
            process.popen.wait(max(0.0, began_s + given_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
        given_s = mercy_s
