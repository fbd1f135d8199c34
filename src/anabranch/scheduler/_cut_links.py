"""Judges lanes that end and links that are silent: cuts the links, and restores them later.

A site sends `CutOff` when a lane to a neighbour has ended, and `Silent` while it receives nothing
from one. The scheduler waits ``BLAME_S`` for another explanation, then judges::

    CutOff ──▶ accused ──the neighbour's connection broke too──▶ the neighbour is lost
                  │
                  └──both ends live──▶ the links are cut ──both answer probes──▶ healing ──▶ in use

Both directions of a pair are cut together. Probes come at growing intervals (`_probes`). Members
use healed links in the next plan, once both ends have opened lanes.

What must never happen:

- a complaint about a past process counts against the present one (incarnations are compared);
- a single silent link costs a site its membership, while other paths avoid the link;
- a run ends with the symptom as its reason, while the cause is on its way.
"""

from __future__ import annotations

import asyncio
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
"""How long to wait for the cause of a complaint, seconds.

A neighbour's death often ends its lanes before the scheduler hears of it. After this pause the
run's error can name the cause, not the symptom."""


class CutLinks:
    """Judges lanes that have ended, and probes links that are cut.

    Args:
        run: the run.
        planning: plans with healed links.
        survivors: continue without cut links.
    """

    def __init__(
        self,
        run: Run,
        planning: Planning,
        survivors: Survivors,
    ) -> None:
        self._run = run
        self._planning = planning
        self._survivors = survivors
        self._probes = Probes()
        self._silences = Silences()

    # --- blame

    def accuse(self, site: int, cut: CutOff) -> None:
        """Act on a lane's end: the neighbour has died if its connection here broke, too."""
        run = self._run
        self._check(site, cut.neighbour)
        if cut.incarnation < run.members.incarnations[cut.neighbour]:
            return  # that process is known to have died
        if {(site, cut.neighbour), (cut.neighbour, site)} <= run.losses.cut:
            # The links are cut already. Those of a newcomer would be used from its admission on.
            if run.is_newcomer(cut.neighbour):
                run.introductions.lane_ended(site, cut.neighbour)
            return
        run.accused.add(site, cut.neighbour)
        if cut.neighbour in run.missing:
            self._survivors.lose(cut.neighbour, run.missing[cut.neighbour].why, died=True)
        elif cut.neighbour in run.silent and run.started_s is not None:
            self._lose_silent(site, cut)
        here = site, run.members.incarnations[site]
        if self._silences.are_mutual(here, (cut.neighbour, cut.incarnation), run.now_s()):
            self._judge(site, cut)  # both report a silence, so neither has died
        else:
            after(BLAME_S, self._judge, site, cut)

    def _judge(self, site: int, cut: CutOff) -> None:
        """Cut the links of a lane that ended, or end the run; nothing, if an end is gone."""
        run = self._run
        gone = run.lives.lost | (run.lives.sites(Stage.LEFT) - run.losses.relays)
        if run.is_over or cut.incarnation != run.members.incarnations[cut.neighbour]:
            return
        if run.is_newcomer(cut.neighbour):
            run.introductions.lane_ended(site, cut.neighbour)
        if {site, cut.neighbour} & gone:
            run.accused.forgive(site, cut.neighbour)
            return
        pair = {(site, cut.neighbour), (cut.neighbour, site)}
        is_known = pair <= run.losses.cut  # the other end has reported it before
        if not is_known and not self._survivors.go_on_without(cut.reason, links=pair):
            if not self._survivors.release_last():
                run.abort(cut.reason)
            return
        # Both ends live, so the link was to blame. The accusation ends a little later, since the
        # scheduler may notice a silence later than the neighbour did.
        after(run.give_up_s, run.accused.forgive, site, cut.neighbour)
        if not is_known:
            self.close(frozenset((site, cut.neighbour)))

    def _lose_silent(self, accuser: int, cut: CutOff) -> None:
        """Declare a site lost that was silent for too long to a neighbour and to the scheduler."""
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
        """Cut links that alone are silent at both ends, if every member stays in reach.

        Otherwise the links stay until their connections end. A site that receives nothing from
        several neighbours may only be held up itself for a moment.
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
        """Tell both ends that their links are cut, and probe these later."""
        for here, there in permutations(ends, 2):
            self._run.post(here, LinkCut(there))
        self._probe_later(ends)

    def tell_all(self) -> None:
        """Tell sites of all cut links, and probe these from now on."""
        cut = self._run.losses.cut
        for here, there in cut:
            self._run.post(here, LinkCut(there))
        for ends in {frozenset(pair) for pair in cut}:
            self._probe_later(ends)

    # --- probes

    def _probe_later(self, ends: Ends) -> None:
        """Probe cut links after a pause, which grows from probe to probe."""
        pause_s = self._probes.pause_s(ends, self._run.now_s())
        asyncio.get_running_loop().call_later(pause_s, self._probe, ends)

    def _probe(self, ends: Ends) -> None:
        run = self._run
        one, other = ends
        are_connected = ends <= run.sessions.keys() and not ends & run.lives.left
        if run.is_over or not are_connected or (one, other) not in run.losses.cut:
            return
        self._probes.ask(ends)
        run.post(one, LinkProbe(other))
        run.post(other, LinkProbe(one))

    def probed(self, site: int, message: LinkProbed) -> None:
        """Take a site's answer whether it reaches a neighbour again."""
        run = self._run
        ends = frozenset((site, message.neighbour))
        if not self._probes.is_asked(ends):
            return  # an earlier scheduler of the run asked
        reach = self._probes.hear(ends, site, message.answers)
        if reach is None:
            return
        if not reach:
            self._probe_later(ends)
            return
        is_cut = (site, message.neighbour) in run.losses.cut
        if not is_cut or not ends <= run.sessions.keys():
            return  # an end has joined again as another process, and lanes to it are in use
        for here, there in permutations(ends, 2):
            incarnation, address = run.members.incarnations[there], run.members.addresses[there]
            run.post(here, Rejoined(there, incarnation, *address))
        self._probes.heal(ends)

    # --- links that come back

    def is_healing(self, site: int, message: RejoinAck) -> bool:
        """Return whether links between a site and the one it names are being opened again."""
        return self._probes.is_healing(frozenset((site, message.site)))

    def healed(self, site: int, message: RejoinAck) -> None:
        """Note that an end has opened lanes over healed links; plan with them once both have."""
        run = self._run
        ends = frozenset((site, message.site))
        if not self._probes.healed(ends, site, run.now_s()):
            return
        run.losses = run.losses.healed([*permutations(ends, 2)])
        plan = self._planning.for_the_rest()
        self._planning.issue(plan)
        names = " and ".join(map(run.name, sorted(ends)))
        self._planning.use(plan, f"{names} reach each other again")
