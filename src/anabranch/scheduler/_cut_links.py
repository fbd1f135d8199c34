"""Links that are cut or silent: who is to blame, when to look at them again, how they come back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import permutations

from anabranch.net.deadline import after
from anabranch.net.errors import MalformedMessage
from anabranch.net.messages import (
    CutOff,
    LinkCut,
    LinkProbe,
    LinkProbed,
    RejoinAck,
    Rejoined,
    Silent,
)
from anabranch.scheduler._planning import Planning
from anabranch.scheduler._probes import Ends, Probes, Silences
from anabranch.scheduler._survivors import Survivors
from anabranch.scheduler.membership._life import Stage
from anabranch.scheduler.run import Run

BLAME_S = 0.5
"""How long to wait for the cause of what a site complains of.

A site that loses a neighbour's lane often hears of it before the scheduler hears that the neighbour
died. Waiting this long lets the run's error name the cause and not the symptom."""


class CutLinks:
    """Judges lanes that have ended, and looks now and then whether cut links lead somewhere again.

    Args:
        run: whose links.
        planning: plans with links that are healed.
        survivors: go on without links that are cut.
        remember: writes down what a restart needs.
    """

    def __init__(
        self,
        run: Run,
        planning: Planning,
        survivors: Survivors,
        remember: Callable[[], None],
    ) -> None:
        self._run = run
        self._planning = planning
        self._survivors = survivors
        self._remember = remember
        self._probes = Probes()
        self._silences = Silences()

    # --- blame

    def accuse(self, site: int, cut: CutOff) -> None:
        """Hear that a lane has ended: if that neighbour's connection has ended too, it died."""
        run = self._run
        self._check(site, cut.neighbour)
        if {(site, cut.neighbour), (cut.neighbour, site)} <= run.losses.cut:
            return  # as is known
        if cut.incarnation < run.members.incarnations[cut.neighbour]:
            return  # that one is known to have died
        run.accused.add(site, cut.neighbour)
        if cut.neighbour in run.missing:
            self._survivors.lose(cut.neighbour, run.missing[cut.neighbour].why, died=True)
        elif cut.neighbour in run.silent and run.started_s is not None:
            self._lose_silent(site, cut)
        here = site, run.members.incarnations[site]
        if self._silences.are_mutual(here, (cut.neighbour, cut.incarnation), run.now_s()):
            self._judge(site, cut)  # neither has died, as both say something
        else:
            after(BLAME_S, self._judge, site, cut)

    def _judge(self, site: int, cut: CutOff) -> None:
        """Go on without a lane that ended, or end the run; unless an end of it died and may."""
        run = self._run
        gone = run.lives.lost | (run.lives.sites(Stage.LEFT) - run.losses.relays)
        if run.is_over or cut.incarnation != run.members.incarnations[cut.neighbour]:
            return
        if run.is_newcomer(cut.neighbour):
            run.introductions.parted(site, cut.neighbour)
        if {site, cut.neighbour} & gone:
            run.accused.forgive(site, cut.neighbour)
            return
        pair = {(site, cut.neighbour), (cut.neighbour, site)}
        is_known = pair <= run.losses.cut  # as the other end has said so
        if not is_known and not self._survivors.go_on_without(cut.reason, links=pair):
            if not self._survivors.leave_the_last_alone():
                run.abort(cut.reason)
            return
        # Both are there, so the link was to blame, and a connection that breaks later may come
        # back; but silence may take a little longer to be noticed here than there.
        after(run.give_up_s, run.accused.forgive, site, cut.neighbour)
        if not is_known:
            self.close(frozenset((site, cut.neighbour)))

    def _lose_silent(self, accuser: int, cut: CutOff) -> None:
        """Go on without a site that says nothing to a neighbour for too long, nor to us."""
        run, site = self._run, cut.neighbour
        session = run.sessions.get(site)
        if session is None or run.is_newcomer(site):
            return
        if session.connection is not None:
            session.connection.close()
        why = (
            f"{run.name(site)} died: neither {run.name(accuser)} nor the scheduler hears from it: "
            f"{cut.reason}"
        )
        self._survivors.lose(site, why, died=True)

    def silent(self, site: int, message: Silent) -> None:
        """Go round links that alone are silent, at both ends, where that leaves no site out.

        Else they are given up when their connections are, and no sooner: where a site hears nothing
        of several, its own way to all of them may be held up for a moment.
        """
        run, neighbour, size = self._run, message.neighbour, self._run.overlay.size
        self._check(site, neighbour)
        here = site, run.members.incarnations[site]
        there = neighbour, message.incarnation
        if message.incarnation != run.members.incarnations[neighbour]:
            return
        self._silences.hear(here, there, message.is_silent, run.now_s())
        if not self._silences.are_alone(here, there, run.now_s()):
            return
        pair = {(site, neighbour), (neighbour, site)}
        members = run.losses.further(run.overlay, links=pair).members(size)
        if pair <= run.losses.cut or members != run.losses.members(size):
            return
        ends = frozenset((site, neighbour))
        why = f"nothing crosses the links between {' and '.join(map(run.name, sorted(ends)))}"
        if self._survivors.go_on_without(why, links=pair):
            self.close(ends)

    def _check(self, site: int, neighbour: int) -> None:
        if not 0 <= neighbour < self._run.overlay.size or neighbour == site:
            raise MalformedMessage(f"a lane from {self._run.name(site)} to site {neighbour}")

    def close(self, ends: Ends) -> None:
        """Let both ends of links take them for cut, and look later whether they are."""
        for here, there in permutations(ends, 2):
            self._run.post(here, LinkCut(there))
        self._probe_later(ends)

    def tell_all(self) -> None:
        """Tell sites of all links that are cut, and look at these now and then."""
        cut = self._run.losses.cut
        for here, there in cut:
            self._run.post(here, LinkCut(there))
        for ends in {frozenset(pair) for pair in cut}:
            self._probe_later(ends)

    # --- probes

    def _probe_later(self, ends: Ends) -> None:
        """Look in a while whether links that were cut lead somewhere again; ever less often."""
        pause_s = self._probes.pause_s(ends, self._run.now_s())
        asyncio.get_running_loop().call_later(pause_s, self._probe, ends)

    def _probe(self, ends: Ends) -> None:
        run = self._run
        one, other = ends
        is_there = ends <= run.sessions.keys() and not ends & run.lives.left
        if run.is_over or not is_there or (one, other) not in run.losses.cut:
            return
        self._probes.ask(ends)
        run.post(one, LinkProbe(other))
        run.post(other, LinkProbe(one))

    def probed(self, site: int, message: LinkProbed) -> None:
        """Hear whether a neighbour answers again."""
        run = self._run
        ends = frozenset((site, message.neighbour))
        if not self._probes.is_asked(ends):
            return  # a scheduler before this one asked
        reach = self._probes.hear(ends, site, message.answers)
        if reach is None:
            return
        if not reach:
            self._probe_later(ends)
            return
        is_cut = (site, message.neighbour) in run.losses.cut
        if not is_cut or not ends <= run.sessions.keys():
            return  # an end is back as another process, and lanes to it are in use
        for here, there in permutations(ends, 2):
            incarnation, address = run.members.incarnations[there], run.members.addresses[there]
            run.post(here, Rejoined(there, incarnation, *address))
        self._probes.heal(ends)

    # --- links that come back

    def is_healing(self, site: int, message: RejoinAck) -> bool:
        """Return whether links between a site and the one that it tells of are being opened."""
        return self._probes.is_healing(frozenset((site, message.site)))

    def healed(self, site: int, message: RejoinAck) -> None:
        """Use links again to which one end, and perhaps both, have opened."""
        run = self._run
        ends = frozenset((site, message.site))
        if not self._probes.healed(ends, site, run.now_s()):
            return
        run.losses = run.losses.healed([*permutations(ends, 2)])
        plan = self._planning.for_the_rest()
        run.channels.books.issue(plan)
        self._remember()
        names = " and ".join(map(run.name, sorted(ends)))
        self._planning.use(plan, f"{names} reach each other again")
