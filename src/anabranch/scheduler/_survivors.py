"""Continues a run without lost sites, departed sites and cut links.

A loss takes these steps in order. The losses are recorded (`losses`), and the stages of sites
change. A plan for the rest is found. The exchanges under way are interrupted. The journal is
written. Then members hear of all this. A restarted scheduler must not count a site whose loss the
others know, so they hear of it after the journal is written.

A departed site stays a member while no other member makes a further call: its lanes may still carry
the others' results. After that the others exclude it, and keep it as a relay only if they do not
reach one another otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from anabranch.log import events
from anabranch.net.messages import Abort
from anabranch.scheduler._admission import Admission
from anabranch.scheduler._planning import Planning
from anabranch.scheduler.calls._outcome import Outcome
from anabranch.scheduler.losses import Repairs
from anabranch.scheduler.membership._life import Happens, Stage
from anabranch.scheduler.run import Run
from anabranch.scheduler.served_pace import ServedPace


class Survivors:
    """Continues a run among the remaining sites; ends it if they are too few.

    Args:
        run: the run.
        repairs: how all-reduces continue after a loss; None if a loss ends the run.
        planning: plans for the remaining sites and links.
        pace: of the served model; None where sites all-reduce.
        admission: starts newcomers that waited only for a site that is now lost.
        follow: acts on the outcome of calls that end.
        remember: writes the journal.
        begin: begins the run if all sites of the start are ready.
    """

    def __init__(
        self,
        run: Run,
        repairs: Repairs | None,
        planning: Planning,
        pace: ServedPace | None,
        admission: Admission,
        follow: Callable[[Outcome], None],
        remember: Callable[[], None],
        begin: Callable[[], None],
    ) -> None:
        self._run = run
        self._repairs = repairs
        self._planning = planning
        self._pace = pace
        self._admission = admission
        self._follow = follow
        self._remember = remember
        self._begin = begin

    # --- sites that are lost

    def may_be_replaced(self, site: int) -> bool:
        """Return whether another process may take the place of a missing site."""
        if self._repairs is None:
            return self._pace is not None and self._pace.may_go_on_without(site)
        return not self._run.is_newcomer(site)

    def lose(self, site: int, why: str, died: bool = False) -> None:
        """Declare a site lost: continue without it, or end the run."""
        self._give_up(site, why, died)
        self._admission.need_not_know(site)

    def _give_up(self, site: int, why: str, died: bool) -> None:
        run = self._run
        run.forget_process(site)
        now_s = run.since_start_s()
        if site in run.lives.left and not run.is_over:
            self._release_departed(site)
            return
        del run.sessions[site]
        if self._repairs is not None and self._pace is None and not run.is_over:
            goes_on = self.go_on_without(why, sites={site})
            run.write_lost(site, why, goes_on, now_s)
            if not goes_on:
                run.abort(why)
            return
        goes_on = died and self._pace is not None and self._pace.may_go_on_without(site)
        run.write_lost(site, why, goes_on, now_s)
        if goes_on:
            run.lives.happens(Happens.IS_LOST, site)
            self._serve_without(site, now_s)
        else:
            run.abort(why)

    def _release_departed(self, site: int) -> None:
        """Continue without a site that had made its last call, now that its connection is gone."""
        run, is_member = self._run, self._run.lives[site] == Stage.DEPARTED
        if not self.go_on_without(f"{run.name(site)} left", sites={site}):
            run.lives.happens(Happens.IS_LOST, site)
            if self._repairs is not None and self._separates(site):
                run.abort(
                    f"{run.name(site)} left and its connection broke, and the other sites do not "
                    "reach one another without it"
                )
            elif is_member:
                self._follow(run.channels.leave(site))
        self._say_it_left(site)
        self.end_if_all_left()

    def _separates(self, site: int) -> bool:
        """Return whether members with further calls reach one another over this site alone."""
        run, size = self._run, self._run.overlay.size
        others = run.losses.members(size) - run.lives.left
        return not others <= run.losses.further(run.overlay, {site}).members(size)

    def _say_it_left(self, site: int) -> None:
        """Log that a site has left, and dismiss it, over its next connection if this one broke."""
        run = self._run
        run.note(events.SiteLeft(at_s=run.since_start_s(), site=site))
        run.dismiss(site, others_go_on=True)

    def _serve_without(self, site: int, now_s: float) -> None:
        """Continue without a worker of a served model; calls that need it fail."""
        assert self._pace is not None
        self._pace.lost(site, now_s)
        self._follow(self._run.channels.leave(site))
        self.end_if_all_left()

    def go_on_without(
        self,
        why: str,
        sites: Collection[int] = (),
        links: Collection[tuple[int, int]] = (),
        departed: Collection[int] = (),
    ) -> bool:
        """Plan without the losses, and complete the exchanges under way among the rest.

        Args:
            why: the reason, for the log and for sites that become unreachable.
            sites: the lost sites.
            links: the cut links, as (source, target).
            departed: sites to exclude, since others make further calls.

        Returns:
            False if too few sites reach one another, or if a loss is to end the run.
        """
        run, size = self._run, self._run.overlay.size
        if self._repairs is None:
            return False
        losses = run.losses.further(run.overlay, sites, links, departed)
        if not run.lives.has_formed or len(losses.members(size)) < self._repairs.least_sites:
            return False
        before, run.losses = run.losses, losses
        run.lives.happens(Happens.IS_LOST, *(losses.lost - run.lives.lost))
        run.lives.happens(Happens.IS_EXCLUDED, *({*departed} - losses.lost))
        for site in sorted(losses.lost - before.lost - {*sites}):
            self._exclude_unreached(site, why)
        plan = self._planning.for_the_rest()
        outcome = run.channels.lose(before.members(size) - losses.members(size), plan)
        if run.started_s is not None:
            self._remember()
        self._planning.use(plan, why)
        if run.started_s is None:
            self._begin()
            return True
        self._follow(outcome)
        self.end_if_all_left()
        return True

    def _exclude_unreached(self, site: int, why: str) -> None:
        """Tell a site that the others excluded it, since they no longer reach it."""
        run, now_s = self._run, self._run.since_start_s()
        run.forget_process(site)
        if site in run.lives.left:
            self._say_it_left(site)
        else:
            reason = f"{run.name(site)} reaches the others no more: {why}"
            run.write_lost(site, reason, True, now_s)
            run.post(site, Abort(reason, goes_on=True))
            run.sessions.pop(site, None)
        self._admission.need_not_know(site)

    # --- sites that leave

    def leave(self, site: int) -> None:
        """Act on a site's message that it makes no further call."""
        run = self._run
        if self._pace is not None and not self._pace.book.standing.is_over:
            if not self._pace.may_go_on_without(site):
                run.abort(
                    f"{run.name(site)} left before the run was over, and the others cannot go on "
                    "without it: too few are left, or it serves part of the model, or is on "
                    "another's way to it"
                )
                return
            run.lives.happens(Happens.LEAVES_WORKERS, site)
            self._say_it_left(site)
            self._serve_without(site, run.since_start_s())
            return
        if self._repairs is None:
            run.lives.happens(Happens.LEAVES, site)
            self._follow(run.channels.leave(site))
        else:
            run.lives.happens(Happens.DEPARTS, site)
            self._remember()
            self._follow(run.channels.take_back(site))
            self.exclude_if_awaited(site)
        self.end_if_all_left()

    def exclude_if_awaited(self, departed: int) -> None:
        """Exclude a departed site if a member has made a call that the site has not."""
        for channel in self._run.channels.books.awaiting(departed):
            self.exclude_departed(channel)

    def departed_of(self, channel: int) -> frozenset[int]:
        """Return the members of a channel that have departed and are not excluded yet."""
        departed = self._run.lives.departed
        return departed and departed & {*self._run.channels.books.members(channel)}

    def exclude_departed(self, channel: int) -> None:
        """Exclude the departed sites of a channel, since a member of it makes a further call."""
        run, departed = self._run, self.departed_of(channel)
        if not departed or self._repairs is None:
            return
        names = ", ".join(map(run.name, sorted(departed)))
        if not self.go_on_without(f"{names} left", departed=departed):
            self._leave(departed)

    def release_last(self) -> bool:
        """Exclude all departed sites if at most one member makes further calls; return whether.

        That member needs no lane to them: each further call of it fails.
        """
        run = self._run
        departed, members = run.lives.departed, run.losses.members(run.overlay.size)
        if not departed or len(members - run.lives.left) > 1:
            return False
        self._leave(departed)
        self.end_if_all_left()
        return True

    def _leave(self, departed: Collection[int]) -> None:
        """Fail the calls that departed sites have not made: too few sites would be left."""
        run = self._run
        run.lives.happens(Happens.IS_EXCLUDED, *departed)
        for site in sorted(departed):
            self._follow(run.channels.leave(site))

    def fail_calls_again(self) -> None:
        """After a restart, fail the calls that sites excluded before it have not made."""
        run = self._run
        for site in sorted({*run.channels.all.members} & run.lives.left - run.lives.departed):
            self._follow(run.channels.leave(site))

    def end_if_all_left(self) -> None:
        """End the run in good order once no site makes a further call."""
        run = self._run
        if len(run.lives.left | run.lives.lost) == run.overlay.size and not run.is_over:
            for site in [*run.missing]:
                run.await_no_longer(site)
            for site in run.sessions:
                run.dismiss(site)  # newcomers that wait for admission, too
            run.end.set_result(None)
