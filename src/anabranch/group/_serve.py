"""The scheduler of a group as a process: its log, its journal, and its end."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from anabranch._paths import next_free
from anabranch.group.log import RunLog
from anabranch.group.service import Service
from anabranch.net.errors import RunAborted
from anabranch.net.network import Address
from anabranch.net.stdin import at_end_of_stdin
from anabranch.net.tcp import wait_closed
from anabranch.net.tls import Credentials
from anabranch.record.console import Console, Line
from anabranch.record.journal import Journal as FileJournal
from anabranch.record.journal import JournalBusy
from anabranch.record.log import EventLog, LogError
from anabranch.scheduler.run import Abandoned
from anabranch.scheduler.watching import UNWATCHED, Watching, watched

_NAMED_FIRST_S = 0.5
_LOOK_S = 0.2  # at a journal that another scheduler has


def serve(
    service: Service,
    token: str,
    listen: Address,
    log_path: Path | None,
    listening: Callable[[Address], None],
    say: Callable[[Line], None],
    credentials: Credentials | None = None,
    journal_path: Path | None = None,
    stands_by: bool = False,
    stop_with_stdin: bool = False,
    watching: Watching = UNWATCHED,
) -> None:
    """Serve one group over TCP until every site has left.

    With a journal, a scheduler that is killed or told to terminate leaves its group; started again
    with the same journal, it finds it. So does one that stands by.

    Args:
        service: what with.
        token: what a site must know to join.
        listen: where sites join.
        log_path: the event log to create; None for none.
        listening: called once sites can join, with where.
        say: called with lines for people: who joined, who is awaited, what changed.
        credentials: for TLS; None for none.
        journal_path: the journal, which is made if there is none; None for none.
        stands_by: whether to wait while another scheduler has the journal. Once that has ended its
            group, nothing is left to do.
        stop_with_stdin: whether the group ends when standard input closes, with the process that
            holds its other end.
        watching: what people and machines see of the group while it goes on.

    Raises:
        RunAborted: the group ended early; says who or what caused it.
        LogError: the log cannot be created, or the journal not be used.
    """
    service = service.listening_at(listen)
    if log_path is not None and not log_path.parent.is_dir():  # said before it is waited for
        raise LogError(f"cannot create {log_path}: there is no folder {log_path.parent}")
    with ExitStack() as stack:
        journal = None
        if journal_path is not None:
            journal, has_waited = _journal(journal_path, stands_by, say)
            stack.enter_context(journal)
            if journal.why_ended is not None:
                raise LogError(
                    f"the group of the journal {journal_path} ended early: {journal.why_ended}; "
                    "remove that file to begin another group"
                )
            if has_waited and journal.had_ended:
                say(Line("ended", "the group has ended"))
                return
            journal.begin()
            if has_waited:
                say(Line("took_over", "the other scheduler is gone: this one goes on"))
        if log_path is not None and journal is not None and log_path.exists():
            log_path = next_free(log_path)  # the one before has its own, up to where it stopped
            say(Line("log", f"events go to {log_path}", fields={"log": str(log_path)}))
        log = None if log_path is None else stack.enter_context(EventLog.create(log_path))
        asyncio.run(
            _serve(
                *(service, token, listen, log, listening, say, credentials, journal),
                *(stop_with_stdin, watching),
            )
        )


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
    token: str,
    listen: Address,
    log: EventLog | None,
    listening: Callable[[Address], None],
    say: Callable[[Line], None],
    credentials: Credentials | None,
    journal: FileJournal | None,
    stop_with_stdin: bool,
    watching: Watching,
) -> None:
    console = Console([site.name for site in service.overlay.sites], say)
    run_log = RunLog(log, service.run_started, console)
    network = service.network(credentials)
    scheduler = service.scheduler(network, token, run_log, journal)
    loop = asyncio.get_running_loop()
    is_interrupted = False

    def interrupt() -> None:
        nonlocal is_interrupted
        is_interrupted = not scheduler.is_over
        scheduler.abort("the scheduler was interrupted")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    if journal is not None:
        loop.add_signal_handler(signal.SIGTERM, scheduler.abandon)
    if stop_with_stdin:
        gone = partial(scheduler.abort, "the process that started the scheduler is gone")
        # Where that process was a site too, its connections' end names it.
        at_end_of_stdin(partial(loop.call_later, _NAMED_FIRST_S, gone))
    where = await scheduler.listen(listen)
    try:
        async with watched(scheduler, console, watching):
            listening(where)  # once all else that it listens to is there
            console.listening()
            await scheduler.finished()
    except RunAborted as error:
        run_log.ended(str(error), scheduler)
        if journal is not None and not is_interrupted:
            # What starts a failed scheduler again must not begin another group by that.
            journal.end_early(str(error))
        else:
            _forget(journal)
        raise
    except Abandoned as stopped:
        run_log.ended(str(stopped), scheduler)
    else:
        run_log.ended(None, scheduler)
        _forget(journal)
    finally:
        await scheduler.close()
        await wait_closed()


def _forget(journal: FileJournal | None) -> None:
    """Let the next scheduler with this journal begin a group of its own."""
    if journal is not None:
        journal.clear()
