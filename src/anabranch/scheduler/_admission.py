"""The conversation with newcomers: sites that join a run which goes on, until they are let in.

They are introduced to their neighbours first. Where the model is served, they then are workers;
where sites all-reduce, members let them in by a gathering. How far each is, is in
:mod:`anabranch.scheduler._newcomers`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

from anabranch.log import events
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import (
    Abort,
    AnyMessage,
    CutOff,
    Failed,
    Gather,
    InStep,
    Leave,
    LinkProbed,
    Measured,
    Patience,
    Ready,
    RejoinAck,
    Rejoined,
    Report,
    Silent,
    Start,
    TimeReply,
    TimeRequest,
)
from anabranch.scheduler._planning import Planning
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.membership._life import Happens, Stage
from anabranch.scheduler.run import Run
from anabranch.scheduler.served_pace import ServedPace

_MOST_SAID = 200  # characters


class Admission:
    """Introduces newcomers, lets them begin, and lets them in.

    Args:
        run: which they join.
        planning: plans for those who are there.
        pace: of the served model; None where sites all-reduce.
        remember: writes down what a restart needs.
    """

    def __init__(
        self,
        run: Run,
        planning: Planning,
        pace: ServedPace | None,
        remember: Callable[[], None],
    ) -> None:
        self._run = run
        self._introductions = run.introductions
        self._planning = planning
        self._pace = pace
        self._remember = remember

    def hear(self, site: int, message: AnyMessage) -> None:
        """Act on a message of one that is no member yet; whatever it does, the others go on."""
        match message:
            case Ready() if self._run.lives.may(site, Happens.IS_INTRODUCED):
                self._introduce(site, message.buffer_elements)
            case RejoinAck() if self.is_newcomer(message.site):
                self.met(site, message)
            case Gather() if message.admits and self._run.lives.may(site, Happens.ASKS):
                self._run.lives.happens(Happens.ASKS, site)
            case TimeRequest():
                now_s = self._run.now_s()
                self._run.post(site, TimeReply(message.sent_s, now_s, now_s, 0.0))
            case Leave():
                self._run.dismiss(site)
                self.forget(site)
            case Failed():
                self._failed(site, message.reason)
            case Abort():
                self._run.post(site, message)  # it waits for this, or a word of who is to blame
                self.forget(site)
            case CutOff() if 0 <= message.neighbour < self._run.overlay.size:
                incarnations = self._run.members.incarnations
                if message.incarnation == incarnations[message.neighbour]:
                    self._introductions.parted(site, message.neighbour)
            case Report() | Measured() | RejoinAck() | LinkProbed() | Silent():
                pass  # of no interest yet
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__} from {self._run.name(site)}")

    def _failed(self, site: int, reason: str) -> None:
        """Forget a newcomer that an error of its own has ended, and say why.

        Otherwise a site that is started again and fails each time would do so without a word here.
        """
        run = self._run
        if self._pace is None:
            why = f"{run.name(site)} failed before it was let in: {reason}"
            run.write_lost(site, why, True, run.since_start_s())
        self.forget(site)

    def is_newcomer(self, site: int) -> bool:
        """Return whether this is a site that has joined and is no member yet."""
        return 0 <= site < self._run.overlay.size and self._run.is_newcomer(site)

    def met(self, site: int, message: RejoinAck) -> None:
        """Hear that a site knows where a newcomer is."""
        is_now = message.incarnation == self._run.members.incarnations[message.site]
        if is_now and self._introductions.met(message.site, site):
            self._start(message.site)

    def forget(self, site: int) -> None:
        """Take note that a newcomer is gone."""
        self._run.lives.happens(Happens.IS_FORGOTTEN, site)
        self._introductions.forget(site, self._run.lives.newcomers)
        self._run.forget_process(site)
        self._run.sessions.pop(site, None)
        self.need_not_know(site)

    def need_not_know(self, site: int) -> None:
        """Let newcomers begin that wait for nothing but that this one knows of them."""
        for newcomer in self._introductions.gone(site):
            if not self._run.is_over:
                self._start(newcomer)

    def let_in(self, number: int, holders: frozenset[int]) -> Outcome:
        """Let in those that ask for it, as all members have said by a gathering.

        Args:
            number: of the gathering.
            holders: members that have the state of training; none at a group's first gathering.
        """
        run = self._run
        follow = bool(holders)  # those that have the state go on while they hand it on
        holders = holders or frozenset({min(run.channels.books.members(0))})
        apart = {(a, b) for ends in self._introductions.apart for a, b in permutations(ends, 2)}
        asking, cut = run.lives.sites(Stage.ASKING), run.members.out_of_reach | apart
        losses = run.losses.returned(run.overlay, asking, cut)
        sites = asking - losses.lost
        for site in sorted(asking - sites):
            if any(site in ends for ends in apart):
                self._turn_away(site, "its lanes to the others ended before it was let in")
        if not sites or run.channels.is_busy:
            return run.channels.admit(number, (), holders, run.channels.all.plan, follow)
        now_s = run.since_start_s()
        run.losses = losses
        for site in sorted(sites):
            self._take_in(site, now_s)
        plan = self._planning.for_the_rest(sites if follow else ())
        outcome = run.channels.admit(number, sites, holders, plan, follow)
        self._remember()
        self._planning.use(plan, f"{', '.join(map(run.name, sorted(sites)))} joined")
        return outcome

    def _take_in(self, site: int, now_s: float) -> None:
        """Let a newcomer be a member."""
        run = self._run
        run.lives.happens(Happens.IS_LET_IN, site)
        self._introductions.forget(site, run.lives.newcomers)
        run.write_joined(site, now_s)

    def in_step(self, site: int, message: InStep) -> None:
        """Hear that a member that has followed takes part like any other from now on."""
        run = self._run
        if message.kept < 0 or len(message.why) > _MOST_SAID:
            raise MalformedMessage(f"{run.name(site)} is in step with {message.kept} calls kept")
        if site not in run.channels.following.sites | self._planning.leaves:
            return
        run.channels.following.sites.discard(site)
        run.note(
            events.SiteInStep(
                at_s=run.since_start_s(), site=site, kept=message.kept, why=message.why
            )
        )
        plan = self._planning.for_the_rest()
        run.channels.books.issue(plan)
        self._remember()
        self._planning.use(plan, f"{run.name(site)} is in step")

    def _introduce(self, site: int, buffer_elements: int) -> None:
        """Tell the neighbours of a newcomer where it is; it starts once they know."""
        run = self._run
        if self._is_turned_away(site):  # a neighbour may be sending its past process the last model
            return
        if self._pace is not None and buffer_elements != run.buffer_elements:
            reason = f"{buffer_elements} elements, where this run has {run.buffer_elements}"
            self._turn_away(site, reason)
            return
        incarnation, address = run.members.incarnations[site], run.members.address(site)
        others = {*run.sessions} - {site} - (run.lives.lost - run.lives.newcomers)
        link = run.overlay.link
        near = [other for other in sorted(others) if link(site, other) or link(other, site)]
        for other in near:
            run.post(other, Rejoined(site, incarnation, *address))
        run.lives.happens(Happens.IS_INTRODUCED, site)
        if self._introductions.introduce(site, near):
            self._start(site)

    def _is_turned_away(self, site: int) -> bool:
        """Turn a worker away that cannot take part; return whether that is so."""
        if self._pace is None:
            return False
        if self._pace.takes_nobody:
            self._turn_away(site, "the others have made all their updates")
            return True
        if missing := self._pace.awaits(site):
            names = ", ".join(map(self._run.name, sorted(missing)))
            self._turn_away(
                site,
                f"{self._run.name(site)} does not reach the model without what is lost ({names}); "
                "let it join again later",
            )
            return True
        return False

    def _turn_away(self, site: int, reason: str) -> None:
        self._run.sessions[site].post(Abort(reason, goes_on=True))
        self.forget(site)

    def _start(self, site: int) -> None:
        """Let one begin: where the model is served, as a worker; else it has to be let in yet."""
        run = self._run
        if self._is_turned_away(site):
            return
        now_s = run.since_start_s()
        run.post(site, Patience(run.patience_s))
        run.post(site, Start(now_s))
        run.lives.happens(Happens.STARTS, site)
        if self._pace is not None:
            self._take_in(site, now_s)
            self._pace.joined(site, now_s)
