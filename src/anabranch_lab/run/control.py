"""A scenario's control plane, in any world: its scheduler's service and the events it logs."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from anabranch import plan as plans
from anabranch.exchange.terms import Op, Terms, planned_elements
from anabranch.group.log import First, RunLog
from anabranch.group.serve import Process, Program, serve
from anabranch.group.service import Machines, Service, Serving
from anabranch.log.events import FaultInjected, RunStarted
from anabranch.net.addresses import is_loopback
from anabranch.net.silence import STILLNESS_S
from anabranch.net.tcp import CONTROL_SILENCE_S
from anabranch.overlay import Overlay
from anabranch.pace import EqualBatches
from anabranch.plan import ForestRoute, Plan
from anabranch.scheduler.paced import Serve
from anabranch.scheduler.served_pace import LastTo
from anabranch.scheduler.server import Scheduler
from anabranch.scheduler.stop_rules import StopRules
from anabranch.train.averaging import FORMATS
from anabranch_lab.emulate import most_strands
from anabranch_lab.run._evaluator import evaluator_of, holds_whole
from anabranch_lab.run._faults import Pause, Scripted, play
from anabranch_lab.run._standing_still import stand_still
from anabranch_lab.run.checkpoints import WHOLE, Course, Job, check_course
from anabranch_lab.run.scenario import (
    Scenario,
    ScenarioError,
    check_real,
    script_of,
    with_compute_times,
)
from anabranch_lab.run.scenario.tasks import Exchange, Own
from anabranch_lab.run.work import buffer_elements, describe

# The linear program of the limit takes about a second at 50 sites and five at 100.
_MOST_SITES_FOR_LIMIT = 60


def first_event(
    scenario: Scenario,
    service: Service,
    plan: Plan,
    world: str,
    started_at: str | None,
    course: Course,
) -> First:
    """Return a function that makes the first event of a scenario's log.

    Args:
        scenario: what runs.
        service: the settings that the scheduler serves.
        plan: the first plan, for the log of a run that ends before it begins.
        world: ``local``, ``emulated`` or ``simulated``, for reports.
        started_at: UTC date and time, ISO 8601; None: the run has no date.
        course: which of the scenario's rounds the run makes.
    """
    task, model = describe(scenario.task)
    after = course.after_round

    def first(buffer_elements: int, begins_with: Plan | None) -> RunStarted:
        found = service.run_started(buffer_elements, begins_with or plan)
        label = scenario.label or found.label
        return msgspec.structs.replace(
            found,
            label=f"{label}, resumed after round {after}" if after else label,
            shaped=bool(scenario.shaped),
            world=world,
            task=task,
            model=model,
            seed=scenario.seed,
            rounds=1 if scenario.gossip else scenario.stop.rounds - after,
            limit_s=_limit_s(service.overlay, found.buffer_bytes),
            target_accuracy=scenario.task.target_accuracy,
            reached_by=scenario.stop.reached_by,
            window_s=scenario.stop.window_s,
            # The links have the overlay's rates, also where awareness begins without these rates.
            assumes_rates=False,
            started_at=started_at,
        )

    return first


def note_fault(log: RunLog, scheduler: Scheduler, what: Scripted, over: bool) -> None:
    """Log that a scripted action happens, or is over; write nothing after the run's end."""
    if not log.has_ended:
        at_s = scheduler.since_start_s()
        scheduler.note(FaultInjected(at_s=at_s, fault=what.kind, detail=what.label, over=over))


def _limit_s(overlay: Overlay, size_bytes: int) -> float | None:
    if overlay.size > _MOST_SITES_FOR_LIMIT:
        return None
    return plans.limit_s(overlay, size_bytes)


def run_scheduler(
    scenario: Scenario,
    overlay: Overlay,
    process: Process,
    emulated: bool = False,
    began: Callable[[], None] = lambda: None,
    course: Course = WHOLE,
) -> None:
    """Run one scenario's control plane over TCP, to its end.

    Args:
        scenario: what to run, with one route.
        overlay: its overlay.
        process: how sites are served; with a journal, sites wait for a scheduler that is gone.
        emulated: the kernel keeps the rates of the links between sites, so no site has to.
        began: called when the run begins.
        course: which of the scenario's rounds the run makes, and when sites save.

    Raises:
        RunAborted: the run ended early; names the site or the cause.
        LogError: the log cannot be created.
        ScenarioError: the scenario needs a simulated world, or cannot be saved or kept in a
            journal.
        CheckpointError: the scenario has no round after the one that the run resumes after.
    """
    here = emulated or is_loopback(process.listen[0])
    if scenario.shaped is None:
        scenario = msgspec.structs.replace(scenario, shaped=here)
    check_real(scenario, overlay, emulated)
    check_course(scenario, course)
    if process.journal is not None:
        check_journal(scenario)
    service = service_of(scenario, overlay, float(os.cpu_count() or 1) if here else math.inf)
    held = msgspec.structs.replace(scenario, shaped=scenario.shaped or emulated)
    unheld = msgspec.structs.replace(scenario, shaped=scenario.shaped and not emulated)
    plan = service.first_plan()
    world, started_at = "emulated" if emulated else "local", datetime.now(UTC)

    def begin(scheduler: Scheduler, log: RunLog) -> None:
        began()
        _note_faults(log, scheduler, scenario)

    program = Program(
        job_json=job_of(
            unheld, course, most_strands(overlay, os.cpu_count() or 1) if emulated else None
        ),
        plan=plan,
        first=first_event(
            held, service, plan, world, started_at.isoformat(timespec="seconds"), course
        ),
        began=begin,
    )
    serve(ending_with(service, scenario, plan), process, program)


def _note_faults(log: RunLog, scheduler: Scheduler, scenario: Scenario) -> None:
    """Log the actions of a run's script, from now on.

    Sites carry the actions out; the scheduler carries out its own pauses. A scheduler that was
    started again skips earlier actions, which its predecessor logged.
    """
    loop = asyncio.get_running_loop()
    since_start_s = scheduler.since_start_s()
    began_s = loop.time() - since_start_s

    def at(at_s: float, callback: Callable[[Scripted], None], what: Scripted) -> None:
        loop.call_at(began_s + at_s, callback, what)

    def happen(what: Scripted) -> None:
        note_fault(log, scheduler, what, over=False)
        if what.for_s is not None:
            loop.call_later(what.for_s, note_fault, log, scheduler, what, True)
        if isinstance(what.action, Pause) and what.action.site is None:
            stand_still(what.action.for_s)

    for each in script_of(scenario, scheduler.overlay):
        play((moment for moment in each.moments() if moment[0] >= since_start_s), at, happen)


def service_of(
    scenario: Scenario, overlay: Overlay, cores: float = math.inf, control_latency_s: float = 0.0
) -> Service:
    """Return the settings that a scenario's scheduler serves.

    Args:
        scenario: what runs, with one route.
        overlay: its overlay.
        cores, control_latency_s: see :class:`anabranch.group.service.Machines`.

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
        load=scenario.load if is_served else EqualBatches(),
        merge=scenario.merge,
        gossip=scenario.gossip,
        serving=Serving(
            serve=scenario.serve or Serve(),
            clients=scenario.clients,
            seed=scenario.seed,
            look_every_s=scenario.task.evaluate_every_s,
        ),
        updates=scenario.stop.rounds,
        batch_size=scenario.task.batch_size,
        model_elements=_known_elements(scenario, overlay),
        stop=StopRules(
            after_s=scenario.stop.after_s,
            accuracy=scenario.task.target_accuracy if scenario.stop.at_target else None,
            reached_by=scenario.stop.reached_by if scenario.stop.at_target else "first",
            window_s=scenario.stop.window_s if scenario.stop.at_target else 0.0,
            refuses=True,
        ),
        under_way_bytes=None,
        chunk_elements=scenario.chunk_elements,
        # Where the model is served, the others go on without a worker in any case.
        on_loss="complete" if is_served else scenario.on_loss,
        on_error="abort",
        least_sites=1 if is_served else scenario.least_sites,
        silence_s=CONTROL_SILENCE_S if scenario.wait_s is None else scenario.wait_s,
        stillness_s=STILLNESS_S if scenario.wait_s is None else scenario.wait_s,
        machines=Machines(cores, control_latency_s),
    )


def first_plan(scenario: Scenario, overlay: Overlay) -> Plan:
    """Return the first plan of a run, made from the beliefs about the network before the run.

    Raises:
        OverlayError, PlanError: there is no plan.
        ScenarioError: the task's model does not fit its data.
    """
    return service_of(scenario, overlay).first_plan()


def _known_elements(scenario: Scenario, overlay: Overlay) -> int | None:
    """Return the elements of the buffer that sites exchange, where the scheduler can know them.

    A user's own code may need data that the scheduler's machine does not have. Then the sites
    report the size of their buffer.

    Raises:
        ScenarioError: the task's model does not fit its data.
    """
    if isinstance(scenario.task, Own):
        return None
    try:
        elements = buffer_elements(scenario, overlay.names, None)
    except ValueError as error:
        raise ScenarioError(f"task.model: {error}") from None
    wire = FORMATS["float32" if scenario.average is None else scenario.average.wire]
    return planned_elements(Terms(Op.MEAN, wire, wire.padded(elements)))


def job_of(scenario: Scenario, course: Course, most_strands: int | None = None) -> str:
    """Return what sites of a scenario run, as JSON; see :class:`Job`."""
    job = Job(scenario=scenario, course=course, most_strands=most_strands)
    return msgspec.json.encode(job).decode()


def check_journal(scenario: Scenario) -> None:
    """Check that a run can outlive its scheduler.

    Raises:
        ScenarioError: it cannot; says why.
    """
    if scenario.is_served or scenario.gossip is not None:
        raise ScenarioError("a journal is for sites that all-reduce, not where they gossip or push")
    if scenario.on_loss == "abort":
        raise ScenarioError(
            'a journal needs on_loss = "complete" or "retry": a scheduler that was started again '
            "completes what was under way as where a site is lost"
        )


def ending_with(service: Service, scenario: Scenario, plan: Plan) -> Service:
    """Return a scenario's service that also says which workers get the final model.

    One worker gets it and evaluates it, unless a server does.

    Args:
        service: of the scenario.
        scenario: what runs.
        plan: the first plan.
    """
    last_to: LastTo = "none"
    if scenario.is_served and not isinstance(scenario.task, Exchange):
        evaluator = evaluator_of(scenario, plan, scenario.workers(service.overlay))
        last_to = "none" if holds_whole(plan, evaluator) else "one"
    return replace(service, serving=replace(service.serving, last_to=last_to))
