"""A site in a run, in any world: it joins, does its steps, exchanges, and reports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from anabranch import overlay as overlays
from anabranch.net.errors import PeerError
from anabranch.net.messages import Welcome
from anabranch.net.network import Address, Network
from anabranch.net.throughput import BusyPeriodEstimator, ChunkMeanEstimator
from anabranch.overlay import Overlay
from anabranch.record import events
from anabranch.run.scenario import Scenario, decode
from anabranch.run.work import Work, make_work
from anabranch.scheduler.awareness import Passive
from anabranch.site.agent import SiteAgent, Transport
from anabranch.site.arithmetic import Flat, Sized
from anabranch.site.control import RoundsOver
from anabranch.site.meter import Meter
from anabranch.site.serving import ServedModel
from anabranch.site.terms import Op, Terms, Wire

T = TypeVar("T")

_ELEMENT_BYTES = 4
# How often measurements are sent while the scheduler looks at plans once.
_REPORTS_AN_UPDATE = 4


class World(Protocol):
    """What differs between the worlds, seen from one site.

    Attributes:
        control: the network to the scheduler.
        data: the network on which other sites reach this one.
        listen: where they do.
        strands: how many connections a lane takes.
    """

    control: Network
    data: Network
    listen: Address
    strands: int

    def clock_s(self) -> float:
        """Return the time by this site's clock, seconds."""

    def enter(
        self, scenario: Scenario, overlay: Overlay, welcome: Welcome, began: asyncio.Future[float]
    ) -> Network:
        """Take note of the run that this site has joined.

        Args:
            scenario, overlay: what runs, and where.
            welcome: which site this is, and where the others are.
            began: the loop's time when the run began, once it has.

        Returns:
            The network on which this site connects to others.
        """

    def moved(self, site: int, address: Address) -> None:
        """Take note that a site died and is back, as another process, and where."""

    def sizes_only(self, scenario: Scenario) -> bool:
        """Return whether chunks have sizes and no numbers."""

    def round_begins(self, round: int) -> None:
        """Hear that this site begins to exchange."""

    async def compute(self, step: int, samples: int, do: Callable[[], T]) -> T:
        """Do a step's computing, and let the time pass that it takes.

        Args:
            step: counted from 0.
            samples: the step's batch.
            do: what there is to compute.
        """


async def take_part(
    world: World, name: str, scheduler: Address, token: str, data_dir: Path | None
) -> None:
    """Take part in a run as one site, to its end.

    Args:
        world: what this site runs in.
        name: this site's name in the run's overlay.
        scheduler: where to join.
        token: the run's shared secret.
        data_dir: where data sets are.

    Raises:
        RunAborted: the run ended early; says who or what caused it.
        LinkError: the scheduler cannot be reached.
    """
    diary = _Diary(world)
    agent = SiteAgent(
        world.control,
        world.data,
        name,
        token,
        world.listen,
        diary.progressed,
        diary.refused,
        world.clock_s,
        world.moved,
    )
    try:
        welcome = await agent.join(scheduler)
        scenario = decode(welcome.work)
        await _steps(world, agent, diary, welcome, scenario, data_dir)
        diary.report()
        await agent.leave()
    except RoundsOver:
        agent.close()
    except asyncio.CancelledError:
        agent.close()
        raise
    except Exception as error:
        await agent.fail(error)
        raise


async def _steps(
    world: World,
    agent: SiteAgent,
    diary: _Diary,
    welcome: Welcome,
    scenario: Scenario,
    data_dir: Path | None,
) -> None:
    site, sites = welcome.site, len(welcome.addresses)
    loop = asyncio.get_running_loop()
    sizes_only = world.sizes_only(scenario)
    work = await loop.run_in_executor(None, make_work, scenario, site, sites, data_dir, sizes_only)
    overlay = overlays.loads(welcome.overlay_toml)
    lanes = world.enter(scenario, overlay, welcome, agent.began)
    chunk_elements = scenario.chunk_elements_of(len(work.buffer))
    transport = _transport(scenario, len(work.buffer), world.strands)
    meter = _meter(scenario, chunk_elements)
    workers = scenario.workers(overlay)
    served = None
    if scenario.is_served:
        ahead = scenario.computes_ahead
        added_up = tuple(workers) if scenario.pace.barrier and not ahead else ()
        served = ServedModel(
            work.model, work.make_rule, len(workers), added_up, int(ahead), work.wire
        )
    await agent.start(transport, lanes, meter, served, len(work.buffer))
    diary.begin(agent, site, scenario.sample_every_s)
    if world.strands > 1:
        diary.write(
            events.TransportChosen(
                at_s=diary.now_s(),
                site=site,
                strands=world.strands,
                why="the congestion control that suits the links may not be set here",
            )
        )
    if scenario.is_served:
        await _iterate(world, agent, diary, work, site, site == workers[0])
    else:
        await _rounds(world, agent, diary, work, site, scenario.stop.rounds)


async def _rounds(
    world: World, agent: SiteAgent, diary: _Diary, work: Work, site: int, rounds: int
) -> None:
    """Compute and all-reduce, round by round."""
    loop = asyncio.get_running_loop()
    terms = Terms(Op.MEAN, work.wire, len(work.buffer))
    has_numbers = work.wire != Wire.SIZES
    buffer = Flat(work.buffer) if has_numbers else Sized(len(work.buffer))
    for step in range(rounds):
        began_s = loop.time()
        loss = await world.compute(step, work.samples, partial(work.prepare, work.samples))
        computed_s = loop.time() - began_s
        world.round_begins(step + 1)
        try:
            done = await agent.exchange(buffer, terms, more=step + 1 < rounds)
        except RoundsOver:
            return
        checksum = await loop.run_in_executor(None, work.apply, done.round)
        await agent.round_ended(done, checksum)
        if work.samples:
            diary.write(
                events.StepDone(
                    at_s=diary.now_s(),
                    site=site,
                    round=done.round,
                    loss=loss,
                    samples=work.samples,
                    compute_s=computed_s,
                )
            )
        # All sites hold the same model, so one of them measures it.
        last = done.round == rounds
        look = work.evaluation
        if site == 0 and look is not None and (done.round % look.every == 0 or last):
            at_s = diary.now_s()
            accuracy = await loop.run_in_executor(None, look.accuracy)
            diary.write(events.Evaluated(at_s=at_s, site=0, round=done.round, accuracy=accuracy))
            diary.report()  # the run may be over for it


async def _iterate(
    world: World, agent: SiteAgent, diary: _Diary, work: Work, site: int, evaluates: bool
) -> None:
    """Pull, compute and push, as the pace permits; a site that only serves is never permitted."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            permission = await agent.permission()
        except RoundsOver:
            return
        update, samples = permission.update, permission.samples
        look = work.evaluation
        if evaluates and look is not None and update > 1 and (update - 1) % look.every == 0:
            at_s = diary.now_s()
            accuracy = await loop.run_in_executor(None, look.accuracy)
            diary.write(events.Evaluated(at_s=at_s, site=site, round=update - 1, accuracy=accuracy))
            diary.report()  # the run may be over for it
        began_s = loop.time()
        loss = await world.compute(update - 1, samples, partial(work.prepare, samples))
        computed_s = loop.time() - began_s
        world.round_begins(update)
        weight = samples / work.samples if work.samples else 1.0
        agent.push(permission, work.buffer, weight, samples, computed_s)
        if samples:
            diary.write(
                events.StepDone(
                    at_s=diary.now_s(),
                    site=site,
                    round=update,
                    loss=loss,
                    samples=samples,
                    compute_s=computed_s,
                )
            )


def _transport(scenario: Scenario, elements: int, strands: int) -> Transport:
    chunk_elements = scenario.chunk_elements_of(elements)
    auxiliary = scenario.auxiliary
    bounds = (
        ()
        if auxiliary is None
        else (auxiliary.primary_busy_bound, auxiliary.auxiliary_queue_length)
    )
    return Transport(chunk_elements, chunk_elements, elements, strands, *bounds)


def _meter(scenario: Scenario, chunk_elements: int) -> Meter | None:
    """Return what measures links, in a run that wants them measured."""
    awareness = scenario.awareness
    if not isinstance(awareness, Passive):
        return None
    if awareness.estimator == "busy-period":
        return Meter(BusyPeriodEstimator, awareness.update_time_s / _REPORTS_AN_UPDATE)
    probe_elements = awareness.probe_chunk_elements or chunk_elements // 4
    return Meter(
        lambda: ChunkMeanEstimator(_ELEMENT_BYTES * probe_elements, awareness.probe_chunks),
        awareness.update_time_s / _REPORTS_AN_UPDATE,
    )


class _Diary:
    """What a site saw and has not reported yet.

    Moments are told by the site's clock, which may be wrong; durations are measured by the loop's,
    as a real process measures them by a clock that nobody sets.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._agent: SiteAgent | None = None
        self._site = 0
        self._every_s = 0.0
        self._began_s = 0.0  # by this site's clock
        self._events: list[events.Event] = []
        self._sent_bytes: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self._sampled_s = 0.0  # by the loop's time

    def begin(self, agent: SiteAgent, site: int, every_s: float) -> None:
        """Count time from the beginning of the run, as this site saw it."""
        self._agent, self._site, self._every_s = agent, site, every_s
        self._sampled_s = self._loop.time()
        # A site that has come back joined later.
        self._began_s = self._world.clock_s() - (self._sampled_s - agent.began.result())

    def now_s(self) -> float:
        """Return seconds since the run began, by this site's clock; 0 before."""
        return 0.0 if self._agent is None else self._world.clock_s() - self._began_s

    def write(self, event: events.Event) -> None:
        self._events.append(event)

    def refused(self, sender: int | None, error: PeerError) -> None:
        """Write down that a message from another site was refused."""
        self.write(
            events.MessageRefused(
                at_s=self.now_s(),
                site=self._site,
                sender=sender,
                error=type(error).__name__,
                detail=str(error),
            )
        )

    def progressed(self) -> None:
        """Report if it is time to; called whenever a message has been sent."""
        if self._loop.time() - self._sampled_s >= self._every_s:
            self.report()

    def report(self) -> None:
        """Send what was written down, and what each link carried since the last time."""
        if self._agent is None:
            return
        now_s, sent_bytes = self._loop.time(), self._agent.sent_bytes()
        for target, count in sent_bytes.items():
            if more := count - self._sent_bytes.get(target, 0):
                self.write(
                    events.LinkBytes(
                        at_s=self.now_s(),
                        source=self._site,
                        target=target,
                        seconds=now_s - self._sampled_s,
                        payload_bytes=more,
                    )
                )
        self._sent_bytes, self._sampled_s = sent_bytes, now_s
        waiting, self._events = self._events, []
        if waiting:
            self._agent.report(tuple(events.encode(event).encode() for event in waiting))
