"""The scheduler's process: the control plane, and the run's log."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from anabranch import __version__
from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage, PeerError, RunAborted
from anabranch.net.messages import RoundEnded
from anabranch.net.network import Address
from anabranch.net.tcp import TcpNetwork
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.record import events
from anabranch.record.log import EventLog
from anabranch.run.scenario import Exchange, Scenario, Train, encode, plan_route
from anabranch.scheduler.server import LIMITS, Scheduler

_ELEMENT_BYTES = 4


class _LogWriter:
    """Writes down what the scheduler observes."""

    def __init__(
        self,
        log: EventLog,
        scenario: Scenario,
        overlay: Overlay,
        plan: Plan,
        now: Callable[[], float],
    ) -> None:
        self._log = log
        self._scenario = scenario
        self._overlay = overlay
        self._plan = plan
        self._now = now
        self._limit_rate_bps = plans.limit_rate_bps(overlay)
        self._started_s: float | None = None
        self._held: list[events.Event] = []  # until the first event: what was meant to happen

    def _at_s(self) -> float:
        return 0.0 if self._started_s is None else self._now() - self._started_s

    def joined(self, site: int, address: Address) -> None:
        self._append(
            events.SiteJoined(
                at_s=self._at_s(),
                site=site,
                name=self._overlay.sites[site].name,
                address=f"{address[0]}:{address[1]}",
            )
        )

    def _append(self, *happened: events.Event) -> None:
        if self._started_s is None:
            self._held += happened
        else:
            self._log.append(happened)

    def started(self, buffer_elements: int) -> None:
        self._started_s = self._now()
        scenario, size_bytes = self._scenario, buffer_elements * _ELEMENT_BYTES
        predicted = plans.predict(
            self._plan,
            self._overlay,
            size_bytes,
            chunk_bytes=scenario.chunk_elements * _ELEMENT_BYTES,
        )
        task = scenario.task
        self._log.append(
            [
                events.RunStarted(
                    at_s=0.0,
                    label=scenario.label or self._plan.label,
                    overlay_toml=overlays.dumps(self._overlay),
                    plan_json=plans.dumps(self._plan),
                    sites=[site.name for site in self._overlay.sites],
                    buffer_bytes=size_bytes,
                    chunk_elements=scenario.chunk_elements,
                    shaped=scenario.shaped,
                    task=task.data if isinstance(task, Train) else "exchange",
                    model=_model(task),
                    seed=scenario.seed,
                    rounds=scenario.rounds,
                    predicted_s=predicted.contention_s,
                    paper_s=predicted.paper_s,
                    limit_s=8 * size_bytes / self._limit_rate_bps,
                    target_accuracy=task.target_accuracy if isinstance(task, Train) else None,
                    versions=versions(),
                    started_at=datetime.now(UTC).isoformat(timespec="seconds"),
                ),
                *self._held,
            ]
        )

    def round_ended(self, site: int, ended: RoundEnded) -> None:
        self._append(
            events.RoundDone(
                at_s=self._at_s(),
                site=site,
                round=ended.round,
                version=ended.version,
                seconds=ended.seconds,
                checksum=ended.checksum,
            )
        )

    def reported(self, site: int, encoded: tuple[bytes, ...]) -> None:
        known = []
        for data in encoded:
            try:
                event = events.decode(data.decode())
            except ValueError as error:
                raise MalformedMessage(f"a report that is no event: {error}") from None
            match event:
                case events.StepDone() | events.Evaluated() | events.MessageRefused():
                    about: int | None = event.site
                case events.LinkBytes():
                    about = event.source
                case _:
                    raise OutOfPlaceMessage(f"a site cannot report {type(event).__name__}")
            if about != site:
                raise OutOfPlaceMessage(f"site {site} reports what happened at site {about}")
            known.append(event)
        self._append(*known)

    def refused(self, site: int | None, error: PeerError) -> None:
        self._append(
            events.MessageRefused(
                at_s=self._at_s(),
                site=None,
                sender=site,
                error=type(error).__name__,
                detail=str(error),
            )
        )

    def ended(self, error: str | None) -> None:
        if self._started_s is None:  # the log of a run that never began must be readable too
            self.started(0)
        self._append(events.RunEnded(at_s=self._at_s(), error=error))


def _model(task: Train | Exchange) -> str:
    if isinstance(task, Train):
        return task.model
    return task.profile or f"{task.elements} elements"


def versions() -> dict[str, str]:
    """Return the releases that a figure depends on, by package."""
    return {
        "anabranch": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "msgspec": msgspec.__version__,
    }


def run_scheduler(
    scenario: Scenario,
    overlay: Overlay,
    token: str,
    listen: Address,
    log_path: Path,
    listening: Callable[[Address], None],
    stop_with_stdin: bool = False,
) -> None:
    """Run one scenario's control plane to its end.

    Args:
        scenario: what to run.
        overlay: its overlay.
        token: what sites must know to join.
        listen: where sites join.
        log_path: the event log to create.
        listening: called once sites can join, with where.
        stop_with_stdin: end the run when standard input closes, so that it cannot outlive the
            process that started it.

    Raises:
        RunAborted: the run ended early; says who or what caused it.
        LogError: the log cannot be created.
    """
    plan = plan_route(scenario.route, overlay)
    with EventLog.create(log_path) as log:
        asyncio.run(
            _control(scenario, overlay, plan, token, listen, log, listening, stop_with_stdin)
        )


async def _control(
    scenario: Scenario,
    overlay: Overlay,
    plan: Plan,
    token: str,
    listen: Address,
    log: EventLog,
    listening: Callable[[Address], None],
    stop_with_stdin: bool,
) -> None:
    loop = asyncio.get_running_loop()
    writer = _LogWriter(log, scenario, overlay, plan, loop.time)
    scheduler = Scheduler(TcpNetwork(LIMITS), overlay, plan, token, encode(scenario), writer)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, scheduler.abort, "the run was interrupted")
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_stdin, loop, scheduler)
    listening(await scheduler.listen(listen))
    try:
        await scheduler.finished()
    except RunAborted as error:
        writer.ended(str(error))
        raise
    writer.ended(None)


def _stop_at_end_of_stdin(loop: asyncio.AbstractEventLoop, scheduler: Scheduler) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        loop.remove_reader(sys.stdin.fileno())
        scheduler.abort("the process that started the run is gone")
