"""The scheduler: the control plane of one run, composed of its parts.

This module makes the parts, passes each message of a site to the part that acts on it, and ends the
run at every site at once. `_beginning` begins the run, and `_overview` reports its state.
"""

from __future__ import annotations

import math
import secrets

from anabranch import plan as plans
from anabranch.log import events
from anabranch.log.status import Status
from anabranch.net.deadline import after, within
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage, PeerError, UnauthorisedPeer
from anabranch.net.frames import DISCARD, Sink
from anabranch.net.messages import (
    Abort,
    Ack,
    Agreed,
    AnyMessage,
    AskAhead,
    BurstsOver,
    CaughtUp,
    CutOff,
    ExchangeEnded,
    ExchangeRequest,
    Failed,
    Gather,
    Holding,
    Join,
    LeaseEnded,
    Leave,
    LinkProbed,
    Measured,
    ModelDigest,
    ProceedRequest,
    Progress,
    Ready,
    Reformed,
    Refusal,
    RejoinAck,
    Report,
    Resume,
    Silent,
    Stack,
    StatusRequest,
    Stopping,
    SubgroupRequest,
    TimeReply,
    TimeRequest,
    Unfit,
    UpdateReceived,
)
from anabranch.net.network import Address, Connection, Listener, Network, Receiver
from anabranch.net.refusals import RefusalLimit
from anabranch.net.session import Session
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.scheduler import memory as memories
from anabranch.scheduler._admission import Admission
from anabranch.scheduler._answers import Answers
from anabranch.scheduler._beginning import Beginning
from anabranch.scheduler._channels import Channels
from anabranch.scheduler._cut_links import BLAME_S, CutLinks
from anabranch.scheduler._journal_keeper import JournalKeeper
from anabranch.scheduler._members import Members
from anabranch.scheduler._outcomes import Outcomes
from anabranch.scheduler._overview import Overview
from anabranch.scheduler._patience import RoundTimes
from anabranch.scheduler._planning import Planners, Planning
from anabranch.scheduler._presence import Presence
from anabranch.scheduler._reports import reported
from anabranch.scheduler._resumption import Resumption
from anabranch.scheduler._stopping import StoppingLog
from anabranch.scheduler._survivors import Survivors
from anabranch.scheduler.awareness import Awareness
from anabranch.scheduler.calls._dealing import Chunking, Dispatching
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.dependence import dispensable
from anabranch.scheduler.losses import Repairs
from anabranch.scheduler.membership._life import Happens, Stage
from anabranch.scheduler.memory import Journal
from anabranch.scheduler.pacing import PaceBook
from anabranch.scheduler.reforming import Reforming
from anabranch.scheduler.run import Log, Run
from anabranch.scheduler.served_pace import LastTo, ServedPace
from anabranch.scheduler.stop_rules import Stops


class Scheduler:
    """One run's control plane.

    Args:
        network: where sites connect.
        overlay: the sites and links of the run.
        plan: the first plan.
        token: the shared secret that a site must prove to know.
        work: passed to every site unchanged.
        chunking: returns the most elements of a chunk.
        log: takes the events of the run.
        awareness: plans again for measured links; None keeps the first plan.
        dispatching: how chunks are dispatched during an exchange; None deals all beforehand, by
            share.
        pacing: the books of a served model, held by the plan's roots; None where sites all-reduce.
        most_bytes: the most bytes of buffers in exchanges under way at once.
        least_sites: for a served model: the run ends with fewer sites left. Where sites all-reduce,
            ``repairs`` has this number and the next one.
        begin_with: for a served model: the number of sites to begin with; None for all.
        last_to: the workers that get the served model once no step follows.
        repairs: how all-reduces continue after a loss; None if a loss ends the run.
        journal: keeps the record for a restart, if there are repairs. None for a run that ends with
            its scheduler.
        reforming: finds other groups, where workers move in groups; None keeps the first groups.
        errors_end: whether a site that fails by its own error ends the run. Otherwise it is lost
            like a site that died.
        planners: return the planner for buffers of so many elements, if each order of size has its
            own plan; None uses one plan for all.
        stops: applies the run's stop rules; None for none.

    Attributes:
        overlay: see above.
        members: the sites that have joined.
        channels: the calls that they make.
        presence: lets sites join and resume, and acts on connections that end.
        overview: reports the state of the run.
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
        least_sites: int = 1,
        begin_with: int | None = None,
        last_to: LastTo = "none",
        repairs: Repairs | None = None,
        journal: Journal | None = None,
        reforming: Reforming | None = None,
        errors_end: bool = True,
        planners: Planners | None = None,
        stops: Stops | None = None,
        leases: bool = False,
    ) -> None:
        written = b"" if journal is None else journal.load() or b""
        memory = memories.read(written) if written else None
        if memory is not None:
            memory.check_fits(overlay, work)
            plan = plans.loads(memory.plan_json)
        plan.check_fits(overlay)
        is_restart = memory is not None
        self._network = network
        self._repairs = repairs
        self._errors_end = errors_end
        self._journal = journal
        self._listener: Listener
        self._listens_at = None if memory is None else memory.listen
        self.overlay = overlay
        self._refusals = RefusalLimit()

        secret = secrets.token_bytes(32) if memory is None else memory.secret
        self.members = Members(overlay, token, secret)
        self.channels = Channels(
            self.name,
            overlay.size,
            plan,
            most_bytes,
            chunking,
            dispatching,
            repairs is not None,
            lambda holders, receiver, elements, version: self.planning.transfer(
                holders, receiver, elements, version
            ),
            by_size=planners is not None,
            returns_early=repairs is not None and repairs.returns_early,
            leases=leases,
        )
        self._gossips = stops is not None and stops.gossips
        if stops is not None:
            log = StoppingLog(log, stops, self.since_start_s, self._stop_by_rule)
            self.channels.books.tells_last |= repairs is None and not stops.refuses
            if stops.rounds is not None:
                self.channels.bound(stops.rounds, stops.rounds_over())
        times = RoundTimes()
        all_times = [times] if pacing is None else [times, pacing.times]
        self._run = run = Run(overlay, self.members, self.channels, log, all_times)
        self._answers = Answers(run)
        self._keeper = keeper = JournalKeeper(
            run, work, journal, secret, written, memory, awareness
        )
        planner = None if repairs is None else repairs.planner
        self._pace: ServedPace | None = None
        if pacing is not None:
            self._pace = ServedPace(
                run,
                pacing,
                dispensable(plan, pacing),
                plan,
                reforming,
                least_sites,
                begin_with,
                last_to,
            )
        form_groups = self._pace.found if self._pace is not None and reforming else None
        self.planning = planning = Planning(
            run, plan, awareness, planner, planners, keeper.remember, form_groups
        )
        self._admission = Admission(run, planning, self._pace, keeper.remember)
        self._outcomes = Outcomes(run, planning, keeper, times, self._admit, is_restart)
        self._survivors = Survivors(
            run,
            repairs,
            planning,
            self._pace,
            self._admission,
            self._outcomes.follow,
            keeper.remember,
            lambda: self._beginning.if_all_ready(),
        )
        self._cut_links = CutLinks(run, planning, self._survivors)
        self.presence = Presence(
            run,
            work,
            repairs,
            planning,
            self._pace,
            self._admission,
            self._survivors,
            is_restart,
        )
        self._beginning = Beginning(run, planning, keeper, self._pace, self.presence)
        self.overview = Overview(run, planning, self._pace)
        self._resumption: Resumption | None = None
        if memory is not None:
            self._resumption = Resumption(
                run,
                memory,
                keeper.since_began_s(),
                planning,
                self._survivors,
                self._cut_links,
                self.presence,
                self._outcomes.follow,
                self._hear,
            )

    def _admit(self, number: int, holders: frozenset[int]) -> Outcome:
        """Admit newcomers, and cut the links over which they lost lanes before that."""
        run = self._run
        apart = run.introductions.apart
        outcome = self._admission.admit(number, holders)
        cut = {frozenset(pair) for pair in run.losses.cut}
        for ends in apart & cut:
            if ends <= run.losses.members(self.overlay.size):
                self._cut_links.close(ends)
        return outcome

    # --- for the process that runs it

    async def listen(self, address: Address) -> Address:
        """Listen for sites; return the address, which a restart with port 0 does not change."""
        if self._listens_at is not None and not address[1]:
            address = self._listens_at
        self._listener = await self._network.listen(address, self._welcome)
        self._keeper.listens_at = self._listener.address
        return self._listener.address

    def _welcome(self, connection: Connection) -> Receiver:
        return _FromSite(self, connection)

    async def finished(self) -> None:
        """Return when every site has finished.

        Raises:
            RunAborted: the run ended early; names the cause.
            Abandoned: see ``abandon``.
        """
        try:
            await self._run.end
        finally:
            self.planning.close()
            if self._pace is not None:
                self._pace.stop_looking()

    async def close(self) -> None:
        """Close all connections, after a short wait for sites that have not heard the end yet."""
        run = self._run
        if run.is_over and not run.has_failed and run.sessions:
            try:
                async with within(run.give_up_s):
                    await self.presence.all_gone.wait()
            except TimeoutError:
                pass  # these sites are gone; a live one will report that it finds no scheduler
        self._listener.close()
        for session in run.sessions.values():
            if session.connection is not None:
                session.connection.close()

    @property
    def is_over(self) -> bool:
        """Whether the run has ended, well or not."""
        return self._run.is_over

    @property
    def lost(self) -> frozenset[int]:
        """The sites that have died or are out of reach, and that the run continues without."""
        return self._run.lives.lost

    def status(self) -> Status:
        """Return the state of the run."""
        return self.overview.status()

    def name(self, site: int) -> str:
        """Return a site's index and name, for error messages."""
        return self._run.name(site)

    def note(self, *happened: events.Event) -> None:
        """Write events to the log; if that fails, the run ends and nothing more is written."""
        self._run.note(*happened)

    @property
    def stopped(self) -> str | None:
        """Why the run is to end before its last round, or None."""
        return self._run.stopped

    def abort(self, reason: str) -> None:
        """End the run everywhere; only the first reason counts."""
        self._run.abort(reason)

    def abandon(self) -> None:
        """Stop, and leave the sites to a scheduler that is restarted with the same journal."""
        self._run.abandon()

    def since_start_s(self) -> float:
        """Return seconds since the run began; 0 before."""
        return self._run.since_start_s()

    def _answered(self, outcome: Outcome) -> None:
        """Act on the outcome of a request; a refused exchange ends the run by its stop rule."""
        self._outcomes.follow(outcome)
        if outcome.over:
            self._stop_by_rule(outcome.over)

    def _stop_by_rule(self, reason: str) -> None:
        if self.stopped is None and not self.is_over:
            self.note(events.RunStopping(at_s=self.since_start_s(), reason=reason))
            (self.stop_gossip if self._gossips else self.stop)(reason)

    def stop(self, reason: str) -> None:
        """Grant no further round; the run then ends in good order. Only the first reason counts."""
        run = self._run
        if run.stopped is None and not run.is_over:
            run.stopped = reason
            if run.returning is None:  # else `_resumption` does it, once sites have reported calls
                self._outcomes.follow(self.channels.close(reason))
            self._keeper.remember()
            if self._pace is not None:
                self._pace.book.close()

    def stop_gossip(self, reason: str) -> None:
        """Tell gossiping sites to make no further step; the run then ends in good order."""
        if self.stopped is None and not self._run.is_over:
            self._run.stopped = reason
            self._run.broadcast(Stopping())

    # --- messages of sites

    def answer(self, request: StatusRequest, connection: Connection) -> None:
        """Answer a status request: see :meth:`anabranch.scheduler._answers.Answers.answer`."""
        self._answers.answer(request, connection, self.status())

    def refused(self, site: int | None, error: PeerError) -> None:
        """Write down that a message was refused."""
        run = self._run
        told = error if site is not None else self._refusals.admit(error, run.now_s())
        if told is not None and not run.is_over:
            run.note(
                events.MessageRefused(
                    at_s=run.since_start_s(),
                    site=None,
                    sender=site,
                    error=type(told).__name__,
                    detail=str(told),
                )
            )

    def hear(self, site: int, message: AnyMessage) -> None:
        """Act on a message from a site that has joined."""
        session = self._run.sessions.get(site)
        if session is None:
            return  # a newcomer that was turned away: its last messages count for nothing
        if isinstance(message, Ack):
            session.acknowledged(message.count)
            return
        session.count()
        self._hear(site, message)

    def _hear(self, site: int, message: AnyMessage) -> None:
        run = self._run
        if run.is_over:
            return  # the outcome of the run is decided
        if run.returning is not None:
            assert self._resumption is not None
            self._resumption.hear(site, message)
            return
        if run.lives[site] == Stage.GONE:
            return  # an excluded site: its session lasts only until it has heard that it may end
        self.planning.look_in_time()
        if run.is_newcomer(site) and not isinstance(message, Reformed):
            self._admission.hear(site, message)
            self.presence.bear(site)
            return
        match message:
            case Ready() if message.buffer_elements < 0:
                raise MalformedMessage(f"buffers of {message.buffer_elements} elements")
            case Ready() if run.lives.may(site, Happens.IS_READY):
                run.lives.happens(Happens.IS_READY, site)
                self.presence.bear(site)
                if self._pace is not None:
                    self._pace.holds(site, message.samples)
                self._beginning.take_size(site, message.buffer_elements)
            case ExchangeRequest() if run.started_s is not None:
                self._survivors.exclude_departed(message.channel)
                if site in run.sessions:
                    self._answered(self.channels.request(site, message))
            case AskAhead() if run.started_s is not None:
                # A request ahead of a call excludes no departed site: the call may never come, and
                # the others may still need the site's lanes.
                if not self._survivors.departed_of(message.channel):
                    self._answered(self.channels.ask_ahead(site, message))
            case Unfit() if run.started_s is not None:
                self._outcomes.follow(self.channels.refuse(site, message))
            case ModelDigest() if run.started_s is not None:
                self.channels.hear_model(site, message)
            case Holding():
                self._outcomes.held(site, message)
            case LeaseEnded():
                self._outcomes.follow(self.channels.lease_ended(site, message.channel))
            case ExchangeEnded():
                self._outcomes.ended(site, message)
            case SubgroupRequest() if run.started_s is not None:
                asked = message.members, message.name, message.without
                outcome = self.channels.subgroup(site, *asked)
                self._keeper.remember()
                self._outcomes.follow(outcome)
            case Gather() if run.started_s is not None:
                self._survivors.exclude_departed(message.channel)
                if site in run.sessions:
                    self._outcomes.follow(self.channels.gather(site, message))
            case CaughtUp() if self._repairs is not None:
                self._admission.in_step(site, message)
            case ProceedRequest() if self._pace is not None:
                self._pace.asked(site, message)
            case UpdateReceived() if self._pace is not None:
                self._pace.came(site, message)
            case Agreed() if self._pace is not None:
                self._pace.agreed(site, message)
            case Reformed() if self._pace is not None:
                self._pace.reformed(site, message)
            case Stack():
                self._answers.told(message, self.status())
            case Progress():
                self._outcomes.follow(self.channels.progress(site, message, run.now_s()))
            case Measured():
                self.planning.measurements.hear(site, message)
            case BurstsOver():
                self.planning.bursts.over(site)
            case TimeRequest():
                now_s = run.now_s()
                run.post(site, TimeReply(message.sent_s, now_s, now_s, 0.0))
            case Report():
                run.note(*reported(site, message.events))
            case Leave() if run.lives.may(site, Happens.DEPARTS):
                self._survivors.leave(site)
            case Leave() if site in run.lives.left and self._journal is not None:
                pass  # repeated to a restarted scheduler
            case LinkProbed() if self._repairs is not None:
                self._cut_links.probed(site, message)
            case RejoinAck() if self._admission.is_newcomer(message.site):
                self._admission.acknowledged(site, message)
            case RejoinAck() if self._cut_links.is_healing(site, message):
                self._cut_links.healed(site, message)
            case RejoinAck() if 0 <= message.site < self.overlay.size:
                pass  # a late acknowledgement of a newcomer that has started or is gone
            case CutOff():
                self._cut_links.accuse(site, message)
            case Silent() if self._repairs is not None:
                self._cut_links.silent(site, message)
            case Failed():
                self._failed(site, f"{run.name(site)} failed: {message.reason}")
            case Abort():
                after(BLAME_S, self._end_for, site, run.sessions.get(site), message.reason)
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__} from {run.name(site)}")

    def _end_for(self, site: int, session: Session | None, why: str) -> None:
        """End the run at a site's request, unless the site is lost by now, and its reason too."""
        run = self._run
        if site in run.lives.lost or run.sessions.get(site) is not session:
            return
        if site in run.missing:  # its own end may be the reason: wait until that is known
            after(BLAME_S, self._end_for, site, session, why)
        else:
            run.abort(why)

    def _failed(self, site: int, why: str) -> None:
        """Continue without a site that failed by its own error, or end the run."""
        run = self._run
        if self._errors_end:
            run.abort(why)
        elif not run.lives.has_formed:
            self.presence.drop(site, why)
        else:
            run.post(site, Abort(why, goes_on=True))  # its other threads may still wait for calls
            self._survivors.lose(site, why, died=True)


class _FromSite:
    """Receives the messages of one connection; Join or Resume has to be the first."""

    def __init__(self, scheduler: Scheduler, connection: Connection) -> None:
        self._scheduler = scheduler
        self._connection = connection
        self._site: int | None = None

    def on_message(self, message: AnyMessage, payload_bytes: int) -> Sink:
        if self._site is not None:
            self._scheduler.hear(self._site, message)
        elif isinstance(message, Join):
            self._site = self._scheduler.presence.join(message, self._connection)
            self._connection.trust()
        elif isinstance(message, Resume):
            self._site = self._scheduler.presence.resume(message, self._connection)
            self._connection.trust()
        elif isinstance(message, StatusRequest):
            self._scheduler.answer(message, self._connection)
        elif isinstance(message, Refusal):
            raise UnauthorisedPeer(
                f"{self._connection.peer} does not take this process for a scheduler: "
                f"{message.detail}"
            )
        else:
            raise OutOfPlaceMessage(f"a {type(message).__name__} before Join")
        return DISCARD

    def on_refused(self, message: AnyMessage, error: PeerError) -> None:
        self._scheduler.refused(self._site, error)
        self._connection.post(Refusal(type(error).__name__, str(error)))
        self._connection.close()
        if self._site is not None:
            self._scheduler.presence.closed(self._site, self._connection, error)

    def on_closed(self, error: Exception | None) -> None:
        if self._site is not None:
            self._scheduler.presence.closed(self._site, self._connection, error)
        elif isinstance(error, PeerError):
            self._scheduler.refused(None, type(error)(f"{self._connection.peer}: {error}"))
