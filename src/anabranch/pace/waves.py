"""Waves: as many updates a step as the network leaves time for; ours, between BSP and R²SP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.pace._pace import NEVER_S, Rule, Step, Update, Workers
from anabranch.pace._usual import Usual

# A worker whose usual time is not known is given up after so many times what an iteration takes.
_UNKNOWN = 10.0
# Weight of the latest time in the moving average of each number of waves.
_SMOOTHING = 0.3
# Another number must promise so much less, as a part. One that takes so much more or less than when
# it was chosen says that the network or the workers have changed.
_LEAST_GAIN = 0.03
_CHANGED = 0.25


@dataclass(slots=True)
class _Trial:
    """What the present number of waves is judged by."""

    since_s: float
    updates: int = 0
    settled: bool = False
    compute_s: float = 0.0  # of the updates that came, their sum
    iteration_s: float = 0.0  # to compute, pull and push them, their sum
    came: int = 0


class Waves(Table, frozen=True, kw_only=True, tag_field="kind", tag="waves"):
    """Steps of the first few updates that are in, evenly apart; how few follows from what it gains.

    With W waves, a step takes the first N / W updates that are in, and their workers go on
    together (K-batch-async, Dutta et al., 2018). One wave is BSP. With more, one wave pushes while
    another pulls and a third computes, so that servers are busy both ways, as under R²SP; but an
    update misses only the other waves', (W - 1) / W of an iteration's, where under R²SP it misses
    almost all. Workers have no fixed place: one that is slow this time is in a later wave, and
    holds up no other. No two steps are closer than a wave's part of an iteration.

    **How many waves.** It begins with one, measures how long N updates take, and tries another
    number, a power of two, where that might make up for what it costs: N updates that miss a part
    m of others' count as ``1 / (1 + staleness_cost * m)`` of as many that miss nothing. Where the
    network is idle, and workers are alike, it stays with one.

    **Bound.** No update misses more than 2 (N - 1). A step that would make one miss more waits for
    it until its worker is late by its own standards; then the others go on, and the update is
    discarded when it comes.

    Args:
        staleness_cost: how many more iterations, as a part, training needs when every update
            misses all others of an iteration, >= 0. 0 asks for speed alone.

    Raises:
        ValueError: an argument outside its range.
    """

    staleness_cost: float = 0.1
    barrier: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.staleness_cost < math.inf:
            raise ValueError(f"staleness_cost is {self.staleness_cost:g}; give 0 or more")

    def rule(self) -> Rule:
        """See :class:`anabranch.pace.Pace`."""
        return _Rule(self)

    def staleness_bound(self, workers: int) -> int:
        """Return ``2 (workers - 1)``."""
        return 2 * (workers - 1)


class _Rule:
    """The rule of one run."""

    def __init__(self, pace: Waves) -> None:
        self._pace = pace
        self._workers = Workers()
        self._in: dict[int, Update] = {}  # in order of arrival
        self._missed: dict[int, int] = {}  # by each worker, since it went on
        self._stale: set[int] = set()  # workers that are given up, and will have missed too much
        self._went_s: dict[int, float] = {}
        self._usual: dict[int, Usual] = {}
        self._stepped_s = -NEVER_S
        self.waves = 1
        self._trial: _Trial | None = None
        self._took_s: dict[int, float] = {}  # N updates, with each number of waves
        self._chosen_s: float | None = None  # what the present number took when it was chosen
        self._iteration_s = 0.0  # to compute, pull and push, as is known or hoped; what gaps follow
        self.due_s = NEVER_S

    def join(self, worker: int, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.join(worker)
        return (Step(proceed=self._let_go((worker,), now_s)), *self.look(now_s))

    def leave(self, worker: int, now_s: float, has_finished: bool = False) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        self._workers.leave(worker)
        del self._missed[worker], self._went_s[worker]
        self._usual.pop(worker, None)
        self._stale.discard(worker)
        self.waves = max(1, min(self.waves, len(self._workers)))
        self._took_s, self._chosen_s, self._trial = {}, None, None  # it is another run now
        update = self._in.pop(worker, None)
        discarded = () if update is None else (Step(discard=(update,)),)
        return (*discarded, *self.look(now_s))

    def push(self, worker: int, now_s: float, compute_s: float = 0.0) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`."""
        update = self._workers.push(worker)
        took_s = now_s - self._went_s[worker]
        if worker in self._usual:
            self._usual[worker].took(took_s)
        else:
            self._usual[worker] = Usual(took_s)
        if self._trial is not None:
            self._trial.compute_s += compute_s
            self._trial.iteration_s += took_s
            self._trial.came += 1
        if worker in self._stale:
            went_on = self._let_go((worker,), now_s)
            return (Step((), went_on, (update,)), *self.look(now_s))
        self._in[worker] = update
        return self.look(now_s)

    def look(self, now_s: float) -> tuple[Step, ...]:
        """See :class:`anabranch.pace.Rule`; take the steps that are due."""
        steps: list[Step] = []
        while True:
            due_s = self._next_s(now_s)
            if now_s < due_s:
                self.due_s = due_s
                return tuple(steps)
            steps.append(self._step(now_s))

    # --- when

    def _next_s(self, now_s: float) -> float:
        """Return when the next step may be taken, if nothing comes before."""
        if not self._in:
            return NEVER_S
        gap_s = self._stepped_s + self._iteration_s / self.waves
        expected = self._workers.computing - self._stale
        if len(self._in) < self._wave:
            # Late workers are not waited for.
            gap_s = max(gap_s, *map(self._late_s, expected), now_s if not expected else -NEVER_S)
        picked = self._pick()
        harmed = [worker for worker in expected if self._missed[worker] + len(picked) > self._bound]
        return max([gap_s, *map(self._late_s, harmed)])

    def _late_s(self, worker: int) -> float:
        usual = self._usual.get(worker)
        after_s = _UNKNOWN * self._mean_s if usual is None else usual.late_s
        return self._went_s[worker] + after_s

    @property
    def _mean_s(self) -> float:
        """How long workers usually compute, pull and push: their mean; 0 while none is known."""
        if not self._usual:
            return 0.0
        return math.fsum(each.usual_s for each in self._usual.values()) / len(self._usual)

    @property
    def _wave(self) -> int:
        """How many updates a step waits for."""
        present = len(self._workers) - len(self._stale)
        return min(present, math.ceil(len(self._workers) / self.waves))

    @property
    def _bound(self) -> int:
        return self._pace.staleness_bound(len(self._workers))

    # --- what

    def _pick(self) -> list[int]:
        """Return whose updates are in the next step: by most missed, then by order of arrival."""
        order = sorted(self._in, key=lambda worker: -self._missed[worker])
        size = max(1, min(self._wave, len(order)))
        # A worker that is left out must not miss too much by it.
        while size < len(order) and self._missed[order[size]] + size > self._bound:
            size += 1
        return order[:size]

    def _step(self, now_s: float) -> Step:
        picked = sorted(self._pick())
        for worker in self._missed:
            self._missed[worker] += len(picked)
        for worker in self._workers.computing:
            if self._missed[worker] > self._bound:
                self._stale.add(worker)
        updates = tuple(self._in.pop(worker) for worker in picked)
        self._stepped_s = now_s
        went_on = self._let_go(tuple(picked), now_s)
        self._judge(len(picked), now_s)
        return Step(updates, went_on)

    def _let_go(self, workers: tuple[int, ...], now_s: float) -> tuple[int, ...]:
        for worker in workers:
            self._workers.proceed(worker)
            self._went_s[worker] = now_s
            self._missed[worker] = 0
            self._stale.discard(worker)
        return workers

    # --- how many waves

    def _judge(self, updates: int, now_s: float) -> None:
        """Count a step; once enough have shown what this number of waves brings, think again."""
        trial, workers = self._trial, len(self._workers)
        if trial is None:
            self._trial = _Trial(now_s, settled=True)
            return
        trial.updates += updates
        if trial.updates < workers:
            return
        self._trial = _Trial(now_s, settled=True)
        if not trial.settled:
            return
        took_s = workers * (now_s - trial.since_s) / trial.updates
        before_s = self._took_s.get(self.waves, took_s)
        took_s = before_s + _SMOOTHING * (took_s - before_s)
        if self._chosen_s is None:
            self._chosen_s = took_s
        elif abs(took_s - self._chosen_s) > _CHANGED * self._chosen_s:
            self._took_s, self._chosen_s = {}, took_s
        self._took_s[self.waves] = took_s
        self._iteration_s = trial.iteration_s / max(1, trial.came)
        times_s = self._hopes(trial.compute_s / max(1, trial.came))
        best = min(times_s, key=lambda waves: self._worth(waves, times_s[waves]))
        worth = (1 - _LEAST_GAIN) * self._worth(self.waves, took_s)
        if best != self.waves and self._worth(best, times_s[best]) < worth:
            self.waves, self._iteration_s = best, times_s[best]
            self._chosen_s = None
            self._trial.settled = False

    def _hopes(self, compute_s: float) -> dict[int, float]:
        """Return how long N updates have taken, or may take, with each number of waves."""
        # One wave's pushes and pulls take so long, at most, beside the computing. Of what was not
        # tried it is hoped that W waves share that out, as long as servers are not always busy.
        rest_s = min((s - compute_s) * w for w, s in self._took_s.items())
        most = len(self._workers)
        powers = [1 << k for k in range(most.bit_length()) if 1 << k <= most]
        hoped = {w: max(rest_s / 2, compute_s + rest_s / w) for w in powers}
        return hoped | self._took_s

    def _worth(self, waves: int, took_s: float) -> float:
        """Return how long it takes to learn what N updates that miss nothing would teach."""
        return took_s * (1 + self._pace.staleness_cost * (waves - 1) / waves)
