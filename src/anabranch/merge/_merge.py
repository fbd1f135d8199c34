"""What a merge rule is: told how an update came about, it says what the update weighs.

A weight multiplies the step that the model takes along an update's gradient (HAAF, eq. 10), so 1
is the whole step and 0 is none. A rule knows no model and no gradient, only the few numbers that
travel with an update, and has no memory: equal facts weigh the same in every run and in every
world.
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
        staleness: how many steps the model has taken since the one that the update was computed
            on, in global versions: t - τ.
        samples: how many the update's sites hold together.
        all_samples: how many all sites hold that take part.
        mean_loss: of the update's sites, each counting once; any finite number.
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
    """What does an update weigh? The parameters, a frozen value.

    Attributes:
        weighs_data: whether a site counts by its samples. Then its gradient does so too where it is
            added to others' on the way (HAAF, eq. 4 to 6); else all sites count alike.
        asks_loss, asks_norm: which facts have to come with an update, beside those always there.
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
            ValueError: the rule asks for a fact that is missing, or that contradicts what it
                assumes; names it, and what to do.
        """
