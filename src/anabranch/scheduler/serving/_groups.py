"""Groups of workers, which the pace knows as one worker each. Pure.

Workers move in groups: under a barrier all together, in a forest those of each tree, else each
alone. A group's updates become part of the model in one step, and its workers get permissions
together. The pace knows a group by its first worker, its *lead*, which may itself be lost.

A group is at one stage at a time. :data:`TABLE` lists every change of stage::

    out ──joins──▶ waiting ──proceeds──▶ computing ──gives up──▶ giving up
     ▲                │ ◀────pushes──────────┘                       │
     │                └─rests──▶ resting ◀──────────rests────────────┘
     └──leaves── from every other stage

- **Out**: the pace does not know the group. It has no members, or its only one is barred or idle.
- **Waiting** and **computing**: the pace knows the group, and has it wait or proceed.
- **Giving up**: its way to the servers is broken, so it has left the pace. It rests once its
  workers have asked to proceed after each update that was given up.
- **Resting**: it has no update under way, and is out of the pace until new groups are formed.

A group that is to change rests at its next permission. It may be kept after all, and then joins
the pace again as it is.

**Epochs.** A group's sums hold the updates of its members and no others. A change of members, and
anything else that voids sums, begins an epoch of the group. In epoch 0, sites take all workers of a
plan's group for members.

What must never happen: a sum with a lost worker's update counts (its epoch is over), or a group
gets permissions while the pace does not know it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView
from enum import Enum

from anabranch.scheduler._stages import Stages


class Stage(Enum):
    """The stages of a group's life."""

    OUT = "out"
    WAITING = "waiting"
    COMPUTING = "computing"
    GIVING_UP = "giving up"
    RESTING = "resting"


class Happens(Enum):
    """The events of a group's life."""

    JOINS = "joins the pace"
    PROCEEDS = "may proceed"
    PUSHES = "has pushed its updates"
    LEAVES = "has no worker left that could proceed"
    GIVES_UP = "gives up what is under way"
    RESTS = "rests"


S, H = Stage, Happens
TABLE: dict[Stage, dict[Happens, Stage]] = {
    S.OUT: {H.JOINS: S.WAITING},
    S.WAITING: {H.PROCEEDS: S.COMPUTING, H.LEAVES: S.OUT, H.RESTS: S.RESTING},
    S.COMPUTING: {H.PUSHES: S.WAITING, H.LEAVES: S.OUT, H.GIVES_UP: S.GIVING_UP},
    S.GIVING_UP: {H.RESTS: S.RESTING, H.LEAVES: S.OUT},
    S.RESTING: {H.JOINS: S.WAITING, H.LEAVES: S.OUT},
}
"""For each stage, the events that are possible there and the stage that each leads to."""

IN_THE_PACE = frozenset({S.WAITING, S.COMPUTING})
"""Stages of groups that the pace knows."""


class Groups:
    """The present groups, by their leads.

    Args:
        groups: the workers of each.
        adds_up: whether a group's updates are added up on their way.

    Attributes:
        adds_up: see above.
        stages: of the groups, by their leads.
        lead_of: by worker, the lead of its group; lost workers of a group are in it, too.
        epochs: by lead, the number of the group's present epoch.
    """

    def __init__(self, groups: Iterable[Collection[int]], adds_up: bool) -> None:
        self.adds_up = adds_up
        self._members: dict[int, dict[int, None]] = {}
        self.stages = Stages[Stage, Happens]("group", TABLE, (), Stage.OUT)
        self._to_change: set[int] = set()
        self._places: dict[int, int] = {}  # by lead, among all groups that were formed
        self._formed = 0
        self.lead_of: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self._later: set[int] = set()  # the leads whose epoch is not 0
        for group in groups:
            self.form(min(group), sorted(group), sorted(group), 0)

    def __getitem__(self, lead: int) -> KeysView[int]:
        """Return the present members of a group, in a view; there may be none."""
        return self._members[lead].keys()

    def __contains__(self, lead: object) -> bool:
        return lead in self._members

    @property
    def leads(self) -> tuple[int, ...]:
        """The leads of all groups, in the groups' order."""
        return tuple(self._members)

    def place_of(self, lead: int) -> int:
        """Return a number that rises in the groups' order."""
        return self._places[lead]

    def all_of(self, lead: int) -> list[int]:
        """Return a group's workers, lost ones included."""
        return [worker for worker, first in self.lead_of.items() if first == lead]

    # --- members

    def form(self, lead: int, workers: Iterable[int], members: Iterable[int], epoch: int) -> None:
        """Add a group that the pace does not know yet.

        Args:
            lead: its name.
            workers: of the group.
            members: the workers that are members from the start.
            epoch: the first epoch; 0 if all workers are members, as sites assume.
        """
        self._members[lead] = dict.fromkeys(members)
        self.stages.put(lead, Stage.OUT)
        self.lead_of |= dict.fromkeys(workers, lead)
        self._places[lead] = self._formed
        self._formed += 1
        self._begin_epoch(lead, epoch)

    def add(self, worker: int) -> None:
        """Make a worker a member of its group."""
        self._members[self.lead_of[worker]][worker] = None

    def remove(self, worker: int) -> None:
        """Remove a worker from the members of its group."""
        del self._members[self.lead_of[worker]][worker]

    def set_members(self, lead: int, members: Iterable[int]) -> None:
        """Set a group's members."""
        self._members[lead] = dict.fromkeys(members)

    def begin_epoch(self, lead: int) -> None:
        """Void the sums of a group that are under way."""
        self._begin_epoch(lead, self.epochs[lead] + 1)

    def _begin_epoch(self, lead: int, epoch: int) -> None:
        self.epochs[lead] = epoch
        if epoch:
            self._later.add(lead)

    @property
    def later_epochs(self) -> dict[int, int]:
        """By lead, in the groups' order, the number of the present epoch, where it is not 0."""
        return {lead: self.epochs[lead] for lead in sorted(self._later, key=self.place_of)}

    # --- change

    @property
    def resting(self) -> list[int]:
        """The leads of the groups that rest, in rising order."""
        return sorted(self.stages.at(Stage.RESTING))

    def is_to_change(self, lead: int | None) -> bool:
        """Return whether a group is to change; False for None, the lead of a worker in no group."""
        return lead in self._to_change

    def mark(self, lead: int) -> None:
        """Mark a group as one that is to change."""
        self._to_change.add(lead)

    def change_all_but(self, kept: Iterable[int]) -> None:
        """Mark all groups as ones that are to change, but those with these leads."""
        self._to_change = self._members.keys() - {*kept}

    @property
    def changing(self) -> list[int]:
        """The leads of the groups that are to change."""
        return sorted(self._to_change)

    def dissolve_changing(self) -> None:
        """Remove the groups that are to change; their workers are in no group then."""
        for lead in self._to_change:
            del self._members[lead], self.epochs[lead], self._places[lead]
            self.stages.remove(lead)
        self._later -= self._to_change
        self._to_change = set()
        self.lead_of = {each: lead for each, lead in self.lead_of.items() if lead in self._members}
