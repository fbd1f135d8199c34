"""Metered asynchronous parallel: first come, first served, at an even rate; ours."""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.pace._pace import NEVER_S, Rule, Step, Update, Workers, check_relaxation
from anabranch.pace._usual import Usual


class Metered(Table, frozen=True, kw_only=True, tag_field="kind", tag="metered"):
    """An update becomes part of the model in order of arrival, no two closer than a gap.

    The gap is ``relaxation / sum(1 / T_i)``: T_i is worker i's usual time from when it goes on
    until all of its update has come. Workers that never waited would push one update each
    ``1 / sum(1 / T_i)`` seconds, so the gap spaces out updates that come together, which would pull
    together too, and holds no worker to the slowest one's time, as R²SP's ``r T / N`` does.

    Args:
        relaxation: of the gap, in [0, 1]; with 0 this is ASP.

    Raises:
        ValueError: a relaxation outside [0, 1].
    """

    relaxation: float = 0.8
    barrier: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_relaxation(self.relaxation)

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self.relaxation)

    def staleness_bound(self, workers: int) -> None:
        """Return None: fast workers may have any number of turns between two of a slow one."""
        return None


class _Rule:
    """The rule of one run."""

    def __init__(self, relaxation: float) -> None:
        self._relaxation = relaxation
        self._workers = Workers()
        self._in: deque[Update] = deque()
        self._turned_s = -NEVER_S  # when the last turn was
        self._went_s: dict[int, float] = {}
        self._iterations: dict[int, Usual] = {}
        self.due_s = NEVER_S

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        return (Step(proceed=self._let_go(worker, now_s)),)

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.leave(worker)
        self._iterations.pop(worker, None)
        discard = tuple(update for update in self._in if update[0] == worker)
        self._in = deque(update for update in self._in if update[0] != worker)
        discarded = (Step(discard=discard),) if discard else ()
        return (*discarded, *self.look(now_s))

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._in.append(self._workers.push(worker))
        took_s = now_s - self._went_s[worker]
        if worker in self._iterations:
            self._iterations[worker].took(took_s)
        else:
            self._iterations[worker] = Usual(took_s)
        return self.look(now_s)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; give the turns that are due."""
        steps = []
        self.due_s = NEVER_S
        while self._in:
            due_s = self._turned_s + self.gap_s
            if now_s < due_s:
                self.due_s = due_s
                break
            self._turned_s = now_s
            update = self._in.popleft()
            steps.append(Step((update,), self._let_go(update[0], now_s)))
        return tuple(steps)

    def _let_go(self, worker: int, now_s: float) -> tuple[int, ...]:
        self._workers.proceed(worker)
        self._went_s[worker] = now_s
        return (worker,)

    @property
    def gap_s(self) -> float:
        """The least time between two turns; 0 while no usual time is known, or where one is 0."""
        usual_s = [each.usual_s for each in self._iterations.values()]
        rate = sum(1 / each if each else math.inf for each in usual_s)
        return self._relaxation / rate if rate else 0.0
