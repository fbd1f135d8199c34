"""The state of a served model's books, for the other parts of a scheduler. Pure.

Nothing here changes the books. Each answer holds until the next event.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.scheduler._clients import Clients
from anabranch.scheduler._waits import Stall
from anabranch.scheduler.serving._barring import Barring
from anabranch.scheduler.serving._groups import Groups
from anabranch.scheduler.serving._pace_of_groups import PaceOfGroups
from anabranch.scheduler.serving._regrouping import Regrouping
from anabranch.scheduler.serving._updates import Updates
from anabranch.scheduler.serving._workers import BESIDE_THE_PACE, MEMBERS, Stage, Workers


class Standing:
    """The state of a run's updates, workers and groups.

    Args:
        updates: of all workers.
        workers: the stages of the workers.
        groups: the present groups.
        pace: takes the steps of the model.
        regrouping: forms groups anew.
        barring: bars outliers; None if the merge rule has no filter.
        clients: that workers stand for; None if each stands for itself.
    """

    def __init__(
        self,
        updates: Updates,
        workers: Workers,
        groups: Groups,
        pace: PaceOfGroups,
        regrouping: Regrouping,
        barring: Barring | None,
        clients: Clients | None,
    ) -> None:
        self._updates = updates
        self._workers = workers
        self._groups = groups
        self._pace = pace
        self._regrouping = regrouping
        self._barring = barring
        self._clients = clients

    @property
    def adds_up(self) -> bool:
        """Whether a group's updates are added up on their way."""
        return self._groups.adds_up

    @property
    def epochs(self) -> dict[int, int]:
        """By lead, the number of the group's present epoch."""
        return self._groups.epochs

    @property
    def later_epochs(self) -> dict[int, int]:
        """By lead, the number of the group's present epoch, where it is not 0."""
        return self._groups.later_epochs

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The members of each group; a group may be empty."""
        return tuple(tuple(self._groups[lead]) for lead in self._groups.leads)

    def left_of(self, group: Iterable[int]) -> tuple[int, ...]:
        """Return those of the given workers that are members or are returning."""
        here = {*MEMBERS, Stage.RETURNING}
        return tuple(worker for worker in group if self._workers[worker] in here)

    @property
    def under_way(self) -> int:
        """The largest number of an update that a worker had permission for."""
        return self._updates.latest

    def sums_of(self, lead: int) -> tuple[tuple[int, ...], int]:
        """Return the members in a group's present sums, and the number of their updates there.

        Args:
            lead: of the group.
        """
        workers = tuple(self._groups[lead])
        made = max(self.made(worker) for worker in self._groups.all_of(lead))
        is_next = all(self._updates.settled[worker] == made for worker in workers)
        return workers, made + is_next

    def made(self, worker: int) -> int:
        """Return how many updates a worker had permission for."""
        return self._updates.made.get(worker, 0)

    def stalls(self) -> list[Stall]:
        """Return each worker that computes while another one waits for its permission."""
        computing = [*self._updates.computing()]
        waiting = {*self._workers.at(Stage.IN)} - {worker for worker, _ in computing}
        if not waiting:
            return []
        return [
            Stall(("update", *update), update[0], frozenset(waiting), f"its update {update[1]}")
            for update in computing
        ]

    def is_given_up(self, worker: int, update: int) -> bool:
        """Return whether an update of a worker was given up before it was complete."""
        return self._updates.is_given_up((worker, update))

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that are members of a group."""
        return tuple(self._workers.at(*MEMBERS))

    @property
    def is_over(self) -> bool:
        """Whether no worker is in, and none may come in again.

        A returning worker may, if its group is to change. A barred one may, if a verdict that is
        still due can readmit it.
        """
        waiting = [
            worker
            for worker in self._workers.at(Stage.RETURNING)
            if self._groups.is_to_change(self._groups.lead_of.get(worker))
        ]
        may_be_readmitted = (
            self._barring is not None
            and not self._updates.closed
            and self._workers.at(*BESIDE_THE_PACE)
            and self._barring.may_readmit
        )
        here = self._workers.at(Stage.IN, Stage.HOMELESS)
        return not (here or may_be_readmitted or self._updates.with_more_to_do(waiting))

    @property
    def barred(self) -> tuple[int, ...]:
        """The workers that are barred and have not made all their updates."""
        barred = self._workers.at(Stage.BARRED, Stage.RECALLED)
        return tuple(self._updates.with_more_to_do(barred))

    @property
    def idle(self) -> tuple[int, ...]:
        """The workers that have updates to make and no client, since too many are barred."""
        return tuple(self._updates.with_more_to_do(self._workers.at(Stage.IDLE)))

    @property
    def homeless(self) -> list[int]:
        """The workers that are back and in no group."""
        return self._workers.at(Stage.HOMELESS)

    @property
    def done(self) -> tuple[int, ...]:
        """The workers that had permission for all their updates."""
        return self._updates.done

    @property
    def version(self) -> int:
        """The number of steps that have changed the model."""
        return self._pace.version

    @property
    def size(self) -> int:
        """The number of workers, whatever their stage."""
        return len(self._workers.all)

    @property
    def welcome(self) -> int:
        """The number of clients that are not barred; 0 if workers stand for themselves."""
        return 0 if self._clients is None else self._clients.welcome

    @property
    def is_at_rest(self) -> bool:
        """Whether new groups can be formed: no group that is to change has updates under way."""
        return self._regrouping.is_at_rest

    def next_update(self, group: Iterable[int]) -> int:
        """Return the number of the update with which workers at rest continue as a group."""
        return self._regrouping.next_update(group)
