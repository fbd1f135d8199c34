"""Things that are each at one stage of a life, which a table describes. Pure.

A table has, for each stage, what can happen to a thing there, and the stage that takes it to. What
the table lacks cannot happen: a scheduler that says so is at fault, and no set of flags beside the
table can contradict it. The tables are those of a site (`membership/life`), and of a worker and a
group of workers, where servers hold the model (`serving/workers`, `serving/groups`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Generic, TypeVar

Stage = TypeVar("Stage", bound=Enum)
Happens = TypeVar("Happens", bound=Enum)


class Stages(Generic[Stage, Happens]):
    """The stages of some things, which are numbered.

    Args:
        kind: what a thing is called, in an error.
        table: what each thing that happens at a stage makes of it.
        things: that there are at first.
        first: their stage.
    """

    def __init__(
        self,
        kind: str,
        table: Mapping[Stage, Mapping[Happens, Stage]],
        things: Iterable[int],
        first: Stage,
    ) -> None:
        self._kind = kind
        self._table = table
        self._stages: dict[int, Stage] = {}
        self._at: dict[Stage, dict[int, None]] = {stage: {} for stage in table}  # as they arrived
        for thing in things:
            self.put(thing, first)

    def __getitem__(self, thing: int) -> Stage:
        return self._stages[thing]

    def put(self, thing: int, stage: Stage) -> None:
        """Let a thing be at a stage, whatever happened: it is new, or known from before."""
        if thing in self._stages:
            del self._at[self._stages[thing]][thing]
        self._stages[thing] = stage
        self._at[stage][thing] = None

    def remove(self, thing: int) -> None:
        """Let there be no such thing any more."""
        del self._at[self._stages.pop(thing)][thing]

    def may(self, thing: int, happens: Happens) -> bool:
        """Return whether this can happen to a thing now."""
        return happens in self._table[self[thing]]

    def happens(self, what: Happens, *things: int) -> None:
        """Take note of what happens to some things.

        Raises:
            RuntimeError: it cannot happen at a thing's stage: a fault of the scheduler's.
        """
        for thing in things:
            stage = self._stages[thing]
            if what not in self._table[stage]:
                raise RuntimeError(f"{self._kind} {thing} {what.value}, and it is {stage.value}")
            self.put(thing, self._table[stage][what])

    def at(self, *stages: Stage) -> list[int]:
        """Return the things at some stages, by stages; of each in the order of arrival there."""
        return [thing for stage in stages for thing in self._at[stage]]
