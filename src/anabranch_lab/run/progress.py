"""What a terminal shows while a run is in progress."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from types import TracebackType

from anabranch._paths import parts_of
from anabranch.log.events import Event, UnknownEvent
from anabranch.log.store import LogError, read_events
from anabranch.log.summary import RunSummary
from anabranch.log.terminal import Bar, Terminal
from anabranch_lab.reports import tables
from anabranch_lab.reports.runs import Run

_REFRESH_S = 0.5
_LATEST = 20  # rounds whose mean pace predicts the rest


def remaining_s(run: RunSummary, done: int) -> float | None:
    """Return how long a run should still take, at the pace of its latest rounds; None: unknown.

    Args:
        run: the run so far.
        done: how many rounds all sites have done, or the slowest worker.
    """
    if not done or not run.started.rounds:
        return None
    latest = run.interval_s[-_LATEST:] or (run.total_s / done,)
    return max(run.started.rounds - done, 0) * fmean(latest)


def mean_loss(run: RunSummary) -> float | None:
    """Return the mean loss of each site's latest step; None where there is none."""
    latest = {step.site: step.loss for step in run.steps}
    losses = [loss for loss in latest.values() if loss is not None]
    return fmean(losses) if losses else None


def loss_text(loss: float | None) -> str:
    """Return a loss as the end of a line about a run; empty for None.

    >>> loss_text(0.123456), loss_text(None)
    (', loss 0.1235', '')
    """
    return "" if loss is None else f", loss {loss:.4g}"


def eta_text(seconds: float | None) -> str:
    """Return the remaining time as text; empty for None.

    >>> eta_text(None), eta_text(7.4), eta_text(3725.0)
    ('', '0:00:07 left', '1:02:05 left')
    """
    return "" if seconds is None else f"{timedelta(seconds=round(seconds))} left"


class LiveRun:
    """A progress bar and a table of one run, read from its log; draws nothing off a terminal.

    Args:
        title: beside the bar.
        log: the run's event log, which need not exist yet. A scheduler that is started again writes
            the later part to a log beside it.
        console: where to draw.
    """

    def __init__(self, title: str, log: Path, console: Terminal) -> None:
        self._log = log
        self._console = console
        self._events: list[Event | UnknownEvent] = []
        self._seen: dict[Path, int] = {}
        self._next_s = 0.0
        self._bar = Bar(title, "rounds", console)

    def __enter__(self) -> LiveRun:
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.__exit__(kind, error, traceback)

    def tick(self) -> None:
        """Read the log's new events and draw the run."""
        now_s = time.monotonic()
        if not self._console.is_terminal or now_s < self._next_s or not self._log.exists():
            return
        self._next_s = now_s + _REFRESH_S
        try:
            for part in parts_of(self._log):
                for seq, event in read_events(part, self._seen.get(part, 0)):
                    self._seen[part] = seq
                    if part == self._log or seq > 1:  # a later part begins as the first does
                        self._events.append(event)
        except LogError:  # the scheduler is still creating it
            return
        if self._events:
            run = Run.of(self._events, self._log)
            pace = run.summary.pace
            # With servers, the slowest worker's updates.
            done = min(map(len, (pace.iterations.values() if pace else (run.summary.rounds,))))
            table = tables.paces([run]) if pace else tables.results([run])
            self._bar.show(
                done,
                run.summary.started.rounds,
                loss_text(mean_loss(run.summary)),
                eta_text(remaining_s(run.summary, done)),
                table.for_terminal(),
            )
