"""A table of the intermittent paper chooses each rate on all of its tuning seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from papers import Lab, Outcome, Trial
from papers.intermittent._literal import Literal
from papers.intermittent._runs import OURS, Job, Made, Runs

_SLOW = 1001
"""The seed that says at which rate a run takes longer."""


class _Told(Lab):
    """A lab whose runs reach the target when their rate and seed say, and are counted."""

    def __init__(self) -> None:
        super().__init__(None)
        self.made: list[tuple[str, float, int]] = []

    def _told_s(self, name: str, rate: float, seed: int) -> float:
        self.made.append((name, rate, seed))
        return (10.0 / rate if seed == _SLOW else 1.0) + seed / 1000

    def measure(
        self, trials: Sequence[Trial], simulated: bool = False, may_abort: bool = False
    ) -> list[Outcome]:
        """Return when each trial reached the target."""
        return [
            Outcome(of.labels, "", 1, 1.0, 1.0, 0, reached_s=self._told_s(f"{OURS}{name}", *seen))
            for of in trials
            for name, *seen in [[of.labels[each] for each in ("strategy", "rate", "seed")]]
        ]

    def map(self, make: Callable[..., Made], jobs: Sequence[Job], kind: type[Made]) -> list[Made]:
        """Return when each job reached the target."""
        return [
            Made([], Literal({"first": self._told_s(of.strategy, of.task.learning_rate, of.seed)}))
            for of in jobs
        ]


def test_each_rate_is_tried_with_all_tuning_seeds() -> None:
    lab = _Told()
    runs = Runs(lab, 9, ("gossip, half",), ("pairs, half",), tuning=(1000, _SLOW))
    for name in ("gossip, half", f"{OURS}pairs, half"):
        rates = [(rate, seed) for of, rate, seed in lab.made if of == name]
        assert sorted(rates) == sorted(product({rate for rate, _ in rates}, (1000, _SLOW)))
        found = runs.tuned[name]
        assert found.times_s == (2.0, 10.0 / found.rate + 1.001)
