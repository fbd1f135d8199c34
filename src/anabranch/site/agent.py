"""A site in a run: it joins the scheduler, asks for rounds, takes part in them, and reports."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.net.errors import (
    LinkError,
    MalformedMessage,
    OutOfPlaceMessage,
    PeerError,
    RunAborted,
)
from anabranch.net.frames import Sink
from anabranch.net.messages import (
    Abort,
    Advance,
    AnyMessage,
    Auxiliary,
    CutOff,
    Dispatched,
    EpochChanged,
    Failed,
    Join,
    Leave,
    Measured,
    Message,
    NoMoreRounds,
    Proceed,
    Progress,
    Ready,
    RejoinAck,
    Rejoined,
    Report,
    RoundEnded,
    RoundGrant,
    RoundRequest,
    Shutdown,
    Stamp,
    Start,
    TimeReply,
    TimeRequest,
    Welcome,
)
from anabranch.net.network import Address, Connection, Listener, Network, Receiver
from anabranch.net.throughput import Arrival
from anabranch.plan import Plan
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import Aggregation, check_buffer
from anabranch.site.arithmetic import Arithmetic
from anabranch.site.control import Control, RoundsOver
from anabranch.site.dataplane import DataPlane, DataPlaneConfig
from anabranch.site.meter import Meter
from anabranch.site.serving import Served, Serving
from anabranch.site.timekeeper import Timekeeper

# How often, while as many chunks end as may be under way, a site tells the scheduler so.
_REPORTS_A_WINDOW = 16


@dataclass(frozen=True, slots=True)
class Round:
    """What a site knows of a round it took part in.

    Args:
        round, version: its number, and that of its plan.
        seconds: from asking for it to its result.
        tree: of the chunk that was finished last here; None where the round had none.
        waited_for: the neighbour that sent that chunk; None where none did.
    """

    round: int
    version: int
    seconds: float
    tree: int | None = None
    waited_for: int | None = None


@dataclass(frozen=True, slots=True)
class Transport:
    """How a site's lanes send, the same at every site of a run.

    Args:
        chunk_elements: the most elements of a chunk.
        strands: connections of each lane.
        primary_busy_bound, auxiliary_queue_length: see :mod:`anabranch.site.multipath`.
    """

    chunk_elements: int
    strands: int = 1
    primary_busy_bound: int = 2
    auxiliary_queue_length: int = 1


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


class SiteAgent:
    """One site's side of a run.

    Args:
        control: the network to the scheduler.
        data: the network on which other sites reach this one.
        name: this site's name in the overlay.
        token: the run's shared secret.
        listen: where to take other sites' lanes; port 0 takes a free one.
        progressed: called whenever a message has been sent to another site.
        refused: told of each message from another site that was refused: (site or None, error).
        clock: this site's clock, seconds; the loop's time if not given. Links are measured by it.
        moved: told where a neighbour is that died and is back, as another process.

    Attributes:
        began: the loop's time when the run began, once it has.
    """

    def __init__(
        self,
        control: Network,
        data: Network,
        name: str,
        token: str,
        listen: Address,
        progressed: Callable[[], None],
        refused: Callable[[int | None, PeerError], None],
        clock: Callable[[], float] | None = None,
        moved: Callable[[int, Address], None] = lambda site, address: None,
    ) -> None:
        self._data = data
        self._name = name
        self._token = token
        self._listen = listen
        self.progressed = progressed
        self.refused = refused
        self._loop = asyncio.get_running_loop()
        self._clock = clock or self._loop.time
        self._moved = moved
        self.began: asyncio.Future[float] = self._loop.create_future()
        self._scheduler = Control(control, token, self._during, self._ended_early)
        self._listener: Listener | None = None
        self._plane: DataPlane | None = None
        self._plan: Plan
        self._round = 0
        self._began_s = 0.0  # that round, by the loop's time
        self._more = False  # there is a further round
        self._asked = 0  # the latest round asked for
        self._asked_s = 0.0
        self._round_trip_s = 0.0  # to the scheduler, as it last was
        self._window = 0  # chunks under way, where the deal goes on during the round
        self._told = 0  # chunks finished here when the scheduler was last told
        self._serving: Serving | None = None  # in a run with servers
        self._meter: Meter | None = None
        self._heads_go_ahead = False  # on its lanes
        self._timekeeper: Timekeeper | None = None
        # As the scheduler last said, and of which plan version.
        self._auxiliary: tuple[int, Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]] = 0, {}
        # What was heard after the welcome and before this site was ready.
        self._returned: list[Rejoined] = []
        self._counted: EpochChanged | None = None
        self.welcome: Welcome

    async def join(self, scheduler: Address) -> Welcome:
        """Join a run and wait until every site has.

        Returns:
            What the scheduler says: who this site is and what the work is.

        Raises:
            LinkError: the scheduler cannot be reached.
            RunAborted: it refused this site, or the run ended before it began.
        """
        self._listener = await self._data.listen(self._listen, self._on_lane)
        host, port = self._listener.address
        join = Join(self._token, self._name, host, port)
        self.welcome = await self._scheduler.join(scheduler, join)
        self._plan = plans.loads(self.welcome.plan_json)
        return self.welcome

    async def start(
        self,
        transport: Transport,
        buffer_elements: int,
        arithmetic: Arithmetic,
        lanes: Network,
        meter: Meter | None = None,
        served: Served | None = None,
    ) -> None:
        """Say that this site is ready, and wait until every site is.

        Args:
            transport: how lanes send; the same at every site.
            buffer_elements: the largest buffer a round of this run has.
            arithmetic: what is done to elements; the same at every site.
            lanes: the network on which this site connects to others.
            meter: measures the links to this site; None measures none.
            served: the model, where it is served; None where sites all-reduce.

        Raises:
            RunAborted: the run ended early; names who or what caused it.
            RoundsOver: it ended before this site, which had come back, could take part again.
        """
        config = DataPlaneConfig(
            site=self.welcome.site,
            overlay=overlays.loads(self.welcome.overlay_toml),
            addresses=self.welcome.addresses,
            token=self._token,
            chunk_elements=transport.chunk_elements,
            buffer_elements=buffer_elements,
            strands=transport.strands,
            primary_busy_bound=transport.primary_busy_bound,
            auxiliary_queue_length=transport.auxiliary_queue_length,
            stamped=meter is not None,
            incarnations=self.welcome.incarnations,
        )
        self._meter = meter
        self._heads_go_ahead = lanes.heads_go_ahead
        self._plane = DataPlane(lanes, config, arithmetic, self)
        self._plane.use_auxiliary(self._plan.auxiliary)
        if served is not None:
            self._serving = Serving(self._scheduler, self._plane, self.welcome, self._plan, served)
        if self._counted is not None:
            self._during(self._counted)
        for returned in self._returned:
            self._meet(self._plane, returned)
        self._say(Ready(buffer_elements))
        start = await self._scheduler.expect(Start, Shutdown)
        if isinstance(start, Shutdown):
            raise RoundsOver
        assert isinstance(start, Start)
        self.began.set_result(self._loop.time() - start.since_s)
        if meter is not None:
            self._timekeeper = Timekeeper(self._clock, self._ask_the_time)
            self._timekeeper.begin()

    async def all_reduce(self, buffer: Floats, weight: float = 1.0, more: bool = False) -> Round:
        """Replace a buffer by its weighted mean over all sites; one round.

        Args:
            buffer: flat float32, contiguous, writable, the same length at every site.
            weight: of this site's contribution, > 0.
            more: whether another round will follow: its plan is then asked for before this one
                ends, so that nobody waits for it.

        Raises:
            ValueError: not such a buffer or weight.
            RoundsOver: there is no further round; the buffer is as it was.
            RunAborted: the run ended early; names who or what caused it.
        """
        assert self._plane is not None, "start() comes first"
        check_buffer(buffer, weight, self._plane.config.buffer_elements)
        began_s = self._began_s = self._loop.time()
        self._round += 1
        self._more, self._told = more, 0
        self._ask(self._round)
        grant = await self._scheduler.expect(RoundGrant, NoMoreRounds)
        if isinstance(grant, NoMoreRounds):
            raise RoundsOver
        assert isinstance(grant, RoundGrant)
        if grant.round != self._round:
            raise RunAborted(f"the scheduler granted round {grant.round}, not {self._round}")
        if grant.plan_json:
            self._plan = plans.loads(grant.plan_json)
            version, paths = self._auxiliary
            newer = version == self._plan.version
            self._plane.use_auxiliary(paths if newer else self._plan.auxiliary)
        self._window = len(grant.trees or ())
        try:
            latest = await self._plane.all_reduce(
                self._round, self._plan, buffer, weight, grant.trees
            )
        except (LinkError, PeerError, RunAborted) as error:
            raise await self._scheduler.verdict(error) from error
        tree, waited_for = (None, None) if latest is None else latest
        seconds = self._loop.time() - began_s
        if more:
            self._ask(self._round + 1)
        if self._timekeeper is not None:
            self._timekeeper.remember()  # links are idle now, so answers are quick
        return Round(self._round, grant.version, seconds, tree, waited_for)

    def _ask(self, round: int) -> None:
        """Ask for a round, unless that has been done."""
        if round > self._asked and not self._scheduler.is_over:
            self._asked, self._asked_s = round, self._loop.time()
            self._scheduler.post(RoundRequest(round))

    # --- push and pull

    async def permission(self) -> Proceed:
        """See :meth:`anabranch.site.serving.Serving.permission`."""
        return await self._served().permission()

    def push(
        self, permission: Proceed, gradients: Floats, weight: float, samples: int, compute_s: float
    ) -> None:
        """See :meth:`anabranch.site.serving.Serving.push`."""
        self._served().push(permission, gradients, weight, samples, compute_s)

    def _served(self) -> Serving:
        assert self._serving is not None, "start() comes first, and the model must be served"
        return self._serving

    # --- what a site tells the scheduler

    async def round_ended(self, done: Round, checksum: int | None) -> None:
        """Tell the scheduler that a round's result is in use here."""
        ended = RoundEnded(
            done.round, done.version, done.seconds, checksum, done.waited_for, done.tree
        )
        self._say(ended)

    def report(self, events: tuple[bytes, ...]) -> None:
        """Send encoded events to the run's log; does not wait."""
        self._scheduler.post(Report(events))

    async def leave(self) -> None:
        """Say that this site has finished, wait until every site has, and close."""
        self._say(Leave())
        await self._scheduler.expect(Shutdown)
        self.close()

    async def fail(self, error: Exception) -> None:
        """Tell the scheduler that this site cannot go on, which ends the run, and close."""
        if self._scheduler.is_open:
            self._scheduler.post(Failed(str(error) or type(error).__name__))
            await self._scheduler.said()
        self.close()

    def close(self) -> None:
        """Close every connection; no error reaches anyone."""
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
            case RoundGrant() | NoMoreRounds():
                self._round_trip_s = self._loop.time() - self._asked_s
            case Dispatched() if self._plane is not None:
                self._plane.dealt(message.round, message.trees)
            case Auxiliary() if self._plane is not None:
                paths: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
                for path in message.paths:
                    if len(path) < 2:
                        raise MalformedMessage(f"auxiliary path {path} leads nowhere")
                    ends = path[0], path[-1]
                    paths[ends] = (*paths.get(ends, ()), path)
                self._plane.check_auxiliary(paths)
                self._auxiliary = message.version, paths
                if message.version == self._plan.version:
                    self._plane.use_auxiliary(paths)
            case TimeReply():
                self.hear_time(message)
            case Advance() if self._serving is not None:
                self._serving.advance(message)
            case EpochChanged() if self._serving is not None:
                self._serving.count(message)
            case EpochChanged() if self._plane is None:
                self._counted = message
            case Rejoined() if self._plane is not None:
                self._meet(self._plane, message)
            case Rejoined():
                self._returned.append(message)
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__}, which has no meaning here")

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

    def advanced(self, round: int, aggregation: Aggregation) -> None:
        """Tell the scheduler how far this site is, and ask for the next round in time."""
        if self._window and not aggregation.all_dealt:
            finished = sum(aggregation.finished_by_tree)
            enough = finished - self._told >= max(1, self._window // _REPORTS_A_WINDOW)
            # With nothing left to finish there would be no later report.
            if enough or finished == aggregation.dealt:
                self._told = finished
                self._scheduler.post(Progress(round, tuple(aggregation.finished_by_tree)))
        if self._more and self._asked == round:
            elapsed_s = self._loop.time() - self._began_s
            if is_time_to_ask(elapsed_s, aggregation.done_share, self._round_trip_s):
                self._ask(round + 1)

    def stamp(self, backlogged: bool) -> Stamp:
        """Return the stamp of a chunk that leaves now."""
        offset_s = None if self._timekeeper is None else self._timekeeper.offset_s()
        return Stamp(self._clock(), offset_s, backlogged)

    def arriving(self, source: int, stamp: Stamp, size_bytes: int) -> Callable[[], None]:
        """Measure the link that a chunk comes over, from now until what is returned is called."""
        begun_s = self._clock() if self._heads_go_ahead else None
        return lambda: self._arrived(source, stamp, size_bytes, begun_s)

    def _arrived(self, source: int, stamp: Stamp, size_bytes: int, begun_s: float | None) -> None:
        if self._meter is None:
            return
        if self._timekeeper is not None:
            self._timekeeper.remember()
        own_s = None if self._timekeeper is None else self._timekeeper.offset_s()
        known = own_s is not None and stamp.offset_s is not None
        # What each adds to its clock to have the scheduler's: the difference is the clocks'.
        offset_s = (stamp.offset_s or 0.0) - (own_s or 0.0) if known else 0.0
        arrival = Arrival(
            stamp.sent_s, self._clock(), size_bytes, stamp.backlogged, offset_s, begun_s
        )
        if links := self._meter.arrived(source, arrival):
            self._scheduler.post(Measured(links))

    def tell_time(self, request: TimeRequest) -> TimeReply:
        """Answer a child that asks for the time."""
        now_s = self._clock()
        offset_s = None if self._timekeeper is None else self._timekeeper.offset_s()
        if self._timekeeper is None or offset_s is None:
            return TimeReply(request.sent_s, now_s, now_s, math.inf)
        now_s += offset_s
        return TimeReply(request.sent_s, now_s, now_s, self._timekeeper.error_s())

    def hear_time(self, reply: TimeReply) -> None:
        """Take the answer of the scheduler, or of a parent."""
        if self._timekeeper is not None:
            self._timekeeper.hear(reply)

    def _ask_the_time(self, request: TimeRequest) -> None:
        """Ask the scheduler if this site is a root, else its parent in the heaviest tree.

        A site that reaches none of its parents over a link of its own asks the scheduler too: a
        relay may be farther from the root than itself.
        """
        if self._scheduler.is_over:
            return
        site, plan = self.welcome.site, self._plan
        parents = [
            (tree.share, tree.up[site])
            for tree in plan.trees
            if tree.root != site and len(plan.path(site, tree.up[site])) == 2
        ]
        if any(tree.root == site for tree in plan.trees) or not parents:
            if self._scheduler.is_connected:
                self._scheduler.post(request)
            elif self._timekeeper is not None:
                self._timekeeper.unasked(request)  # a late answer would say nothing
        else:
            assert self._plane is not None
            self._plane.post(max(parents)[1], request)

    # --- inside

    def _on_lane(self, connection: Connection) -> Receiver:
        # A site is ready before any other opens a lane to it, so who comes earlier is a stranger.
        return _Premature(connection) if self._plane is None else self._plane.welcome(connection)

    def _ended_early(self, error: Exception) -> None:
        if self._plane is not None:
            self._plane.fail(error)

    def _say(self, message: Message) -> None:
        self._scheduler.check()
        self._scheduler.post(message)


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
