"""The scheduler: takes sites in, fixes each round's plan, and ends the run everywhere at once."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Protocol

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.net.addresses import show
from anabranch.net.errors import (
    LinkError,
    MalformedMessage,
    OutOfPlaceMessage,
    PeerError,
    RunAborted,
    UnauthorisedPeer,
)
from anabranch.net.frames import DISCARD, Limits, Sink
from anabranch.net.messages import (
    Abort,
    Ack,
    Advance,
    AnyMessage,
    Auxiliary,
    Came,
    CutOff,
    EpochChanged,
    ExchangeEnded,
    ExchangeRequest,
    Failed,
    Gather,
    Holding,
    Join,
    Leave,
    LinkCut,
    LinkProbe,
    LinkProbed,
    Measured,
    Message,
    PaceOver,
    Patience,
    Proceed,
    ProceedRequest,
    Progress,
    Ready,
    Refusal,
    RejoinAck,
    Rejoined,
    Report,
    Restarted,
    Resume,
    Resumed,
    Shutdown,
    Standing,
    Start,
    SubgroupRequest,
    TimeReply,
    TimeRequest,
    Welcome,
)
from anabranch.net.network import Address, Connection, Listener, Network, Receiver
from anabranch.net.refusals import RefusalLimit
from anabranch.net.session import LEAST_PATIENCE_S, Session
from anabranch.net.tls import check_identity, identity_of
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.record import LogError, events
from anabranch.scheduler import memory as memories
from anabranch.scheduler.awareness import Awareness
from anabranch.scheduler.channels import Channels, Chunking, Dispatching, Outcome
from anabranch.scheduler.losses import Losses, Repairs
from anabranch.scheduler.members import Members
from anabranch.scheduler.memory import Journal, Memory
from anabranch.scheduler.newcomers import Newcomers
from anabranch.scheduler.pacing import Decision, PaceBook, dispensable, events_of
from anabranch.scheduler.patience import RoundTimes
from anabranch.scheduler.policy import Replan
from anabranch.scheduler.probes import Probes
from anabranch.scheduler.replan_loop import ReplanLoop
from anabranch.scheduler.reports import reported
from anabranch.scheduler.restart import Returning
from anabranch.scheduler.transfer import shares
from anabranch.site.ranges import Ranges

Path = tuple[int, ...]

LIMITS = Limits(message_bytes=1 << 26, payload_bytes=0)

# A site that loses a neighbour's lane often hears of it before the scheduler hears that the
# neighbour died. Waiting this long lets the run's error name the cause and not the symptom.
_BLAME_S = 0.5
_ELEMENT_BYTES = 4
# Sites hear of another patience when it has changed by so much, and are given up so much later than
# they give up themselves.
_CHANGE = 1.25
_SLACK_S = 1.0
_MEASURABLE_BPS = 1.0, 1e15
_LONGEST_S = 1e6


class Abandoned(Exception):
    """A scheduler has stopped, and its group waits for one that takes its place."""


class Log(Protocol):
    """Where a scheduler writes down what happens; LogError, where it cannot, ends the run."""

    def began(self, buffer_elements: int) -> None:
        """The run's clock has started; buffers have so many elements, or at least the first."""

    def write(self, *happened: events.Event) -> None:
        """Something has happened; times are seconds since the run began."""


class Scheduler:
    """One run's control plane.

    Args:
        network: where sites connect.
        overlay: the sites and links of the run.
        plan: the plan to begin with.
        token: what a site must know to join.
        work: handed to every site as it is.
        chunking: how finely buffers are cut.
        log: where to write down what happens.
        awareness: plans again while the run goes on; None keeps the first plan.
        dispatching: how chunks are dispatched during an exchange; None deals all beforehand, by
            share.
        pacing: who may proceed, where the plan's roots serve the model; None where sites
            all-reduce, in rounds.
        most_bytes: of buffers of exchanges under way at once.
        needs_all: whether the death of any site ends the run, also of one that only computes, as
            where sites may make calls that need every member.
        repairs: how all-reduces go on without a site or a link that is lost; None ends the run.
        journal: where to write down what a restart needs, where there are repairs; and to read it
            from. None for a run that ends with its scheduler.

    Attributes:
        stopped: why the run is to end before its last round, or None.
        lost: sites that have died or cannot be reached, and without which the run goes on.
    """

    def __init__(
        self,
        network: Network,
        overlay: Overlay,
        plan: Plan,
        token: str,
        work: str,
        chunking: Chunking,
        log: Log,
        awareness: Awareness | None = None,
        dispatching: Dispatching | None = None,
        pacing: PaceBook | None = None,
        most_bytes: float = math.inf,
        needs_all: bool = False,
        repairs: Repairs | None = None,
        journal: Journal | None = None,
    ) -> None:
        self._journal = journal
        self._written = b"" if journal is None else journal.load() or b""
        memory = memories.read(self._written) if self._written else None
        if memory is not None:
            if memory.overlay_toml != overlays.dumps(overlay):
                raise LogError(
                    "the journal is of a group with another overlay; give that one's, or another "
                    "journal for a new group"
                )
            plan = plans.loads(memory.plan_json)
        self._repairs = repairs
        self._losses = Losses()  # where there are repairs
        self._probes = Probes()  # of links that are cut
        self._departed: set[int] = set()  # sites that have left, and are members yet
        plan.check_fits(overlay)
        self._pacing = pacing
        self._servers = dict.fromkeys(tree.root for tree in plan.trees)
        self._look_at_pace: asyncio.TimerHandle | None = None
        self._dispensable = set() if needs_all or pacing is None else dispensable(plan, pacing)
        self.lost: set[int] = set()
        self._workers = frozenset(() if pacing is None else pacing.workers)
        self._awareness = awareness
        self._replan_loop: ReplanLoop | None = (
            None  # once the run has begun, where there is awareness
        )
        self._network = network
        self.overlay = overlay
        self._plan = plan
        self._work = work
        self._log = log
        self._is_written = True  # until the log fails
        self.stopped: str | None = None
        self._secret = secrets.token_bytes(32) if memory is None else memory.secret
        self.members = Members(overlay, token, self._secret)
        self._refusals = RefusalLimit()
        self.channels = Channels(
            self.name,
            overlay.size,
            plan,
            most_bytes,
            chunking,
            dispatching,
            repairs is not None,
            self._transferring,
        )
        self._founders: frozenset[int] | None = None  # with whom the run begins
        self._newcomers = Newcomers()
        self._sessions: dict[int, Session] = {}  # with the sites that take part
        self._missing: dict[int, _Missing] = {}  # whose connections have broken
        self._told_epoch = 0  # of sums
        self._accused: set[int] = set()  # whose lanes have ended, as neighbours say
        self._times = RoundTimes()
        self._patience_s = LEAST_PATIENCE_S  # as sites know it
        self._all_gone = asyncio.Event()
        # Connections that have not joined; in order, as closing them is seen by others.
        self._ready: set[int] = set()
        self._left: set[int] = set()
        self._buffer_elements: int | None = None  # as the first ready site says
        self._first_ready = 0
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._started_s: float | None = None
        self._auxiliary = plan.version, _flat(plan)  # the paths that sites have, of which plan
        self._listener: Listener
        self._reserved = 0  # exchange numbers
        self._began_at_s = 0.0  # by the journal's clock
        self._memory = memory
        self._back: Returning | None = None  # while this finds its group again
        self._is_first = memory is None  # the run had no scheduler before
        if memory is not None:
            self._remember_all(memory)

    async def listen(self, address: Address) -> Address:
        """Begin to take sites in; return where. After a restart, that is where it was before."""
        if self._memory is not None and not address[1]:
            address = self._memory.listen
        self._listener = await self._network.listen(address, self._welcome)
        return self._listener.address

    async def finished(self) -> None:
        """Return when every site has finished.

        Raises:
            RunAborted: the run ended early; names who or what caused it.
            Abandoned: see ``abandon``.
        """
        try:
            await self._end
        finally:
            if self._replan_loop is not None:
                self._replan_loop.close()
            if self._look_at_pace is not None:
                self._look_at_pace.cancel()

    async def close(self) -> None:
        """Let sites go; wait for those that may not have heard how the run ended, but not long."""
        if self._end.done() and self._end.exception() is None and self._sessions:
            try:
                async with asyncio.timeout(self._patience_s + _SLACK_S):
                    await self._all_gone.wait()
            except TimeoutError:
                pass  # they are gone, or will find nobody here
        self._listener.close()
        for session in self._sessions.values():
            if session.connection is not None:
                session.connection.close()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, in whichever way."""
        return self._end.done()

    def name(self, site: int) -> str:
        """Return a site's index and name, for error messages."""
        return f"site {site} ({self.overlay.sites[site].name})"

    def abort(self, reason: str) -> None:
        """End the run everywhere; only the first reason counts."""
        if not self._end.done():
            for site, missing in self._missing.items():
                missing.timer.cancel()
                self._write_lost(site, missing.why, False, self._since_start_s())
            self._missing.clear()
            self._broadcast(Abort(reason))
            self._end.set_exception(RunAborted(reason))
            self._end.exception()  # finished() may not be waiting yet: no reason for a warning

    def abandon(self) -> None:
        """Stop, and leave the group to a scheduler that is started again with the same journal."""
        if not self._end.done():
            for missing in self._missing.values():
                missing.timer.cancel()
            self._end.set_exception(Abandoned("the scheduler stops, and can be started again"))
            self._end.exception()  # finished() may not be waiting yet

    def stop(self, reason: str) -> None:
        """Hold no further round; the run then ends in good order. Only the first reason counts."""
        if self.stopped is None and not self._end.done():
            self.stopped = reason
            self.channels.close()
            if self._pacing is not None:
                self._pacing.close()

    def note(self, *happened: events.Event) -> None:
        """Write down what happened; where that fails, the run ends and no more is written."""
        self._write_down(partial(self._log.write, *happened))

    def _note_began(self, buffer_elements: int) -> None:
        self._write_down(partial(self._log.began, buffer_elements))

    def _write_down(self, write: Callable[[], None]) -> None:
        if self._is_written:
            try:
                write()
            except LogError as error:
                self._is_written = False
                self.abort(str(error))

    def is_newcomer(self, site: int) -> bool:
        """Return whether a site has joined and is no member yet."""
        return site in self._newcomers

    def _is_connected(self, site: int) -> bool:
        session = self._sessions.get(site)
        return session is not None and session.connection is not None

    def refused(self, site: int | None, error: PeerError) -> None:
        """Take note that a message was refused."""
        reported = error if site is not None else self._refusals.admit(error, self._now_s())
        if reported is not None and not self._end.done():
            self.note(
                events.MessageRefused(
                    at_s=self._since_start_s(),
                    site=None,
                    sender=site,
                    error=type(reported).__name__,
                    detail=str(reported),
                )
            )

    def _welcome(self, connection: Connection) -> Receiver:
        return _FromSite(self, connection)

    def _broadcast(self, message: Message) -> None:
        for session in self._sessions.values():
            session.post(message)

    def _post(self, site: int, message: Message) -> None:
        """Say something to a site, if it is still there."""
        if site in self._sessions:
            self._sessions[site].post(message)

    def _tell_members(self, message: Message) -> None:
        """Tell all but those that have not begun."""
        for site, session in self._sessions.items():
            if site not in self._newcomers:
                session.post(message)

    def _write_joined(self, site: int, now_s: float) -> None:
        self.note(
            events.SiteJoined(
                at_s=now_s,
                site=site,
                name=self.overlay.sites[site].name,
                address=show(self.members.address(site)),
            )
        )

    def _write_lost(self, site: int, why: str, goes_on: bool, now_s: float) -> None:
        self.note(events.SiteLost(at_s=now_s, site=site, detail=why, goes_on=goes_on))

    # --- what sites say

    def join(self, message: Join, connection: Connection) -> int:
        """Take a site in; once enough are here, tell them who is who.

        Raises:
            OutOfPlaceMessage: the run is over.
            PeerError: see :meth:`anabranch.scheduler.members.Members.admit`.
        """
        if self._end.done():
            raise OutOfPlaceMessage(f"site {message.name!r} joins, but the run is over")
        check_identity(connection.peer, connection.identity, identity_of(message.name))
        gone = {site for site in self.lost if not self._is_connected(site)}
        can_lose = self._may_go_on_without if self._repairs is None else self._has_started
        gone |= {site for site in self._missing if can_lose(site)}
        site = self.members.admit(message, connection.challenge, gone)
        if site in self._missing:  # another process of it is here, so that one died
            self._lose(site, self._missing[site].why, died=True)
            if self._repairs is not None and self._end.done():
                raise OutOfPlaceMessage(f"site {message.name!r} joins, but the run is over")
        self._sessions[site] = Session(connection)
        if site in self.lost or (self._repairs is not None and self._founders is not None):
            self._newcomers.came(site)
            self._sessions[site].post(self._welcome_to(site))
            if self._pacing is not None and self._pacing.epoch:
                self._sessions[site].post(self._epoch_changed(self._pacing))
            if self._end.done():  # as one who died just now
                self._sessions[site].post(Shutdown())
            return site
        self._write_joined(site, 0.0)
        self._meet_if_enough()
        return site

    def _meet_if_enough(self) -> None:
        """Tell all that are here who is who, once the run can begin with them."""
        everyone, here = frozenset(range(self.overlay.size)), self._sessions.keys()
        founders = everyone
        if missing := everyone - here:
            least = None if self._repairs is None else self._repairs.begin_with
            losses = Losses().further(self.overlay, sites=missing)
            founders = losses.members(self.overlay.size)
            if least is None or len(here) < least or len(founders) < least:
                return
            self._losses = losses
            self.lost |= losses.lost
            plan = self._plan_for_the_rest()
            self.channels.lose(losses.lost, plan)
            self._plan, self._auxiliary = plan, (plan.version, _flat(plan))
        self._founders = founders
        for site in here - founders:
            self._newcomers.came(site)
        for site, session in self._sessions.items():
            session.post(self._welcome_to(site))

    def _welcome_to(self, site: int) -> Welcome:
        return Welcome(
            site,
            overlays.dumps(self.overlay),
            plans.dumps(self._plan if self._repairs is None else self.channels.all.plan),
            self.members.addresses,
            self._work,
            self.members.incarnations,
            0 if self._pacing is None else self._pacing.made(site),
            self.members.secret(site),
            self.members.lane_secrets(site),
            self._repairs is not None,
            self._repairs is not None and self._repairs.retries,
            self._repairs is not None and site in self._newcomers,
        )

    # --- after a restart

    def _remember_all(self, memory: Memory) -> None:
        """Be where the scheduler before was; how far calls are, sites will say."""
        assert self._journal is not None
        self.members.restore(memory.addresses, memory.incarnations)
        self._losses = memory.losses
        self.lost |= memory.lost
        self._left |= memory.left
        self._departed |= memory.departed
        self._founders = frozenset(range(self.overlay.size))
        self._ready |= self._founders
        self._buffer_elements = memory.elements
        self._began_at_s = memory.began_at_s
        self._started_s = self._now_s() - max(0.0, self._journal.now_s() - memory.began_at_s)
        self._reserved = memory.latest_exchange
        self._back = Returning(self._founders - self.lost)
        if memory.elements:
            self._note_began(memory.elements)
        awaited = sorted(self._back.awaited)
        self.note(events.SchedulerRestarted(at_s=self._since_start_s(), awaited=awaited))
        self._give_up_absent = asyncio.get_running_loop().call_later(
            self._patience_s + _SLACK_S, self._go_on
        )

    def _go_on(self) -> None:
        """Go on with the calls as sites say they are, without those that have not come back."""
        assert self._memory is not None
        assert self._back is not None
        if self._end.done():
            return
        self._give_up_absent.cancel()
        back, self._back = self._back, None
        standings = back.standings
        absent = back.awaited - standings.keys()
        size = self.overlay.size
        if len(self._losses.members(size) - absent) < 1:
            self.abort("the scheduler was restarted, and no site came back to it")
            return
        outcome = self.channels.restore(
            {site: each for site, each in standings.items() if site in self._losses.members(size)},
            frozenset(range(size)) - self._losses.members(size),
            self._memory.subgroups,
            self._memory.latest_exchange,
            {(each.channel, each.number): each.contributions for each in self._memory.interrupted},
        )
        if self._awareness is not None:
            self._begin_to_look(_ELEMENT_BYTES * self.channels.largest_elements)
        plan = self._plan_for_the_rest()
        self.channels.issue(plan)
        self._remember()
        self._broadcast(Patience(self._patience_s))
        self._use(plan, "the scheduler was restarted")
        for here, there in self._losses.cut:
            self._post(here, LinkCut(there))
        for ends in {frozenset(pair) for pair in self._losses.cut}:
            self._probe_later(ends)
        self._follow(outcome)
        for site in sorted(absent):
            if not self._end.done() and site not in self.lost:
                self._post(site, Abort("the scheduler was restarted; this site has to join again"))
                self._sessions.setdefault(site, Session(None))
                self._lose(site, f"{self.name(site)} did not come back to the scheduler", True)
        for site, session in self._sessions.items():
            if session.connection is None:  # it came back, and went again
                self._miss(site, f"{self.name(site)} died {self._when}")
        for site in [*self._departed]:
            for channel in self.channels.awaiting(site):
                self._go_on_without_departed(channel)
        self._end_if_all_left()
        for site, message in back.early:
            if site in self._sessions:
                self._hear(site, message)

    def _remember(self) -> None:
        """Write down what a restart needs, before any site hears of it."""
        if self._journal is None or self._started_s is None or self._back is not None:
            return
        if self.channels.latest_exchange + memories.RESERVED // 2 > self._reserved:
            self._reserved = self.channels.latest_exchange + memories.RESERVED
        memory = Memory(
            overlay_toml=overlays.dumps(self.overlay),
            secret=self._secret,
            addresses=self.members.addresses,
            incarnations=self.members.incarnations,
            lost=self._losses.lost,
            cut=self._losses.cut,
            relays=self._losses.relays,
            left=frozenset(self._left),
            departed=frozenset(self._departed),
            plan_json=plans.dumps(self.channels.all.plan),
            subgroups=self.channels.subgroups,
            interrupted=tuple(
                memories.Interrupted(channel, number, contributions)
                for (channel, number), contributions in self.channels.contributions.items()
            ),
            latest_exchange=self._reserved,
            elements=self._buffer_elements or 0,
            began_at_s=self._began_at_s,
            listen=self._listener.address,
        )
        self._memory = memory
        data = memories.encode(memory)
        if data != self._written:
            self._written = data
            self._write_down(partial(self._journal.save, data))

    def hear(self, site: int, message: AnyMessage) -> None:
        """Act on a message from a site that has joined."""
        if site not in self._sessions:
            return  # it came back, could not begin, and was forgotten
        if isinstance(message, Ack):
            self._sessions[site].acknowledged(message.count)
            return
        self._sessions[site].count()
        self._hear(site, message)

    def _hear(self, site: int, message: AnyMessage) -> None:
        if self._end.done():
            return  # nothing counts any more
        if self._back is not None:
            if isinstance(message, Standing):
                self.channels.check(site, message)
            if self._back.hear(site, message):
                self._go_on()
            return
        if self._replan_loop is not None:
            self._replan_loop.look_in_time()
        if site in self._newcomers:
            self._hear_newcomer(site, message)
            return
        match message:
            case Ready() if message.buffer_elements < 0:
                raise MalformedMessage(f"buffers of {message.buffer_elements} elements")
            case Ready() if site in (self._founders or ()) and site not in self._ready:
                self._ready.add(site)
                self._begin_if_all_ready(site, message.buffer_elements)
            case ExchangeRequest() if self._started_s is not None:
                self._go_on_without_departed(message.channel)
                if site in self._sessions:
                    self._follow(self.channels.request(site, message))
            case Holding():
                self._follow(self.channels.hold(site, message))
            case ExchangeEnded():
                self._exchange_ended(site, message)
            case SubgroupRequest() if self._started_s is not None:
                outcome = self.channels.subgroup(site, message.members)
                self._remember()
                self._follow(outcome)
            case Gather() if self._started_s is not None:
                self._go_on_without_departed(message.channel)
                if site in self._sessions:
                    self._follow(self.channels.gather(site, message))
            case ProceedRequest() if self._pacing is not None:
                seconds = message.compute_s
                if message.samples < 0 or not 0 <= seconds <= _LONGEST_S:
                    raise MalformedMessage(f"{message.samples} samples computed in {seconds} s")
                now_s = self._since_start_s()
                decisions = self._pacing.asked(
                    site, message.update, message.samples, seconds, now_s
                )
                self.note(
                    events.ProceedAsked(
                        at_s=now_s,
                        site=site,
                        update=message.update,
                        samples=message.samples,
                        compute_s=seconds,
                    )
                )
                self._tell_patience()
                self._act(decisions, now_s)
            case Came() if self._pacing is not None:
                if not self._pacing.is_void(message.epoch):
                    now_s = self._since_start_s()
                    self._act(self._pacing.came(site, message.worker, message.update, now_s), now_s)
            case Progress():
                self._follow(self.channels.progress(site, message, self._now_s()))
            case Measured():
                self._hear_measured(site, message)
            case TimeRequest():
                now_s = self._now_s()
                self._sessions[site].post(TimeReply(message.sent_s, now_s, now_s, 0.0))
            case Report():
                self.note(*reported(site, message.events))
            case Leave() if site not in self._left and self._started_s is not None:
                self._left.add(site)
                if self._pacing is not None and not self._pacing.is_over:
                    self.abort(
                        f"{self.name(site)} left before the run was over, and others may wait for "
                        "its updates; a worker goes on until there is no further one"
                    )
                    return
                if self._repairs is None:
                    self._follow(self.channels.leave(site))
                else:
                    self._departed.add(site)
                    self._remember()
                    for channel in self.channels.awaiting(site):
                        self._go_on_without_departed(channel)
                self._end_if_all_left()
            case Leave() if site in self._left and self._journal is not None:
                pass  # said again to a scheduler that was started again
            case LinkProbed() if self._repairs is not None:
                self._hear_probed(site, message)
            case RejoinAck() if message.site in self._newcomers:
                self._met_newcomer(site, message)
            case RejoinAck() if self._probes.is_healing(frozenset((site, message.site))):
                self._healed(frozenset((site, message.site)), site)
            case RejoinAck() if 0 <= message.site < self.overlay.size:
                pass  # it need not be waited for any more
            case CutOff():
                self._accuse(site, message)
            case Failed():
                self.abort(f"{self.name(site)} failed: {message.reason}")
            case Abort():
                asyncio.get_running_loop().call_later(_BLAME_S, self.abort, message.reason)
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__} from {self.name(site)}")

    def _hear_newcomer(self, site: int, message: AnyMessage) -> None:
        """Act on a message of one that is no member yet; whatever it does, the others go on."""
        match message:
            case Ready() if not self._newcomers.is_introduced(site):
                self._introduce(site, message.buffer_elements)
            case RejoinAck() if message.site in self._newcomers:
                self._met_newcomer(site, message)
            case Gather() if message.admits and self._newcomers.has_started(site):
                self._newcomers.asking.add(site)
            case TimeRequest():
                now_s = self._now_s()
                self._post(site, TimeReply(message.sent_s, now_s, now_s, 0.0))
            case Leave():
                self._post(site, Shutdown())
                self._forget_newcomer(site)
            case Failed() | Abort():
                self._forget_newcomer(site)
            case Report() | Measured() | RejoinAck() | LinkProbed() | CutOff():
                pass  # of no interest yet
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__} from {self.name(site)}")

    def _met_newcomer(self, site: int, message: RejoinAck) -> None:
        is_now = message.incarnation == self.members.incarnations[message.site]
        if is_now and self._newcomers.met(message.site, site):
            self._start_newcomer(message.site)

    def _introduce(self, site: int, buffer_elements: int) -> None:
        """Tell the neighbours of a newcomer where it is; it starts once they know."""
        if self._pacing is not None and buffer_elements != self._buffer_elements:
            self._sessions[site].post(
                Abort(f"{buffer_elements} elements, where this run has {self._buffer_elements}")
            )
            self._forget_newcomer(site)
            return
        incarnation, address = self.members.incarnations[site], self.members.address(site)
        others = {*self._sessions} - {site} - (self.lost - {*self._newcomers})
        link = self.overlay.link
        near = [other for other in sorted(others) if link(site, other) or link(other, site)]
        for other in near:
            self._post(other, Rejoined(site, incarnation, *address))
        if self._newcomers.introduce(site, near):
            self._start_newcomer(site)

    def _start_newcomer(self, site: int) -> None:
        """Let one begin: where the model is served, as a worker; else it has to be let in yet."""
        now_s = self._since_start_s()
        self._post(site, Patience(self._patience_s))
        self._post(site, Start(now_s))
        if self._pacing is not None:
            self._newcomers.forget(site)
            for past in (self.lost, self._accused, self._left):
                past.discard(site)
            self._write_joined(site, now_s)
            self._act(self._pacing.joined(site, now_s), now_s)
            if self._pacing.is_over:
                self._post(site, PaceOver())

    def _forget_newcomer(self, site: int) -> None:
        self._newcomers.forget(site)
        self._sessions.pop(site, None)
        self._need_not_know(site)

    def _let_in(self, number: int, holders: frozenset[int]) -> None:
        """Let in those that ask for it, as all members have said by a gathering."""
        holders = holders or frozenset({min(self.channels.members(0))})
        losses = self._losses.returned(self.overlay, self._newcomers.asking)
        sites = self._newcomers.asking - losses.lost
        if not sites:
            self._follow(self.channels.admit(number, (), holders, self.channels.all.plan))
            return
        now_s = self._since_start_s()
        self._losses = losses
        self._newcomers.forget(*sites)
        for past in (self.lost, self._accused, self._left, self._departed):
            past -= sites
        for site in sorted(sites):
            self._write_joined(site, now_s)
        plan = self._plan_for_the_rest()
        outcome = self.channels.admit(number, sites, holders, plan)
        self._remember()
        self._use(plan, f"{', '.join(map(self.name, sorted(sites)))} joined")
        self._follow(outcome)

    def _transferring(
        self, holders: Collection[int], receiver: int, elements: int, version: int
    ) -> list[tuple[int, Ranges, Plan]]:
        believed = self.overlay if self._awareness is None else self._awareness.made_for
        lost, cut = self._losses.lost, self._losses.cut
        return shares(believed, lost, cut, holders, receiver, elements, version)

    def _exchange_ended(self, site: int, message: ExchangeEnded) -> None:
        # The clock by which a scheduler that was started again knows the beginning may have jumped.
        longest_s = self._since_start_s() + _SLACK_S if self._is_first else _LONGEST_S
        if not 0 <= message.seconds <= longest_s:
            raise MalformedMessage(
                f"an exchange that took {message.seconds:g} s, in a run of "
                f"{self._since_start_s():.3g} s"
            )
        outcome = self.channels.ended(site, message)
        self._times.add((message.channel, message.number), message.seconds)
        self._tell_patience()
        if message.channel == 0:
            self.note(
                events.RoundDone(
                    at_s=self._since_start_s(),
                    site=site,
                    round=message.number,
                    version=message.version,
                    seconds=message.seconds,
                    checksum=message.checksum,
                    waited_for=message.waited_for,
                    tree=message.tree,
                )
            )
        self._follow(outcome)

    def _follow(self, outcome: Outcome) -> None:
        """Say and write down what follows from a message."""
        latest = self.channels.latest_exchange
        if self._journal is not None and (outcome.mended or latest >= self._reserved):
            self._remember()
        for site, message in outcome.say:
            self._post(site, message)
        for began in outcome.began:
            if not self._buffer_elements:
                self._buffer_elements = began.elements
                self._note_began(began.elements)
            if began.channel == 0:
                self.note(
                    events.RoundBegan(
                        at_s=self._since_start_s(),
                        round=began.number,
                        version=began.version,
                        site=began.site,
                    )
                )
            if self._replan_loop is not None:
                self._replan_loop.size_bytes = _ELEMENT_BYTES * self.channels.largest_elements
        for repaired in outcome.repaired:
            self.note(
                events.ExchangeRepaired(
                    at_s=self._since_start_s(),
                    channel=repaired.channel,
                    number=repaired.number,
                    members=list(repaired.members),
                    reduced_elements=repaired.reduced,
                    spread_elements=repaired.spread,
                    interrupted=repaired.interrupted,
                )
            )
        if outcome.wrong:
            self.abort(outcome.wrong)
        elif outcome.admission is not None:
            self._let_in(*outcome.admission)

    # --- who may proceed

    def _act(self, decisions: tuple[Decision, ...], now_s: float) -> None:
        assert self._pacing is not None
        if self._pacing.epoch > self._told_epoch:
            self._told_epoch = self._pacing.epoch
            self._broadcast(self._epoch_changed(self._pacing))
        for decision in decisions:
            self.note(*events_of(decision, now_s))
            advance = Advance(
                tuple(each.update for each in decision.applied),
                decision.discarded,
                tuple((each.worker, each.update) for each in decision.permissions if each.pulls),
            )
            if advance.apply or advance.discard or advance.pulls:
                for server in self._servers:
                    self._post(server, advance)
            for each in decision.permissions:
                self._post(each.worker, Proceed(each.update, each.samples, each.pulls))
        if decisions and self._pacing.is_over:
            self._tell_members(PaceOver())
        self._look_in_time(self._pacing.due_s)

    @staticmethod
    def _epoch_changed(pacing: PaceBook) -> EpochChanged:
        return EpochChanged(pacing.epoch, pacing.workers, pacing.under_way)

    def _look_in_time(self, due_s: float) -> None:
        if self._look_at_pace is not None:
            self._look_at_pace.cancel()
            self._look_at_pace = None
        if due_s < math.inf and not self._end.done():
            assert self._started_s is not None  # nothing is due before
            self._look_at_pace = asyncio.get_running_loop().call_at(
                self._started_s + due_s, self._look_at_pace_now
            )

    def _look_at_pace_now(self) -> None:
        assert self._pacing is not None
        self._look_at_pace = None
        # A timer may ring a little early; the pace is told the moment that it asked for.
        now_s = max(self._since_start_s(), self._pacing.due_s)
        self.note(events.PaceLooked(at_s=now_s))
        self._act(self._pacing.look(now_s), now_s)

    # --- what is known of the network

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _hear_measured(self, site: int, message: Measured) -> None:
        for rate in message.links:
            if self.overlay.link(rate.source, site) is None:
                raise OutOfPlaceMessage(f"{self.name(site)} measured a link from {rate.source}")
            slow, fast = _MEASURABLE_BPS
            latency_s = 0.0 if rate.latency_s is None else rate.latency_s
            if not slow <= rate.rate_bps <= fast or not 0 <= latency_s <= _LONGEST_S:
                raise MalformedMessage(f"{self.name(site)} measured {rate}")
            self.note(
                events.LinkMeasured(
                    at_s=self._since_start_s(),
                    site=site,
                    source=rate.source,
                    target=site,
                    rate_bps=rate.rate_bps,
                    latency_s=rate.latency_s,
                    chunks=rate.chunks,
                )
            )
            if self._awareness is not None:
                self._awareness.measured(rate.source, site, rate, self._since_start_s())

    def _since_start_s(self) -> float:
        return 0.0 if self._started_s is None else self._now_s() - self._started_s

    def _found(self, replan: Replan | None, paths: tuple[Path, ...]) -> None:
        """Go on with what a look at plans has found."""
        if self._end.done():
            return
        if replan is not None:
            self.channels.issue(replan.plan)
            self._remember()
            self.note(_plan_issued(replan, self._since_start_s()))
            self._auxiliary = replan.plan.version, _flat(replan.plan)  # they come with the plan
        if (self.channels.all.plan.version, paths) != self._auxiliary:
            self._auxiliary = self.channels.all.plan.version, paths
            self._broadcast(Auxiliary(*self._auxiliary))

    def _begin_if_all_ready(self, site: int, buffer_elements: int) -> None:
        if self._buffer_elements is None:
            self._buffer_elements, self._first_ready = buffer_elements, site
        if buffer_elements != self._buffer_elements:
            self.abort(
                f"{self.name(site)} would exchange {buffer_elements} elements, "
                f"{self.name(self._first_ready)} {self._buffer_elements}; give every site the same "
                "model"
            )
        elif self._founders is not None and self._ready >= self._founders:
            self._started_s = self._now_s()
            self._began_at_s = 0.0 if self._journal is None else self._journal.now_s()
            if self._awareness is not None:
                if self._repairs is not None and self.lost:  # those that have not come yet
                    plan = self.channels.all.plan
                    self._awareness.go_on(self._losses, plan, self._repairs.planner)
                self._begin_to_look(_ELEMENT_BYTES * buffer_elements)
            if buffer_elements:
                self._note_began(buffer_elements)
            self._remember()
            for site in self._ready:
                self._post(site, Start())
            if self._pacing is not None:
                now_s = self._since_start_s()
                self._act(self._pacing.begin(now_s), now_s)

    def _end_if_all_left(self) -> None:
        if len(self._left | self.lost) == self.overlay.size and not self._end.done():
            for missing in self._missing.values():
                missing.timer.cancel()
            self._missing.clear()
            for site, session in self._sessions.items():
                late = Abort("the group has ended, and did not let this site in")
                is_late = self._pacing is None and site in self._newcomers
                session.post(late if is_late else Shutdown())
            self._end.set_result(None)

    # --- who is there

    def resume(self, message: Resume, connection: Connection) -> int:
        """Go on with a site over another connection; return which.

        Raises:
            UnauthorisedPeer: not a site that takes part, or that does any more.
            OutOfPlaceMessage: it cannot have heard so many messages.
        """
        site = message.site
        if 0 <= site < self.overlay.size:
            expected = identity_of(self.overlay.sites[site].name)
            check_identity(connection.peer, connection.identity, expected)
        is_here = self.members.is_here(message, connection.challenge)
        if is_here and self._back is not None and self._back.awaits(site):
            self._sessions[site] = Session(connection)
            connection.post(Restarted())
            return site
        if not self._is_first and site not in self._sessions:
            raise UnauthorisedPeer(
                f"the scheduler was started again, and goes on without {connection.peer}, which "
                f"says it is site {site}; join again"
            )
        if not is_here or site not in self._sessions or self._founders is None:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is site {site} of this run, and does not prove it"
            )
        session = self._sessions[site]
        session.acknowledged(message.heard)
        if site in self._missing:
            self._missing.pop(site).timer.cancel()
        elif session.connection is not None:  # which it knows to be gone earlier than we do
            session.connection.close()
        connection.post(Resumed(session.heard))
        session.go_on(connection, message.heard)
        if not self._end.done():
            self.note(events.SiteResumed(at_s=self._since_start_s(), site=site))
        return site

    def closed(self, site: int, connection: Connection, error: Exception | None) -> None:
        """Take note that a connection of a site has ended."""
        session = self._sessions.get(site)
        if session is None or session.connection is not connection:
            return  # it goes on over another
        session.cut()
        if self._back is not None and not self._end.done():
            return  # it may come back, like all others
        when = self._when
        if self._end.done():
            if session.all_heard or self._end.exception() is not None:
                del self._sessions[site]
            if not self._sessions:
                self._all_gone.set()
        elif site in self._newcomers:
            self._forget_newcomer(site)
        elif site in self.lost:  # it has left, and is let go
            if session.all_heard:
                del self._sessions[site]
        elif self._founders is None:
            self._let_go(site, error)
        elif isinstance(error, PeerError):
            self._lose(site, f"{self.name(site)} broke the protocol {when}: {error}")
        elif error is not None and not isinstance(error, LinkError):
            what = f"{type(error).__name__}: {error}"
            self._lose(
                site, f"the scheduler failed on a message of {self.name(site)} {when}: {what}"
            )
        else:
            died = f"{self.name(site)} died {when}: {error}"
            if site in self._accused:
                self._lose(site, died, died=True)
            else:
                self.note(events.SiteCut(at_s=self._since_start_s(), site=site, detail=str(error)))
                self._miss(site, died)

    def _miss(self, site: int, why: str) -> None:
        """Give a site up that does not come back in time."""
        give_up = partial(self._lose, site, why, died=True)
        timer = asyncio.get_running_loop().call_later(self._patience_s + _SLACK_S, give_up)
        self._missing[site] = _Missing(timer, why)

    def _let_go(self, site: int, error: Exception | None) -> None:
        """Go on waiting for all to join, this one too."""
        del self._sessions[site]
        self.members.forget(site)
        self._write_lost(site, f"{self.name(site)} went before the run began: {error}", True, 0.0)

    @property
    def _when(self) -> str:
        """How far the run is, in words."""
        if self._pacing is not None and self._pacing.under_way:
            return f"in update {self._pacing.under_way}"
        latest = self.channels.all.latest
        return f"in round {latest}" if latest else "before the first round"

    def _accuse(self, site: int, cut: CutOff) -> None:
        """Hear that a lane has ended: if that neighbour's connection has ended too, it died."""
        if not 0 <= cut.neighbour < self.overlay.size:
            raise MalformedMessage(f"a lane to site {cut.neighbour}, which is not in the overlay")
        if cut.incarnation < self.members.incarnations[cut.neighbour]:
            return  # that one is known to have died
        self._accused.add(cut.neighbour)
        if cut.neighbour in self._missing:
            self._lose(cut.neighbour, self._missing[cut.neighbour].why, died=True)
        asyncio.get_running_loop().call_later(_BLAME_S, self._judge, site, cut)

    def _judge(self, site: int, cut: CutOff) -> None:
        """Go on without a lane that ended, or end the run; unless an end of it died and may."""
        gone = self.lost | (self._left - self._departed - self._losses.relays)
        if (
            self._end.done()
            or {site, cut.neighbour} & gone
            or cut.incarnation != self.members.incarnations[cut.neighbour]
        ):
            return
        pair = {(site, cut.neighbour), (cut.neighbour, site)}
        is_known = pair <= self._losses.cut  # as the other end has said so
        if not is_known and (
            self._repairs is None or not self._go_on_without(cut.reason, links=pair)
        ):
            self.abort(cut.reason)
            return
        # Both are there, so the link was to blame, and a connection that breaks later may come
        # back; but silence may take a little longer to be noticed here than there.
        forgive = partial(self._accused.difference_update, {site, cut.neighbour})
        asyncio.get_running_loop().call_later(self._patience_s + _SLACK_S, forgive)
        if not is_known:
            for here, there in pair:
                self._post(here, LinkCut(there))
            self._probe_later(frozenset((site, cut.neighbour)))

    def _probe_later(self, ends: frozenset[int]) -> None:
        """Look in a while whether links that were cut lead somewhere again; ever less often."""
        pause_s = self._probes.pause_s(ends)
        asyncio.get_running_loop().call_later(pause_s, self._probe, ends)

    def _probe(self, ends: frozenset[int]) -> None:
        one, other = ends
        is_there = ends <= self._sessions.keys() and not ends & self._left
        if self._end.done() or not is_there or (one, other) not in self._losses.cut:
            return
        self._probes.ask(ends)
        self._post(one, LinkProbe(other))
        self._post(other, LinkProbe(one))

    def _hear_probed(self, site: int, message: LinkProbed) -> None:
        ends = frozenset((site, message.neighbour))
        if not self._probes.is_asked(ends):
            raise OutOfPlaceMessage(f"{self.name(site)} tells of a probe that was not asked for")
        reach = self._probes.hear(ends, site, message.answers)
        if reach is None:
            return
        if not reach:
            self._probe_later(ends)
            return
        if not ends <= self._sessions.keys():
            return
        for here, there in permutations(ends, 2):
            incarnation, address = self.members.incarnations[there], self.members.addresses[there]
            self._post(here, Rejoined(there, incarnation, *address))
        self._probes.heal(ends)

    def _healed(self, ends: frozenset[int], site: int) -> None:
        """Use links again to which one end, and perhaps both, have opened."""
        if not self._probes.healed(ends, site):
            return
        self._losses = self._losses.healed([*permutations(ends, 2)])
        plan = self._plan_for_the_rest()
        self.channels.issue(plan)
        self._remember()
        names = " and ".join(map(self.name, sorted(ends)))
        self._use(plan, f"{names} reach each other again")

    def _use(self, plan: Plan, why: str) -> None:
        """Write down a plan that something lost or found again asked for; plan on from there."""
        self.note(
            events.PlanIssued(
                at_s=self._since_start_s(),
                version=plan.version,
                plan_json=plans.dumps(plan),
                why=why,
                changed=[],
                before_s=None,
                after_s=None,
            )
        )
        if self._auxiliary[1] or plan.auxiliary:  # before anything is repaired under this plan
            self._broadcast(Auxiliary(plan.version, _flat(plan)))
        self._auxiliary = plan.version, _flat(plan)
        if self._awareness is not None and self._replan_loop is not None:
            assert self._repairs is not None
            self._replan_loop.close()
            self._awareness.go_on(self._losses, plan, self._repairs.planner)
            self._begin_to_look(self._replan_loop.size_bytes)

    def _go_on_without(
        self,
        why: str,
        sites: Collection[int] = (),
        links: Collection[tuple[int, int]] = (),
        departed: Collection[int] = (),
    ) -> bool:
        """Plan without what is lost, and complete what is under way among those that are left.

        Returns:
            False where too few sites reach one another.
        """
        assert self._repairs is not None
        size = self.overlay.size
        losses = self._losses.further(self.overlay, sites, links, departed)
        if self._started_s is None or len(losses.members(size)) < self._repairs.least_sites:
            return False
        now_s = self._since_start_s()
        before, self._losses = self._losses, losses
        self.lost |= losses.lost
        for site in sorted(losses.lost - before.lost - {*sites}):
            if site in self._missing:
                self._missing.pop(site).timer.cancel()
            if site in self._left:  # it may have to connect again to hear that
                self.note(events.SiteLeft(at_s=now_s, site=site))
                self._post(site, Shutdown())
            else:
                reason = f"{self.name(site)} reaches the others no more: {why}"
                self._write_lost(site, reason, True, now_s)
                self._post(site, Abort(reason))
                self._sessions.pop(site, None)
            self._need_not_know(site)
        plan = self._plan_for_the_rest()
        outcome = self.channels.lose(before.members(size) - losses.members(size), plan)
        self._remember()
        self._use(plan, why)
        self._follow(outcome)
        self._end_if_all_left()
        return True

    def _plan_for_the_rest(self) -> Plan:
        assert self._repairs is not None
        believed = self.overlay if self._awareness is None else self._awareness.made_for
        version = self.channels.all.plan.version + 1
        return self._losses.plan(believed, version, self._repairs.planner)

    def _go_on_without_departed(self, channel: int) -> None:
        """Go on without sites that have left, as a member of their channel makes another call."""
        departed = self._departed & {*self.channels.members(channel)}
        if not departed or self._repairs is None:
            return
        self._departed -= departed
        names = ", ".join(map(self.name, sorted(departed)))
        if not self._go_on_without(f"{names} left", departed=departed):
            for site in departed:
                self._follow(self.channels.leave(site))

    def _begin_to_look(self, size_bytes: int) -> None:
        """Look at plans from now on."""
        assert self._awareness is not None
        assert self._started_s is not None
        self._replan_loop = ReplanLoop(
            self._awareness, size_bytes, self._started_s, self._found, self.abort
        )

    def _lose(self, site: int, why: str, died: bool = False) -> None:
        """Go on without a site, or end the run."""
        self._give_up(site, why, died)
        self._need_not_know(site)

    def _need_not_know(self, site: int) -> None:
        """Let newcomers begin that wait for nothing but that this one knows of them."""
        for newcomer in self._newcomers.gone(site):
            if not self._end.done():
                self._start_newcomer(newcomer)

    def _give_up(self, site: int, why: str, died: bool) -> None:
        del self._sessions[site]
        if site in self._missing:
            self._missing.pop(site).timer.cancel()
        now_s = self._since_start_s()
        if self._repairs is not None and self._pacing is None and not self._end.done():
            goes_on = self._go_on_without(why, sites={site})
            self._write_lost(site, why, goes_on, now_s)
            if not goes_on:
                self.abort(why)
            return
        goes_on = died and self._may_go_on_without(site)
        self._write_lost(site, why, goes_on, now_s)
        if self._pacing is not None and goes_on:
            self.lost.add(site)
            self._act(self._pacing.lost(site, now_s), now_s)
            self._end_if_all_left()
        else:
            self.abort(why)

    def _tell_patience(self) -> None:
        """Tell sites how long they may try to connect again, when that has changed enough."""
        now_s = self._times.patience_s
        if self._pacing is not None:
            now_s = max(now_s, self._pacing.times.patience_s)
        if not 1 / _CHANGE < now_s / self._patience_s < _CHANGE:
            self._patience_s = now_s
            self._broadcast(Patience(now_s))

    def _has_started(self, site: int) -> bool:
        return self._started_s is not None and site not in self._newcomers

    def _may_go_on_without(self, site: int) -> bool:
        return (
            site in self._dispensable
            and self._started_s is not None
            and bool(self._workers - self.lost - {site})
            and not self._end.done()
        )


def _plan_issued(replan: Replan, now_s: float) -> events.PlanIssued:
    return events.PlanIssued(
        at_s=now_s,
        version=replan.plan.version,
        plan_json=plans.dumps(replan.plan),
        why=replan.why,
        changed=[
            events.LinkChanged(
                source=change.source,
                target=change.target,
                was_bps=change.was_bps,
                now_bps=change.now_bps,
            )
            for change in replan.changed
        ],
        before_s=replan.before_s,
        after_s=replan.after_s,
    )


def _flat(plan: Plan) -> tuple[Path, ...]:
    return tuple(path for paths in plan.auxiliary.values() for path in paths)


@dataclass(frozen=True, slots=True)
class _Missing:
    """A site whose connection has broken: what gives it up, and the account of its death then."""

    timer: asyncio.TimerHandle
    why: str


class _FromSite:
    """Receives what one connection says; it must join first."""

    def __init__(self, scheduler: Scheduler, connection: Connection) -> None:
        self._scheduler = scheduler
        self._connection = connection
        self._site: int | None = None

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if self._site is not None:
            self._scheduler.hear(self._site, message)
        elif isinstance(message, Join):
            self._site = self._scheduler.join(message, self._connection)
            self._connection.trust()
        elif isinstance(message, Resume):
            self._site = self._scheduler.resume(message, self._connection)
            self._connection.trust()
        else:
            raise OutOfPlaceMessage(f"a {type(message).__name__} before Join")
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._scheduler.refused(self._site, error)
        self._connection.post(Refusal(type(error).__name__, str(error)))
        if self._site is None:
            self._connection.close()
        elif self._scheduler.is_newcomer(self._site):
            self._connection.close()  # which lets it go, and harms no other
        else:
            self._scheduler.abort(f"{self._scheduler.name(self._site)} broke the protocol: {error}")

    def on_closed(self, error: Exception | None) -> None:
        if self._site is not None:
            self._scheduler.closed(self._site, self._connection, error)
        elif isinstance(error, PeerError):
            self._scheduler.refused(None, type(error)(f"{self._connection.peer}: {error}"))
