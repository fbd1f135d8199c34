"""The factor of a group's step, by which the run's merge rule weighs its updates. Pure.

If a rule weighs by data, workers push with the weight of their samples already, so the factor of
the step leaves that weight out.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.merge import AnyMerge, Mean, UpdateFacts
from anabranch.scheduler.serving._updates import Pushed


class Weights:
    """A merge rule, and the samples of each worker; a worker that tells none counts as one sample.

    Args:
        merge: the rule.
        workers: the sites that compute.
    """

    def __init__(self, merge: AnyMerge, workers: Iterable[int]) -> None:
        self._merge = merge
        self._samples = dict.fromkeys(workers, 1)

    def holds(self, worker: int, samples: int) -> None:
        """Note the number of samples that a worker holds, before the run begins."""
        self._samples[worker] = samples

    def factor(self, pushed: Pushed, version: int) -> float | None:
        """Return the factor of a group's step; None if the merge rule is the plain mean.

        Args:
            pushed: the group's updates.
            version: of the model before the step.
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
