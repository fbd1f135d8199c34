"""Tracks which sites are connected: they join, lose connections, and resume or are lost.

A connection may break while its site lives. The site's *session* outlives the connection: both ends
number their messages, and repeat on the next connection those not yet received (`net.session`)::

    connected ──breaks──▶ missing ──Resume──▶ connected
                             │
                             └── the timer ran out, its process ended, or a neighbour's lane
                                 to it ended too ──▶ lost (`_survivors`)

What a broken connection means depends on the stage of its site (`membership/_life`):

- before the start is chosen, the site is dropped and its place is free for another process;
- a newcomer is forgotten at once: no call needs it;
- a member is missing for at most ``Run.give_up_s``, which follows the duration of rounds;
- a member is lost at once if it broke the protocol, or if acting on its message failed here;
- an excluded site keeps its session until it has heard all, then the session ends;
- while a restarted scheduler waits for its sites, every site may come back (`_resumption`).

What must never happen:

- a process resumes in place of a later one of the same site (incarnations prevent that);
- a message of a site counts twice (both ends number their messages);
- a site is lost for a time in which this process stood still (`net.deadline` counts only the time
  in which it ran).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property, partial

from anabranch import overlay as overlays
from anabranch import plan as plans
from anabranch.log import events
from anabranch.net.addresses import are_on_one_machine
from anabranch.net.deadline import after
from anabranch.net.errors import LinkError, OutOfPlaceMessage, PeerError, UnauthorisedPeer
from anabranch.net.messages import Join, Restarted, Resume, Resumed, Welcome
from anabranch.net.network import Connection
from anabranch.net.process_end import when_ended
from anabranch.net.session import Session
from anabranch.net.tls import check_identity, identity_of
from anabranch.scheduler._admission import Admission
from anabranch.scheduler._planning import Planning
from anabranch.scheduler._survivors import Survivors
from anabranch.scheduler.losses import Losses, Repairs
from anabranch.scheduler.membership._life import Happens, Stage
from anabranch.scheduler.run import Missing, Run
from anabranch.scheduler.served_pace import ServedPace

# A site that prepares its part imports libraries, reads data and builds its model. Each may hold
# its interpreter's lock, for many seconds on a machine with more processes than cores.
PREPARING_SILENCE_S = 60.0


class Presence:
    """Lets sites join and resume, and waits for those whose connections have broken.

    Args:
        run: the run that sites join.
        work: passed to every site unchanged.
        repairs: how all-reduces continue after a loss; None if a loss ends the run.
        planning: plans for the sites of the start.
        pace: of the served model; None where sites all-reduce.
        admission: forgets newcomers whose connections end.
        survivors: continue the run after a loss.
        is_restart: whether an earlier scheduler began the run.

    Attributes:
        all_gone: set once every session has ended, after the end of the run.
    """

    def __init__(
        self,
        run: Run,
        work: str,
        repairs: Repairs | None,
        planning: Planning,
        pace: ServedPace | None,
        admission: Admission,
        survivors: Survivors,
        is_restart: bool,
    ) -> None:
        self._run = run
        self._work = work
        self._repairs = repairs
        self._planning = planning
        self._pace = pace
        self._admission = admission
        self._survivors = survivors
        self._is_restart = is_restart
        self.all_gone = asyncio.Event()

    # --- sites join

    def join(self, message: Join, connection: Connection) -> int:
        """Take a site in, and welcome all once enough have joined; return its index.

        Raises:
            OutOfPlaceMessage: the run is over.
            PeerError: see :meth:`anabranch.scheduler._members.Members.admit`.
        """
        run = self._run
        check_identity(connection.peer, connection.identity, identity_of(message.name))
        if run.is_over and run.members.knows_token(message, connection.own_challenge):
            raise OutOfPlaceMessage(f"site {message.name!r} joins, but the run is over")
        gone = {site for site in run.lives.lost if not self._is_connected(site)}
        gone |= {site for site in run.missing if self._survivors.may_be_replaced(site)}
        goes_round = self._repairs is not None and self._pace is None
        is_elsewhere = not are_on_one_machine(connection.hosts)
        site = run.members.admit(message, connection.own_challenge, gone, goes_round, is_elsewhere)
        # A second process of a site proves that the first one has died.
        if site in run.missing:
            self._survivors.lose(site, run.missing[site].why, died=True)
            if self._repairs is not None and run.is_over:
                raise OutOfPlaceMessage(f"site {message.name!r} joins, but the run is over")
        run.sessions[site] = Session(connection)
        run.why_lost.pop(site, None)
        if run.returning is not None:
            run.returning.forget(site)
        self._watch(site, connection)
        run.lives.happens(Happens.JOINS, site)
        if run.is_newcomer(site):
            run.introductions.came(site)
            if self._pace is None or run.started_s is not None:
                self._greet_newcomer(site)
            if run.is_over:  # the loss of its earlier process, just above, may have ended the run
                run.dismiss(site)
            return site
        run.write_joined(site, 0.0)
        self._meet_if_enough()
        return site

    def begin(self) -> None:
        """Welcome the sites that joined after the start was chosen: the run has begun.

        The epochs that began with the run are no news for them: they were broadcast to all
        sessions, theirs included.
        """
        if self._pace is not None:
            for site in self._run.lives.newcomers:
                self._greet(site)

    def _greet_newcomer(self, site: int) -> None:
        self._greet(site)
        if self._pace is not None:
            for changed in self._pace.epochs_changed({}):
                self._run.post(site, changed)

    def _is_connected(self, site: int) -> bool:
        session = self._run.sessions.get(site)
        return session is not None and session.connection is not None

    def _meet_if_enough(self) -> None:
        """Choose the sites of the start and welcome all, once enough have joined."""
        run, size = self._run, self._run.overlay.size
        least = None if self._repairs is None else self._repairs.begin_with
        if self._pace is not None:
            least = self._pace.begin_with
        if len(run.sessions) < (size if least is None else min(least, size)):
            return
        founders = everyone = frozenset(range(size))
        missing, out_of_reach = everyone - run.sessions.keys(), run.members.out_of_reach
        if self._pace is not None and missing:
            if not self._pace.can_begin_without(missing):
                return
            founders = everyone - missing
            first = run.channels.all.plan
            run.channels.lose(
                missing, replace(plans.restrict(first, founders), version=first.version + 1)
            )
        elif missing or out_of_reach:
            losses = Losses().further(run.overlay, sites=missing, links=out_of_reach)
            founders = losses.members(size)
            if len(founders) < (len(everyone) if least is None else least):
                if not missing:
                    run.abort(self._explain(out_of_reach))
                return
            run.losses = losses
            plan = self._planning.for_the_rest()
            run.channels.lose(losses.lost, plan)
            self._planning.begin_with(plan)
        run.lives.happens(Happens.IS_WELCOMED, *founders)
        run.lives.happens(Happens.IS_PASSED_OVER, *(everyone - founders))
        for site in run.sessions:
            self._greet(site)

    def _explain(self, out_of_reach: Collection[tuple[int, int]]) -> str:
        names = " and ".join(map(self._run.name, min(out_of_reach)))
        return (
            f"too few sites reach one another: neither of {names} takes connections; let one of "
            "such sites do, or link them with others"
        )

    def _greet(self, site: int) -> None:
        """Welcome a site: send it the overlay, the plan, and what it needs of its neighbours."""
        self.bear(site)
        run = self._run
        here = (site, *run.overlay.neighbours[site])
        addresses, incarnations = run.members.addresses, run.members.incarnations
        welcome = Welcome(
            site,
            self._overlay_toml,
            plans.dumps(run.channels.all.plan if self._pace is None else self._pace.plan),
            {each: addresses[each] for each in here},
            self._work,
            {each: incarnations[each] for each in here},
            0 if self._pace is None else self._pace.book.standing.made(site),
            run.members.secret(site),
            run.members.lane_secrets(site),
            self._repairs is not None,
            self._repairs is not None and self._repairs.retries,
            self._repairs is not None and run.is_newcomer(site),
        )
        run.post(site, welcome)

    @cached_property
    def _overlay_toml(self) -> str:
        return overlays.dumps(self._run.overlay)  # long where sites are many, and all get the same

    def bear(self, site: int) -> None:
        """Tolerate a longer silence of a site while it prepares its part."""
        session = self._run.sessions.get(site)
        if session is not None and session.connection is not None:
            is_preparing = self._run.lives[site] in (Stage.PREPARING, Stage.CAME)
            session.connection.bear(PREPARING_SILENCE_S if is_preparing else 0.0)

    def resume(self, message: Resume, connection: Connection) -> int:
        """Continue a site's session over another connection; return the site's index.

        Raises:
            UnauthorisedPeer: the caller is no site of the run, or no longer one.
            OutOfPlaceMessage: the site reports more received messages than were sent.
        """
        run, site = self._run, message.site
        if 0 <= site < run.overlay.size:
            expected = identity_of(run.overlay.sites[site].name)
            check_identity(connection.peer, connection.identity, expected)
        # The reasons below reveal facts about the run, so only callers that belong to it get them.
        is_of_site = run.members.is_of_site(message, connection.own_challenge)
        is_here = run.members.is_here(message, connection.own_challenge)
        if is_here and run.returning is not None and run.returning.awaits(site):
            run.sessions[site] = Session(connection)
            self._take_way(site, message)
            self._watch(site, connection)
            connection.post(Restarted())
            return site
        if is_here and site in run.why_lost and site not in run.sessions:
            why = run.why_lost[site]
            raise UnauthorisedPeer(f"given up, and the others go on without it: {why}; join again")
        if is_of_site and self._is_restart and site not in run.sessions:
            raise UnauthorisedPeer(
                f"the scheduler was started again, and goes on without {connection.peer}, which "
                f"says it is site {site}; join again"
            )
        if is_here and site in run.lives.lost and site not in run.sessions:
            raise UnauthorisedPeer(
                f"{run.name(site)} was away for too long, and the others go on without it; join "
                "again"
            )
        if not is_here or site not in run.sessions or not run.lives.has_formed:
            raise UnauthorisedPeer(
                f"{connection.peer} says it is site {site} of this run, and does not prove it"
            )
        session = run.sessions[site]
        if not session.has_begun:  # since the scheduler was started again: the site counts anew
            connection.post(Restarted())
            session.go_on(connection, 0)
            self._watch(site, connection)
            self._take_way(site, message)
            return site
        session.acknowledged(message.heard)
        if site in run.missing:
            run.await_no_longer(site)
        elif session.connection is not None:  # the site noticed the break before this side did
            session.connection.close()
        connection.post(Resumed(session.heard))
        session.go_on(connection, message.heard)
        self._watch(site, connection)
        self._take_way(site, message)
        if not run.is_over:
            through = run.through.get(site)
            run.note(events.SiteResumed(at_s=run.since_start_s(), site=site, through=through))
        return site

    def _take_way(self, site: int, message: Resume) -> None:
        """Note which neighbour carries a site's connection, if one does."""
        self._run.through.pop(site, None)
        if message.through is not None and 0 <= message.through < self._run.overlay.size:
            self._run.through[site] = message.through

    def _watch(self, site: int, connection: Connection) -> None:
        """Follow whether a site is silent on its present connection."""
        silent = self._run.silent
        silent.discard(site)

        def told(is_silent: bool) -> None:
            session = self._run.sessions.get(site)
            if session is None or session.connection is not connection:
                return
            if is_silent:
                silent.add(site)
            else:
                silent.discard(site)

        connection.tell_silence(told)
        self.bear(site)

    # --- connections break

    def closed(self, site: int, connection: Connection, error: Exception | None) -> None:
        """Act on the end of a site's connection: see the head of this module."""
        run = self._run
        session = run.sessions.get(site)
        if session is None or session.connection is not connection:
            return  # the site has resumed over another connection already
        session.cut()
        is_awaited = run.returning is not None and site in run.returning.awaited
        if is_awaited and not run.is_over:
            return  # it may resume until the scheduler gives absent sites up
        if run.is_over:
            if session.all_heard or run.has_failed:
                del run.sessions[site]
            if not run.sessions:
                self.all_gone.set()
        elif run.is_newcomer(site):
            self._admission.forget(site)
        elif site in run.lives.lost:  # excluded: its session lasts until it has heard all
            if session.all_heard:
                del run.sessions[site]
        elif not run.lives.has_formed:
            self.drop(site, f"{run.name(site)} went before the run began: {error}")
        else:
            self._broken(site, connection, error)

    def _broken(self, site: int, connection: Connection, error: Exception | None) -> None:
        """Declare a site with a broken connection lost, or wait for it."""
        run, name, when = self._run, self._run.name(site), self._when(site)
        if isinstance(error, PeerError):
            self._survivors.lose(site, f"{name} broke the protocol {when}: {error}")
        elif error is not None and not isinstance(error, LinkError):
            what = f"{type(error).__name__}: {error}"
            self._survivors.lose(
                site, f"the scheduler failed on a message of {name} {when}: {what}"
            )
        else:
            died = f"{name} died {when}: {error}"
            if site in run.accused:
                self._survivors.lose(site, died, died=True)
            else:
                run.note(events.SiteCut(at_s=run.since_start_s(), site=site, detail=str(error)))
                self._miss(site, died, connection)

    def drop(self, site: int, why: str) -> None:
        """Forget a site that ended before the start was chosen; another process may join as it."""
        run = self._run
        run.lives.happens(Happens.IS_DROPPED, site)
        run.forget_process(site)
        del run.sessions[site]
        run.members.forget(site)
        run.write_lost(site, why, True, 0.0)

    def miss_absent(self) -> None:
        """Wait for sites that came back after a restart and broke off before the others came."""
        for site, session in self._run.sessions.items():
            # A site that is gone has a session only to hear that it may end.
            if session.connection is None and self._run.lives[site] != Stage.GONE:
                self._miss(site, f"{self._run.name(site)} died {self._when(site)}", None)

    def _miss(self, site: int, why: str, connection: Connection | None) -> None:
        """Wait for a site until its process has ended, or until the timer declares it lost.

        Args:
            site: the site.
            why: the reason to report if it is lost.
            connection: the broken connection; None if unknown.
        """
        give_up = partial(self._survivors.lose, site, why, died=True)
        timer = after(self._run.give_up_s, give_up)
        unwatch = when_ended(None if connection is None else connection.process, give_up)
        self._run.missing[site] = Missing(timer, unwatch, why)

    def _when(self, site: int) -> str:
        """Return in words the update or round of a site; of the run, if the site has no update."""
        if self._pace is not None and self._pace.book.standing.under_way:
            update = self._pace.book.standing.made(site) or self._pace.book.standing.under_way
            return f"in update {update}"
        latest = self._run.channels.all.latest_held
        return f"in round {latest}" if latest else "before the first round"
