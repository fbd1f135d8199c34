"""Which updates are part of the model, what each had missed, and whether a pace kept its bound."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from anabranch.pace._pace import Pace, Step, Update


@dataclass(frozen=True, slots=True)
class Applied:
    """An update that became part of the model.

    Args:
        update: which.
        version: of the model since; steps that change it are counted from 1.
        missed: how many updates of others it missed: those of steps between its worker's pull and
            its own step.
    """

    update: Update
    version: int
    missed: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a worker knew when it went on: how many updates the model had, of how many workers."""

    updates: int
    own: int
    left: int  # how many workers had ever left


class Ledger:
    """Follows a pace's steps, and asserts its staleness bound.

    Args:
        pace: whose bound.
        ahead: how many updates a worker computes before it sees a model with its last one in. The
            model that an update is computed on is then as many of its own turns older, and what it
            may have missed is the bound for each of them, and what else was in those steps.

    Attributes:
        version: of the model: how many steps have changed it.
    """

    def __init__(self, pace: Pace, ahead: int = 0) -> None:
        self._pace = pace
        self._ahead = ahead
        self.version = 0
        self._updates = 0  # in the model
        self._own: dict[int, int] = {}  # of each worker
        self._joined = self._left = 0
        self._pulled: dict[int, deque[_Seen]] = {}  # by each worker, for its next updates
        self._waiting: dict[Update, _Seen] = {}

    def joined(self) -> None:
        """Take note that a worker has joined, before the pace hears of it."""
        self._joined += 1

    def left(self, worker: int) -> None:
        """Take note that a worker has left, before the pace hears of it."""
        self._left += 1
        self._pulled.pop(worker, None)

    def pushed(self, update: Update) -> None:
        """Take note that an update has come, before the pace hears of it."""
        self._waiting[update] = self._pulled[update[0]].popleft()

    def enter(self, step: Step) -> tuple[Applied, ...]:
        """Book a step; return what each of its updates had missed.

        Raises:
            AssertionError: an update settled twice or before it came, or
                one that missed more than the bound. (A worker that came back counts as another.)
        """
        applied = []
        if step.apply:
            self.version += 1
        for update in step.apply:
            seen = self._settle(update)
            missed, bound = self._missed(update[0], seen), self._bound(self._joined - seen.left)
            assert bound is None or missed <= bound, (
                f"update {update} missed {missed} of others, the staleness bound is {bound}"
            )
            applied.append(Applied(update, self.version, missed))
        for update in step.discard:
            self._settle(update)
        for worker, _ in step.apply:
            self._own[worker] = self._own.get(worker, 0) + 1
        self._updates += len(step.apply)
        for worker in step.proceed:
            seen = _Seen(self._updates, self._own.get(worker, 0), self._left)
            pulled = self._pulled.setdefault(worker, deque())
            pulled.extend([seen] * (1 + self._ahead - len(pulled)))
        return tuple(applied)

    def is_late(self, update: Update) -> bool:
        """Return whether an update that waits has missed more than the bound by now."""
        seen = self._waiting[update]
        bound = self._bound(self._joined - seen.left)
        return bound is not None and self._missed(update[0], seen) > bound

    def _missed(self, worker: int, seen: _Seen) -> int:
        """Return how many updates of others became part of the model since a worker went on."""
        return self._updates - seen.updates - (self._own.get(worker, 0) - seen.own)

    def _bound(self, workers: int) -> int | None:
        """Return how many updates of others one may have missed."""
        bound = self._pace.staleness_bound(workers)
        if bound is None:
            return None
        return (1 + self._ahead) * bound + self._ahead * (workers - 1)

    def _settle(self, update: Update) -> _Seen:
        assert update in self._waiting, f"update {update} has not come, or was settled before"
        return self._waiting.pop(update)
