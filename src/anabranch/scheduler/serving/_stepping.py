"""Turns a pace's steps into decisions: permissions, and workers and groups that leave. Pure.

A step settles updates first, so that their clients are free. Then each group that may proceed does
one of four things:

- it *rests*, if it is to change and has updates to make;
- it is *idle*, if it has updates to make and no client is free;
- it *computes*: returning workers are in from this iteration on, and each gets its permissions;
- it *finishes*, if it has made all its updates.

First all steps of the pace's answer are taken. Then groups that rest, are idle or finish leave the
pace. Each that leaves may bring further steps, whose decisions come after.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from anabranch.pace import Load, Step, Update
from anabranch.scheduler.decisions import Decision, Merged, Permission
from anabranch.scheduler.serving._groups import IN_THE_PACE, Groups
from anabranch.scheduler.serving._groups import Happens as ToGroup
from anabranch.scheduler.serving._pace_of_groups import PaceOfGroups, Settled
from anabranch.scheduler.serving._permits import Permits
from anabranch.scheduler.serving._updates import Updates
from anabranch.scheduler.serving._weights import Weights
from anabranch.scheduler.serving._workers import Happens as ToWorker
from anabranch.scheduler.serving._workers import Stage, Workers


class Stepping:
    """Tells a pace of groups that join, push and leave, and takes the steps that follow.

    Args:
        pace: the pace.
        updates: of all workers.
        workers: the stages of the workers.
        groups: the present groups.
        permits: writes permissions.
        weights: returns the factors of steps.
        load: sizes the batches.
    """

    def __init__(
        self,
        pace: PaceOfGroups,
        updates: Updates,
        workers: Workers,
        groups: Groups,
        permits: Permits,
        weights: Weights,
        load: Load,
    ) -> None:
        self._pace = pace
        self._permits = permits
        self._updates = updates
        self._workers = workers
        self._groups = groups
        self._weights = weights
        self._load = load

    @property
    def version(self) -> int:
        """The number of steps that have changed the model."""
        return self._pace.version

    # --- events for the pace

    def join(self, lead: int, now_s: float) -> tuple[Decision, ...]:
        """Let a group and its members join the pace."""
        self._workers.take_in(self._groups[lead])
        self._groups.stages.happens(ToGroup.JOINS, lead)
        return self._take(self._pace.join(lead, now_s), now_s)

    def push(self, lead: int, now_s: float) -> tuple[Decision, ...] | None:
        """Tell the pace of a group's next updates; None while they are not complete."""
        push = self._updates.push(tuple(self._groups[lead]))
        if push is None:
            return None
        if push.is_given_up and self._groups.adds_up:
            self._groups.begin_epoch(lead)  # its present sums will never be complete
        self._groups.stages.happens(ToGroup.PUSHES, lead)
        return self._take(self._pace.push(lead, push.by_number, now_s, push.compute_s), now_s)

    def leave_pace(self, lead: int, now_s: float) -> tuple[Decision, ...]:
        """Tell the pace that a group leaves; the caller has set the group's stage."""
        has_finished = not self._updates.are_left_after(self._updates.made[lead])
        return self._take(self._pace.leave(lead, now_s, has_finished), now_s)

    def look(self, now_s: float) -> tuple[Decision, ...]:
        """Take the steps that have become due."""
        return self._take(self._pace.look(now_s), now_s)

    def remove(self, why: ToWorker, worker: int, now_s: float) -> tuple[Decision, ...]:
        """Put a member out; the last member takes its group out of the pace."""
        lead = self._groups.lead_of[worker]
        self._workers.happens(why, worker)
        self._groups.remove(worker)
        self._load.leave(worker)
        if self._groups[lead]:
            return ()
        return self.put_out(lead, now_s)

    def put_out(self, lead: int, now_s: float) -> tuple[Decision, ...]:
        """Put a group out; if the pace knows the group, it leaves the pace."""
        is_known = self._groups.stages[lead] in IN_THE_PACE
        if self._groups.stages.may(lead, ToGroup.LEAVES):
            self._groups.stages.happens(ToGroup.LEAVES, lead)
        return self.leave_pace(lead, now_s) if is_known else ()

    # --- steps of the pace

    def _take(self, steps: Sequence[Step], now_s: float) -> tuple[Decision, ...]:
        decisions: list[Decision] = []
        finished, resting, idle = list[int](), list[int](), list[int]()
        for told in steps:
            settled = self._pace.take(told)
            applied = self._merged(settled)
            self._permits.settle([each.update for each in applied], settled.discarded)
            permissions, finished_now = list[Permission](), list[int]()
            for lead in settled.step.proceed:
                if self._is_to_rest(lead):
                    self._groups.stages.happens(ToGroup.RESTS, lead)
                    resting.append(lead)
                elif self._is_to_idle(lead):
                    idle.append(lead)
                else:
                    permissions += self._let_go_on(lead, finished_now, now_s)
            finished += finished_now
            decisions.append(
                Decision(
                    applied,
                    settled.discarded,
                    tuple(permissions),
                    self._pace.version,
                    tuple(finished_now),
                    abandoned=self._abandoned(settled.step.abandon),
                    share=settled.step.share,
                )
            )
        for worker in finished:
            decisions += self.remove(ToWorker.HAS_FINISHED, worker, now_s)
        for lead in resting:
            decisions += self.leave_pace(lead, now_s)
        for lead in idle:
            self._workers.happens(ToWorker.HAS_NO_CLIENT, lead)  # it moves alone
            decisions += self.put_out(lead, now_s)
        return tuple(decisions)

    def _merged(self, settled: Settled) -> tuple[Merged, ...]:
        merged = list[Merged]()
        for each, pushed in settled.applied:
            factor = self._weights.factor(pushed, settled.before)
            number = each.update[1]
            merged += [
                Merged((worker, number), each.version, each.missed, factor)
                for worker in pushed.workers
            ]
        return tuple(merged)

    def _is_to_rest(self, lead: int) -> bool:
        """Return whether a group that may proceed is to rest instead, since it is to change."""
        made = max(self._updates.made[worker] for worker in self._groups[lead])
        return self._groups.is_to_change(lead) and self._updates.are_left_after(made)

    def _is_to_idle(self, lead: int) -> bool:
        """Return whether a worker that may proceed has updates to make and no client for them."""
        made = self._updates.made[lead]
        return self._updates.are_left_after(made) and not self._permits.has_client

    def _let_go_on(self, lead: int, finished: list[int], now_s: float) -> list[Permission]:
        """Let a group compute; note the workers that have made all their updates."""
        self._groups.stages.happens(ToGroup.PROCEEDS, lead)
        self._take_back(lead)
        permissions = list[Permission]()
        for worker in self._groups[lead]:
            permissions += self._permits.permit(worker, self._pace.version, now_s)
            if not self._updates.of(worker):
                finished.append(worker)
        return permissions

    def _abandoned(self, leads: Sequence[int]) -> tuple[Update, ...]:
        """Give up the updates under way of groups that abandon them; return each worker's last."""
        workers = chain.from_iterable(self._groups[lead] for lead in leads)
        return tuple(chain.from_iterable(self._updates.give_up(worker)[-1:] for worker in workers))

    # --- workers come back

    def _take_back(self, lead: int) -> None:
        """Take in the returning workers of a group as its next update begins."""
        returning = self._workers.at(Stage.RETURNING)
        back = [each for each in returning if self._groups.lead_of.get(each) == lead]
        if not back:
            return
        made = max(self._updates.made[worker] for worker in self._groups.all_of(lead))
        if not self._updates.are_left_after(made):
            return
        self._groups.begin_epoch(lead)
        for worker in back:
            self._updates.resume(worker, made)
            self._groups.add(worker)
        self._workers.take_in(back)

    def begin_anew(self, lead: int, now_s: float) -> tuple[Decision, ...]:
        """Restart a group that lost every worker, with those that rejoined."""
        if self._groups.is_to_change(lead):
            return ()
        self._take_back(lead)
        return self.join(lead, now_s) if self._groups[lead] else ()
