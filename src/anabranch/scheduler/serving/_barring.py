"""Bars outliers, gives up their updates, and readmits them. Pure.

Servers report how far the updates of each step agree with their mean. A judge names the workers, or
the clients, with updates that keep pointing elsewhere (`_outliers`).

- **A barred client** is not drawn any more. An update that is computed for it still counts.
- **A barred worker** leaves the pace at once, and abandons what it computes. It may be readmitted
  before it has heard of the ban. Then it is recalled, and is in once it has asked to proceed.
- **A lost worker** may be barred, too. The ban then counts once it is back.

A ban lasts a number of steps of the model. If bans leave no worker to make a step, the workers that
have been barred for longest are readmitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from anabranch.net.messages import Agreed
from anabranch.pace import Load, Update
from anabranch.scheduler._clients import Clients
from anabranch.scheduler._outliers import Outliers
from anabranch.scheduler.decisions import Decision
from anabranch.scheduler.serving._groups import Groups
from anabranch.scheduler.serving._stepping import Stepping
from anabranch.scheduler.serving._updates import Updates
from anabranch.scheduler.serving._workers import BESIDE_THE_PACE, Happens, Stage, Workers


class Barring:
    """Bars outliers and readmits them.

    Args:
        outliers: judges updates.
        clients: that workers stand for, and that are barred; None if workers are barred themselves.
        stepping: tells the pace.
        updates: of all workers.
        workers: the stages of the workers.
        groups: the present groups, of one worker each.
        load: sizes the batches.
    """

    def __init__(
        self,
        outliers: Outliers,
        clients: Clients | None,
        stepping: Stepping,
        updates: Updates,
        workers: Workers,
        groups: Groups,
        load: Load,
    ) -> None:
        self._outliers = outliers
        self._judge = outliers.judge
        self._clients = clients
        self._stepping = stepping
        self._updates = updates
        self._workers = workers
        self._groups = groups
        self._load = load

    def agreed(self, server: int, told: Agreed) -> list[tuple[Update, float]]:
        """See :meth:`anabranch.scheduler._outliers.Outliers.agreed`."""
        return self._outliers.agreed(server, self._updates.servers, told)

    def judged(self, update: Update, cosine: float, now_s: float) -> list[Decision]:
        """Take the verdict on an update; bar its worker or client, and readmit others in time.

        Args:
            update: the update.
            cosine: of the angle between the update and its step.
            now_s: the time.
        """
        decisions, version = list[Decision](), self._stepping.version
        clients = self._clients
        accused = self._outliers.unjudged.pop(update)
        of = len(self._workers.all) if clients is None else clients.registry.registered
        if self._judge.saw(accused, cosine, version, of):
            if clients is None:
                decisions += self._bar(update[0], now_s)
            else:
                clients.registry.barred.add(accused)
                decisions.append(Decision((), (), (), version, barred=(accused,)))
        return decisions + self._readmit(self._judge.over(version), now_s)

    def _bar(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        version = self._stepping.version
        barred = Decision((), (), (), version, barred=(worker,), uncounted=(worker,))
        if not self._workers.is_member(worker):  # a lost worker: the ban counts when it is back
            return (barred,)
        self._workers.happens(Happens.IS_BARRED, worker)
        self._load.leave(worker)
        under_way = self._updates.give_up(worker)
        decision = replace(barred, discarded=under_way, abandoned=under_way[-1:])
        return (decision, *self._stepping.put_out(self._groups.lead_of[worker], now_s))

    def is_barred(self, worker: int) -> bool:
        """Return whether a worker that stands for itself is barred, even if it is lost."""
        return self._clients is None and worker in self._judge.barred

    # --- readmission

    def _readmit(self, accused: Iterable[int], now_s: float) -> list[Decision]:
        """Readmit barred clients, or workers that stand for themselves."""
        decisions = list[Decision]()
        for each in accused:
            if self._clients is None:
                decisions += self._recall(each, now_s)
            else:
                self._judge.readmit(each)
                self._clients.registry.barred.discard(each)
                version = self._stepping.version
                decisions.append(Decision((), (), (), version, readmitted=(each,)))
        return decisions

    def _recall(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        if self._workers[worker] is Stage.BARRED:
            self._workers.happens(Happens.IS_RECALLED, worker)
        return self.readmit_if_recalled(worker, now_s)

    def readmit_if_recalled(self, worker: int, now_s: float) -> tuple[Decision, ...]:
        """Let a recalled worker join the pace, once it has asked to after its abandoned updates."""
        if self._workers[worker] is not Stage.RECALLED or not self._updates.have_asked(worker):
            return ()
        self._updates.drop(worker)
        if not self._updates.are_left_after(self._updates.made[worker]):
            return ()
        self._judge.readmit(worker)
        back = Decision((), (), (), self._stepping.version, readmitted=(worker,))
        return (back, *self._stepping.join(self._groups.lead_of[worker], now_s))

    @property
    def may_readmit(self) -> bool:
        """Whether a worker beside the pace may be in again without another's update."""
        # A recalled worker is in as soon as it asks.
        recalled = self._workers.at(Stage.RECALLED)
        return bool(self._outliers.unjudged or self._updates.with_more_to_do(recalled))

    def readmit_if_none_computes(self, now_s: float) -> list[Decision]:
        """Readmit the workers or clients barred for longest, if no step would come otherwise."""
        stands_still = (
            not self._updates.closed
            and self._workers.at(*BESIDE_THE_PACE)
            and not self._workers.at(Stage.IN)
            and not self.may_readmit
            # Once a worker has made all its updates, barred ones stay out to the end.
            and not self._updates.done
        )
        if not stands_still:
            return []
        among = self._workers.at(Stage.BARRED, Stage.RECALLED) if self._clients is None else None
        return self._readmit(self._judge.eldest(among), now_s)
