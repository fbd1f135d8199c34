"""What a group's step is multiplied by, as the run's merge rule weighs its updates. Pure.

A rule that weighs by data counts the samples that workers hold. Workers push with that weight
already, so the factor of the step leaves it out.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.merge import AnyMerge, Mean, UpdateFacts
from anabranch.scheduler.serving._updates import Pushed


class Weights:
    """A merge rule, and how many samples each worker holds: one, if it has not said so.

    Args:
        merge: the rule.
        workers: which sites compute.
    """

    def __init__(self, merge: AnyMerge, workers: Iterable[int]) -> None:
        self._merge = merge
        self._samples = dict.fromkeys(workers, 1)

    def holds(self, worker: int, samples: int) -> None:
        """Take note of how many samples a worker trains on, before the run begins."""
        self._samples[worker] = samples

    def factor(self, pushed: Pushed, version: int) -> float | None:
        """Return what a group's step is multiplied by; None where no rule weighs updates.

        Args:
            pushed: the group's updates.
            version: of the model that the step changes.
        """
        if isinstance(self._merge, Mean):
            return None
        samples = sum(self._samples[worker] for worker in pushed.workers)
        all_samples = sum(self._samples.values())
        staleness = version - pushed.based_on
        weight = self._merge.weight(
            UpdateFacts(staleness, samples, all_samples, pushed.mean_loss, pushed.squared_norm)
        )
        return weight / (samples / all_samples) if self._merge.weighs_data else weight
