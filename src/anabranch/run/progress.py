"""What a terminal shows while a run is in progress."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.record import tables
from anabranch.record.events import Event, UnknownEvent
from anabranch.record.log import LogError, read_events
from anabranch.record.runs import Run

_REFRESH_S = 0.5


class LiveRun:
    """A progress bar and a table of one run, read from its log; nothing where no terminal is.

    Args:
        title: beside the bar.
        log: the run's event log, which need not exist yet.
        console: where to draw.
    """

    def __init__(self, title: str, log: Path, console: Console) -> None:
        self._log = log
        self._console = console
        self._events: list[Event | UnknownEvent] = []
        self._seen = 0
        self._next_s = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task(title, total=None)
        self._live = Live(self._bar, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> LiveRun:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def tick(self) -> None:
        """Read what is new in the log and draw it."""
        now_s = time.monotonic()
        if not self._console.is_terminal or now_s < self._next_s or not self._log.exists():
            return
        self._next_s = now_s + _REFRESH_S
        try:
            for seq, event in read_events(self._log, self._seen):
                self._seen = seq
                self._events.append(event)
        except LogError:  # the scheduler is just creating it
            return
        if self._events:
            run = Run.of(self._events, self._log)
            pace = run.summary.pace
            # Where there are servers, as far as the slowest worker is.
            done = min(map(len, (pace.iterations.values() if pace else (run.summary.rounds,))))
            self._bar.update(self._task, total=run.summary.started.rounds, completed=done)
            table = tables.paces([run]) if pace else tables.results([run])
            self._live.update(Group(self._bar, table.for_terminal()))
