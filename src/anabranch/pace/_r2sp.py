"""Round-robin synchronous parallel: workers take turns at even distances (R²SP, IV-A)."""

from __future__ import annotations

from bisect import insort
from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.pace._pace import NEVER_S, Rule, Step, Update, Workers
from anabranch.pace._usual import Usual


class R2sp(Table, frozen=True, kw_only=True, tag_field="kind", tag="r2sp"):
    """Workers take turns in a fixed order, no two turns closer than ``relaxation * T / N``.

    In its turn a worker's update becomes part of the model, and the worker proceeds with that
    model. N is the number of workers, T the longest of their usual iteration times. So between two
    turns of a worker each other worker has exactly one, and no update misses more than N - 1. (The
    paper orders only the times at which workers proceed; there, an update could overtake another.)

    **Late workers.** A worker whose update has not come by its turn holds up the others until it is
    late, measured by its own usual time. Then it is passed over. Its update has missed too much if
    another worker has had two turns since the worker last proceeded. Such an update is discarded,
    and the worker proceeds in its next turn. A worker that joins takes its place by index.

    Args:
        relaxation: of the gap between turns, in [0, 1]; the paper's r.

    Raises:
        ValueError: a relaxation outside [0, 1].
    """

    relaxation: float = 0.8
    barrier: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.relaxation <= 1:
            raise ValueError(f"relaxation is {self.relaxation:g}, must be in [0, 1]")

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self.relaxation)

    def staleness_bound(self, workers: int) -> int:
        """Return ``workers - 1`` (IV-A2): each other has one turn between two of a worker's."""
        return workers - 1


class _Rule:
    """The rule of one run."""

    def __init__(self, relaxation: float) -> None:
        self._relaxation = relaxation
        self._workers = Workers()
        self._order: list[int] = []
        self._next = 0  # the place in the order of the worker whose turn it is
        self._turned_s = -NEVER_S  # when the last turn was
        self._in: dict[int, Update] = {}
        self._went_s: dict[int, float] = {}
        self._iterations: dict[int, Usual] = {}
        self._missed: dict[int, set[int]] = {}  # the workers with a turn since each proceeded
        self._stale: set[int] = set()  # workers that have missed two turns of another worker
        self.due_s = NEVER_S

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        insort(self._order, worker)
        if self._order.index(worker) < self._next:
            self._next += 1
        return (Step(proceed=self._let_go(worker, now_s)), *self.look(now_s))

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.leave(worker)
        place = self._order.index(worker)
        del self._order[place]
        if place < self._next:
            self._next -= 1
        self._next %= max(1, len(self._order))
        self._iterations.pop(worker, None)
        del self._missed[worker], self._went_s[worker]
        self._stale.discard(worker)
        update = self._in.pop(worker, None)
        discarded = () if update is None else (Step(discard=(update,)),)
        return (*discarded, *self.look(now_s))

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._in[worker] = self._workers.push(worker)
        took_s = now_s - self._went_s[worker]
        if worker in self._iterations:
            self._iterations[worker].took(took_s)
        else:
            self._iterations[worker] = Usual(took_s)
        return self.look(now_s)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; give the turns that are due."""
        steps: list[Step] = []
        passed_over = 0
        self.due_s = NEVER_S
        while self._in and passed_over < len(self._order):
            worker = self._order[self._next]
            here = worker in self._in
            due_s = self._turned_s + self.gap_s if here else self._late_s(worker)
            if now_s < due_s:
                self.due_s = due_s
                break
            self._next = (self._next + 1) % len(self._order)
            if here:
                steps.append(self._turn(worker, now_s))
                passed_over = 0
            else:
                passed_over += 1
        return tuple(steps)

    def _turn(self, worker: int, now_s: float) -> Step:
        update = self._in.pop(worker)
        stale = worker in self._stale
        self._turned_s = now_s
        if not stale:
            for other, missed in self._missed.items():
                if other != worker:
                    if worker in missed:
                        self._stale.add(other)
                    missed.add(worker)
        went_on = self._let_go(worker, now_s)
        return Step((), went_on, (update,)) if stale else Step((update,), went_on)

    def _let_go(self, worker: int, now_s: float) -> tuple[int, ...]:
        self._workers.proceed(worker)
        self._went_s[worker] = now_s
        self._missed[worker] = set()
        self._stale.discard(worker)
        return (worker,)

    @property
    def iteration_s(self) -> float:
        """T, the longest of the workers' usual iteration times; 0 while none is known."""
        return max((each.usual_s for each in self._iterations.values()), default=0.0)

    @property
    def gap_s(self) -> float:
        """The least time between two turns."""
        return self._relaxation * self.iteration_s / max(1, len(self._order))

    def _late_s(self, worker: int) -> float:
        """Return the time after which a computing worker is passed over in this turn."""
        own = self._iterations.get(worker)
        # Not by others' times: a worker at the only server, for one, has iterations without a link.
        return NEVER_S if own is None else self._went_s[worker] + own.late_s
