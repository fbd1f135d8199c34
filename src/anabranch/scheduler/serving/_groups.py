"""Groups of workers, which the pace knows as one worker each. Pure.

Workers move in groups: under a barrier all together, in a forest those of each tree, else each
alone. A group's updates become part of the model in one step, and its workers go on together. The
pace knows a group by the name of its first worker, its *lead*, which may itself be lost.

A group is at one stage at a time, and :data:`TABLE` has every change that there is::

    out ──joins──▶ waiting ──proceeds──▶ computing ──gives up──▶ giving up
     ▲                │ ◀────pushes──────────┘                       │
     │                └─rests──▶ resting ◀──────────rests────────────┘
     └──leaves── from every other stage

- **Out**: the pace does not know it. It has no members, or the one that it has is barred or idle.
- **Waiting** and **computing**: the pace knows it, and has it wait or proceed.
- **Giving up**: its way to the servers is broken, so it has left the pace. It rests once its
  workers have asked to go on after each update that was given up.
- **Resting**: nothing of it is under way, and it is out of the pace until new groups are formed.

A group that is to change rests when the pace would permit an update. A group that was to change
may be kept after all, and joins the pace again as it is.

**Epochs.** A group's sums hold the updates of its members and no others. Each change of members,
and all else that makes sums void, begins an epoch of the group. Sites take all workers of a plan's
group for its members in epoch 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, KeysView
from enum import Enum

from anabranch.scheduler._stages import Stages


class Stage(Enum):
    """How far a group is."""

    OUT = "out"
    WAITING = "waiting"
    COMPUTING = "computing"
    GIVING_UP = "giving up"
    RESTING = "resting"


class Happens(Enum):
    """What can happen to a group."""

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
"""What each thing that happens to a group at a stage makes of it."""

IN_THE_PACE = frozenset({S.WAITING, S.COMPUTING})
"""Stages of groups that the pace knows."""


class Groups:
    """The groups that there are, by their leads.

    Args:
        groups: each one's workers.
        adds_up: whether a group's updates are added up on their way.

    Attributes:
        adds_up: see above.
        stages: of the groups, by their leads.
        lead_of: by worker of any group, its group's lead; workers that are lost are in it too.
        epochs: by lead, how many epochs its group has begun.
    """

    def __init__(self, groups: Iterable[Collection[int]], adds_up: bool) -> None:
        self.adds_up = adds_up
        self._members: dict[int, dict[int, None]] = {}
        self.stages = Stages[Stage, Happens]("group", TABLE, (), Stage.OUT)
        self._to_change: set[int] = set()
        self.lead_of: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        for group in groups:
            self.form(min(group), sorted(group), sorted(group), 0)

    def __getitem__(self, lead: int) -> KeysView[int]:
        """Return the members of a group, as they are; there may be none."""
        return self._members[lead].keys()

    def __contains__(self, lead: object) -> bool:
        return lead in self._members

    @property
    def leads(self) -> tuple[int, ...]:
        """The leads of all groups, in the groups' order."""
        return tuple(self._members)

    def all_of(self, lead: int) -> list[int]:
        """Return a group's workers, with those that are no members at the moment."""
        return [worker for worker, first in self.lead_of.items() if first == lead]

    # --- members

    def form(self, lead: int, workers: Iterable[int], members: Iterable[int], epoch: int) -> None:
        """Add a group that the pace does not know yet.

        Args:
            lead: its name.
            workers: all that are to be in it.
            members: those of them that are there.
            epoch: its first; 0 if all are members and know of it.
        """
        self._members[lead] = dict.fromkeys(members)
        self.stages.put(lead, Stage.OUT)
        self.lead_of |= dict.fromkeys(workers, lead)
        self.epochs[lead] = epoch

    def add(self, worker: int) -> None:
        """Let a worker be a member of its group."""
        self._members[self.lead_of[worker]][worker] = None

    def remove(self, worker: int) -> None:
        """Let a worker be a member of its group no more."""
        del self._members[self.lead_of[worker]][worker]

    def set_members(self, lead: int, members: Iterable[int]) -> None:
        """Let these be a group's members."""
        self._members[lead] = dict.fromkeys(members)

    def begin_epoch(self, lead: int) -> None:
        """Void what is under way of a group's sums."""
        self.epochs[lead] += 1

    # --- change

    @property
    def resting(self) -> list[int]:
        """The leads of the groups that rest, in rising order."""
        return sorted(self.stages.at(Stage.RESTING))

    def is_to_change(self, lead: int | None) -> bool:
        """Return whether a group is to change; None for the group of a worker that has none."""
        return lead in self._to_change

    def mark(self, lead: int) -> None:
        """Let a group be one that is to change."""
        self._to_change.add(lead)

    def change_all_but(self, kept: Iterable[int]) -> None:
        """Let all groups be to change but some, by their leads."""
        self._to_change = self._members.keys() - {*kept}

    @property
    def changing(self) -> list[int]:
        """The leads of the groups that are to change."""
        return sorted(self._to_change)

    def dissolve_changing(self) -> None:
        """Remove the groups that are to change; their workers are in none from then on."""
        for lead in self._to_change:
            del self._members[lead], self.epochs[lead]
            self.stages.remove(lead)
        self._to_change = set()
        self.lead_of = {each: lead for each, lead in self.lead_of.items() if lead in self._members}
