"""A scheduler that was started again with its journal: how it finds its group, and goes on."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.log import events
from anabranch.net.deadline import after
from anabranch.net.messages import Abort, AnyMessage, CutOff, Patience, Standing
from anabranch.net.session import Session
from anabranch.scheduler._cut_links import CutLinks
from anabranch.scheduler._planning import Planning
from anabranch.scheduler._presence import Presence
from anabranch.scheduler._restart import Returning
from anabranch.scheduler._survivors import Survivors
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.memory import Memory
from anabranch.scheduler.run import Run

_ACCUSED_S = 1.0
"""How long sites are awaited whose neighbours have lost their lanes to them: they died with the
scheduler. One that lives, and lost only that lane, connects again within a fraction of it."""


class Resumption:
    """Is where the scheduler before was, and goes on once sites have said how far their calls are.

    Args:
        run: which is found again; nothing has happened in it yet.
        memory: what the scheduler before wrote down.
        since_began_s: how long ago the run began.
        planning: plans for those that come back.
        survivors: go on without those that do not.
        cut_links: tells of links that were cut.
        presence: waits for those that come back and go again.
        follow: says what follows from calls.
        remember: writes down what a restart needs.
        hear: acts on what sites said before all were back.
    """

    def __init__(
        self,
        run: Run,
        memory: Memory,
        since_began_s: float,
        planning: Planning,
        survivors: Survivors,
        cut_links: CutLinks,
        presence: Presence,
        follow: Callable[[Outcome], None],
        remember: Callable[[], None],
        hear: Callable[[int, AnyMessage], None],
    ) -> None:
        self._run = run
        self._memory = memory
        self._planning = planning
        self._survivors = survivors
        self._cut_links = cut_links
        self._presence = presence
        self._follow = follow
        self._remember = remember
        self._hear = hear
        run.members.restore(memory.addresses, memory.incarnations)
        run.losses = memory.losses
        run.lives.restore(memory.lost, memory.left, memory.departed)
        run.stopped = memory.stopped
        run.buffer_elements = memory.elements
        run.started_s = run.now_s() - since_began_s
        planning.recall(memory.rates)
        self._returning = Returning(frozenset(range(run.overlay.size)) - run.lives.lost)
        run.returning = self._returning
        if memory.elements:
            run.note_began(memory.elements)
        awaited = sorted(self._returning.awaited)
        run.note(events.SchedulerRestarted(at_s=run.since_start_s(), awaited=awaited))
        self._give_up_absent = after(run.give_up_s, self._go_on)
        self._accused: set[int] = set()  # to which another that is back has lost its lane
        self._is_hurried = False

    def hear(self, site: int, message: AnyMessage) -> None:
        """Hear a site that has come back, before all have."""
        if isinstance(message, Standing):
            self._run.channels.checks.standing(site, message)
        if self._returning.hear(site, message):
            self._go_on()
            return
        if isinstance(message, CutOff):
            self._accuse(site, message)
        if not self._is_hurried and self._returning.absent <= self._accused:
            self._is_hurried = True
            self._give_up_absent.cancel()
            self._give_up_absent = after(_ACCUSED_S, self._go_on)

    def _accuse(self, site: int, cut: CutOff) -> None:
        """Take note that a site has no lane to another, unless their links were cut before."""
        run = self._run
        if not 0 <= cut.neighbour < run.overlay.size or (site, cut.neighbour) in run.losses.cut:
            return
        if cut.incarnation == run.members.incarnations[cut.neighbour]:
            self._accused.add(cut.neighbour)

    def _go_on(self) -> None:
        """Go on with the calls as sites say they are, without those that have not come back."""
        run = self._run
        if run.is_over:
            return
        self._give_up_absent.cancel()
        run.returning = None
        standings = self._returning.standings
        absent = self._returning.awaited - standings.keys()
        members = run.losses.members(run.overlay.size)
        if len(members - absent) < 1:
            run.abort("the scheduler was restarted, and no site came back to it")
            return
        outcome = run.channels.restore(
            {site: each for site, each in standings.items() if site in members},
            frozenset(range(run.overlay.size)) - members,
            self._memory.subgroups,
            self._memory.latest_exchange,
            {(each.channel, each.number): each.contributions for each in self._memory.interrupted},
            self._memory.lasts,
            run.stopped or "",
            self._memory.transfers,
        )
        if run.stopped is not None:  # now that it is known which calls have been made
            run.channels.close(run.stopped)
        self._planning.begin_again()
        plan = self._planning.for_the_rest()
        run.channels.books.issue(plan)
        self._remember()
        run.broadcast(Patience(run.patience_s))
        self._planning.use(plan, "the scheduler was restarted")
        self._cut_links.tell_all()
        self._follow(outcome)
        for site in sorted(absent):
            if not run.is_over and site not in run.lives.lost:
                run.post(
                    site, Abort("the scheduler was restarted; this site has to join again", True)
                )
                run.sessions.setdefault(site, Session(None))
                why = f"{run.name(site)} did not come back to the scheduler"
                self._survivors.lose(site, why, died=True)
        self._presence.miss_absent()
        self._survivors.fail_calls_again()
        for site in run.lives.departed:
            self._survivors.exclude_if_awaited(site)
        self._survivors.end_if_all_left()
        for site, message in self._returning.early:
            if site in run.sessions:
                self._hear(site, message)
