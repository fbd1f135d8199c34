"""The merge protocol: a rule weighs an update by the numbers that travel with it.

A weight multiplies the step that the model takes along an update's gradient (HAAF, eq. 10), so 1
is the whole step and 0 is none. A rule sees no model and no gradient, only these few numbers. It
has no memory: equal facts weigh the same in every run, real or simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class UpdateFacts:
    """The numbers that travel with an update, which may be the sum of several sites' gradients.

    Loss and norm are of the model that the update was computed on. A run may have no loss, and a
    norm costs a pass over the gradient, so either may be missing where no rule asks for it.

    Args:
        staleness: the model's steps since the version that the update was computed on, in global
            versions: t - τ.
        samples: how many samples the update's sites hold together.
        all_samples: how many samples all sites of the run hold.
        mean_loss: of the update's sites, each counted once; any finite number.
        squared_norm: of the aggregated gradient, Euclidean.

    Raises:
        ValueError: a number outside its range; names it.
    """

    staleness: int
    samples: int
    all_samples: int
    mean_loss: float | None = None
    squared_norm: float | None = None

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ValueError(
                f"staleness is {self.staleness}, which must be 0 or more: no update is computed "
                "on a model to come"
            )
        if not 1 <= self.samples <= self.all_samples:
            raise ValueError(
                f"samples is {self.samples}, which must be in 1..{self.all_samples}, the samples "
                "of all sites"
            )
        if self.mean_loss is not None and not math.isfinite(self.mean_loss):
            raise ValueError(
                f"mean_loss is {self.mean_loss}, which must be finite; an update of a model that "
                "diverged has no weight"
            )
        if self.squared_norm is not None and not 0 <= self.squared_norm < math.inf:
            raise ValueError(
                f"squared_norm is {self.squared_norm:g}, which must be finite and 0 or more"
            )


class Merge(Protocol):
    """The weight of an update: the parameters, a frozen value.

    Attributes:
        weighs_data: whether a site counts by its samples, also where its gradient is added to
            others' on the way (HAAF, eq. 4 to 6). If not, all sites count alike.
        asks_loss, asks_norm: whether the rule needs this fact, which updates carry only on request.
    """

    @property
    def weighs_data(self) -> bool:
        """See above."""

    @property
    def asks_loss(self) -> bool:
        """See above."""

    @property
    def asks_norm(self) -> bool:
        """See above."""

    def weight(self, facts: UpdateFacts) -> float:
        """Return an update's weight, in [0, 1].

        It does not grow with staleness and norm, nor fall with samples and loss.

        Raises:
            ValueError: the rule asks for a fact that is missing, or that contradicts the rule's
                assumptions; names it, and what to do.
        """
