"""A site in a run: it joins the scheduler, asks for rounds, takes part in them, and reports."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.net.errors import (
    LinkError,
    MalformedMessage,
    NetError,
    OutOfPlaceMessage,
    PeerError,
    RunAborted,
)
from anabranch.net.frames import Sink
from anabranch.net.messages import (
    Abort,
    Admitted,
    Advance,
    AnyMessage,
    Auxiliary,
    ChannelStanding,
    Contribution,
    CutOff,
    Dispatched,
    EpochChanged,
    ExchangeEnded,
    ExchangeFailed,
    ExchangeRequest,
    Failed,
    Gather,
    Gathered,
    GatherFailed,
    Grant,
    Holding,
    Interrupt,
    Join,
    Leave,
    LinkCut,
    LinkProbe,
    LinkProbed,
    Message,
    NoMoreRounds,
    OpenExchange,
    OpenGathering,
    PaceOver,
    Proceed,
    Progress,
    Ready,
    RejoinAck,
    Rejoined,
    Repair,
    RepairPart,
    Report,
    Restarted,
    Settled,
    Shutdown,
    Signature,
    Standing,
    Start,
    Subgrouped,
    SubgroupRequest,
    TimeReply,
    Welcome,
    encode,
)
from anabranch.net.network import Address, Connection, Listener, Network, Receiver
from anabranch.plan import Plan
from anabranch.site import ranges
from anabranch.site.actions import ModelHere, UpdateHere
from anabranch.site.arithmetic import Buffer, Floats
from anabranch.site.control import Control, RoundsOver
from anabranch.site.dataplane import DataPlane, DataPlaneConfig, Interrupted
from anabranch.site.exchange import Exchange
from anabranch.site.instruments import Instruments
from anabranch.site.meter import Meter
from anabranch.site.ranges import Bits, PartOf, Ranges
from anabranch.site.reduction import weight_of
from anabranch.site.serving import ServedModel, Serving
from anabranch.site.terms import Op, Terms

# How often, while as many chunks end as may be under way, a site tells the scheduler so.
_REPORTS_A_WINDOW = 16
_REMEMBERED = 1024  # exchanges of a channel that have ended


class ExchangeError(NetError):
    """An exchange or gathering ended without a result, for every member; the group goes on."""


@dataclass(frozen=True, slots=True)
class Round:
    """What a site knows of an exchange it took part in.

    Args:
        round: its number among those of its members, from 1.
        version: of its plan.
        seconds: from asking for it to its result.
        tree: of the chunk that was finished last here; None where there was none.
        waited_for: the neighbour that sent that chunk; None where none did.
        channel: whose exchange it was; 0 where every site took part.
        size_bytes: of the buffer, as it travels.
        members: of the channel, once every one of them had the result; empty where a lost site
            ends the run.
        contributions: whose contributions are in which elements of the result, by the sites'
            indices; together they cover it. Empty where all members' are in all.
    """

    round: int
    version: int
    seconds: float
    tree: int | None = None
    waited_for: int | None = None
    channel: int = 0
    size_bytes: int = 0
    members: tuple[int, ...] = ()
    contributions: tuple[Contribution, ...] = ()


@dataclass(frozen=True, slots=True)
class Transport:
    """How a site's lanes send, the same at every site of a run.

    Args:
        chunk_elements: of a chunk of a served model, and as relays reckon how many chunks may be
            on their way.
        most_chunk_elements: of any buffer's chunks.
        room_elements: of data that may come before its exchange has begun here.
        strands: connections of each lane.
        primary_busy_bound, auxiliary_queue_length: see :mod:`anabranch.site.multipath`.
    """

    chunk_elements: int
    most_chunk_elements: int
    room_elements: int
    strands: int = 1
    primary_busy_bound: int = 2
    auxiliary_queue_length: int = 1


@dataclass(slots=True)
class _Asked:
    """An exchange that was asked for."""

    at_s: float
    place: int  # among the channel's calls
    signature: Signature
    granted: asyncio.Future[tuple[Grant, Plan]]


@dataclass(slots=True)
class _Gathering:
    """A gathering that was begun."""

    place: int
    value: bytes
    admits: bool
    answered: asyncio.Future[Any]


@dataclass(slots=True)
class _Call:
    """An exchange whose result counts once every member holds it."""

    buffer: Buffer
    terms: Terms
    weight: float
    chunk_elements: int
    place: int
    exchange: int
    next: asyncio.Future[Settled | tuple[Repair, Plan]]  # what follows, in this generation
    generation: int = 0
    own: Floats | None = None  # what this site contributes, where all may be reduced again
    held: Ranges = ()  # the elements whose result is here
    running: dict[int, Ranges] = field(default_factory=dict)  # what each exchange is to complete

    def follow(self, follows: Settled | tuple[Repair, Plan]) -> None:
        """Go on with what the scheduler says, unless this site's data plane has failed."""
        if not self.next.done():
            self.next.set_result(follows)

    def stop(self, plane: DataPlane) -> None:
        """Stop what goes on, and take note of what is here."""
        for exchange, elements in self.running.items():
            here = ranges.places(elements, ranges.union(plane.stop(exchange)))
            self.held = ranges.union(self.held, here)
        self.running = {}
        if self.own is not None:
            self.buffer.write(0, self.own)
            self.held = ()


@dataclass(slots=True)
class _Channel:
    """What a site exchanges with the same members, one after the other or at once."""

    plan: Plan
    number: int = 0  # of the latest exchange that began here
    asked: int = 0  # the latest exchange that was asked for
    gathered: int = 0  # gatherings begun here
    waiting: dict[int, _Asked] = field(default_factory=dict)
    gathering: dict[int, _Gathering] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # before they were asked for here
    calls: dict[int, _Call] = field(default_factory=dict)
    interrupted: dict[int, int] = field(default_factory=dict)  # likewise: in which generation
    repairs: dict[int, tuple[Repair, Plan]] = field(default_factory=dict)  # likewise: how
    # The latest calls that have ended here: the scheduler may forget what others have not heard.
    ended: deque[Message] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    gathered_last: Message | None = None

    @property
    def calls_made(self) -> int:
        """How many calls were asked for here, of whichever kind."""
        return self.asked + self.gathered


@dataclass(slots=True)
class _Underway:
    """An exchange that goes on here, and what the scheduler was told of it."""

    channel: int
    number: int
    began_s: float
    window: int  # chunks under way, where dispatch goes on during the exchange
    more: Terms | None  # of the next one, if there will be one
    told: int = 0  # chunks finished here when the scheduler was last told


def is_time_to_ask(elapsed_s: float, done_share: float, round_trip_s: float) -> bool:
    """Return whether to ask for the next round while this one still goes on.

    The answer should be there when the round ends, and the question not much earlier, because the
    first site to ask fixes the plan: so when what is left takes about two round trips.

    Args:
        elapsed_s: since the round began here.
        done_share: the part of its chunks that are finished here, in [0, 1].
        round_trip_s: to the scheduler and back.

    >>> is_time_to_ask(9.0, 0.90, round_trip_s=0.1), is_time_to_ask(9.9, 0.99, round_trip_s=0.1)
    (False, True)
    """
    if done_share <= 0.0:
        return False
    return elapsed_s * (1.0 - done_share) / done_share <= 2.0 * round_trip_s


def is_time_to_report(held: int, told: int, dealt: int, window: int) -> bool:
    """Return whether to tell the scheduler how many chunks are finished here: it then deals more.

    Args:
        held: chunks that are finished here.
        told: how many were when it was last told.
        dealt: chunks that have a tree: with nothing left to finish there would be no later report.
        window: chunks that may be under way.

    >>> [is_time_to_report(held, 10, 200, window=64) for held in (11, 13, 14)]
    [False, False, True]
    >>> is_time_to_report(11, 10, 11, window=64)
    True
    """
    return held == dealt or held - told >= max(1, window // _REPORTS_A_WINDOW)


class SiteAgent:
    """One site's side of a run.

    Args:
        control: the network to the scheduler.
        data: the network on which other sites reach this one.
        name: this site's name in the overlay.
        token: the run's shared secret.
        listen: where to take other sites' lanes; port 0 takes a free one.
        progressed: the site calls this with each message that it has sent to another; or None.
        refused: told of each message from another site that was refused: (site or None, error).
        clock: this site's clock, seconds; the loop's time if not given. Links are measured by it.
        moved: told where a neighbour is that died and is back, as another process.
        advertise: the host at which other sites find it; that of ``listen`` if not given.

    Attributes:
        began: the loop's time when the run began, once it has.
        holds_state: whether this site has the state of training, which members hand to newcomers.
    """

    def __init__(
        self,
        control: Network,
        data: Network,
        name: str,
        token: str,
        listen: Address,
        progressed: Callable[[], None] | None,
        refused: Callable[[int | None, PeerError], None],
        clock: Callable[[], float] | None = None,
        moved: Callable[[int, Address], None] = lambda site, address: None,
        advertise: str | None = None,
    ) -> None:
        self._data = data
        self._name = name
        self._listen = listen
        self._advertise = advertise
        self.progressed = progressed
        self.refused = refused
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._moved = moved
        self.began: asyncio.Future[float] = self._loop.create_future()
        self._scheduler = Control(control, token, self._during, self._ended_early)
        self._listener: Listener | None = None
        self._plane: DataPlane | None = None
        self._channels: dict[int, _Channel] = {}
        self._subgroups: dict[tuple[int, ...], asyncio.Future[int]] = {}
        self._underway: dict[int, _Underway] = {}  # by exchange
        self._over = False  # no further exchange is held
        self.holds_state = False
        self._is_new = False
        self._leaves = False
        self._probes: set[asyncio.Task[None]] = set()
        self._round_trip_s = 0.0  # to the scheduler, as it last was
        self._serving: Serving | None = None  # in a run with servers
        self._instruments: Instruments | None = None
        # As the scheduler last said, and of which plan version.
        self._auxiliary: tuple[int, Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]] = 0, {}
        # What was heard after the welcome and before this site was ready.
        self._returned: list[Rejoined] = []
        self._epoch: EpochChanged | None = None
        self.welcome: Welcome

    async def join(self, scheduler: Address, patience_s: float = 0.0) -> Welcome:
        """Join a run and wait until every site has.

        Args:
            scheduler: where it listens.
            patience_s: how long to try where nothing answers.

        Returns:
            What the scheduler says: who this site is and what the work is.

        Raises:
            LinkError: the scheduler cannot be reached.
            RunAborted: it refused this site, or the run ended before it began.
        """
        self._listener = await self._data.listen(self._listen, self._on_lane)
        host, port = self._listener.address
        join = Join(b"", self._name, self._advertise or host, port)
        self.welcome = await self._scheduler.join(scheduler, join, patience_s)
        self._channels[0] = _Channel(plans.loads(self.welcome.plan_json))
        self._is_new = self.welcome.is_new
        return self.welcome

    async def start(
        self,
        transport: Transport,
        lanes: Network,
        meter: Meter | None = None,
        served: ServedModel | None = None,
        buffer_elements: int = 0,
    ) -> None:
        """Say that this site is ready, and wait until every site is.

        Args:
            transport: how lanes send; the same at every site.
            lanes: the network on which this site connects to others.
            meter: measures the links to this site; None measures none.
            served: the model, where it is served; None where sites all-reduce.
            buffer_elements: of the largest buffer that will be exchanged; 0 where that is not
                known.

        Raises:
            RunAborted: the run ended early; names who or what caused it.
            RoundsOver: it ended before this site, which had come back, could take part again.
        """
        config = DataPlaneConfig(
            site=self.welcome.site,
            overlay=overlays.loads(self.welcome.overlay_toml),
            addresses=self.welcome.addresses,
            secret=self.welcome.secret,
            lane_secrets=self.welcome.lane_secrets,
            chunk_elements=transport.chunk_elements,
            most_chunk_elements=transport.most_chunk_elements,
            room_elements=transport.room_elements,
            strands=transport.strands,
            primary_busy_bound=transport.primary_busy_bound,
            auxiliary_queue_length=transport.auxiliary_queue_length,
            stamped=meter is not None,
            incarnations=self.welcome.incarnations,
            repairs=self.welcome.repairs,
        )
        self._plane = DataPlane(lanes, config, self)
        self._instruments = Instruments(
            self.welcome.site,
            self._clock,
            meter,
            lanes.heads_go_ahead,
            self._scheduler,
            self._plane.post,
            lambda: self._channels[0].plan,
        )
        # Once a chunk: no call of the agent's stands in between.
        self.stamp, self.arriving = self._instruments.stamp, self._instruments.arriving
        self.tell_time, self.hear_time = self._instruments.tell_time, self._instruments.hear_time
        plan = self._channels[0].plan
        self._plane.use_auxiliary(plan.auxiliary)
        if served is not None:
            self._serving = Serving(
                self._scheduler,
                self._plane,
                self.welcome,
                plan,
                served,
                transport.chunk_elements,
            )
        if self._auxiliary[0] >= plan.version:
            self._plane.use_auxiliary(self._auxiliary[1])
        if self._epoch is not None:
            self._during(self._epoch)
        for returned in self._returned:
            self._meet(self._plane, returned)
        self._scheduler.say(Ready(buffer_elements))
        start = await self._scheduler.expect(Start, Shutdown)
        if isinstance(start, Shutdown):
            raise RoundsOver
        assert isinstance(start, Start)
        self.began.set_result(self._loop.time() - start.since_s)
        self._instruments.begin()

    async def exchange(
        self,
        buffer: Buffer,
        terms: Terms,
        weight: float = 1.0,
        more: bool = False,
        channel: int = 0,
    ) -> Round:
        """Take part in one exchange, to its end; several may go on at once.

        Args:
            buffer: what is contributed; holds the result afterwards.
            terms: the same at every member.
            weight: of this site's contribution, > 0.
            more: whether another exchange of these terms will follow: it is then asked for before
                this one ends, so that no site waits for its plan.
            channel: whose exchange it is; 0 for all sites', others as ``subgroup`` returns them.

        Raises:
            ValueError: a buffer or weight that cannot be.
            RoundsOver: there is no further exchange; the buffer is as it was.
            ExchangeError: the members disagree on what to exchange, and names two of them; or one
                has left.
            RunAborted: the run ended early; names who or what caused it.
        """
        assert self._plane is not None, "start() comes first"
        if not buffer.elements:
            raise ValueError("the buffer is empty; an exchange without data would wait for no site")
        weight = weight_of(weight)
        began_s = self._loop.time()
        state = self._channels[channel]
        state.number += 1
        number = state.number
        self._ask(channel, number, terms)  # also if it has failed: requests are counted
        asked = state.waiting[number]
        if number in state.failed:
            del state.waiting[number]
            raise ExchangeError(state.failed.pop(number))
        try:
            grant, plan = await asked.granted
        finally:
            del state.waiting[number]
        if number in state.failed:
            raise ExchangeError(state.failed.pop(number))
        exchange = grant.exchange
        window = len(grant.trees or ())
        self._underway[exchange] = _Underway(
            channel, number, began_s, window, terms if more else None
        )
        settled: Settled | None = None
        call = _Call(
            *(buffer, terms, weight, grant.chunk_elements, asked.place, exchange),
            self._loop.create_future(),
        )
        whole = RepairPart(exchange, terms.source, (), ((0, buffer.elements),))
        try:
            if grant.settles:
                state.calls[number] = call
                if self.welcome.retries and terms.op != Op.COPY:
                    call.own = buffer.read(0, buffer.elements).copy()
                first = None if grant.is_interrupted or number in state.interrupted else whole
                latest, settled = await self._until_settled(
                    channel, number, call, plan, first, grant, more
                )
            else:
                latest = await self._exchange_part(call, 0, plan, whole, grant, more)
        except (LinkError, PeerError, RunAborted) as error:
            raise await self._scheduler.verdict(error) from error
        finally:
            del self._underway[exchange]
            state.calls.pop(number, None)
        tree, waited_for = (None, None) if latest is None else latest
        seconds = self._loop.time() - began_s
        if more:
            self._ask(channel, number + 1, terms)
        assert self._instruments is not None
        self._instruments.remember()
        size_bytes = terms.wire.item_bytes * buffer.elements
        return Round(
            number,
            grant.version,
            seconds,
            tree,
            waited_for,
            channel,
            size_bytes,
            () if settled is None else settled.members,
            () if settled is None else settled.contributions,
        )

    async def _until_settled(
        self,
        channel: int,
        number: int,
        call: _Call,
        plan: Plan,
        first: RepairPart | None,
        grant: Grant,
        more: bool,
    ) -> tuple[tuple[int, int | None] | None, Settled]:
        """Take part in an exchange, and in its repairs, until every member holds the result.

        Args:
            first: what it begins with; None where it was interrupted before it began here.
        """
        state = self._channels[channel]
        call.generation = state.interrupted.pop(number, 0)
        if number in state.repairs:
            call.next.set_result(state.repairs.pop(number))
        latest = None
        parts: tuple[RepairPart, ...] = () if first is None else (first,)
        is_asked = first is not None
        while True:
            generation = call.generation
            if is_asked:
                found = await asyncio.gather(
                    *(
                        self._exchange_part(call, generation, plan, part, grant, more)
                        for part in parts
                    ),
                    return_exceptions=True,
                )
                for each in found:
                    if isinstance(each, BaseException) and not isinstance(each, Interrupted):
                        raise each
                    latest = latest if isinstance(each, BaseException) else each or latest
                if generation == call.generation:
                    call.held = ((0, call.buffer.elements),)
                    self._scheduler.say(Holding(channel, number, generation, call.held))
            awaited = call.next
            follows = await self._plane_of().unless_failed(awaited)
            if call.next is awaited:
                call.next = self._loop.create_future()
            if isinstance(follows, Settled):
                return latest, follows
            repair, plan = follows
            # It may have been interrupted again before this went on.
            parts, is_asked = repair.parts, repair.generation == call.generation

    async def _exchange_part(
        self,
        call: _Call,
        generation: int,
        plan: Plan,
        part: RepairPart,
        grant: Grant,
        more: bool,
    ) -> tuple[int, int | None] | None:
        """Take part in the exchange of a call, or of what is missing of it.

        Raises:
            Interrupted: it is stopped, or was before it began.
        """
        if generation != call.generation:
            raise Interrupted
        if part.plan_json:  # of those alone that it is for
            if self.welcome.site not in (part.source, *part.receivers):
                return None
            plan = plans.loads(part.plan_json)
        elements = ranges.length(part.ranges)
        buffer = call.buffer
        if elements < buffer.elements:
            buffer = PartOf(buffer, part.ranges)
        is_first = part.exchange == grant.exchange
        terms = call.terms
        if not is_first:
            op = call.terms.op if part.source is None else Op.COPY
            terms = Terms(op, call.terms.wire, elements, part.source)
            if op == Op.COPY != call.terms.op and terms.wire.item_bytes == 2:
                buffer = Bits(buffer, terms.wire)
        call.running[part.exchange] = part.ranges
        latest = await self._plane_of().exchange(
            part.exchange,
            terms,
            plan,
            buffer,
            call.weight,
            call.chunk_elements,
            grant.trees if is_first else None,
            is_watched=is_first and (more or grant.trees is not None),
            receivers=frozenset(part.receivers) or None,
        )
        call.running.pop(part.exchange, None)
        call.held = ranges.union(call.held, part.ranges)
        return latest

    def _plane_of(self) -> DataPlane:
        assert self._plane is not None, "start() comes first"
        return self._plane

    def _ask(self, channel: int, number: int, terms: Terms) -> None:
        """Ask for an exchange, unless that has been done."""
        state = self._channels[channel]
        if number <= state.asked:
            return
        state.asked = number
        granted: asyncio.Future[tuple[Grant, Plan]] = self._loop.create_future()
        signature = _signature(terms)
        state.waiting[number] = _Asked(self._loop.time(), state.calls_made, signature, granted)
        if self._over:
            granted.set_exception(RoundsOver())
            granted.exception()  # it may never be waited for
        elif self._scheduler.is_over:
            self._scheduler.fail_with(granted)
        else:
            self._scheduler.post(ExchangeRequest(channel, number, signature))

    async def subgroup(self, members: tuple[int, ...]) -> int:
        """Return the channel of some sites, which all of them ask for; this one is among them.

        Args:
            members: in rising order.

        Raises:
            RunAborted: the run ended early.
        """
        if members not in self._subgroups:
            self._subgroups[members] = self._loop.create_future()
            self._scheduler.say(SubgroupRequest(members))
        return await asyncio.shield(self._subgroups[members])

    async def gather(self, value: bytes, channel: int = 0) -> Gathered:
        """Return the small values of all members, in the order of their indices, and who they are.

        Raises:
            ExchangeError: a member exchanges instead, or has left; names it.
            RunAborted: the run ended early.
        """
        state = self._channels[channel]
        state.gathered += 1
        found: Gathered = await self._gather(channel, state.gathered, value, admits=False)
        return found

    def _gather(self, channel: int, number: int, value: bytes, admits: bool) -> asyncio.Future[Any]:
        state = self._channels[channel]
        future: asyncio.Future[Any] = self._loop.create_future()
        state.gathering[number] = _Gathering(state.calls_made, value, admits, future)
        self._scheduler.say(Gather(channel, number, value, admits))
        return future

    def wait_for_scheduler(self, patience_s: float) -> None:
        """Look for a scheduler that is gone for so long at least, as it may be started again."""
        self._scheduler.wait_longer(patience_s)

    @property
    def is_over(self) -> bool:
        """Whether the run is over for this site, before its end."""
        return self._scheduler.is_over

    @property
    def is_new(self) -> bool:
        """Whether the group goes on, and its members have not let this site in yet."""
        return self._is_new

    async def admit(self) -> Admitted:
        """Let in those that wait, as all members do; or wait for the members to let this one in.

        No call of this site may be under way.

        Raises:
            ExchangeError: a member makes another call instead; names it.
            RunAborted: the run ended early.
        """
        state, number = self._channels[0], 0
        if not self._is_new:
            state.gathered += 1
            number = state.gathered
        has_it = b"state" if self.holds_state else b""
        found: Admitted = await self._gather(0, number, has_it, admits=True)
        return found

    # --- push and pull

    async def permission(self) -> Proceed:
        """See :meth:`anabranch.site.serving.Serving.permission`."""
        return await self._served().permission()

    def push(
        self, permission: Proceed, gradients: Floats, weight: float, samples: int, compute_s: float
    ) -> None:
        """See :meth:`anabranch.site.serving.Serving.push`."""
        self._served().push(permission, gradients, weight, samples, compute_s)

    def reload(self) -> None:
        """Serve the model as it is in this site's memory now; before the first push."""
        self._served().reload()

    def own_parameters(self) -> list[tuple[int, Floats]]:
        """Return this site's part of the served model: where each run of it starts, and it."""
        return self._served().own_parameters()

    def _served(self) -> Serving:
        assert self._serving is not None, "start() comes first, and the model must be served"
        return self._serving

    # --- what a site tells the scheduler

    async def round_ended(self, done: Round, checksum: int | None) -> None:
        """Tell the scheduler that an exchange's result is in use here."""
        ended = ExchangeEnded(
            done.channel,
            done.round,
            done.version,
            done.seconds,
            checksum,
            done.waited_for,
            done.tree,
        )
        self._scheduler.say(ended)

    def report(self, events: tuple[bytes, ...]) -> None:
        """Send encoded events to the run's log; does not wait."""
        self._scheduler.post(Report(events))

    async def leave(self) -> None:
        """Say that this site has finished, wait until every site has, and close."""
        self._leaves = True
        self._scheduler.say(Leave())
        while not isinstance(await self._scheduler.expect(Shutdown, Proceed, PaceOver), Shutdown):
            pass  # said before the scheduler heard that this site leaves
        self.close()

    async def fail(self, error: Exception) -> None:
        """Tell the scheduler that this site cannot go on, which ends the run, and close."""
        if self._scheduler.is_open:
            self._scheduler.post(Failed(str(error) or type(error).__name__))
            await self._scheduler.said()
        self.close()

    def close(self) -> None:
        """Close every connection; no error reaches anyone."""
        for probe in self._probes:
            probe.cancel()
        if self._listener is not None:
            self._listener.close()
        if self._plane is not None:
            self._plane.close()
        self._scheduler.close()

    def sent_bytes(self) -> dict[int, int]:
        """Return the payload bytes sent so far to each neighbour."""
        return {} if self._plane is None else self._plane.sent_bytes()

    # --- what the scheduler says while a round goes on

    def _during(self, message: AnyMessage) -> None:
        match message:
            case Grant():
                self._granted(message)
            case Interrupt() if self._plane is not None:
                self._interrupt(self._plane, message)
            case Repair():
                self._repair(message)
            case Settled():
                state = self._channels[message.channel]
                state.ended.append(message)
                if message.number in state.calls:
                    state.calls[message.number].follow(message)
            case LinkCut() if self._plane is not None:
                self._plane.cut(message.neighbour)
            case LinkProbe() if self._plane is not None:
                probe = self._loop.create_task(self._probe(self._plane, message.neighbour))
                self._probes.add(probe)
                probe.add_done_callback(self._probes.discard)
            case NoMoreRounds():
                self._over = True
                self._fail_waiting(RoundsOver())
            case ExchangeFailed():
                self._exchange_failed(message)
            case Subgrouped():
                self._channel(message.channel).plan = plans.loads(message.plan_json)
                self._subgroups[message.members].set_result(message.channel)
            case Gathered():
                state = self._channels[message.channel]
                state.gathered_last = message
                future = state.gathering.pop(message.number).answered
                if not future.done():
                    future.set_result(message)
            case Admitted():
                self._admitted(message)
            case GatherFailed():
                state = self._channels[message.channel]
                state.gathered_last = message
                future = state.gathering.pop(message.number).answered
                if not future.done():
                    future.set_exception(ExchangeError(message.reason))
            case Restarted():
                self._stand()
            case Dispatched() if self._plane is not None:
                self._plane.dispatched(message.exchange, message.trees)
            case Auxiliary():
                paths: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
                for path in message.paths:
                    if len(path) < 2:
                        raise MalformedMessage(f"auxiliary path {path} leads nowhere")
                    ends = path[0], path[-1]
                    paths[ends] = (*paths.get(ends, ()), path)
                self._auxiliary = message.version, paths
                if self._plane is not None:
                    self._plane.check_auxiliary(paths)
                    # Those of a later plan lead round what is lost.
                    if message.version >= self._channels[0].plan.version:
                        self._plane.use_auxiliary(paths)
            case TimeReply():
                if self._instruments is not None:
                    self._instruments.hear_time(message)
            case Advance() if self._serving is not None:
                self._serving.advance(message)
            case EpochChanged() if self._serving is not None:
                self._serving.change_epoch(message)
            case EpochChanged() if self._plane is None:
                self._epoch = message
            case Rejoined() if self._plane is not None:
                self._meet(self._plane, message)
            case Rejoined():
                self._returned.append(message)
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__}, which has no meaning here")

    def _granted(self, grant: Grant) -> None:
        state = self._channels.get(grant.channel)
        asked = None if state is None else state.waiting.get(grant.number)
        if state is None or asked is None or asked.granted.done():
            raise OutOfPlaceMessage(
                f"exchange {grant.number} of channel {grant.channel} is granted, unasked"
            )
        self._round_trip_s = self._loop.time() - asked.at_s
        if grant.plan_json:
            self._take_plan(grant.channel, grant.plan_json)
        asked.granted.set_result((grant, state.plan))

    def _admitted(self, message: Admitted) -> None:
        """Take note of how far the members are, and of those that are new."""
        state = self._channels[0]
        future = state.gathering.pop(0 if self._is_new else message.number).answered
        self._is_new = False
        for each in self._channels.values():  # all members' calls before this one have ended
            each.ended.clear()
            each.gathered_last = None
        state.gathered_last = message
        state.number = state.asked = message.exchanges
        state.gathered = message.number
        if message.plan_json:
            self._take_plan(0, message.plan_json)
            self._subgroups.clear()  # those of before have other members
        if not future.done():
            future.set_result(message)

    def _take_plan(self, channel: int, plan_json: str) -> None:
        """Go by a plan from now on; what was said of later paths counts more than its own."""
        plan = self._channels[channel].plan = plans.loads(plan_json)
        if channel == 0 and self._plane is not None:
            version, paths = self._auxiliary
            self._plane.use_auxiliary(paths if version >= plan.version else plan.auxiliary)

    def _stand(self) -> None:
        """Tell a scheduler that was restarted how far this site is, and say again what waits."""
        for state in self._channels.values():
            # Of what was not granted here it will say anew what it still knows.
            granted = {number for number, asked in state.waiting.items() if asked.granted.done()}
            for number in state.interrupted.keys() - granted:
                del state.interrupted[number]
            for number in state.repairs.keys() - granted:
                repair, _ = state.repairs.pop(number)
                if self._plane is not None:
                    _void(self._plane, repair)
        standings = [self._standing(number) for number in sorted(self._channels)]
        self._scheduler.post(Standing((*standings,), self._is_new))
        for members, future in self._subgroups.items():
            if not future.done():
                self._scheduler.post(SubgroupRequest(members))
        if self._plane is not None:
            for neighbour, incarnation in self._plane.lost_neighbours():
                reason = f"{self._name} has no lane to it"
                self._scheduler.post(CutOff(neighbour, reason, incarnation))
        if self._leaves:
            self._scheduler.post(Leave())

    def _standing(self, channel: int) -> ChannelStanding:
        state = self._channels[channel]
        exchanges = []
        for number, asked in state.waiting.items():
            grant = None
            if asked.granted.done():
                if asked.granted.cancelled() or asked.granted.exception() is not None:
                    continue  # it has failed
                grant, _ = asked.granted.result()
            granted = (0, 0) if grant is None else (grant.exchange, grant.chunk_elements)
            generation = state.interrupted.get(number, 0)
            running: tuple[int, ...] = () if grant is None else (grant.exchange,)
            exchanges.append(
                OpenExchange(number, asked.signature, asked.place, *granted, generation, running)
            )
        for number, call in state.calls.items():
            follows = call.next
            if follows.done() and (
                follows.cancelled()
                or follows.exception() is not None
                or isinstance(follows.result(), Settled)
            ):
                continue  # it has ended, and has not gone on here yet
            running = (call.exchange, *call.running)
            exchanges.append(
                OpenExchange(
                    *(number, _signature(call.terms), call.place, call.exchange),
                    *(call.chunk_elements, call.generation, running),
                )
            )
        gatherings = tuple(
            OpenGathering(number, gathering.place, gathering.value, gathering.admits)
            for number, gathering in state.gathering.items()
        )
        last = () if state.gathered_last is None else (state.gathered_last,)
        answers = tuple(encode(message) for message in (*state.ended, *last))
        counts = state.plan.version, state.asked, state.gathered
        return ChannelStanding(channel, *counts, (*exchanges,), gatherings, answers)

    def _interrupt(self, plane: DataPlane, message: Interrupt) -> None:
        """Stop an exchange that has lost something; say what is here of its result."""
        state = self._channel(message.channel)
        for exchange in message.exchanges:
            if state.calls.get(message.number) is None:
                plane.stop(exchange)
        call = state.calls.get(message.number)
        held: Ranges = ()
        if call is None:
            state.interrupted[message.number] = message.generation
            state.repairs.pop(message.number, None)
        else:
            call.stop(plane)
            for exchange in message.exchanges:
                plane.stop(exchange)
            call.generation, held = message.generation, call.held
            if call.next.done():  # a repair that has not begun, and will not
                call.next = self._loop.create_future()
        answer = Holding(message.channel, message.number, message.generation, held)
        self._scheduler.post(answer)

    def _channel(self, number: int) -> _Channel:
        """Return a channel, also one that this site has not asked for yet."""
        if number not in self._channels:
            self._channels[number] = _Channel(self._channels[0].plan)
        return self._channels[number]

    def _repair(self, message: Repair) -> None:
        state = self._channel(message.channel)
        if message.plan_json:
            self._take_plan(message.channel, message.plan_json)
        call = state.calls.get(message.number)
        if call is None:
            state.repairs[message.number] = message, state.plan
        elif call.generation == message.generation:
            call.follow((message, state.plan))

    async def _probe(self, plane: DataPlane, neighbour: int) -> None:
        answers = await plane.answers(neighbour)
        if self._scheduler.is_open:
            self._scheduler.post(LinkProbed(neighbour, answers))

    def _exchange_failed(self, message: ExchangeFailed) -> None:
        state = self._channels[message.channel]
        state.ended.append(message)
        asked = state.waiting.get(message.number)
        error = ExchangeError(message.reason)
        call = state.calls.get(message.number)
        if call is not None and self._plane is not None:
            call.stop(self._plane)
            call.generation += 1
            if call.next.done():  # a repair that has not begun, and will not
                if not call.next.cancelled() and isinstance(follows := call.next.result(), tuple):
                    _void(self._plane, follows[0])
                call.next = self._loop.create_future()
            call.next.set_exception(error)
            call.next.exception()  # it may never be waited for
            return
        state.interrupted.pop(message.number, None)
        repair, _ = state.repairs.pop(message.number, (None, None))
        if repair is not None and self._plane is not None:
            _void(self._plane, repair)
        if self._plane is not None and message.exchange:
            self._plane.give_up(message.exchange, error)
        if message.exchange in self._underway:
            return
        if asked is not None and not asked.granted.done():
            asked.granted.set_exception(error)
            asked.granted.exception()  # it may never be waited for
        else:  # it is about to begin here, or will be asked for
            state.failed[message.number] = message.reason

    def _fail_waiting(self, error: Exception) -> None:
        """Let none wait for an answer of the scheduler's that will not come."""
        futures: list[asyncio.Future[Any]] = [*self._subgroups.values()]
        for state in self._channels.values():
            futures += [asked.granted for asked in state.waiting.values()]
            futures += [gathering.answered for gathering in state.gathering.values()]
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # it may never be waited for

    def _meet(self, plane: DataPlane, message: Rejoined) -> None:
        address = message.host, message.port
        self._moved(message.site, address)
        plane.returned(message.site, message.incarnation, address)
        self._scheduler.post(RejoinAck(message.site, message.incarnation))

    # --- what the data plane tells; see anabranch.site.dataplane.Owner

    def failed(self, error: Exception) -> None:
        """Ask the scheduler to end the run: it knows better who is to blame."""
        if self._scheduler.is_open:
            self._scheduler.post(Abort(str(error)))

    def cut_off(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """Tell the scheduler, which knows whether the neighbour is to blame."""
        if self._scheduler.is_open:
            self._scheduler.post(CutOff(neighbour, str(error), incarnation))

    def advanced(self, exchange: Exchange) -> None:
        """Tell the scheduler how far this site is, and ask for the next exchange in time."""
        underway = self._underway.get(exchange.number)
        if underway is None:
            return
        spread = exchange.spread
        window, awaits_more = underway.window, underway.window and not exchange.all_dealt
        if awaits_more and is_time_to_report(spread.held, underway.told, exchange.dealt, window):
            underway.told = spread.held
            self._scheduler.post(Progress(exchange.number, tuple(spread.held_by_tree)))
        if underway.more is not None and not self._scheduler.is_over:
            if underway.number < self._channels[underway.channel].asked:
                return
            elapsed_s = self._loop.time() - underway.began_s
            if is_time_to_ask(elapsed_s, exchange.done_share, self._round_trip_s):
                self._ask(underway.channel, underway.number + 1, underway.more)

    def happened(self, what: UpdateHere | ModelHere) -> None:
        """Take note that an update or a model is all here, where the model is served."""
        assert self._serving is not None
        self._serving.happened(what)

    # --- inside

    def _on_lane(self, connection: Connection) -> Receiver:
        # A site is ready before any other opens a lane to it: an earlier one is not of this run.
        return _Premature(connection) if self._plane is None else self._plane.welcome(connection)

    def _ended_early(self, error: Exception) -> None:
        self._fail_waiting(error)
        if self._plane is not None:
            self._plane.fail(error)


def _signature(terms: Terms) -> Signature:
    return Signature(terms.op, terms.wire, terms.elements, terms.source, terms.receivers)


def _void(plane: DataPlane, repair: Repair) -> None:
    """Throw away what has come of a repair that will not begin here, and what comes."""
    for part in repair.parts:
        plane.stop(part.exchange)


class _Premature:
    """Receives a connection that comes before lanes are due: it hears nothing and is closed."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        raise OutOfPlaceMessage("no lanes are due yet")

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._connection.close()

    def on_closed(self, error: Exception | None) -> None:
        pass
