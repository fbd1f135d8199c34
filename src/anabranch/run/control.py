"""A run's control plane, in any world: the scheduler, the log, and when the run is to stop."""

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
from anabranch.net.network import Address, Network
from anabranch.net.tcp import TcpNetwork
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.record import events
from anabranch.record.log import EventLog
from anabranch.run.scenario import Scenario, Train, check_real, encode, plan_route
from anabranch.run.work import describe
from anabranch.scheduler.server import LIMITS, Scheduler

_ELEMENT_BYTES = 4
# The linear program of the limit takes about a second at 50 sites and five at 100.
_MOST_SITES_FOR_LIMIT = 60


class Recorder:
    """Writes down what the scheduler observes, and stops the run when its rule says so.

    Args:
        log: where to.
        scenario, overlay, plan: what runs.
        world: ``local`` or ``simulated``, for reports.
        started_at: UTC date and time, ISO 8601; None where a run has no date.
        on_round: called when a site is the first to ask for a round, with its number.
        on_start: called when the run begins.
    """

    def __init__(
        self,
        log: EventLog,
        scenario: Scenario,
        overlay: Overlay,
        plan: Plan,
        world: str,
        started_at: str | None,
        on_start: Callable[[], None] = lambda: None,
        on_round: Callable[[int], None] = lambda round: None,
    ) -> None:
        self._log = log
        self._scenario = scenario
        self._overlay = overlay
        self._plan = plan
        self._world = world
        self._started_at = started_at
        self._on_start = on_start
        self._on_round = on_round
        self._loop = asyncio.get_running_loop()
        self._started_s: float | None = None
        self._held: list[events.Event] = []  # until the first event: what was meant to happen
        self.scheduler: Scheduler

    def at_s(self) -> float:
        """Return seconds since the run began; 0 before."""
        return 0.0 if self._started_s is None else self._loop.time() - self._started_s

    def write(self, *happened: events.Event) -> None:
        """Write events down; before the first, which says what runs, they wait."""
        if self._started_s is None:
            self._held += happened
        else:
            self._log.append(happened)

    # --- what the scheduler observes

    def joined(self, site: int, address: Address) -> None:
        """See :class:`anabranch.scheduler.server.Observer`."""
        self.write(
            events.SiteJoined(
                at_s=self.at_s(),
                site=site,
                name=self._overlay.sites[site].name,
                address=f"{address[0]}:{address[1]}",
            )
        )

    def started(self, buffer_elements: int) -> None:
        """See :class:`anabranch.scheduler.server.Observer`."""
        self._begin(buffer_elements)
        after_s = self._scenario.stop.after_s
        if after_s is not None:
            self._loop.call_later(after_s, self.scheduler.stop, f"{after_s:g} s are over")
        self._on_start()

    def _begin(self, buffer_elements: int) -> None:
        self._started_s = self._loop.time()
        scenario, size_bytes = self._scenario, buffer_elements * _ELEMENT_BYTES
        predicted = plans.predict(
            self._plan,
            self._overlay,
            size_bytes,
            chunk_bytes=scenario.chunk_elements * _ELEMENT_BYTES,
        )
        task, model = describe(scenario.task)
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
                    world=self._world,
                    task=task,
                    model=model,
                    seed=scenario.seed,
                    rounds=scenario.stop.rounds,
                    predicted_s=predicted.contention_s,
                    paper_s=predicted.paper_s,
                    limit_s=_limit_s(self._overlay, size_bytes),
                    target_accuracy=(
                        scenario.task.target_accuracy if isinstance(scenario.task, Train) else None
                    ),
                    versions=versions(),
                    started_at=self._started_at,
                ),
                *self._held,
            ]
        )

    def round_began(self, round: int) -> None:
        """See :class:`anabranch.scheduler.server.Observer`."""
        self._on_round(round)

    def round_ended(self, site: int, ended: RoundEnded) -> None:
        """See :class:`anabranch.scheduler.server.Observer`."""
        self.write(
            events.RoundDone(
                at_s=self.at_s(),
                site=site,
                round=ended.round,
                version=ended.version,
                seconds=ended.seconds,
                checksum=ended.checksum,
            )
        )

    def lost(self, site: int, why: str) -> None:
        """See :class:`anabranch.scheduler.server.Observer`."""
        self.write(events.SiteLost(at_s=self.at_s(), site=site, detail=why))

    def reported(self, site: int, encoded: tuple[bytes, ...]) -> None:
        """See :class:`anabranch.scheduler.server.Observer`."""
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
        self.write(*known)
        for event in known:
            if isinstance(event, events.Evaluated):
                self._stop_at_target(event)

    def _stop_at_target(self, seen: events.Evaluated) -> None:
        task, stop = self._scenario.task, self._scenario.stop
        target = task.target_accuracy if isinstance(task, Train) else None
        if stop.at_target and target is not None and seen.accuracy >= target:
            self.scheduler.stop(f"accuracy {target:g} was reached after round {seen.round}")

    def refused(self, site: int | None, error: PeerError) -> None:
        """See :class:`anabranch.scheduler.server.Observer`."""
        self.write(
            events.MessageRefused(
                at_s=self.at_s(),
                site=None,
                sender=site,
                error=type(error).__name__,
                detail=str(error),
            )
        )

    def ended(self, error: str | None) -> None:
        """Write the last event."""
        if self._started_s is None:  # the log of a run that never began must be readable too
            self._begin(0)
        reason = None if error else self.scheduler.stopped
        self.write(events.RunEnded(at_s=self.at_s(), error=error, reason=reason))


def _limit_s(overlay: Overlay, size_bytes: int) -> float | None:
    if overlay.size > _MOST_SITES_FOR_LIMIT:
        return None
    return 8 * size_bytes / plans.limit_rate_bps(overlay)


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
    """Run one scenario's control plane over TCP, to its end.

    Args:
        scenario: what to run, with one route.
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
        ScenarioError: the scenario needs a simulated world.
    """
    check_real(scenario, overlay)
    plan = plan_route(scenario.routes[0], overlay)
    with EventLog.create(log_path) as log:
        asyncio.run(_run(scenario, overlay, plan, token, listen, log, listening, stop_with_stdin))


async def _run(
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
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    recorder = Recorder(log, scenario, overlay, plan, "local", started_at)
    scheduler = make_scheduler(TcpNetwork(LIMITS), recorder, scenario, overlay, plan, token)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, scheduler.abort, "the run was interrupted")
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_stdin, loop, scheduler)
    listening(await scheduler.listen(listen))
    await conduct(scheduler, recorder)


def make_scheduler(
    network: Network,
    recorder: Recorder,
    scenario: Scenario,
    overlay: Overlay,
    plan: Plan,
    token: str,
) -> Scheduler:
    """Return a scheduler that a recorder observes."""
    recorder.scheduler = Scheduler(network, overlay, plan, token, encode(scenario), recorder)
    return recorder.scheduler


async def conduct(scheduler: Scheduler, recorder: Recorder) -> None:
    """Wait for the end of a run, and write it down.

    Raises:
        RunAborted: the run ended early; says who or what caused it.
    """
    try:
        await scheduler.finished()
    except RunAborted as error:
        recorder.ended(str(error))
        raise
    recorder.ended(None)


def _stop_at_end_of_stdin(loop: asyncio.AbstractEventLoop, scheduler: Scheduler) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        loop.remove_reader(sys.stdin.fileno())
        scheduler.abort("the process that started the run is gone")
