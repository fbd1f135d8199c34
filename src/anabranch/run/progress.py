"""What a person sees while a run goes on, and the table at its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from anabranch.overlay import loads as loads_overlay
from anabranch.plan import loads as loads_plan
from anabranch.record import units
from anabranch.record.events import Event, UnknownEvent
from anabranch.record.log import LogError, read_events
from anabranch.record.ports import WAYS, mean_use
from anabranch.record.summary import RunSummary, summarise
from anabranch.record.twin import TwinRow, median_error, worst_row

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
            run = summarise(self._events)
            if run.pace is None:
                done, table = len(run.rounds), results_table([run])
            else:  # as far as the slowest worker is
                done, table = min(map(len, run.pace.iterations.values())), pace_table([run])
            self._bar.update(self._task, total=run.started.rounds, completed=done)
            self._live.update(Group(self._bar, table))


def twin_table(twins: Sequence[TwinRow]) -> Table:
    """Return both worlds side by side, a row for each route, and the errors over all of them.

    ``error`` is how far the measured round is from the simulated one.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_footer=True)
    worst = worst_row(twins)
    table.add_column("route", "median, worst error")
    for heading in ("simulated", "measured", "measured/simulated"):
        table.add_column(heading, justify="right", no_wrap=True)
    errors = (
        f"{units.percent(median_error(twins))}, {units.percent(worst.error if worst else None)}"
    )
    table.add_column("error", errors, justify="right", no_wrap=True)
    for twin in twins:
        ratio = twin.measured_over_simulated
        table.add_row(
            twin.label,
            units.seconds(twin.simulated_s),
            units.seconds(twin.measured_s),
            "-" if ratio is None else f"{ratio:.3f}",
            units.percent(twin.error),
        )
    return table


def pace_table(runs: Sequence[RunSummary]) -> Table:
    """Return runs with servers side by side, a row each.

    ``iteration`` is the mean time from one permission of a worker to its next, ``blocked`` the part
    of it spent waiting for permission. ``at once`` is the part of updates with nothing between them
    and the one before, ``missed`` how many updates of others one missed, on average and at most.
    ``ports`` is how busy those of the servers were, in and out, on average over the run; a dash
    where links did not keep the overlay's rates.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("route")
    headings = ["updates", "discarded", "iteration", "blocked", "at once", "missed", "ports"]
    headings.append("whole run")
    learns = any(run.accuracy or run.started.target_accuracy is not None for run in runs)
    for heading in (*headings, *(("accuracy", "to target") if learns else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in runs:
        pace, target = run.pace, run.started.target_accuracy
        if pace is None:
            continue
        reached_s = None if target is None else run.time_to_accuracy_s(target)
        learnt = units.percent(run.final_accuracy), units.seconds(reached_s)
        missed = "-" if pace.mean_missed is None else f"{pace.mean_missed:.1f}, {max(pace.missed)}"
        overlay, plan = loads_overlay(run.started.overlay_toml), loads_plan(run.started.plan_json)
        uses = [mean_use(run, overlay, plan, way) for way in WAYS]
        table.add_row(
            run.label,
            str(pace.updates),
            str(pace.discarded),
            units.seconds(pace.iteration_s),
            units.seconds(pace.blocked_s),
            units.percent(pace.at_once),
            missed,
            ", ".join(units.percent(use.share if use else None) for use in uses),
            units.seconds(run.total_s),
            *(learnt if learns else ()),
        )
    return table


def results_table(runs: Sequence[RunSummary]) -> Table:
    """Return runs side by side, a row each.

    ``exchange`` is the median time of a round's exchange at its slowest site, ``worst`` the
    longest; ``speed-up`` is of the exchange, over the first run. ``predicted``, and ``limit``, the
    share of the physical limit, hold for the network as it is at the beginning. ``per round`` is
    the median time from the end of one round to the end of the next, computing and all. ``to
    target`` is the time until the target accuracy was first reached; it and ``accuracy`` are left
    out where nothing is learnt.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("route")
    headings = ["rounds", "exchange", "worst", "speed-up", "predicted", "limit", "per round"]
    learns = any(run.accuracy or run.started.target_accuracy is not None for run in runs)
    for heading in (*headings, *(("accuracy", "to target") if learns else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    first = runs[0].median_round_s
    for run in runs:
        round_s, target = run.median_round_s, run.started.target_accuracy
        reached_s = None if target is None else run.time_to_accuracy_s(target)
        shaped = run.started.shaped
        learnt = units.percent(run.final_accuracy), units.seconds(reached_s)
        table.add_row(
            run.label,
            f"{len(run.rounds)}/{run.started.rounds}",
            units.seconds(round_s),
            units.seconds(max(run.round_s, default=None)),
            units.times(first / round_s if first and round_s else None),
            units.seconds(run.started.predicted_s if shaped else None),
            units.percent(run.share_of_limit),
            units.seconds(run.median_interval_s),
            *(learnt if learns else ()),
        )
    return table
