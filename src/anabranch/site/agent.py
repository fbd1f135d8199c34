"""A site in a run: joins the scheduler, assembles its parts, dispatches messages, and leaves.

A site's life::

    SiteAgent --join--> welcomed --start--> ready --the scheduler's Start--> begun --leave--> over
                        (index, plan)       (parts exist)                     `--fail, close--^

Messages from the scheduler go to one part: the data plane, the site's calls
(:mod:`anabranch.site._collectives`), a served model (:mod:`anabranch.site.serving`), gossip
(:mod:`anabranch.site._gossiping`), or the instruments (:mod:`anabranch.site._instruments`). Some
may arrive between ``join`` and ``start``, when the parts do not exist yet. The agent keeps those,
and hands them over in ``start``; otherwise this site would miss a neighbour's return, say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.exchange.arithmetic import Buffer, Floats
from anabranch.exchange.terms import Terms
from anabranch.net.addresses import ListenAt, host_to_listen_on
from anabranch.net.errors import EndedWithout, MalformedMessage, OutOfPlaceMessage, PeerError
from anabranch.net.frames import Sink
from anabranch.net.messages import (
    Abandon,
    Abort,
    Admitted,
    Advance,
    AnyMessage,
    Auxiliary,
    BurstHeard,
    BurstsOver,
    CutOff,
    Departed,
    EpochChanged,
    Failed,
    Gathered,
    Join,
    Leave,
    LinkCut,
    LinkProbe,
    LinkProbed,
    Model,
    PaceOver,
    Proceed,
    Ready,
    Reform,
    Reformed,
    RejoinAck,
    Rejoined,
    Report,
    Restarted,
    Shutdown,
    Silent,
    SiteGone,
    Start,
    Stopping,
    TimeReply,
    Welcome,
)
from anabranch.net.network import Address, Connection, ControlNetwork, Listener, Network, Receiver
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.site._collectives import Collectives
from anabranch.site._dataplane import DataPlane
from anabranch.site._exchanging import Exchanging
from anabranch.site._instruments import Instruments
from anabranch.site.channel import LEASED_SHARE
from anabranch.site.control import Control, RoundsOver
from anabranch.site.meter import Meter
from anabranch.site.neighbourhood import DataPlaneConfig
from anabranch.site.round import Round
from anabranch.site.serving import ServedModel, Serving

if TYPE_CHECKING:
    from anabranch.exchange.letters import Letters
    from anabranch.period import Gossip
    from anabranch.site._bursts import Bursts
    from anabranch.site._gossiping import Gossiping

T = TypeVar("T")

KEPT_ELEMENTS = 1 << 28
_ELEMENT_BYTES = 4
_reading = Lock()


@dataclass(frozen=True, slots=True)
class Transport:
    """How lanes send; the same at every site of a run.

    Args:
        chunk_elements: the elements of a served model's chunk, from which relay windows are
            computed too.
        most_chunk_elements: the most elements of any chunk.
        room_elements: the most elements of data that arrives before its exchange has begun here.
        strands: the number of connections of each lane.
        auxiliary: the bounds of primary and auxiliary paths; None for the defaults.
        kept_elements: the most elements of results that a follower keeps until its program consumes
            them; two results may always be kept.
        leases: whether the scheduler may lease exchanges to sites.
        least_relayed_bytes: how much of one route a relay holds at least.
    """

    chunk_elements: int
    most_chunk_elements: int
    room_elements: int
    strands: int = 1
    auxiliary: plans.Auxiliary | None = None
    kept_elements: int = KEPT_ELEMENTS
    leases: bool = False
    least_relayed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Gossips:
    """How a site gossips.

    Args:
        gossip: the parameters, the same at every site.
        letters: the letters of its model.
        draw: the generator that chooses neighbours.
    """

    gossip: Gossip
    letters: Letters
    draw: np.random.Generator


class SiteAgent:
    """One site's side of a run.

    It is one class since a site's parts meet here. Most methods only pass a call or a message to
    one part.

    Args:
        control: the network to the scheduler.
        data: the network on which other sites reach this one.
        name: this site's name in the overlay.
        token: the run's shared secret.
        listen: (host, port) to accept other sites' lanes. No host means the address from which this
            site reaches the scheduler; port 0 means a free one. None where no other site can
            connect to this one, as behind NAT: it then makes the connections of both directions.
        progressed: called each time a message to another site has ended; or None.
        refused: called with (site or None, error) for each refused message from another site.
        clock: this site's clock, seconds, by which links are measured; None for the loop's time.
        moved: called with the new address of a neighbour that died and has returned.
        advertise: the host at which other sites find this one; None for that of ``listen``.
        told_lost: called with a site that is lost while the run continues, the reason, and the
            number of admissions at this site before.

    Attributes:
        progressed, refused: see above.
        began: a future of the loop's time at which the run began.
        holds_state: whether this site has the state of training.
        came_late: whether the run had begun before this site was ready.
        welcome: the scheduler's welcome, after ``join``.
    """

    def __init__(
        self,
        control: ControlNetwork,
        data: Network,
        name: str,
        token: str,
        listen: ListenAt | None,
        progressed: Callable[[], None] | None,
        refused: Callable[[int | None, PeerError], None],
        clock: Callable[[], float] | None = None,
        moved: Callable[[int, Address], None] = lambda site, address: None,
        advertise: str | None = None,
        told_lost: Callable[[int, str, int], None] = lambda site, reason, admissions: None,
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
        self._told_lost = told_lost
        self.began: asyncio.Future[float] = self._loop.create_future()
        self._scheduler = Control(control, token, self._during, self._ended_early)
        self._listener: Listener | None = None
        self._plane: DataPlane | None = None
        self._collectives = Collectives(self._scheduler, self._planned)
        self.holds_state = self.came_late = False
        self._leaves = False
        self._probes: set[asyncio.Task[None]] = set()
        self._serving: Serving | None = None  # in a run with servers
        self._gossiping: Gossiping | None = None  # where sites gossip
        self._instruments: Instruments | None = None
        self._bursting: asyncio.Task[None] | None = None
        # The latest auxiliary paths from the scheduler, and the version of their plan.
        self._auxiliary: tuple[int, Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]] = 0, {}
        # Messages that arrived between `join` and `start`.
        self._returned: list[Rejoined] = []
        self._gone: set[int] = set()
        self._epochs: dict[int, EpochChanged] = {}  # by plan version
        self._reforms: list[Reform] = []
        self.welcome: Welcome

    async def join(
        self,
        scheduler: Address,
        patience_s: float = 0.0,
        say: Callable[[str], None] | None = None,
    ) -> Welcome:
        """Join a run, and wait until every site has joined.

        Args:
            scheduler: the scheduler's address.
            patience_s: how long to try while nothing answers there.
            say: see :meth:`anabranch.site.control.Control.join`.

        Returns:
            The scheduler's welcome, with this site's index and the task.

        Raises:
            LinkError: the scheduler cannot be reached.
            RunAborted: it refused this site, or the run ended before it began.
            PeerError: the listener is no scheduler, or one end does not trust the other.
            ValueError: other sites could not reach the address at which this one listens.
        """
        self.welcome = await self._scheduler.join(scheduler, self._introduce, patience_s, say)
        plan = plans.loads(self.welcome.plan_json)
        self._collectives.join(plan, self.welcome.site, self.welcome.is_new)
        return self.welcome

    async def _introduce(self, hosts: tuple[str, str]) -> Join:
        """Return the Join message for a connection between these two addresses; listen first."""
        if self._listen is None:
            return Join(b"", self._name, "", 0)
        host, port = self._listen
        host = host_to_listen_on(host, self._advertise, hosts)
        if self._listener is None:  # else the scheduler was restarted, and this site listens
            self._listener = await self._data.listen((host, port), self._on_lane)
        host, port = self._listener.address
        return Join(b"", self._name, self._advertise or host, port)

    async def start(
        self,
        transport: Transport,
        lanes: Network,
        meter: Meter | None = None,
        served: ServedModel | None = None,
        buffer_elements: int = 0,
        samples: int = 0,
        gossips: Gossips | None = None,
    ) -> None:
        """Make this site's parts, report it as ready, and wait until every site is.

        Args:
            transport: how lanes send; the same at every site.
            lanes: the network on which this site connects to others.
            meter: measures the links to this site; None measures none.
            served: the served model; None where sites all-reduce.
            buffer_elements: the elements of the largest buffer to be exchanged; 0 if unknown.
            samples: how many samples this site trains on; 0 if it does not tell.
            gossips: how it gossips; None where sites do not gossip.

        Raises:
            RunAborted: the run ended early; names the site or error that caused it.
            RoundsOver: it ended before this site, which had returned, was ready.
        """
        config = DataPlaneConfig(
            site=self.welcome.site,
            overlay=overlay_of(self.welcome),
            addresses=self.welcome.addresses,
            incarnations=self.welcome.incarnations,
            secret=self.welcome.secret,
            lane_secrets=self.welcome.lane_secrets,
            chunk_elements=transport.chunk_elements,
            most_chunk_elements=transport.most_chunk_elements,
            room_elements=transport.room_elements,
            strands=transport.strands,
            least_relayed_bytes=transport.least_relayed_bytes,
            auxiliary=transport.auxiliary,
            stamped=meter is not None,
            repairs=self.welcome.repairs,
        )
        self._instruments = Instruments(
            self.welcome.site,
            self._clock,
            meter,
            lanes.heads_go_ahead,
            self._scheduler,
            lambda to, message: plane.lanes.post(to, message),
            lambda: self._collectives.plan,
        )
        plane = self._plane = DataPlane(lanes, config, self, self._instruments)
        bursts: Bursts | None = None
        if meter is not None and meter.burst_bytes:
            from anabranch.site._bursts import Bursts  # here, since most groups never load it

            bursts = plane.bursts = Bursts(
                config,
                plane.neighbourhood,
                meter.burst_bytes,
                plane.lanes,
                lambda neighbour, chunk: plane.connections.answer(neighbour, BurstHeard(chunk)),
                self._instruments.hear_burst,
            )
        self._scheduler.neighbours = plane.connections
        exchanging = Exchanging(plane, self._collectives.advanced, transport.leases)
        kept_bytes = _ELEMENT_BYTES * transport.kept_elements
        if gossips is not None:
            from anabranch.site._gossiping import Gossiping  # here, since most groups never load it

            self._gossiping = Gossiping(
                plane,
                config.overlay,
                config.site,
                gossips.gossip,
                gossips.letters,
                gossips.draw,
                self._gone,
            )
        leased_bytes = _ELEMENT_BYTES * transport.room_elements * LEASED_SHARE
        self._collectives.start(exchanging, self.welcome.retries, kept_bytes, leased_bytes)
        plan = self._collectives.plan
        plane.lanes.use_auxiliary(plan.all_auxiliary)
        if served is not None:
            self._serving = Serving(
                self._scheduler,
                plane,
                self.welcome,
                plan,
                served,
                transport.chunk_elements,
            )
        if self._auxiliary[0] >= plan.version:
            plane.lanes.use_auxiliary(self._auxiliary[1])
        for reform in self._reforms:
            self._during(reform)
        for changed in self._epochs.values():
            self._during(changed)
        for returned in self._returned:
            self._rejoined(plane, returned)
        self._scheduler.say(Ready(buffer_elements, samples))
        start = await self._scheduler.expect(Start, Shutdown)
        if isinstance(start, Shutdown):
            raise RoundsOver
        assert isinstance(start, Start)
        self.came_late = start.since_s > 0
        self.began.set_result(self._loop.time() - start.since_s)
        self._instruments.begin()
        plane.connections.begin()
        if bursts is not None and not self.came_late:  # while others train, a burst would disturb
            self._bursting = self._loop.create_task(self._burst(bursts, plane), name="bursts")

    async def _burst(self, bursts: Bursts, plane: DataPlane) -> None:
        """Measure links while the program goes on to its first call."""
        try:
            await bursts.run()
        except Exception as error:  # any: no other code awaits this task, and plans wait for it
            plane.fail(error)
            return
        if self._scheduler.is_open:
            self._scheduler.post(BurstsOver())

    async def exchange(
        self,
        buffer: Buffer,
        terms: Terms,
        weight: float = 1.0,
        more: bool = False,
        channel: int = 0,
        calls: bool = False,
        unfit: str = "",
        model: Model | None = None,
        returns_early: bool = False,
    ) -> Round:
        """See :meth:`anabranch.site._collectives.Collectives.exchange`."""
        done = await self._collectives.exchange(
            buffer, terms, weight, more, channel, calls, unfit, model, returns_early
        )
        assert self._instruments is not None
        self._instruments.remember()
        return done

    def ask_ahead(self, terms: Terms, channel: int = 0) -> None:
        """See :meth:`anabranch.site._collectives.Collectives.ask_ahead`."""
        self._collectives.ask_ahead(terms, channel)

    def is_awaited(self, channel: int = 0) -> bool:
        """See :meth:`anabranch.site._collectives.Collectives.is_awaited`."""
        return self._collectives.is_awaited(channel)

    async def subgroup(self, members: tuple[int, ...], name: str = "") -> int:
        """See :meth:`anabranch.site._collectives.Collectives.subgroup`."""
        return await self._collectives.subgroup(members, name)

    async def gather(self, value: bytes, channel: int = 0, what: str = "") -> Gathered:
        """See :meth:`anabranch.site._collectives.Collectives.gather`."""
        return await self._collectives.gather(value, channel, what)

    async def admit(self) -> Admitted:
        """See :meth:`anabranch.site._collectives.Collectives.admit`.

        Raises:
            EndedWithout: this site is new, and the run ended before it was admitted.
        """
        admitted = self._collectives.admit(self.holds_state)
        return await (self.unless_ended(admitted) if self.is_new else admitted)

    async def unless_ended(self, doing: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine at a new site, unless the run ends first.

        Raises:
            EndedWithout: the run ended first, in good order.
            RunAborted: it ended first, early; or it continues without this site.
        """
        done = self._loop.create_task(doing)
        over = self._loop.create_task(self._scheduler.expect(Shutdown))
        try:
            await asyncio.wait({done, over}, return_when=asyncio.FIRST_COMPLETED)
            if done.done():
                return done.result()
            over.result()
            raise EndedWithout("the group has ended, and did not let this site in")
        finally:
            for task in (done, over):
                task.cancel()
            await asyncio.gather(done, over, return_exceptions=True)

    async def try_neighbours(self) -> bool:
        """Return whether any neighbour answers this new site.

        The scheduler is told the neighbours that do not answer. It admits this site with the links
        to them cut, and probes these links later.
        """
        assert self._plane is not None, "start() comes first"
        neighbours = self._plane.neighbourhood.near()
        reaches = self._plane.connections.reaches
        answers = await asyncio.gather(*(reaches(each) for each, _ in neighbours))
        if any(answers):
            for (neighbour, incarnation), is_there in zip(neighbours, answers, strict=True):
                if not is_there:
                    self._scheduler.say(CutOff(neighbour, "it does not answer", incarnation))
        return any(answers)

    def has_state(self) -> None:
        """Note that this site has the state of training now."""
        self.holds_state = True
        self._collectives.has_state()

    def wait_for_scheduler(self, patience_s: float) -> None:
        """Try for at least so long to reach a lost scheduler, since it may be restarted."""
        self._scheduler.wait_longer(patience_s)

    @property
    def is_over(self) -> bool:
        """Whether the run has ended early for this site."""
        return self._scheduler.is_over

    async def ended_early(self) -> None:
        """Wait until the run ends early, and raise the error that ended it."""
        await self._scheduler.ended_early()

    @property
    def patience_s(self) -> float:
        """How long this site may be disconnected, as the scheduler told last; seconds."""
        return self._scheduler.patience_s

    @property
    def has_kept(self) -> bool:
        """Whether the result of this site's next call is kept already; see `_following`."""
        return self._collectives.has_kept

    @property
    def is_new(self) -> bool:
        """Whether the group has begun, and its members have not admitted this site yet."""
        return self._collectives.is_new

    # --- gossip

    @property
    def gossips(self) -> bool:
        """Whether this site gossips, and has not finished."""
        return self._gossiping is not None and not self._gossiping.is_finished

    @property
    def gossiping(self) -> Gossiping:
        """This site's side of gossip, after ``start`` with ``gossips``."""
        assert self._gossiping is not None, "start() comes first, and is told how sites gossip"
        return self._gossiping

    # --- push and pull

    async def permission(self) -> Proceed:
        """See :meth:`anabranch.site.serving.Serving.permission`."""
        return await self._served().permission()

    @property
    def settled(self) -> int:
        """See :class:`anabranch.site.serving.Serving`."""
        return self._served().settled

    async def settle(self, updates: int) -> None:
        """See :meth:`anabranch.site.serving.Serving.settle`."""
        await self._served().settle(updates)

    @property
    def last_receivers(self) -> tuple[int, ...]:
        """See :class:`anabranch.site.serving.Serving`."""
        return self._served().last_receivers

    async def last_model(self) -> None:
        """See :meth:`anabranch.site.serving.Serving.last_model`."""
        await self._served().last_model()

    def serves_whole(self, model: Floats) -> bool:
        """Write the served model if this site serves all of it; return whether it does.

        Args:
            model: shape (elements,), overwritten.
        """
        partition = self._served().partition
        return partition is not None and partition.write_whole(model)

    def unless_abandoned(self, permission: Proceed) -> AbstractAsyncContextManager[None]:
        """See :meth:`anabranch.site.serving.Serving.unless_abandoned`."""
        return self._served().unless_abandoned(permission)

    def push(
        self,
        permission: Proceed,
        gradients: Floats,
        weight: float,
        samples: int,
        compute_s: float,
        loss: float | None = None,
    ) -> bool:
        """See :meth:`anabranch.site.serving.Serving.push`."""
        return self._served().push(permission, gradients, weight, samples, compute_s, loss)

    def reload(self) -> None:
        """See :meth:`anabranch.site.serving.Serving.reload`."""
        self._served().reload()

    def _served(self) -> Serving:
        assert self._serving is not None, "start() comes first, and the model must be served"
        return self._serving

    # --- to the scheduler

    def flush(self) -> None:
        """See :meth:`anabranch.site._collectives.Collectives.flush`."""
        self._collectives.flush()

    async def round_ended(self, done: Round, checksum: int | None) -> None:
        """Tell the scheduler that this site holds an exchange's result."""
        if not done.was_kept:
            self._collectives.tell_ended(done, checksum)

    def report(self, events: tuple[bytes, ...]) -> None:
        """Send encoded events to the run's log; does not wait."""
        self._scheduler.post(Report(events))

    async def leave(self) -> bool:
        """Tell that this site has finished, wait until every site has, and close.

        Returns:
            Whether the others continue without this site; it has then not waited for their end.
        """
        await self._collectives.settled()
        # Calls in the program's place may be in progress. A member that they need may wait for
        # another call of this site, and learns from this message that it does not come.
        self._collectives.finish()
        self._leaves = True
        if self._bursting is not None and not self._bursting.done():
            self._bursting.cancel()
            self._scheduler.post(BurstsOver())
        self._scheduler.say(Leave())
        said: AnyMessage = Start()
        while not isinstance(said, Shutdown | Departed):  # others were sent before Leave arrived
            said = await self._scheduler.expect(Shutdown, Departed, Proceed, PaceOver)
        if isinstance(said, Shutdown):
            await self._scheduler.finish_carrying()
        self.close()
        return isinstance(said, Departed)

    async def fail(self, error: Exception) -> None:
        """Tell the scheduler that this site cannot continue, and close."""
        if self._scheduler.is_open:
            self._scheduler.post(Failed(str(error) or type(error).__name__))
            await self._scheduler.said()
        self.close()

    def close(self) -> None:
        """Close every connection; the peers are told no error."""
        for probe in self._probes:
            probe.cancel()
        if self._bursting is not None:
            self._bursting.cancel()
        if self._listener is not None:
            self._listener.close()
        self._collectives.close()
        if self._plane is not None:
            self._plane.close()
        self._scheduler.close()

    def sent_bytes(self) -> dict[int, int]:
        """Return the payload bytes sent so far to each neighbour."""
        return {} if self._plane is None else self._plane.lanes.sent_bytes()

    # --- messages of the scheduler that no call of this site awaits

    def _during(self, message: AnyMessage) -> None:
        match message:
            case LinkCut() if self._plane is not None:
                self._plane.cut(message.neighbour)
            case LinkProbe() if self._plane is not None:
                probe = self._loop.create_task(self._probe(self._plane, message.neighbour))
                self._probes.add(probe)
                probe.add_done_callback(self._probes.discard)
            case Restarted():
                self._stand()
            case Auxiliary():
                paths: dict[tuple[int, int], tuple[tuple[int, ...], ...]] = {}
                for path in message.paths:
                    if len(path) < 2:
                        raise MalformedMessage(f"auxiliary path {path} leads nowhere")
                    ends = path[0], path[-1]
                    paths[ends] = (*paths.get(ends, ()), path)
                self._auxiliary = message.version, paths
                if self._plane is not None:
                    self._plane.lanes.check_auxiliary(paths)
                    # Paths of a later plan are used at once: they avoid what is lost.
                    if message.version >= self._collectives.plan.version:
                        self._plane.lanes.use_auxiliary(paths)
            case TimeReply():
                if self._instruments is not None:
                    self._instruments.hear_time(message)
            case Abandon() if self._serving is not None:
                self._serving.abandon(message)
            case Advance() if self._serving is not None:
                self._serving.advance(message)
            case EpochChanged() if self._serving is not None:
                self._serving.change_epoch(message)
            case EpochChanged() if self._plane is None:
                self._epochs[message.version] = message
            case Reform() if self._plane is not None and self._serving is not None:
                plan = self._serving.reform(message, has_begun=self.began.done())
                self._plane.lanes.use_auxiliary(plan.all_auxiliary)
            case Reform() if self._plane is None:  # no lanes yet, so no data of the old groups
                self._reforms.append(message)
                self._scheduler.post(Reformed(plans.loads(message.plan_json).version))
            case SiteGone():
                self._scheduler.tell(f"{message.reason}; the others go on")
                self._told_lost(message.site, message.reason, self._collectives.admissions)
                self._gone.add(message.site)
                if self._gossiping is not None:
                    self._gossiping.lost(message.site)
            case Stopping() if self._gossiping is not None:
                self._gossiping.stop()
            case Rejoined() if self._plane is not None:
                self._rejoined(self._plane, message)
            case Rejoined():
                self._returned.append(message)
            case _:
                self._collectives.hear(message)

    def _planned(self, plan: Plan) -> None:
        """Use the auxiliary paths of a new plan, unless the scheduler has sent later ones."""
        if self._plane is not None:
            version, paths = self._auxiliary
            auxiliary = paths if version >= plan.version else plan.all_auxiliary
            self._plane.lanes.use_auxiliary(auxiliary)

    def _stand(self) -> None:
        """Tell a restarted scheduler this site's state, and repeat messages it may have missed."""
        self._collectives.report_after_restart()
        if self._plane is not None:
            for neighbour, incarnation in self._plane.neighbourhood.that_are_lost():
                reason = f"{self._name} has no lane to it"
                self._scheduler.post(CutOff(neighbour, reason, incarnation))
        if self._leaves:
            self._scheduler.post(Leave())

    async def _probe(self, plane: DataPlane, neighbour: int) -> None:
        answers = await plane.connections.reaches(neighbour)
        if self._scheduler.is_open:
            self._scheduler.post(LinkProbed(neighbour, answers))

    def _rejoined(self, plane: DataPlane, message: Rejoined) -> None:
        address = message.host, message.port
        self._moved(message.site, address)
        plane.returned(message.site, message.incarnation, address)
        self._scheduler.post(RejoinAck(message.site, message.incarnation))

    # --- as the owner of the data plane; see anabranch.site._dataplane.Owner

    def failed(self, error: Exception) -> None:
        """Ask the scheduler to end the run: it knows better which site caused the failure."""
        if self._scheduler.is_open:
            self._scheduler.post(Abort(str(error)))

    def cut_off(self, neighbour: int, incarnation: int, error: Exception) -> None:
        """Tell the scheduler, which knows whether the neighbour is lost."""
        if self._scheduler.is_open:
            self._scheduler.post(CutOff(neighbour, str(error), incarnation))

    def silent(self, neighbour: int, incarnation: int, is_silent: bool) -> None:
        """Tell the scheduler, which knows whether other paths avoid the link."""
        if self.welcome.repairs and self._scheduler.is_open:
            self._scheduler.post(Silent(neighbour, incarnation, is_silent))

    def carry(self, source: int, connection: Connection) -> Receiver:
        """Pipe a neighbour's connection to the scheduler, if this site reaches it itself."""
        return self._scheduler.carry(source, connection)

    # --- inside

    def _on_lane(self, connection: Connection) -> Receiver:
        # Other sites open lanes only after this one is ready. An earlier connection is not theirs.
        return _Premature(connection) if self._plane is None else self._plane.welcome(connection)

    def _ended_early(self, error: Exception) -> None:
        self._collectives.fail_waiting(error)
        if self._plane is not None:
            self._plane.fail(error)


def overlay_of(welcome: Welcome) -> Overlay:
    """Return the overlay that a site is welcomed to.

    The sites of `anabranch.local` are threads that get one text at once: the first parses it for
    all.
    """
    with _reading:
        return overlays.loads(welcome.overlay_toml)


class _Premature:
    """Receives a connection before this site is ready: refuses its first message, and closes it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        raise OutOfPlaceMessage("no lanes are due yet")

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._connection.close()

    def on_closed(self, error: Exception | None) -> None:
        pass
