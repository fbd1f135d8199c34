"""Translates between the pace, which counts pushes of groups, and the books' updates. Pure.

A pace knows a group as one worker, and numbers updates by the group's pushes. The books number them
as the workers do. The two numbers differ once an update was lost, or several updates were given up
and pushed at once. So this module notes each push, and returns steps with the books' numbers.

A pushed update stays here until a step settles it: applied or discarded, each exactly once. The
ledger asserts that, and the pace's staleness bound.

If workers compute ahead, the update after a discarded one was computed on an equally old model. The
pace does not know that, so this module discards both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from anabranch.pace import Applied, Ledger, Pace, Step, Update
from anabranch.scheduler.serving._updates import Pushed


@dataclass(frozen=True, slots=True)
class Settled:
    """A step that has been taken, and the updates that it settles.

    Args:
        step: with the books' numbers of updates.
        before: the version of the model before the step.
        applied: the updates that it applies, each with the pushed updates of the group.
        discarded: updates that never become part of the model, by worker.
    """

    step: Step
    before: int
    applied: tuple[tuple[Applied, Pushed], ...]
    discarded: tuple[Update, ...]


class PaceOfGroups:
    """A pace's rule and its ledger, for groups.

    Args:
        pace: the parameters of the pace.
        ahead: how many more updates a worker may compute before it gets the model with its latest
            one.
    """

    def __init__(self, pace: Pace, ahead: int) -> None:
        self._rule = pace.rule()
        self._ledger = Ledger(pace, ahead)
        self._ahead = ahead
        self._pushes: Counter[int] = Counter()  # by lead, as the pace counts them
        self._names: dict[Update, tuple[Update, ...]] = {}  # the books', by the pace's
        self._pushed: dict[Update, Pushed] = {}  # by lead and number, until they are settled

    @property
    def due_s(self) -> float:
        """When to look next; infinite if nothing depends on time alone."""
        return self._rule.due_s

    @property
    def version(self) -> int:
        """The number of steps that have changed the model."""
        return self._ledger.version

    def join(self, lead: int, now_s: float) -> list[Step]:
        """Let a group join; return the steps that follow."""
        self._ledger.joined()
        return self._in_our_names(self._rule.join(lead, now_s))

    def leave(self, lead: int, now_s: float, has_finished: bool) -> list[Step]:
        """Let a group leave; return the steps that follow."""
        self._ledger.left(lead)
        return self._in_our_names(self._rule.leave(lead, now_s, has_finished))

    def push(
        self, lead: int, pushed: Mapping[int, Pushed], now_s: float, compute_s: float
    ) -> list[Step]:
        """Take a group's updates, by number, as one push; return the steps that follow."""
        names = tuple((lead, number) for number in pushed)
        for name, each in zip(names, pushed.values(), strict=True):
            self._pushed[name] = each
            self._ledger.pushed(name)
        self._pushes[lead] += 1
        self._names[lead, self._pushes[lead]] = names
        return self._in_our_names(self._rule.push(lead, now_s, compute_s))

    def look(self, now_s: float) -> list[Step]:
        """Return the steps that have become due."""
        return self._in_our_names(self._rule.look(now_s))

    def take(self, step: Step) -> Settled:
        """Take a step, after all those that were returned before it.

        Raises:
            AssertionError: an update missed more than the pace's bound, or is settled twice.
        """
        if self._ahead:
            step = self._without_late(step)
        before = self._ledger.version
        applied = self._ledger.enter(step)
        return Settled(
            step,
            before,
            tuple((each, self._pushed.pop(each.update)) for each in applied),
            tuple(
                (worker, number)
                for lead, number in step.discard
                for worker in self._pushed.pop((lead, number)).workers
            ),
        )

    def _in_our_names(self, steps: Sequence[Step]) -> list[Step]:
        def ours(updates: Iterable[Update]) -> tuple[Update, ...]:
            return tuple(chain.from_iterable(map(self._names.pop, updates)))

        return [replace(step, apply=ours(step.apply), discard=ours(step.discard)) for step in steps]

    def _without_late(self, step: Step) -> Step:
        """Discard the updates computed after a discarded one, on an equally old model."""
        late = tuple(update for update in step.apply if self._ledger.is_late(update))
        apply = tuple(update for update in step.apply if update not in late)
        return replace(step, apply=apply, discard=(*step.discard, *late))
