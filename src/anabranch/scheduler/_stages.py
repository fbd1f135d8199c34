"""Things that are each at one stage of a life, which a table describes. Pure.

A table maps each stage to the events that are possible there, and each event to the next stage. The
tables are those of a site (`membership/_life`) and, where servers hold the model, of a worker and a
group of workers (`serving/_workers`, `serving/_groups`).

An event that the table lacks raises an error, because only a bug of the scheduler causes it. Flags
beside a table could contradict it, so there are none.
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
        kind: the word for a thing in an error message.
        table: for each stage, the possible events and the stage that each leads to.
        things: the numbers of the first things.
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
        # A dict keeps the order of arrival, which a set would not: event logs depend on it.
        self._at: dict[Stage, dict[int, None]] = {stage: {} for stage in table}
        for thing in things:
            self.put(thing, first)

    def __getitem__(self, thing: int) -> Stage:
        return self._stages[thing]

    def put(self, thing: int, stage: Stage) -> None:
        """Put a thing at a stage without an event: a new thing, or one restored."""
        if thing in self._stages:
            del self._at[self._stages[thing]][thing]
        self._stages[thing] = stage
        self._at[stage][thing] = None

    def remove(self, thing: int) -> None:
        """Remove a thing."""
        del self._at[self._stages.pop(thing)][thing]

    def may(self, thing: int, happens: Happens) -> bool:
        """Return whether an event is possible for a thing now."""
        return happens in self._table[self[thing]]

    def happens(self, what: Happens, *things: int) -> None:
        """Move some things to the stages that an event leads to.

        Raises:
            RuntimeError: the table lacks the event at a thing's stage: a bug of the scheduler.
        """
        for thing in things:
            stage = self._stages[thing]
            if what not in self._table[stage]:
                raise RuntimeError(f"{self._kind} {thing} {what.value}, and it is {stage.value}")
            self.put(thing, self._table[stage][what])

    def any_at(self, *stages: Stage) -> bool:
        """Return whether a thing is at one of some stages."""
        return any(self._at[stage] for stage in stages)

    def at(self, *stages: Stage) -> list[int]:
        """Return the things at some stages: stage by stage, each in the order of arrival."""
        return [thing for stage in stages for thing in self._at[stage]]
