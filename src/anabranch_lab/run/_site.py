"""A site in a run, in any world: it joins; it steps, exchanges and applies; it reports.

Three parts are separate: what a local step leaves in the buffer, when the site exchanges the
buffer, and how the site applies the mean. `_rounds` and `_iterate` set their order.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

from anabranch._typed_toml import decode_json
from anabranch.cohort import Clients
from anabranch.exchange.arithmetic import Buffer, Sized, in_one_piece
from anabranch.exchange.compressed import Compressed
from anabranch.exchange.partition import Rule
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group.async_group import AsyncGroup, Callbacks, Door, Ports, join
from anabranch.group.gossip import GossipRun, gossips_of, weight_in_mean
from anabranch.group.hand_over import Offer
from anabranch.group.tensors import Tensors
from anabranch.log import events
from anabranch.merge import AnyMerge
from anabranch.net.addresses import ListenAt
from anabranch.net.errors import EndedWithout, LeftOut, LinkError, PeerError, RunAborted
from anabranch.net.messages import Welcome
from anabranch.net.network import Address, ControlNetwork, Network
from anabranch.net.tcp import STRANDS_INSTEAD, may_set_congestion_control
from anabranch.overlay import Overlay
from anabranch.site.agent import SiteAgent
from anabranch.site.control import RoundsOver
from anabranch.site.round import ExchangeError, Round
from anabranch.train.work import State, averaged_elements, check_finite
from anabranch_lab.run._attendance import Absence, Attendance
from anabranch_lab.run._evaluator import evaluator_of
from anabranch_lab.run._held_weights import HeldWeights
from anabranch_lab.run._local_steps import LocalWork
from anabranch_lab.run.checkpoints import Files, Job, Keeper, leave_weights
from anabranch_lab.run.scenario import Scenario
from anabranch_lab.run.work import Assignment, Floats, local_work, make_work, servable

T = TypeVar("T")

Passing = AbstractAsyncContextManager[None]  # it may cut short a wait in its body

# The state of a model under Adam or an outer step is up to this many times the exchanged elements.
_STATE_TIMES = 4


class World(Protocol):
    """What one site needs of its world: networks, a clock, and computing that takes time.

    Attributes:
        control: the network to the scheduler.
        data: the network on which other sites reach this one.
        listen: the address at which other sites reach this one; None where they cannot.
        advertise: the host at which other sites find this one; None: the host of ``listen``.
        patience_s: how long to retry while no scheduler answers.
        strands: how many connections a lane takes.
        say: called with lines about what this site waits for; None: no lines.
    """

    control: ControlNetwork
    data: Network
    listen: ListenAt | None
    advertise: str | None
    patience_s: float
    strands: int
    say: Callable[[str], None] | None

    def clock_s(self) -> float:
        """Return the time by this site's clock, seconds."""

    def enter(
        self, scenario: Scenario, overlay: Overlay, welcome: Welcome, began: asyncio.Future[float]
    ) -> Network:
        """Prepare for the run that this site has joined.

        Args:
            scenario, overlay: what runs, and on which network.
            welcome: this site's index, and the other sites' addresses.
            began: resolves to the loop's time when the run began.

        Returns:
            The network on which this site connects to others.
        """

    def moved(self, site: int, address: Address) -> None:
        """Take note of the address of a site that died and came back as another process."""

    def sizes_only(self, scenario: Scenario) -> bool:
        """Return whether chunks have sizes and no numbers."""

    def round_begins(self, round: int) -> None:
        """Take note that this site begins to exchange."""

    async def pause(self, seconds: float) -> None:
        """Wait before this site tries again to join.

        Raises:
            EndedWithout: the run is over.
        """

    async def compute(
        self, step: int, samples: int, do: Callable[[], T], passing: Passing, client: int | None
    ) -> T:
        """Compute a step, and wait for the time that the step takes.

        Args:
            step: counted from 0.
            samples: the step's batch.
            client: the client whose speed counts; None: this site's own speed.
            do: computes the step.
            passing: the context of the wait; may end the wait early.
        """


async def take_part(world: World, name: str, scheduler: Address, token: str, files: Files) -> None:
    """Run one site of a run until the run ends.

    Where ``on_loss`` keeps all-reduces running without a lost site, a lost site joins again. It
    goes on from the other sites' state. :class:`Absence` says how long it tries.

    Args:
        world: what this site runs in.
        name: this site's name in the run's overlay.
        scheduler: the scheduler's address, where the site joins.
        token: the run's shared secret.
        files: where the site reads and writes.

    Raises:
        RunAborted: the run ended early; names the site or the cause.
        LinkError: the scheduler cannot be reached.
    """
    loop = asyncio.get_running_loop()
    past = _Past(loop.time())
    while True:
        try:
            await _live(world, name, scheduler, token, files, past)
            return
        except EndedWithout:
            if not past.may_return:
                raise
            return
        except (LeftOut, LinkError):
            now_s = loop.time()
            if not past.may_return or past.left_out(now_s).is_given_up(now_s):
                raise
        try:
            await world.pause(past.left_out(now_s).pause_s(now_s))
        except EndedWithout:
            return


class _Past:
    """What a site keeps from one incarnation to the next, in one process.

    Attributes:
        made: the site's work, and its local steps if it makes such.
        may_return: whether the site joins again where the others go on without it.
        absence: begins when the site is left out; None while it is in the run.
    """

    def __init__(self, now_s: float) -> None:
        self.made: tuple[Assignment, LocalWork | None] | None = None
        self.may_return = False
        self.absence: Absence | None = None
        self._began_s = now_s  # until the site is in the run
        self._patience_s = 0.0

    def takes_part(self, group: AsyncGroup) -> None:
        """Take note that the site is in the run from now on."""
        self.absence = None
        self._began_s = group.agent.began.result()
        self._patience_s = group.agent.patience_s

    def left_out(self, now_s: float) -> Absence:
        """Return the site's absence; begin one now if it was in the run until now."""
        if self.absence is None:
            self.absence = Absence(now_s, now_s - self._began_s, self._patience_s)
        return self.absence


class NotHandedOn(RunAborted):
    """The other sites cannot hand on their state of training, so they go on without this site."""


def _comes_back(scenario: Scenario) -> bool:
    """Return whether a scenario's sites admit a site that was left out."""
    return scenario.on_loss != "abort" and not scenario.is_served and scenario.gossip is None


async def _live(
    world: World, name: str, scheduler: Address, token: str, files: Files, past: _Past
) -> None:
    """Run one incarnation of a site; see ``take_part``.

    Raises:
        LeftOut: the others go on without this site.
        EndedWithout: the run ended before this site came back.
    """
    event_buffer = _EventBuffer(world)
    door = Door(
        scheduler,
        name,
        token,
        world.listen,
        world.advertise,
        world.patience_s,
        say=world.say,
    )
    callbacks = Callbacks(event_buffer.refused, event_buffer.progressed, world.moved)
    group = await join(Ports(world.control, world.data, world.clock_s), door, callbacks)
    try:
        welcome = group.welcome
        if not group.settings.job_json:
            raise RunAborted(
                "this scheduler serves a group, whose sites run programs of their own, by "
                "anabranch.join(); start one for a scenario by `anabranch host SCENARIO`"
            )
        job: Job = decode_json(group.settings.job_json, Job)
        if past.absence is not None:
            past.absence.taken_in(asyncio.get_running_loop().time())
        site = await _ready(world, group, event_buffer, job, files, past)
        past.may_return = _comes_back(job.scenario)
        if welcome.is_new and not await site.come_in(past):
            await group.leave()
            return
        past.takes_part(group)
        if job.scenario.is_served:
            await _iterate(site)
        elif site.steps is not None and job.scenario.gossip is not None:
            await _gossip(site, site.steps, job.scenario)
        elif site.steps is not None:
            await _averages(site, site.steps, job)
        else:
            await _rounds(site, job)
        await site.leave_weights()
        event_buffer.report()
        await group.leave()
        await site.gather_weights()
    except RoundsOver:
        pass
    except (LeftOut, EndedWithout, NotHandedOn):
        raise
    except Exception as error:
        await group.fail(error)
        raise
    finally:
        await group.close()


async def _ready(
    world: World,
    group: AsyncGroup,
    event_buffer: _EventBuffer,
    job: Job,
    files: Files,
    past: _Past,
) -> _Site:
    """Make the site's work, unless a past incarnation did; wait until every site is ready."""
    site, welcome, settings, scenario = group.index, group.welcome, group.settings, job.scenario
    loop = asyncio.get_running_loop()
    sizes_only = world.sizes_only(scenario)
    overlay, names = group.overlay, group.names
    keeper = Keeper(job, files, site, names)

    def make() -> tuple[Assignment, LocalWork | None]:
        made, steps = make_work(scenario, site, tuple(names), files.data, sizes_only), None
        if scenario.has_local_steps:
            scale = scenario.share_of_batch(names, site) if scenario.scales_steps else 1.0
            steps = local_work(made, scenario, scale)
        keeper.resume(steps or made.work)
        return made, steps

    if past.made is None:
        past.made = await loop.run_in_executor(None, make)
    assigned, steps = past.made
    work = assigned.work
    elements = len(work.buffer)
    lanes = world.enter(scenario, overlay, welcome, group.agent.began)
    exchanged = elements if steps is None else steps.most_elements
    room = exchanged * (_STATE_TIMES if _comes_back(scenario) else 1)
    strands = min(world.strands, job.most_strands or world.strands)
    transport = settings.transport(exchanged, strands, room)
    workers = scenario.workers(overlay)
    served, partition, pulled, evaluator = None, None, None, 0
    if scenario.is_served:
        held = servable(work, scenario)
        evaluator = evaluator_of(scenario, group.first_plan, workers)
        make_rule: Callable[[int], Rule] | None = None
        if held.make_rule is not None:
            chunk_elements = settings.chunk_elements(elements)
            partition = HeldWeights(held, group.first_plan, chunk_elements, site)
            make_rule = partition.make_rule
            # It also evaluates the model that it serves, in the work's memory. Pulls take another.
            if site == evaluator and site in workers and partition.is_whole:
                pulled = held.model.copy()
        averaged = averaged_elements(held)
        model = held.model if pulled is None else pulled
        served = settings.served_model(model, make_rule, averaged, wire=assigned.wire)
    own_share, held_samples = 1.0, 0
    if scenario.clients is not None:
        held_samples = 1  # each client's push carries its own weight
    elif assigned.held:
        held_samples = assigned.held[site]
    if scenario.merge.weighs_data and scenario.clients is None:
        own_share = assigned.share_of(site, workers)
    if not (scenario.is_served or scenario.scales_steps):  # servers weigh each push by its samples
        own_share *= scenario.share_of_batch(names, site)
    gossips = None
    if scenario.gossip is not None and steps is not None:
        model = steps.work.model
        gossips = gossips_of(settings, site, model, assigned.wire, own_share, scenario.seed)
        own_share = weight_in_mean(scenario.gossip, own_share)
    await group.start(transport, lanes, served, elements, held_samples, gossips)
    if not welcome.is_new:
        group.agent.has_state()
    event_buffer.begin(group, scenario.sample_every_s)
    if strands >= STRANDS_INSTEAD and not may_set_congestion_control("bbr"):
        event_buffer.write(
            events.TransportChosen(
                at_s=event_buffer.now_s(),
                site=site,
                strands=strands,
                why="the congestion control that suits the links may not be set here",
            )
        )
    if assigned.labels and site in workers:
        held_labels = list(assigned.labels)
        event_buffer.write(
            events.LabelsHeld(at_s=event_buffer.now_s(), site=site, samples=held_labels)
        )
        event_buffer.report()  # at once, so that the log has it even if the site dies
    weights = files.weights if assigned.learns else None
    return _Site(
        world,
        group,
        event_buffer,
        assigned,
        keeper,
        weights,
        partition,
        pulled,
        evaluator,
        len(workers),
        own_share,
        scenario.merge,
        scenario.clients,
        scenario.seed,
        steps,
        Attendance(len(names), _window(scenario)),
    )


def _window(scenario: Scenario) -> int:
    """Return the least number of exchanges between a site's absence and its next admission."""
    average = scenario.average
    if average is not None and average.fragments > 1:
        return average.fragments
    return 1 if scenario.period.calls else 2


@dataclass(frozen=True, slots=True)
class _Step:
    """A completed local step.

    Args:
        loss: of its batch; None where the work has none.
        samples: how many it used.
        compute_s: how long it took.
    """

    loss: float | None
    samples: int
    compute_s: float


@dataclass(slots=True)
class _Site:
    """A site that is ready, and the actions that its rounds consist of.

    Rounds are counted in two ways. Rounds of the training continue in a resumed run. Rounds of this
    run count from 1; the scheduler and the log use these.
    """

    world: World
    group: AsyncGroup
    event_buffer: _EventBuffer
    assigned: Assignment
    keeper: Keeper
    weights: Path | None  # the file of the final weights
    partition: HeldWeights | None  # where the model is served
    pulled: Floats | None  # the model as pulled, where the work's memory also has another
    evaluator: int  # one site evaluates, since the model is the same everywhere
    workers: int  # how many sites compute
    share: float  # the weight of its gradient; the mean over sites is 1
    merge: AnyMerge
    clients: Clients | None  # the site computes for them, one at a time
    seed: int
    steps: LocalWork | None  # where sites make local steps between averages
    attendance: Attendance
    handed: State | None = None  # the other sites' position in the program, if this site came back
    working: Lock = field(default_factory=Lock)  # the work computes one thing at a time

    @property
    def index(self) -> int:
        return self.group.index

    @property
    def agent(self) -> SiteAgent:
        return self.group.agent

    # --- sites that come back

    async def come_in(self, past: _Past) -> bool:
        """Join a run in progress, and load the other sites' state.

        Returns:
            False if the run ended as the site was admitted.

        Raises:
            EndedWithout, LeftOut: the site was not admitted.
        """
        agent = self.agent
        await agent.unless_ended(self._is_reached(past))
        try:
            handed = await self.group.hand_over(await agent.admit(), None)
        except RoundsOver:
            return False
        except ExchangeError as error:
            raise NotHandedOn(
                f"this site cannot come back, and the others go on: {error}"
            ) from None
        state = handed.state
        await self.off_the_loop(partial(self._load, state["work"]))
        self.attendance.load(state["attendance"])
        self.handed = state["program"]
        agent.has_state()
        return True

    async def _is_reached(self, past: _Past) -> None:
        """Return once a neighbour answers."""
        loop = asyncio.get_running_loop()
        while not await self.agent.try_neighbours():
            now_s = loop.time()
            await self.world.pause(past.left_out(now_s).pause_s(now_s))

    async def let_in_before(self, number: int, program: Callable[[], State]) -> None:
        """Admit sites that wait, if it is time to, and hand them the state of training.

        Args:
            number: of the round or average that follows.
            program: returns this site's position in its program.
        """
        if not self.attendance.lets_in_before(number):
            return
        self.attendance.let_in(number)
        admitted = await self.agent.admit()
        if not admitted.newcomers or self.index in admitted.newcomers:
            return

        def state() -> State:
            held = {"work": self._shared(), "program": program()}
            return {**held, "attendance": self.attendance.state()}

        await self.group.hand_over(admitted, Offer(state, admitted.follows))

    def _shared(self) -> State:
        """Return the part of this site's state that is equal at all sites."""
        if self.steps is not None:
            return self.steps.shared_state()
        own, state = self.assigned.own_state, self.assigned.work.state_dict()
        return {key: value for key, value in state.items() if key not in own}

    def _load(self, shared: State) -> None:
        """Load the part of the state that is equal at all other sites."""
        if self.steps is not None:
            self.steps.load_shared_state(shared)
        else:
            work = self.assigned.work
            work.load_state_dict({**work.state_dict(), **shared})

    async def local_step(
        self, step: int, samples: int, passing: Passing, client: int | None = None
    ) -> _Step:
        """Compute this site's contribution into the buffer.

        Args:
            step: counted from 0.
            samples: of the batch.
            passing, client: see :meth:`World.compute`.

        Raises:
            DivergedError: the contribution is not finite; it would spoil all sites' models.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        work = self.assigned.work

        def do() -> float | None:
            with self.working:
                self._show(self.pulled)
                loss = work.local_step(samples)
                if self.assigned.wire != Wire.SIZES:
                    check_finite(work.buffer, step)
                if self.partition is not None:
                    self.assigned.complete_push()
                return loss

        who = self.index if client is None else client
        samples_in_all = samples * self.assigned.steps_of(who, samples)
        loss = await self.world.compute(step, samples_in_all, do, passing, client)
        return _Step(loss, samples_in_all, loop.time() - began_s)

    async def exchange(
        self,
        round: int,
        parts: Sequence[Floats],
        more: bool = False,
        calls: bool = False,
        travels: Wire = Wire.FLOAT32,
        lost: Floats | None = None,
    ) -> Round:
        """Replace elements by their mean over all sites.

        Args:
            round: of the training.
            parts: arrays of elements, one after the other; changed in place.
            more: whether another such exchange follows.
            calls: whether to notify sites that have not begun this exchange yet.
            travels: the format on the wire, where elements are numbers.
            lost: gets what blocks lose of the first and only part; None in other formats.

        Raises:
            RoundsOver: there is no further round.
        """
        elements = travels.padded(sum(map(len, parts)))
        wire = travels if self.assigned.wire == Wire.FLOAT32 else self.assigned.wire
        buffer: Buffer
        if wire == Wire.SIZES:
            elements = -(-travels.bytes_of(elements) // wire.block_bytes)
            buffer = Sized(elements)
        elif lost is not None:
            buffer = Compressed(parts[0], lost, self.share, travels)
        else:
            buffer = in_one_piece(Tensors(parts))
        self.world.round_begins(round)
        cuts = self.group.settings.cuts_tensors
        terms = Terms(Op.MEAN, wire, elements, tensors=self.assigned.tensors if cuts else ())
        done = await self.agent.exchange(buffer, terms, self.share, more, calls=calls)
        if done.members:  # the sites that are left
            self.evaluator = done.members[0]
        return done

    async def apply(self, round: int, done: Round) -> None:
        """Apply the mean, and report the model's checksum to the scheduler.

        Args:
            round: of the training.
            done: the exchange of that round, with the number that this run gives it.
        """
        checksum = await self.off_the_loop(partial(self.assigned.work.apply, round))
        await self.agent.round_ended(done, checksum)

    async def client_returns(self, client: int, update: int) -> None:
        """Wait until a client returns its update; wait forever if it never does."""
        assert self.clients is not None
        loop = asyncio.get_running_loop()
        now_s = loop.time() - self.agent.began.result()
        wait_s = self.clients.returns_s(self.seed, client, update, now_s) - now_s
        if math.isinf(wait_s):
            await loop.create_future()
        await asyncio.sleep(wait_s)

    def stepped(self, round: int, step: _Step) -> None:
        """Log a local step whose update is applied, or on its way.

        Args:
            round: of this run.
            step: the completed step.
        """
        if step.samples:
            self.event_buffer.write(
                events.StepDone(
                    at_s=self.event_buffer.now_s(),
                    site=self.index,
                    round=round,
                    loss=step.loss,
                    samples=step.samples,
                    compute_s=step.compute_s,
                )
            )

    def evaluation_is_due(self, round: int, last: int | None = None) -> bool:
        """Return whether this site evaluates the model after a round; it does after the last."""
        every = self.assigned.evaluate_every
        is_asked = every is not None and (round % every == 0 or round == last)
        return is_asked and self.index == self.evaluator

    def evaluates_step(self, step: int) -> bool:
        """Return whether this site evaluates its own model after a local step."""
        every = self.assigned.evaluate_every
        return every is not None and step % every == 0

    @staticmethod
    def check(elements: Floats) -> int:
        """Return a checksum of elements."""
        from anabranch.train.checksum import checksum

        return checksum(elements)

    @property
    def watches(self) -> bool:
        """Whether it evaluates the model that it serves whole, instead of the one it pulls."""
        held = self.partition
        return self.index == self.evaluator and held is not None and held.is_whole

    def _show(self, model: Floats | None) -> None:
        """Copy a model into the work's memory; None leaves that as it is."""
        if model is not None:
            assert self.partition is not None, "only a served model is in other memory"
            self.partition.show(model)

    async def evaluate(
        self, round: int, step: int | None = None, model: Floats | None = None
    ) -> None:
        """Log the model's accuracy.

        Args:
            round: of this run; the accuracy is of the model after it.
            step: local steps that the site has made, where models differ between rounds.
            model: what to evaluate; None for the work's model as it is.
        """
        at_s = self.event_buffer.now_s()

        def look() -> tuple[float, list[float | None] | None]:
            with self.working:
                self._show(model)
                return self.assigned.evaluate()

        accuracy, by_class = await self.off_the_loop(look)
        self.event_buffer.write(
            events.Evaluated(
                at_s=at_s,
                site=self.index,
                round=round,
                accuracy=accuracy,
                by_class=by_class,
                step=step,
            )
        )
        self.event_buffer.report()  # at once: this accuracy may end the run

    async def save(self, round: int) -> None:
        """Save the state from which this site can resume after a round of the training."""
        work = self.steps or self.assigned.work
        await self.off_the_loop(partial(self.keeper.save, work, round))

    async def leave_weights(self) -> None:
        """Write the final weights: one site writes them all, or each server its part."""
        path, partition = self.weights, self.partition
        if path is None:
            return
        if partition is not None:
            await self.off_the_loop(partial(partition.leave, path))
        elif self.index == self.evaluator:
            await self.off_the_loop(partial(leave_weights, self.assigned.work, path))

    async def gather_weights(self) -> None:
        """Join the servers' parts into the final weights, once all sites have left the run."""
        path, partition = self.weights, self.partition
        if path is not None and partition is not None:
            await self.off_the_loop(partial(partition.gather, path, self.group.names))

    async def off_the_loop(self, do: Callable[[], T]) -> T:
        """Compute in a thread, so that the event loop stays free."""
        return await asyncio.get_running_loop().run_in_executor(None, do)


async def _rounds(site: _Site, job: Job) -> None:
    """Step, all-reduce and apply, round by round."""
    before, last = job.course.after_round, job.scenario.stop.rounds
    attendance = site.attendance
    applied = looked_at = before if site.handed is None else site.handed["round"]
    try:
        for round in range(applied + 1, last + 1):
            await site.let_in_before(round, partial(dict, round=round - 1))
            step = None
            # A kept result means that the others make this round without this site's gradients.
            if not site.agent.has_kept:
                step = await site.local_step(round - 1, site.assigned.samples, nullcontext())
            more = round < last and not attendance.lets_in_before(round + 1)
            done = await site.exchange(round, [site.assigned.work.buffer], more=more)
            await site.apply(round, done)
            applied = round
            attendance.ended(round, done.members)
            if step is not None and not done.was_kept:
                site.stepped(round - before, step)
            if site.evaluation_is_due(round, last):
                await site.evaluate(round - before)
                looked_at = round
            if site.keeper.is_due(round):
                await site.save(round)
    except RoundsOver:  # a time limit or a target ended the run before the last round
        if applied > looked_at and site.evaluation_is_due(applied, applied):
            await site.evaluate(applied - before)


async def _averages(site: _Site, work: LocalWork, job: Job) -> None:
    """Make local steps, and average the model when the period says so."""
    period, last = job.scenario.period, job.scenario.stop.rounds
    before = job.course.after_round
    steps = work.local
    loop = asyncio.get_running_loop()
    flying: deque[asyncio.Task[Round]] = deque()  # averages on their way, oldest first
    taken = before
    attendance = site.attendance
    if site.handed is None:
        steps.resume_after(before)
    else:
        taken = steps.begun

    async def average(number: int, parts: Sequence[Floats], lost: Floats | None) -> Round:
        more = not period.calls and number < last and not steps.is_fragmented
        more = more and not attendance.lets_in_before(number + 1)
        return await site.exchange(number, parts, more, period.calls, work.travels, lost)

    async def begin() -> None:
        await let_in()  # not possible before if some average was on its way
        parts = await site.off_the_loop(work.begin)
        flying.append(loop.create_task(average(steps.begun, parts, steps.lost)))

    async def let_in() -> None:
        if attendance.lets_in_before(steps.begun + 1):
            while flying:
                await take_one()
            await site.let_in_before(steps.begun + 1, dict)

    async def take() -> None:
        await take_one()
        # The model is the same at all sites only until the next step.
        if not flying and steps.begun < last:
            await let_in()

    async def take_one() -> None:
        nonlocal taken
        # Do not await the task itself. A cancellation would reach the task, and would be lost if
        # the task ended at that moment.
        await asyncio.wait({flying[0]})
        done = flying.popleft().result()
        taken += 1
        attendance.ended(taken, done.members)
        agreed = await site.off_the_loop(partial(work.take, done.seconds))
        sum_of = None if agreed is None else await site.off_the_loop(partial(site.check, agreed))
        await site.agent.round_ended(done, sum_of)
        if site.keeper.is_due(taken):
            await site.save(taken)

    try:
        while steps.begun < last:
            if site.agent.has_kept:  # the others make the next average without this site
                if not flying:
                    await begin()
                await take()
                continue
            step = await site.local_step(steps.steps, site.assigned.samples, nullcontext())
            await site.off_the_loop(partial(work.step, step.compute_s))
            site.stepped(steps.begun + 1 - before, step)
            while steps.is_ripe:
                await take()
            if steps.is_due(site.agent.is_awaited()):
                if steps.is_full:
                    await take()
                await begin()
                while steps.is_ripe:
                    await take()
            if site.evaluates_step(steps.steps) and steps.begun < last:
                await site.evaluate(taken - before, steps.steps)
        while flying:
            await take()
    except RoundsOver:
        pass
    finally:
        for task in flying:
            task.cancel()
        await asyncio.gather(*flying, return_exceptions=True)
    await site.off_the_loop(steps.finish)
    if site.assigned.learns:
        await site.evaluate(taken - before, steps.steps)


async def _gossip(site: _Site, work: LocalWork, scenario: Scenario) -> None:
    """Make local steps, send the model to some neighbours, and merge the models that come.

    In the end all models become their weighted mean.
    """
    steps, gossip = work.local, GossipRun(site.agent, work.local)
    gossip.begin()
    while steps.begun < scenario.stop.rounds and await gossip.may_step():
        step = await site.local_step(steps.steps, site.assigned.samples, nullcontext())
        await site.off_the_loop(partial(work.step, step.compute_s))
        site.stepped(1, step)
        if gossip.stepped():
            site.world.round_begins(steps.begun + 1)
            gossip.send()
        if site.evaluates_step(steps.steps):
            await site.evaluate(0, steps.steps)

    async def mean(elements: Floats) -> Round:
        return await site.exchange(1, [elements])

    done, agreed = await gossip.finish(mean)
    await site.agent.round_ended(done, await site.off_the_loop(partial(site.check, agreed)))
    if site.assigned.learns:
        await site.evaluate(1, steps.steps)


async def _iterate(site: _Site) -> None:
    """Pull, step and push, as the pace permits; a site that only serves is never permitted."""
    async with _evaluating(site):
        await _permitted(site)


@asynccontextmanager
async def _evaluating(site: _Site) -> AsyncIterator[None]:
    """Evaluate a model that this site serves whole, while it serves and in the end.

    It evaluates after each ``evaluate_every`` rounds. A round is as many updates as there are
    workers; discarded updates count. Where the scheduler says when to evaluate, it evaluates only
    in the end.
    """
    held, every = site.partition, site.assigned.evaluate_every
    if held is None or every is None or not site.watches:
        yield
        return
    settled = 0  # updates at the latest evaluation
    looking = asyncio.Lock()  # an evaluation that has begun ends before the next

    async def see(round: int) -> None:
        nonlocal settled
        async with looking:
            settled = site.agent.settled
            await site.evaluate(round, model=held.whole())  # in the loop, which changes it

    async def watch() -> None:
        while not site.assigned.looks_when_told:
            seen = settled // site.workers
            await site.agent.settle((seen + every) * site.workers)
            await see(site.agent.settled // site.workers)

    watching = asyncio.get_running_loop().create_task(watch())
    try:
        yield
    finally:
        async with looking:
            watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    if site.agent.settled > settled:
        await see(-(-site.agent.settled // site.workers))


async def _permitted(site: _Site) -> None:
    agent = site.agent
    update = site.group.welcome.updates  # made by an earlier process of this site
    while (permission := await site.group.pull()) is not None:
        update, samples = permission.update, permission.samples
        if site.assigned.looks_when_told:
            is_due = permission.looks and site.assigned.learns
        else:
            is_due = update > 1 and site.evaluation_is_due(update - 1) and not site.watches
        if is_due:
            await site.evaluate(update - 1, model=site.pulled)
        client, share = permission.client, site.share
        if client is not None:
            by_data = await site.off_the_loop(partial(site.assigned.stand_for, client, update))
            share = by_data if site.merge.weighs_data else 1.0
        passing = agent.unless_abandoned(permission)
        step = await site.local_step(update - 1, samples, passing, client)
        if client is not None:
            async with agent.unless_abandoned(permission):
                await site.client_returns(client, update)
        site.world.round_begins(update)
        usual = site.assigned.samples
        weight = share * (samples / usual if usual else 1.0)
        buffer = site.assigned.work.buffer
        loss = step.loss if site.merge.asks_loss else None  # the log has it with the step
        if agent.push(permission, buffer, weight, samples, step.compute_s, loss):
            site.stepped(update, step)
    if site.index == min(agent.last_receivers, default=None) and site.assigned.learns:
        await site.evaluate(update, model=site.pulled)


class _EventBuffer:
    """Events that a site has not reported yet.

    Moments are read from the site's clock, which may be wrong. Durations are measured by the loop's
    clock, as a real process measures them by a monotonic clock.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._group: AsyncGroup | None = None
        self._site = 0
        self._every_s = 0.0
        self._began_s = 0.0  # by this site's clock
        self._events: list[events.Event] = []
        self._sent_bytes: dict[int, int] = {}
        self._loop = asyncio.get_running_loop()
        self._sampled_s = 0.0  # by the loop's time

    def begin(self, group: AsyncGroup, every_s: float) -> None:
        """Count time from the beginning of the run, by this site's clock."""
        self._group, self._site, self._every_s = group, group.index, every_s
        self._sampled_s = self._loop.time()
        # A site that has come back joined later.
        self._began_s = self._world.clock_s() - (self._sampled_s - group.agent.began.result())

    def now_s(self) -> float:
        """Return seconds since the run began, by this site's clock; 0 before."""
        return 0.0 if self._group is None else self._world.clock_s() - self._began_s

    def write(self, event: events.Event) -> None:
        self._events.append(event)

    def refused(self, sender: int | None, error: PeerError) -> None:
        """Log that this site refused a message from another site."""
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
        """Send the buffered events, and the bytes that each link carried since the last report."""
        if self._group is None:
            return
        now_s, sent_bytes = self._loop.time(), self._group.agent.sent_bytes()
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
            self._group.agent.report(tuple(events.encode(event).encode() for event in waiting))
