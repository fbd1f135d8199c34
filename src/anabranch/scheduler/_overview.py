"""The state of a run: for status requests, for sites that wait, and for the report at the end."""

from __future__ import annotations

from anabranch.log.status import AwaitedSite, Status
from anabranch.net.messages import SiteAwaited
from anabranch.scheduler._planning import Planning
from anabranch.scheduler._status import Snapshot, awaited_site, stalls, status_of
from anabranch.scheduler._waits import Waits
from anabranch.scheduler.run import Run
from anabranch.scheduler.served_pace import ServedPace


class Overview:
    """Collects the state of a run from the parts of its scheduler.

    Args:
        run: the run.
        planning: has the belief of the network.
        pace: of a served model; None where sites all-reduce.
    """

    def __init__(self, run: Run, planning: Planning, pace: ServedPace | None) -> None:
        self._run = run
        self._planning = planning
        self._pace = pace
        self._waits = Waits()

    def status(self) -> Status:
        """Return the state of the run."""
        snapshot = self._snapshot()
        return status_of(snapshot, self._waits.look(stalls(snapshot), self._run.now_s()))

    def tell_waits(self) -> list[AwaitedSite]:
        """Tell sites that have waited for long which site they wait for; return these waits."""
        told = self._waits.news(self._waits.look(stalls(self._snapshot()), self._run.now_s()))
        names = self._run.overlay.names
        for wait in told:
            lagging = SiteAwaited(names[wait.stall.awaited], wait.seconds, wait.stall.what)
            for site in wait.stall.waiting & self._run.sessions.keys():
                self._run.post(site, lagging)
        return [awaited_site(wait, names) for wait in told]

    def _snapshot(self) -> Snapshot:
        run = self._run
        plan = run.channels.books.main if self._pace is None else self._pace.plan
        return Snapshot(
            overlay=run.overlay,
            believed=self._planning.belief(),
            plan=plan,
            running_s=None if run.started_s is None else run.since_start_s(),
            is_over=run.is_over,
            returning=(
                frozenset()
                if run.returning is None
                else run.returning.awaited - run.returning.snapshots.keys()
            ),
            addresses=run.members.addresses,
            here=run.sessions.keys(),
            newcomers=run.lives.newcomers,
            disconnected=run.missing.keys(),
            through=run.through,
            lost=run.lives.lost,
            left=run.lives.left,
            stalls=[
                *run.channels.books.stalls(),
                *(() if self._pace is None else self._pace.book.standing.stalls()),
            ],
            exchanges=run.channels.results,
            exchanged_bytes=run.channels.result_bytes,
            incomplete=run.channels.incomplete,
            tally=run.tally,
        )

    @property
    def mean_loss(self) -> float | None:
        """The mean of the sites' latest losses; None before the first."""
        return self._run.tally.mean_loss

    @property
    def why_short(self) -> str | None:
        """Why a run that was not stopped made too few updates or no step; None if it did not."""
        if self._pace is None:
            return None
        standing = self._pace.book.standing
        if standing.idle:
            of_whom = f"all but {standing.welcome} of the" if standing.welcome else "all"
            return (
                f"{of_whom} registered clients were barred to the end (merge), "
                f"so {len(standing.idle)} of {standing.size} connections had none to compute for, "
                "and did not make all their updates"
            )
        if standing.under_way and not standing.version:
            return "all updates were discarded: the model is as it was (pace, merge)"
        if not standing.barred:
            return None
        return (
            f"{len(standing.barred)} of {standing.size} workers were barred to the end (merge), "
            "and did not make all their updates"
        )
