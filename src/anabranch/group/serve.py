"""The process of a scheduler, for a group or a scenario: its log, its journal, and its end."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anabranch._paths import next_free
from anabranch.group.log import First, RunLog, conduct
from anabranch.group.service import Service
from anabranch.log.console import Console, Line
from anabranch.log.journal import Journal as FileJournal
from anabranch.log.journal import JournalBusy
from anabranch.log.store import EventLog, LogError
from anabranch.net.errors import RunAborted
from anabranch.net.network import Address
from anabranch.net.stdin import at_end_of_stdin
from anabranch.net.tcp import wait_closed
from anabranch.net.tls import Credentials
from anabranch.plan import Plan
from anabranch.scheduler.run import Abandoned
from anabranch.scheduler.server import Scheduler
from anabranch.scheduler.watching import UNWATCHED, Watching, watched

_NAMED_FIRST_S = 0.5
_LOOK_S = 0.2  # between two tries to open a journal that another scheduler has
# The status of a program that SIGTERM ends; Kubernetes ends a node's pods by that signal. With 0, a
# supervisor would take the group for ended, and start no scheduler again.
_TERMINATED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Process:
    """How the process of a scheduler serves its sites.

    Args:
        token: the secret that a site needs to join.
        listen: the address at which sites join.
        log: the event log to create; None for no log.
        listening: called with the address, once sites can join.
        say: called with operator messages: sites that joined, sites awaited, changes.
        credentials: for TLS; None for plain TCP.
        journal: the journal's file, created if it does not exist; None for no journal.
        stands_by: whether to wait while another scheduler has the journal. If that one ends its
            group, this process ends, too.
        stop_with_stdin: whether the run ends when standard input closes, as when the process at its
            other end dies.
        watching: how people and programs watch the run.
    """

    token: str
    listen: Address
    log: Path | None
    listening: Callable[[Address], None]
    say: Callable[[Line], None] = lambda line: None
    credentials: Credentials | None = None
    journal: Path | None = None
    stands_by: bool = False
    stop_with_stdin: bool = False
    watching: Watching = UNWATCHED


@dataclass(frozen=True, slots=True)
class Program:
    """The job of a scenario's sites; the sites of a group run users' programs instead.

    Args:
        job_json: the job, encoded for the sites.
        plan: the first plan.
        first: makes the first event of the log.
        began: called with the scheduler and its log when the run begins, and when a restarted
            scheduler resumes the run.
    """

    job_json: str
    plan: Plan
    first: First
    began: Callable[[Scheduler, RunLog], None]


def serve(service: Service, process: Process, program: Program | None = None) -> None:
    """Serve sites over TCP until all have left.

    With a journal, a scheduler that is killed, or gets SIGTERM, leaves its sites running. A
    scheduler that starts later with the same journal takes them over, as does one that stands by.

    Args:
        service: the settings; see :meth:`Service.listening_at`.
        process: how this process serves them.
        program: the job of a scenario's sites; None for a group.

    Raises:
        RunAborted: the run ended early; names the cause.
        LogError: the log cannot be created, or the journal cannot be used.
        SystemExit: after SIGTERM, with a journal: the sites wait for the next scheduler.
    """
    gc.freeze()  # modules stay loaded, so the collector need not scan them
    log_path, say = process.log, process.say
    if log_path is not None and not log_path.parent.is_dir():  # now, not after standing by
        raise LogError(f"cannot create {log_path}: there is no folder {log_path.parent}")
    with ExitStack() as stack:
        journal = None
        if process.journal is not None:
            journal, has_waited = _journal(process.journal, process.stands_by, say)
            stack.enter_context(journal)
            if journal.why_ended is not None:
                raise LogError(
                    f"the group of the journal {process.journal} ended early: {journal.why_ended}; "
                    "remove that file to begin another group"
                )
            if has_waited and journal.had_ended:
                say(Line("ended", "the group has ended"))
                return
            journal.begin()
            if has_waited:
                say(Line("took_over", "the other scheduler is gone: this one goes on"))
        if log_path is not None and journal is not None and log_path.exists():
            log_path = next_free(log_path)  # the earlier scheduler's log stays as it is
            say(Line("log", f"events go to {log_path}", fields={"log": str(log_path)}))
        log = None if log_path is None else stack.enter_context(EventLog.create(log_path))
        asyncio.run(_serve(service, process, program, log, journal))


def _journal(path: Path, stands_by: bool, say: Callable[[Line], None]) -> tuple[FileJournal, bool]:
    """Return the journal, and whether another scheduler had it first."""
    has_waited = False
    while True:
        try:
            return FileJournal(path), has_waited
        except JournalBusy:
            if not stands_by:
                raise
        if not has_waited:
            say(Line("standing_by", f"standing by: another scheduler has {path}"))
        has_waited = True
        time.sleep(_LOOK_S)


async def _serve(
    service: Service,
    process: Process,
    program: Program | None,
    log: EventLog | None,
    journal: FileJournal | None,
) -> None:
    console = Console(service.overlay.names, process.say)
    network = service.network(process.credentials)
    loop = asyncio.get_running_loop()
    scheduler: Scheduler
    if program is None:
        run_log = RunLog(log, service.run_started, console)
        scheduler = service.scheduler(network, process.token, run_log, journal)
    else:
        began = program.began

        def begin() -> None:
            # Not at once: a restarted scheduler resumes its run in its constructor, so `scheduler`
            # is not assigned yet.
            loop.call_soon(lambda: began(scheduler, run_log))

        run_log = RunLog(log, program.first, console, begin)
        scheduler = service.scheduler(
            network, process.token, run_log, journal, program.plan, program.job_json
        )
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        is_interrupted = not scheduler.is_over
        scheduler.abort("the scheduler was interrupted")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    if journal is not None:
        loop.add_signal_handler(signal.SIGTERM, scheduler.abandon)
    if process.stop_with_stdin:
        gone = partial(scheduler.abort, "the process that started the scheduler is gone")
        # If that process was a site, too, the end of its connections gives a better reason first.
        at_end_of_stdin(partial(loop.call_later, _NAMED_FIRST_S, gone))
    where = await scheduler.listen(process.listen)
    try:
        async with watched(scheduler, console, process.watching):
            process.listening(where)  # after the addresses of `watching` are open, too
            console.listening()
            await conduct(scheduler, run_log)
    except RunAborted as error:
        if journal is not None and not is_interrupted:
            # A supervisor that restarts this scheduler must not begin another group.
            journal.end_early(str(error))
        else:
            _forget(journal)
        raise
    except Abandoned:
        sys.exit(_TERMINATED)
    else:
        _forget(journal)
    finally:
        await wait_closed()


def _forget(journal: FileJournal | None) -> None:
    """Clear the journal, so that the next scheduler with it begins a new group."""
    if journal is not None:
        journal.clear()
