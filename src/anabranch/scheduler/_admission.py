"""How a newcomer becomes a member: a site that joins after the run has begun.

::

    newcomer              scheduler                 neighbours and members
    Join, Ready ───────▶  introduced ── Rejoined ─▶ (each opens lanes to the new process)
                                     ◀─ RejoinAck ─
              ◀─ Start ─  started
    Gather(admits) ────▶  asking                 ◀─ Gather(admits) of every member
           ◀─ Admitted ─  member     ── Admitted ─▶
    CaughtUp ──────────▶  in step: it gets a full place in the next plan

- **Introduction comes first**, because a neighbour refuses lanes of a process that it does not
  know. A newcomer starts once each neighbour has acknowledged it, or is gone itself.
- **Where the model is served**, a started newcomer is a worker, and the pace lets it join.
- **Where sites all-reduce**, the members admit newcomers by a gathering, at one place in the order
  of their calls. Members that have the state of training then hand it on, and the newcomer follows
  their exchanges without contributing until it is in step.

What must never happen:

- a newcomer is admitted while exchanges are under way: their sums and plans lack it;
- a failure of a newcomer ends the run;
- a newcomer becomes a member over lanes that have ended (their links are cut at its admission, and
  a newcomer without others is turned away).

The stages are in :mod:`anabranch.scheduler.membership._life`, and the acknowledgements that are
still awaited in :mod:`anabranch.scheduler._newcomers`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

from anabranch.log import events
from anabranch.net.errors import MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import (
    Abort,
    AnyMessage,
    CaughtUp,
    CutOff,
    Failed,
    Gather,
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
    """Introduces, starts and admits newcomers.

    Args:
        run: the run that they join.
        planning: plans for all members after an admission.
        pace: of the served model; None where sites all-reduce.
        remember: writes the journal.
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
        """Act on a newcomer's message; none of them can end the run."""
        match message:
            case Ready() if self._run.lives.may(site, Happens.IS_INTRODUCED):
                self._introduce(site, message.buffer_elements)
            case RejoinAck() if self.is_newcomer(message.site):
                self.acknowledged(site, message)
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
                self._run.post(site, message)  # the site waits for its own abort, or for a cause
                self.forget(site)
            case CutOff() if 0 <= message.neighbour < self._run.overlay.size:
                incarnations = self._run.members.incarnations
                if message.incarnation == incarnations[message.neighbour]:
                    self._introductions.lane_ended(site, message.neighbour)
            case Report() | Measured() | RejoinAck() | LinkProbed() | Silent():
                pass  # only members' measurements and complaints count
            case _:
                raise OutOfPlaceMessage(f"a {type(message).__name__} from {self._run.name(site)}")

    def _failed(self, site: int, reason: str) -> None:
        """Forget a newcomer that failed by its own error, and log the reason.

        Otherwise the log would not show a site that fails at each restart.
        """
        run = self._run
        if self._pace is None:
            why = f"{run.name(site)} failed before it was let in: {reason}"
            run.write_lost(site, why, True, run.since_start_s())
        self.forget(site)

    def is_newcomer(self, site: int) -> bool:
        """Return whether this is a site that has joined and is no member yet."""
        return 0 <= site < self._run.overlay.size and self._run.is_newcomer(site)

    def acknowledged(self, site: int, message: RejoinAck) -> None:
        """Note that a site knows the address of a newcomer; start the newcomer if all do."""
        is_now = message.incarnation == self._run.members.incarnations[message.site]
        if is_now and self._introductions.acknowledged(message.site, site):
            self._start(message.site)

    def forget(self, site: int) -> None:
        """Remove a newcomer that ended before its admission."""
        self._run.lives.happens(Happens.ENDS_EARLY, site)
        self._introductions.forget(site, self._run.lives.newcomers)
        self._run.forget_process(site)
        self._run.sessions.pop(site, None)
        self.need_not_know(site)

    def need_not_know(self, site: int) -> None:
        """Await no acknowledgement of a site that is gone; start newcomers that need no other."""
        for newcomer in self._introductions.gone(site):
            if not self._run.is_over:
                self._start(newcomer)

    def admit(self, number: int, holders: frozenset[int]) -> Outcome:
        """Admit the newcomers that ask for it, since all members have gathered to admit.

        Args:
            number: of the gathering.
            holders: members that have the state of training; none at a group's first gathering.
        """
        run = self._run
        follow = bool(holders)  # newcomers follow while the holders hand the state on
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
        """Make a newcomer a member."""
        run = self._run
        run.lives.happens(Happens.IS_ADMITTED, site)
        self._introductions.forget(site, run.lives.newcomers)
        run.write_joined(site, now_s)

    def in_step(self, site: int, message: CaughtUp) -> None:
        """Note that a following member is in step: it contributes to exchanges from now on."""
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
        self._planning.issue(plan)
        self._planning.use(plan, f"{run.name(site)} is in step")

    def _introduce(self, site: int, buffer_elements: int) -> None:
        """Tell the neighbours of a newcomer its address; it starts once all know it."""
        run = self._run
        # First, since a neighbour may still be sending the last model to the site's past process.
        if self._is_turned_away(site):
            return
        if self._pace is not None and buffer_elements != run.buffer_elements:
            reason = f"{buffer_elements} elements, where this run has {run.buffer_elements}"
            self._turn_away(site, reason)
            return
        incarnation, address = run.members.incarnations[site], run.members.addresses[site]
        others = {*run.sessions} - {site} - (run.lives.lost - run.lives.newcomers)
        link = run.overlay.link
        near = [other for other in sorted(others) if link(site, other) or link(other, site)]
        for other in near:
            run.post(other, Rejoined(site, incarnation, *address))
        run.lives.happens(Happens.IS_INTRODUCED, site)
        if self._introductions.introduce(site, near):
            self._start(site)

    def _is_turned_away(self, site: int) -> bool:
        """Turn away a worker that has no updates to make or no way to the model; return whether."""
        if self._pace is None:
            return False
        if self._pace.is_closed:
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
        """Start a newcomer; where the model is served it is a member at once, as a worker."""
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
