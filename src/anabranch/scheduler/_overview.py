"""How a run stands: for those that ask, for sites that wait, and at the end."""

from __future__ import annotations

from anabranch.log.status import AwaitedSite, Status
from anabranch.net.messages import Lagging
from anabranch.scheduler._planning import Planning
from anabranch.scheduler._status import Known, awaited_site, stalls, status_of
from anabranch.scheduler._waits import Waits
from anabranch.scheduler.run import Run
from anabranch.scheduler.served_pace import ServedPace


class Overview:
    """Puts together what the parts of a scheduler know.

    Args:
        run: whose sites and calls.
        planning: what is believed of the network.
        pace: of a served model; None where sites all-reduce.
    """

    def __init__(self, run: Run, planning: Planning, pace: ServedPace | None) -> None:
        self._run = run
        self._planning = planning
        self._pace = pace
        self._waits = Waits()

    def status(self) -> Status:
        """Return how the run stands."""
        known = self._known()
        return status_of(known, self._waits.look(stalls(known), self._run.now_s()))

    def tell_waits(self) -> list[AwaitedSite]:
        """Tell the sites that have waited long for which one; return what they are told."""
        told = self._waits.news(self._waits.look(stalls(self._known()), self._run.now_s()))
        names = [site.name for site in self._run.overlay.sites]
        for wait in told:
            lagging = Lagging(names[wait.stall.awaited], wait.seconds, wait.stall.what)
            for site in wait.stall.waiting & self._run.sessions.keys():
                self._run.post(site, lagging)
        return [awaited_site(wait, names) for wait in told]

    def _known(self) -> Known:
        run = self._run
        plan = run.channels.books.main if self._pace is None else self._pace.plan
        return Known(
            overlay=run.overlay,
            believed=self._planning.belief(),
            plan=plan,
            running_s=None if run.started_s is None else run.since_start_s(),
            is_over=run.is_over,
            returning=(
                frozenset()
                if run.returning is None
                else run.returning.awaited - run.returning.standings.keys()
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
        """The mean over sites of the latest loss that each told of; None before the first."""
        return self._run.tally.mean_loss

    @property
    def why_short(self) -> str | None:
        """What a run came short of that was not stopped: updates, or a model that they changed."""
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
