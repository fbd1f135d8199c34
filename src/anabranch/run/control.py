"""A run's control plane, in any world: the scheduler, the log, and when the run is to stop."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import platform
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from anabranch import __version__
from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.group.service import Machines, Service, Serving
from anabranch.net.addresses import is_loopback
from anabranch.net.errors import RunAborted
from anabranch.net.frames import CONTROL_LIMITS
from anabranch.net.network import Address, Network
from anabranch.net.silence import STILLNESS_S
from anabranch.net.stdin import at_end_of_stdin
from anabranch.net.tcp import CONTROL_SILENCE_S, TcpNetwork
from anabranch.net.tls import Credentials
from anabranch.overlay import Overlay
from anabranch.plan import ForestRoute, Plan
from anabranch.record import events
from anabranch.record.console import Console, Line
from anabranch.record.log import EventLog, LogError
from anabranch.record.target import Target
from anabranch.run.checkpoints import WHOLE, Course, Job, check_course
from anabranch.run.evaluator import evaluator_of, holds_whole
from anabranch.run.faults import Pause, Scripted, play
from anabranch.run.scenario import (
    Scenario,
    ScenarioError,
    check_real,
    script_of,
    with_compute_times,
)
from anabranch.run.scenario.tasks import Exchange, Own
from anabranch.run.standing_still import stand_still
from anabranch.run.work import buffer_elements, describe
from anabranch.scheduler.paced import Serve
from anabranch.scheduler.served_pace import LastTo
from anabranch.scheduler.server import Scheduler
from anabranch.scheduler.watching import UNWATCHED, Watching, watched

_ELEMENT_BYTES = 4
# The linear program of the limit takes about a second at 50 sites and five at 100.
_MOST_SITES_FOR_LIMIT = 60


class RunLog:
    """Writes down what the scheduler says, and stops the run when its rule says so.

    Args:
        log: where to.
        scenario: what runs.
        service: what its sites are served with.
        plan: the first.
        world: ``local``, ``emulated`` or ``simulated``, for reports.
        started_at: UTC date and time, ISO 8601; None where a run has no date.
        on_start: called when the run begins.
        course: which of the scenario's rounds the run makes.
        console: where to say what people should know at once; None for nowhere.
    """

    def __init__(
        self,
        log: EventLog,
        scenario: Scenario,
        service: Service,
        plan: Plan,
        world: str,
        started_at: str | None,
        on_start: Callable[[], None] = lambda: None,
        course: Course = WHOLE,
        console: Console | None = None,
    ) -> None:
        self._log = log
        self._scenario = scenario
        self._service = service
        self.plan = plan
        self._world = world
        self._started_at = started_at
        self._on_start = on_start
        self.course = course
        self._console = console
        self._loop = asyncio.get_running_loop()
        self._started_s: float | None = None
        self.has_ended = False
        self._target: Target | None = None
        target = scenario.task.target_accuracy
        if scenario.stop.at_target and target is not None:
            sites = len(service.workers)
            self._target = Target(target, scenario.stop.reached_by, sites)
        self._held: list[events.Event] = []  # until the first event: what was meant to happen
        self.scheduler: Scheduler

    def at_s(self) -> float:
        """Return seconds since the run began; 0 before."""
        return 0.0 if self._started_s is None else self._loop.time() - self._started_s

    def write(self, *happened: events.Event) -> None:
        """Write events down; before the first, which says what runs, they wait."""
        if self._console is not None:
            for event in happened:
                self._console.tell(event)
        if self._started_s is None:
            self._held += happened
            return
        self._log.append(happened)
        for event in happened:
            if isinstance(event, events.Evaluated):
                self._stop_at_target(event)
            elif isinstance(event, events.SiteLost) and event.goes_on and self._target is not None:
                self._target.lost(event.site)
            elif isinstance(event, events.SiteJoined) and self._target is not None:
                self._target.joined()

    def began(self, buffer_elements: int, plan: Plan) -> None:
        """Write the first event; the run's clock starts."""
        self.plan = plan
        self._begin(buffer_elements)
        after_s = self._scenario.stop.after_s
        if after_s is not None:
            self._loop.call_later(after_s, self._stop, f"{after_s:g} s are over")
        self._on_start()

    def _begin(self, buffer_elements: int) -> None:
        self._started_s = self._loop.time()
        scenario, overlay = self._scenario, self._service.overlay
        size_bytes = buffer_elements * _ELEMENT_BYTES
        chunk = self._service.chunk_rule.under(self.plan, buffer_elements, overlay)
        predicted = plans.predict(
            self.plan, overlay, size_bytes, chunk_bytes=_ELEMENT_BYTES * chunk
        )
        task, model = describe(scenario.task)
        label, after = scenario.label or self.plan.label, self.course.after_round
        self._log.append(
            [
                events.RunStarted(
                    at_s=0.0,
                    label=f"{label}, resumed after round {after}" if after else label,
                    overlay_toml=overlays.dumps(overlay),
                    plan_json=plans.dumps(self.plan),
                    sites=[site.name for site in overlay.sites],
                    buffer_bytes=size_bytes,
                    chunk_elements=chunk,
                    shaped=bool(scenario.shaped),
                    world=self._world,
                    task=task,
                    model=model,
                    seed=scenario.seed,
                    rounds=1 if scenario.gossip else scenario.stop.rounds - after,
                    gossips=scenario.gossip is not None,
                    predicted_s=predicted.contention_s,
                    paper_s=predicted.paper_s,
                    limit_s=_limit_s(overlay, size_bytes),
                    target_accuracy=scenario.task.target_accuracy,
                    reached_by=scenario.stop.reached_by,
                    versions=versions(),
                    started_at=self._started_at,
                    pacing_json="" if (paced := self._service.paced) is None else paced.encode(),
                ),
                *self._held,
            ]
        )

    def note_fault(self, what: Scripted, over: bool) -> None:
        """Write down that something scripted happens, or is over; not after the end."""
        if not self.has_ended:
            self.scheduler.note(
                events.FaultInjected(
                    at_s=self.at_s(), fault=what.kind, detail=what.label, over=over
                )
            )

    def _stop_at_target(self, seen: events.Evaluated) -> None:
        if self._target is not None and self._target.is_reached(seen):
            target = self._scenario.task.target_accuracy
            self._stop(f"accuracy {target:g} was reached after round {seen.round}")

    def _stop(self, reason: str) -> None:
        if self.scheduler.stopped is None and not self.has_ended:
            self.scheduler.note(events.RunStopping(at_s=self.at_s(), reason=reason))
            if self._scenario.gossip is None:
                self.scheduler.stop(reason)
            else:
                self.scheduler.stop_gossip(reason)

    def ended(self, error: str | None) -> None:
        """Write the last event.

        Raises:
            RunAborted: the log cannot be written; where the run has failed, that counts more.
        """
        self.has_ended = True
        if self._console is not None:
            self._console.ended(error)
        reason = None if error else self.scheduler.stopped or self.scheduler.why_short
        try:
            if self._started_s is None:  # the log of a run that never began must be readable too
                self._begin(0)
            self.write(events.RunEnded(at_s=self.at_s(), error=error, reason=reason))
        except LogError as failed:
            if error is None:
                raise RunAborted(str(failed)) from failed


def _limit_s(overlay: Overlay, size_bytes: int) -> float | None:
    if overlay.size > _MOST_SITES_FOR_LIMIT:
        return None
    return plans.limit_s(overlay, size_bytes)


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
    emulated: bool = False,
    began: Callable[[], None] = lambda: None,
    course: Course = WHOLE,
    say: Callable[[Line], None] = lambda line: None,
    credentials: Credentials | None = None,
    watching: Watching = UNWATCHED,
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
        emulated: the links between the sites keep their rates by themselves, so no site has to.
        began: called when the run begins.
        course: which of the scenario's rounds the run makes, and when sites save.
        say: called with lines for people: who joined, who is awaited, what changed.
        credentials: for TLS; None for none.
        watching: what people and machines see of the run while it goes on.

    Raises:
        RunAborted: the run ended early; says who or what caused it.
        LogError: the log cannot be created.
        ScenarioError: the scenario needs a simulated world, or cannot be saved.
    """
    if scenario.shaped is None:
        scenario = msgspec.structs.replace(scenario, shaped=emulated or is_loopback(listen[0]))
    check_real(scenario, overlay, emulated)
    check_course(scenario, course)
    here = emulated or is_loopback(listen[0])
    service = service_of(scenario, overlay, float(os.cpu_count() or 1) if here else math.inf)
    plan = service.first_plan()
    gc.freeze()  # what is there now stays: no collection need look through it
    with EventLog.create(log_path) as log:
        asyncio.run(
            _run(
                scenario,
                service,
                plan,
                token,
                listen,
                log,
                listening,
                stop_with_stdin,
                emulated,
                began,
                course,
                say,
                credentials,
                watching,
            )
        )


async def _run(
    scenario: Scenario,
    service: Service,
    plan: Plan,
    token: str,
    listen: Address,
    log: EventLog,
    listening: Callable[[Address], None],
    stop_with_stdin: bool,
    emulated: bool,
    began: Callable[[], None],
    course: Course,
    say: Callable[[Line], None],
    credentials: Credentials | None,
    watching: Watching,
) -> None:
    loop, overlay = asyncio.get_running_loop(), service.overlay
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    world = "emulated" if emulated else "local"
    held = msgspec.structs.replace(scenario, shaped=scenario.shaped or emulated)
    console = Console([site.name for site in overlay.sites], say)

    def begin() -> None:
        began()
        _note_faults(recorder, scenario, overlay)

    recorder = RunLog(log, held, service, plan, world, started_at, begin, course, console)
    unheld = msgspec.structs.replace(scenario, shaped=scenario.shaped and not emulated)
    silence_s = CONTROL_SILENCE_S if scenario.wait_s is None else scenario.wait_s
    network = TcpNetwork(
        CONTROL_LIMITS,
        least_silence_s=silence_s,
        credentials=credentials,
        stillness_s=STILLNESS_S if scenario.wait_s is None else scenario.wait_s,
    )
    scheduler = make_scheduler(network, recorder, unheld, service, token)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, scheduler.abort, "the run was interrupted")
    if stop_with_stdin:
        at_end_of_stdin(partial(scheduler.abort, "the process that started the run is gone"))
    listening(await scheduler.listen(listen))
    console.listening()
    async with watched(scheduler, console, watching):
        await conduct(scheduler, recorder)


def _note_faults(recorder: RunLog, scenario: Scenario, overlay: Overlay) -> None:
    """Write down what happens by a run's script, from its beginning on.

    Sites carry it out; the scheduler stands still itself where the script says so.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()

    def at(at_s: float, callback: Callable[[Scripted], None], what: Scripted) -> None:
        loop.call_at(began_s + at_s, callback, what)

    def happen(what: Scripted) -> None:
        recorder.note_fault(what, over=False)
        if what.for_s is not None:
            loop.call_later(what.for_s, recorder.note_fault, what, True)
        if isinstance(what.action, Pause) and what.action.site is None:
            stand_still(what.action.for_s)

    for each in script_of(scenario, overlay):
        play(each.moments(), at, happen)


def service_of(scenario: Scenario, overlay: Overlay, cores: float | None = None) -> Service:
    """Return what a scenario's sites are served with.

    Args:
        scenario: which, with one route.
        overlay: its overlay.
        cores: see :class:`anabranch.group.service.Machines`.

    Raises:
        ScenarioError: the task's model does not fit its data.
    """
    route, is_served = scenario.routes[0], scenario.is_served
    if isinstance(route, ForestRoute):
        route = with_compute_times(route, scenario, overlay)
    return Service(
        overlay,
        route,
        scenario.awareness,
        scenario.auxiliary,
        scenario.deal,
        pace=scenario.pace if is_served else None,
        load=scenario.load,
        merge=scenario.merge,
        serving=Serving(
            serve=scenario.serve or Serve(),
            clients=scenario.clients,
            seed=scenario.seed,
            look_every_s=scenario.task.evaluate_every_s,
        ),
        updates=scenario.stop.rounds,
        batch_size=scenario.task.batch_size,
        model_elements=_known_elements(scenario, overlay),
        under_way_bytes=None,
        chunk_elements=scenario.chunk_elements,
        least_chunk_elements=1,
        # Where the model is served, the others go on without a worker in any case.
        on_loss="complete" if is_served else scenario.on_loss,
        on_error="abort",
        least_sites=1 if is_served else scenario.least_sites,
        machines=Machines(
            cores=cores,
            bound_plans=False,
            control_latency_s=scenario.simulation.control_latency_s,
        ),
    )


def first_plan(scenario: Scenario, overlay: Overlay) -> Plan:
    """Return the plan that a run begins with, from what is believed of the network before it.

    Raises:
        OverlayError, PlanError: there is none.
        ScenarioError: the task's model does not fit its data.
    """
    return service_of(scenario, overlay).first_plan()


def _known_elements(scenario: Scenario, overlay: Overlay) -> int | None:
    """Return the elements of the buffer that sites exchange, where the scheduler can know them.

    Code of one's own may need data that the scheduler's machine does not have: its sites say how
    large their buffer is.

    Raises:
        ScenarioError: the task's model does not fit its data.
    """
    if isinstance(scenario.task, Own):
        return None
    try:
        return buffer_elements(scenario, tuple(site.name for site in overlay.sites), None)
    except ValueError as error:
        raise ScenarioError(f"task.model: {error}") from None


def make_scheduler(
    network: Network, recorder: RunLog, scenario: Scenario, service: Service, token: str
) -> Scheduler:
    """Return a scheduler that a recorder observes, and whose first plan the recorder has.

    Args:
        network: where sites connect.
        recorder: see above.
        scenario, service: what runs, and what its sites are served with.
        token: what sites must know to join.
    """
    last_to = _last_to(scenario, service.overlay, recorder.plan)
    service = replace(service, serving=replace(service.serving, last_to=last_to))
    work = msgspec.json.encode(Job(scenario=scenario, course=recorder.course)).decode()
    recorder.scheduler = service.scheduler(network, token, recorder, plan=recorder.plan, work=work)
    return recorder.scheduler


def _last_to(scenario: Scenario, overlay: Overlay, plan: Plan) -> LastTo:
    """Return which workers get the final model: one evaluates it, unless a server does."""
    if not scenario.is_served or isinstance(scenario.task, Exchange):
        return "none"
    evaluator = evaluator_of(scenario, plan, scenario.workers(overlay))
    return "none" if holds_whole(plan, evaluator) else "one"


async def conduct(scheduler: Scheduler, recorder: RunLog) -> None:
    """Wait for the end of a run, and write it down.

    Raises:
        RunAborted: the run ended early; says who or what caused it.
    """
    try:
        await scheduler.finished()
    except RunAborted as error:
        recorder.ended(str(error))
        raise
    else:
        recorder.ended(None)
    finally:
        await scheduler.close()
