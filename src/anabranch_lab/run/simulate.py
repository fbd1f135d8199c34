"""The simulated world: a whole run in one process and in virtual time, faults included."""

from __future__ import annotations

import asyncio
import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from anabranch.fleet import ComputeModel
from anabranch.group.log import RunLog, conduct
from anabranch.group.service import Service
from anabranch.log.store import EventLog
from anabranch.net.addresses import ListenAt
from anabranch.net.errors import EndedWithout, NetError, RunAborted
from anabranch.net.messages import Welcome
from anabranch.net.network import Address, ControlNetwork, Network
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.scheduler.server import Scheduler
from anabranch_lab.run._faults import (
    ClockStep,
    ComputeFactor,
    Disconnect,
    Factors,
    Kill,
    LinkFactor,
    Pause,
    Scripted,
    play,
)
from anabranch_lab.run._site import Passing, take_part
from anabranch_lab.run.checkpoints import Course, Files, checkpoints_of, plan_course, weights_of
from anabranch_lab.run.control import (
    ending_with,
    first_event,
    job_of,
    note_fault,
    service_of,
)
from anabranch_lab.run.scenario import Scenario, check_simulable, compute_model, script_of
from anabranch_lab.run.scenario.tasks import Exchange
from anabranch_lab.sim.loop import Deadlock, VirtualLoop, run_virtually
from anabranch_lab.sim.machine import Clock, Machine
from anabranch_lab.sim.network import SimulatedNetwork

T = TypeVar("T")

_TOKEN = "simulated"  # no other process can connect
_EVENTS_A_COMMIT = 1000
_ALLOCATIONS_A_COLLECTION = 50_000
_UNUSUAL_S = 0.4  # after this, real lanes that were never silent count as unusually silent


def simulate(
    scenario: Scenario,
    overlay: Overlay,
    log_path: Path,
    data_dir: Path | None = None,
    on_round: Callable[[int, float | None], None] = lambda round, loss: None,
    save_every: int | None = None,
    resume: Path | None = None,
) -> tuple[str, ...]:
    """Run a scenario in virtual time.

    Args:
        scenario: what to run, with one route.
        overlay: its overlay.
        log_path: the event log to create; weights and checkpoints are left beside it.
        data_dir: where data sets are.
        on_round: called when a round begins, with its number and the sites' mean loss, None where
            no step has reported a loss.
        save_every: rounds between two checkpoints; None: no checkpoints.
        resume: the folder of the round to resume after; None: begin at the first round.

    Returns:
        The labels of the scripted faults that never happened, because the run ended before.

    Raises:
        RunAborted: the run ended early; names the site or the cause.
        LogError: the log cannot be created.
        ScenarioError: the scenario does not say how long computing takes, or cannot be saved.
        CheckpointError: the run cannot resume from there.
    """
    check_simulable(scenario)
    course = plan_course(scenario, overlay, save_every, resume)
    service = service_of(scenario, overlay, control_latency_s=scenario.control_latency_s(overlay))
    plan = service.first_plan()
    with (
        one_thread(scenario),
        rare_collections(),
        EventLog.create(log_path, commit_every=_EVENTS_A_COMMIT) as log,
    ):
        files = Files(data_dir, weights_of(log_path), checkpoints_of(log_path), resume)
        simulation = _Simulation(scenario, service, plan, log, course, files, on_round)
        try:
            run_virtually(simulation.run())
        except Deadlock as error:
            said = simulation.standstill(error)
            simulation.ended(said)
            raise RunAborted(said) from None
        except KeyboardInterrupt:
            simulation.ended("the run was interrupted")
            raise
        except RunAborted:
            raise
        except Exception as error:  # a bug of ours: the log must name it, and end
            simulation.ended(f"the simulation failed: {type(error).__name__}: {error}")
            raise
    return simulation.unused


@contextmanager
def one_thread(scenario: Scenario) -> Iterator[None]:
    """Set torch to one thread, since the number of threads changes the last bits of sums."""
    if isinstance(scenario.task, Exchange):
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector run less often: a simulated site is many objects that stay."""
    usual = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS_A_COLLECTION, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Simulation:
    """One run: the scheduler, its sites, their network and machines, and the scripted faults."""

    def __init__(
        self,
        scenario: Scenario,
        service: Service,
        plan: Plan,
        log: EventLog,
        course: Course,
        files: Files,
        on_round: Callable[[int, float | None], None],
    ) -> None:
        self._plan = plan
        self._running: tuple[RunLog, Scheduler] | None = None  # once there is a scheduler
        self._over = False  # the run is over: ignore further faults
        self._scenario = structs.replace(scenario, shaped=True)  # simulated links always are
        self._service = service
        self._overlay = overlay = service.overlay
        self._log = log
        self._course = course
        self._files = files
        self._on_round = on_round
        self._faults = [
            each
            for each in script_of(scenario, overlay)
            if each.round is None or each.round > course.after_round
        ]
        self._link_factors: Factors[tuple[int, int]] = Factors()
        self._compute_factors: Factors[int] = Factors()
        self._pauses: Counter[int | None] = Counter()  # in force, by site; None: the scheduler
        self._endless: list[str] = []  # labels of faults that happened and never end
        self._disconnections: Counter[int] = Counter()  # in force, by site
        self._unused = dict.fromkeys(each.label for each in self._faults)
        self._round = 0  # the latest round that a site has begun

    async def run(self) -> None:
        """Run to the end.

        Raises:
            RunAborted: the run ended early.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        scenario, overlay = self._scenario, self._overlay
        wait_s = math.inf if scenario.wait_s is None else scenario.wait_s
        control_s = self._service.machines.control_latency_s
        # A run that ends with the first loss makes no detour round a silent lane.
        unusual_s = math.inf if scenario.on_loss == "abort" else _UNUSUAL_S
        self._network = SimulatedNetwork(
            loop, overlay, scenario.seed, control_s, wait_s, unusual_s, connect_s=wait_s
        )
        model = compute_model(scenario, overlay)
        self._worlds = [
            _SimulatedWorld(loop, self._network, site, model, self._begin_round)
            for site in range(overlay.size)
        ]
        plan, course = self._plan, self._course
        first = first_event(scenario, self._service, plan, "simulated", None, course)
        run_log = RunLog(self._log, first, on_start=self._begin)
        control = self._network.control(None)
        self._tasks: list[asyncio.Task[None]] = []
        aborted: RunAborted | None = None
        with self._network.scheduler.in_process():
            service = ending_with(self._service, scenario, plan)
            job = job_of(scenario, course)
            scheduler = service.scheduler(control, _TOKEN, run_log, plan=plan, job_json=job)
            self._running = run_log, scheduler
            self._scheduler_at = await scheduler.listen(("scheduler", 0))
            self._tasks += [self._start(site) for site in range(overlay.size)]
            try:
                await conduct(scheduler, run_log)
            except RunAborted as error:
                aborted = error
        self._over = True
        for world in self._worlds:
            world.end()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        # After a run that ended well, a NetError is no bug: the site was lost, or did not learn of
        # the end.
        bugs = (end for end in ends if isinstance(end, Exception) and not isinstance(end, NetError))
        bug = next(bugs, None)
        if aborted is not None:
            raise aborted from bug
        if bug is not None:
            raise bug

    def _start(self, site: int) -> asyncio.Task[None]:
        """Start a site's process."""
        name = self._overlay.sites[site].name
        with self._network.sites[site].in_process():
            return self._loop.create_task(
                take_part(self._worlds[site], name, self._scheduler_at, _TOKEN, self._files),
                name=f"site {name}",
            )

    def ended(self, error: str) -> None:
        """Log the last event of a run that its scheduler could not end."""
        if self._running is not None:
            run_log, scheduler = self._running
            if not run_log.has_ended:
                run_log.ended(error, scheduler)

    @property
    def unused(self) -> tuple[str, ...]:
        """The faults that never happened."""
        return tuple(self._unused)

    # --- what befalls them

    def _begin(self) -> None:
        self._network.begin()
        for world in self._worlds:
            world.machine.begin()
        began_s = self._loop.time()
        for fault in self._faults:
            at = self._loop.at if fault.renewal is None else self._loop.at_unless_idle
            play(fault.moments(), _counted_from(began_s, at), partial(self._inject, fault.label))

    def _begin_round(self, round: int) -> None:
        if round <= self._round:
            return  # another site was first
        self._round = round
        assert self._running is not None
        self._on_round(round, self._running[1].overview.mean_loss)
        for fault in self._faults:
            if fault.round == round:
                self._inject(fault.label, fault)

    def _inject(self, label: str, what: Scripted) -> None:
        """Carry out one action of the fault with this label."""
        if self._over or self._running is None or self._running[0].has_ended:
            return
        self._unused.pop(label, None)
        self._note(what, over=False)
        match what.action:
            case Kill(site=site):
                self._network.kill(site)
                self._tasks[site].cancel()
            case Pause(site=site):
                self._pauses[site] += 1
                self._network.put_to_sleep(site)
                if site is not None:
                    self._worlds[site].machine.stop()
            case Disconnect(site=site):
                self._disconnections[site] += 1
                self._network.disconnect(site)
            case LinkFactor(links=links, rate_factor=factor):
                for pair in links:
                    self._network.scale(pair, self._link_factors.begin(pair, factor))
            case ComputeFactor(site=site, time_factor=factor):
                self._worlds[site].machine.slow(self._compute_factors.begin(site, factor))
            case ClockStep(site=site, offset_s=offset_s, drift=drift):
                self._worlds[site].clock.step(offset_s, drift)
        if what.for_s is not None:  # also if the process that began the round is paused
            self._loop.at(self._loop.time() + what.for_s, self._heal, what)
        elif not isinstance(what.action, ClockStep | ComputeFactor):  # these stop nothing
            self._endless.append(label)

    def standstill(self, error: Deadlock) -> str:
        """Return why a run stands still; name the scenario's fault if that is the reason."""
        if not self._endless:
            return str(error)
        stalled = "; ".join(error.why) or "every site waits"
        faults = ", ".join(dict.fromkeys(self._endless))
        return (
            f"the run stands still for ever: {stalled}. A fault without an end is the reason "
            f"({faults}). Give the fault for_s, or wait_s, after which what is silent counts as "
            'lost, with on_loss = "complete" or "retry"'
        )

    def _heal(self, what: Scripted) -> None:
        self._note(what, over=True)
        match what.action:
            case Kill(site=site):
                # Another kill's end may have started the site again.
                if not self._over and self._network.sites[site].dead:
                    self._network.revive(site)
                    self._worlds[site].revive(self._network)
                    self._tasks[site] = self._start(site)
            case Pause(site=site):
                self._pauses[site] -= 1
                if not self._pauses[site]:
                    if site is not None:
                        self._worlds[site].machine.go_on()
                    self._network.wake(site)
            case Disconnect(site=site):
                self._disconnections[site] -= 1
                if not self._disconnections[site]:
                    self._network.reconnect(site)
            case LinkFactor(links=links, rate_factor=factor):
                for pair in links:
                    self._network.scale(pair, self._link_factors.end(pair, factor))
            case ComputeFactor(site=site, time_factor=factor):
                self._worlds[site].machine.slow(self._compute_factors.end(site, factor))

    def _note(self, what: Scripted, over: bool) -> None:
        if self._running is not None:
            note_fault(*self._running, what, over)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _counted_from(began_s: float, at: Callable[..., object]) -> Callable[..., object]:
    """Return `at` for moments that count from the beginning of a run."""
    return lambda at_s, *call: at(began_s + at_s, *call)


class _SimulatedWorld:
    """See :class:`anabranch_lab.run._site.World`."""

    def __init__(
        self,
        loop: VirtualLoop,
        network: SimulatedNetwork,
        site: int,
        model: ComputeModel | None,
        round_begins: Callable[[int], None],
    ) -> None:
        self.round_begins = round_begins
        self._site = site
        self.control: ControlNetwork
        self.data: Network
        self._plug_in(network)
        self.listen: ListenAt | None = self._host.name, 0
        self.advertise: str | None = None
        self.say: Callable[[str], None] | None = None
        self.patience_s = 0.0
        self.strands = 1
        self._model = model
        self.machine = Machine(loop)
        self.clock = Clock(loop)
        self._loop = loop
        self._pausing: asyncio.Future[None] = loop.create_future()
        self._is_over = False

    def _plug_in(self, network: SimulatedNetwork) -> None:
        self.control, self.data = network.control(self._site), network.lanes(self._site)
        self._host = network.sites[self._site]

    def revive(self, network: SimulatedNetwork) -> None:
        """Move to another host, and keep the machine and clock of the host that died."""
        self._plug_in(network)
        self.machine.go_on()

    def clock_s(self) -> float:
        return self.clock.now_s()

    def enter(
        self, scenario: Scenario, overlay: Overlay, welcome: Welcome, began: asyncio.Future[float]
    ) -> Network:
        return self.data

    def moved(self, site: int, address: Address) -> None:
        pass  # the simulated network knows where hosts are

    def sizes_only(self, scenario: Scenario) -> bool:
        tensors = scenario.simulation.tensors
        return tensors == "sizes" or (tensors is None and isinstance(scenario.task, Exchange))

    async def pause(self, seconds: float) -> None:
        if not self._is_over:
            self._pausing = up = self._loop.create_future()
            # This timer must not keep the loop alive: a run that stands still is at a deadlock,
            # also while a site tries to come back to it.
            self._loop.at_unless_idle(self._loop.time() + seconds, _settle, up)
            await up
            await self._host.awake()
        if self._is_over:
            raise EndedWithout("the run is over")

    def end(self) -> None:
        """End this site's tries to come back, since the run is over."""
        self._is_over = True
        _settle(self._pausing)

    async def compute(
        self, step: int, samples: int, do: Callable[[], T], passing: Passing, client: int | None
    ) -> T:
        done = do()
        if self._model is not None:
            who = self._site if client is None else client
            async with passing:
                work_s = self._model.work_s(who, step, samples)
                await self.machine.work(work_s, self._model.slowdowns(who))
                await asyncio.sleep(self._model.added_s(who, step))
        await self._host.awake()
        return done
