"""Lets a restarted scheduler find its sites again, and continue the run from their reports.

A scheduler with a journal may end and be started again while its sites continue to train. The
journal has the facts that sites do not know (`memory`). The sites know the state of their calls::

    journal ───────▶ members, stages, losses, plan, subgroups: restored at once
                     returning ◀─ Resume ───── each site connects again
                               ── Restarted ─▶
                               ◀─ SiteSnapshot its calls, and the answers that others may lack
                     all have said so, or the absent ones are given up: the books are
                     restored and exchanges under way interrupted (`calls/_restoring`), a
                     plan is made, the journal is written, then members hear what follows
                     running

While the scheduler is *returning*, every other message waits in `Returning.early`, in order, and is
acted on at the end. A site has ``Run.give_up_s`` to come back. If all absent sites are reported cut
off by a neighbour that is back, they probably died with the scheduler: they get ``_ACCUSED_S``.

What must never happen:

- two exchanges get one number (the journal reserves numbers ahead of their use);
- a process from before a site's loss resumes as that site (incarnations are in the journal);
- a result reports other contributions than it has (the journal has those of interrupted exchanges);
- a site hears of a change that the next restart does not know (the journal is written first).
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.log import events
from anabranch.net.deadline import after
from anabranch.net.messages import Abort, AnyMessage, CutOff, Patience, SiteSnapshot
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
"""How long to wait for sites whose neighbours lost their lanes to them, seconds. These probably
died with the scheduler. A live site that lost only that lane comes back in a fraction of this."""


class Resumption:
    """Restores a run from its journal, and continues it once sites have reported their calls.

    Args:
        run: the run, without any site yet.
        memory: the record that the earlier scheduler wrote to the journal.
        since_began_s: how long ago the run began.
        planning: plans for the sites that come back.
        survivors: continue without the sites that do not.
        cut_links: tells sites of cut links.
        presence: waits for sites that come back and break off again.
        follow: acts on the outcome of calls.
        hear: acts on the messages that came before all sites were back.
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
        hear: Callable[[int, AnyMessage], None],
    ) -> None:
        self._run = run
        self._memory = memory
        self._planning = planning
        self._survivors = survivors
        self._cut_links = cut_links
        self._presence = presence
        self._follow = follow
        self._hear = hear
        run.members.restore(memory.addresses, memory.incarnations)
        run.losses = memory.losses
        run.lives.restore(memory.lost, memory.left, memory.departed)
        run.stopped = memory.stopped
        run.buffer_elements = memory.elements
        run.started_s = run.now_s() - since_began_s
        planning.measurements.restore(memory.rates)
        self._returning = Returning(frozenset(range(run.overlay.size)) - run.lives.lost)
        run.returning = self._returning
        if memory.elements:
            run.note_began(memory.elements)
        awaited = sorted(self._returning.awaited)
        run.note(events.SchedulerRestarted(at_s=run.since_start_s(), awaited=awaited))
        self._give_up_absent = after(run.give_up_s, self._go_on)
        self._accused: set[int] = set()  # sites to which a returned site has lost its lane
        self._is_hurried = False

    def hear(self, site: int, message: AnyMessage) -> None:
        """Take a message of a site that has come back, before all have."""
        if isinstance(message, SiteSnapshot):
            self._run.channels.checks.snapshot(site, message)
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
        """Note that a site has lost its lane to another, unless their links were cut before."""
        run = self._run
        if not 0 <= cut.neighbour < run.overlay.size or (site, cut.neighbour) in run.losses.cut:
            return
        if cut.incarnation == run.members.incarnations[cut.neighbour]:
            self._accused.add(cut.neighbour)

    def _go_on(self) -> None:
        """Restore the calls as sites report them, and declare the absent sites lost."""
        run = self._run
        if run.is_over:
            return
        self._give_up_absent.cancel()
        run.returning = None
        snapshots = self._returning.snapshots
        absent = self._returning.awaited - snapshots.keys()
        members = run.losses.members(run.overlay.size)
        if len(members - absent) < 1:
            run.abort("the scheduler was restarted, and no site came back to it")
            return
        outcome = run.channels.restore(
            {site: each for site, each in snapshots.items() if site in members},
            frozenset(range(run.overlay.size)) - members,
            self._memory.subgroups,
            self._memory.latest_exchange,
            {(each.channel, each.number): each.contributions for each in self._memory.interrupted},
            self._memory.lasts,
            run.stopped or "",
            self._memory.transfers,
        )
        if run.stopped is not None:  # not before: the last exchange depends on the calls made
            run.channels.close(run.stopped)
        self._planning.begin_again()
        plan = self._planning.for_the_rest()
        self._planning.issue(plan)
        run.broadcast(Patience(run.patience_s))
        self._planning.use(plan, "the scheduler was restarted")
        self._cut_links.tell_all()
        self._follow(outcome)
        self._follow(run.channels.grant())  # the plan may be the first for a size
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
