"""A ledger of the model's updates: what each had missed, and whether the pace kept its bound."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from anabranch.pace._pace import Pace, Step, Update


@dataclass(frozen=True, slots=True)
class Applied:
    """An update that became part of the model.

    Args:
        update: its name.
        version: of the model after the step; steps that change the model count from 1.
        missed: how many updates of others it missed: those of steps between its worker's pull and
            its own step.
    """

    update: Update
    version: int
    missed: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state when a worker proceeded: the model's updates, the worker's own, and who had left.

    Args:
        updates: in the model.
        own: of these, the worker's own.
        left: how many workers had ever left.
    """

    updates: int
    own: int
    left: int


class Ledger:
    """Follows a pace's steps, and asserts its staleness bound.

    Args:
        pace: has the bound.
        ahead: how many updates a worker computes before it sees a model that contains its last one.
            An update's model is then older by as many of the worker's own turns. It may have missed
            the bound for each of these turns, and the other updates in their steps.

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
        """Count a worker that has joined; call before the pace's ``join``."""
        self._joined += 1

    def left(self, worker: int) -> None:
        """Count a worker that has left; call before the pace's ``leave``."""
        self._left += 1
        self._pulled.pop(worker, None)

    def pushed(self, update: Update) -> None:
        """Enter an update that has come; call before the pace's ``push``."""
        self._waiting[update] = self._pulled[update[0]].popleft()

    def enter(self, step: Step) -> tuple[Applied, ...]:
        """Enter a step; return each of its updates with what it had missed.

        Raises:
            AssertionError: an update was settled twice or before it came, or missed more than the
                bound. (A worker that came back counts as another.)
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
        """Return whether a waiting update has already missed more than the bound."""
        seen = self._waiting[update]
        bound = self._bound(self._joined - seen.left)
        return bound is not None and self._missed(update[0], seen) > bound

    def _missed(self, worker: int, seen: _Seen) -> int:
        """Return how many updates of others became part of the model since a worker proceeded."""
        return self._updates - seen.updates - (self._own.get(worker, 0) - seen.own)

    def _bound(self, workers: int) -> int | None:
        """Return how many updates of others an update may have missed."""
        bound = self._pace.staleness_bound(workers)
        if bound is None:
            return None
        return (1 + self._ahead) * bound + self._ahead * (workers - 1)

    def _settle(self, update: Update) -> _Seen:
        assert update in self._waiting, f"update {update} has not come, or was settled before"
        return self._waiting.pop(update)
