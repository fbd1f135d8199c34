"""Forms groups anew during a run. Pure.

1. **New groups are wanted.** Groups that stay as they are continue. Each other group begins no
   further update: it rests, once its updates are settled.
2. **All groups that are to change are at rest.** The scheduler tells all sites of the new groups.
3. **All sites know them.** The new groups join the pace. Each continues with the update after the
   latest that one of its workers has made. From then on a returning worker is *in* (`_workers`).

A group that reached the servers through a lost site cannot end its iteration. It gives up its
updates under way: the servers discard them, and the group rests once its workers have asked to
proceed. Updates that were complete before count.

What must never happen: a group that is to change gets a permission, or a worker that is back has no
group and is not at the stage *homeless*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from anabranch.scheduler.decisions import Decision
from anabranch.scheduler.serving._groups import Groups
from anabranch.scheduler.serving._groups import Happens as ToGroup
from anabranch.scheduler.serving._groups import Stage as GroupStage
from anabranch.scheduler.serving._stepping import Stepping
from anabranch.scheduler.serving._updates import Updates
from anabranch.scheduler.serving._workers import Happens as ToWorker
from anabranch.scheduler.serving._workers import Stage, Workers


class Regrouping:
    """Brings groups to rest, and forms others of their workers.

    Args:
        stepping: tells the pace.
        updates: of all workers.
        workers: the stages of the workers.
        groups: the present groups.
    """

    def __init__(
        self, stepping: Stepping, updates: Updates, workers: Workers, groups: Groups
    ) -> None:
        self._stepping = stepping
        self._updates = updates
        self._workers = workers
        self._groups = groups
        self._wanted: tuple[tuple[int, ...], ...] | None = None

    def want(self, groups: Sequence[tuple[int, ...]], kept: Iterable[int]) -> None:
        """Bring the groups that are to change to rest, each at its next permission.

        Args:
            groups: the wanted groups, each in rising order; a worker in none of them is out.
            kept: the leads of groups that stay as they are.
        """
        self._wanted = tuple(groups)
        self._groups.change_all_but(kept)

    @property
    def is_at_rest(self) -> bool:
        """Whether new groups can be formed: no group that is to change has updates under way."""
        return self._wanted is not None and all(
            self._groups.stages[lead] is GroupStage.RESTING
            for lead in self._groups.changing
            if self._groups[lead]
        )

    def next_update(self, group: Iterable[int]) -> int:
        """Return the number of the update with which workers at rest continue as a group."""
        with_more = self._updates.with_more_to_do(group)
        return 1 + max((self._updates.made[worker] for worker in with_more), default=0)

    def form(self, now_s: float) -> list[Decision]:
        """Form the wanted groups, now that all sites know them, and let them join the pace."""
        assert self._wanted is not None
        assert self.is_at_rest
        stays = [lead for lead in self._groups.resting if not self._groups.is_to_change(lead)]
        begins = [*stays]
        self._groups.dissolve_changing()
        for group in self._wanted:
            if group[0] not in self._groups and self._updates.with_more_to_do(group):
                self._form(group)
                begins.append(group[0])
        self._wanted = None
        for worker in self._workers.at(Stage.RETURNING):
            if worker not in self._groups.lead_of:
                has_more = self._updates.with_more_to_do([worker])
                self._workers.happens(
                    ToWorker.HAS_NO_GROUP if has_more else ToWorker.HAS_FINISHED, worker
                )
        decisions = list[Decision]()
        for lead in begins:
            if self._groups[lead]:
                decisions += self._stepping.join(lead, now_s)
            elif lead in stays:
                self._groups.stages.happens(ToGroup.LEAVES, lead)
        return decisions

    def _form(self, group: tuple[int, ...]) -> None:
        first = self.next_update(group)
        with_more = self._updates.with_more_to_do(group)
        is_out = Stage.OUT, Stage.LATE
        members = [each for each in with_more if self._workers[each] not in is_out]
        # In epoch 0, sites take all workers of a group for members. A worker that is back waits for
        # an epoch that names it, so a group with one begins with epoch 1.
        epoch = 0 if all(map(self._workers.is_member, group)) else 1
        for worker in members:
            self._updates.resume(worker, first - 1)
        self._workers.take_in(members)
        self._groups.form(group[0], with_more, members, epoch)

    # --- a broken way

    def give_up(self, lead: int, now_s: float) -> list[Decision]:
        """Remove a group with a broken way to the servers from the pace; it is to change."""
        self._groups.mark(lead)
        if self._groups.stages[lead] is not GroupStage.COMPUTING:
            return []  # its updates are complete
        self._groups.stages.happens(ToGroup.GIVES_UP, lead)
        of_each = [self._updates.give_up(worker) for worker in self._groups[lead]]
        given_up = Decision(
            (),
            tuple(chain.from_iterable(of_each)),
            (),
            self._stepping.version,
            abandoned=tuple(each[-1] for each in of_each),
            is_broken=True,
        )
        left = self._stepping.leave_pace(lead, now_s)
        return [given_up, *left, *self.rest_if_all_asked(lead, now_s)]

    def rest_if_all_asked(self, lead: int, now_s: float) -> list[Decision]:
        """Bring a group to rest that gives up updates, once its workers have asked to proceed.

        If these were their last updates, the workers have finished.
        """
        members = [*self._groups[lead]]
        if self._groups.stages[lead] is not GroupStage.GIVING_UP:
            return []
        if not all(map(self._updates.have_asked, members)):
            return []
        for worker in members:
            self._updates.drop(worker)
        self._groups.stages.happens(ToGroup.RESTS, lead)
        if self._updates.with_more_to_do(members):
            return []
        finished = Decision((), (), (), self._stepping.version, tuple(members))
        for worker in members:
            self._stepping.remove(ToWorker.HAS_FINISHED, worker, now_s)
        return [finished]
