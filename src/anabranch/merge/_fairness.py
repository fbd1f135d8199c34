"""Weights that favour sites whose loss is high (HAAF, eq. 8, after q-fair federated learning)."""

from __future__ import annotations

import math
from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.merge._merge import UpdateFacts


class Fairness(Table, frozen=True, kw_only=True, tag_field="kind", tag="fairness"):
    """An update of loss f and gradient g weighs ``L f^q / (L f^q + q f^(q-1) |g|^2)``.

    The divisor is a local Lipschitz constant of the gradient of ``f^(q+1) / (q+1)``, the objective
    that makes losses alike (HAAF, theorem 1). The code computes ``1 / (1 + q |g|^2 / (L f))``,
    which is equal and has no power that overflows.

    A loss that is never negative and whose gradient is L-Lipschitz has ``|g|^2 <= 2 L f``, so its
    update weighs at least ``1 / (1 + 2 q)``. A lower weight means that ``lipschitz`` is too small.

    **A loss of 0.** Its gradient is 0, and the update changes nothing: weight 1. In float32 a
    cross-entropy can be 0 while its gradient is not quite 0. The weight is then 0, its limit as the
    loss goes to 0.

    Args:
        q: the fairness factor, >= 0; with 0 all weigh 1.
        lipschitz: L, a Lipschitz constant of the loss's gradient, > 0. HAAF takes 100.

    Raises:
        ValueError: an argument outside its range.
    Source: Li, Sanjabi, Beirami and Smith, "Fair resource allocation in federated learning",
    ICLR 2020, for the bound.
    """

    q: float = 1.0
    lipschitz: float = 100.0
    weighs_data: ClassVar[bool] = False

    @property
    def asks_loss(self) -> bool:
        """See :class:`anabranch.merge.Merge`."""
        return self.q > 0

    @property
    def asks_norm(self) -> bool:
        """See :class:`anabranch.merge.Merge`."""
        return self.q > 0

    def __post_init__(self) -> None:
        if not 0 <= self.q < math.inf:
            raise ValueError(f"q is {self.q:g}, which must be finite and 0 or more")
        if not 0 < self.lipschitz < math.inf:
            raise ValueError(f"lipschitz is {self.lipschitz:g}, which must be finite and > 0")

    def weight(self, facts: UpdateFacts) -> float:
        """Return the weight, in (0, 1], and 0 for a gradient whose loss is 0.

        Raises:
            ValueError: q > 0, and the loss is negative, or loss or norm are missing.

        >>> facts = UpdateFacts(
        ...     staleness=0, samples=1, all_samples=1, mean_loss=2.0, squared_norm=50.0
        ... )
        >>> Fairness(q=1.0, lipschitz=100.0).weight(facts)
        0.8
        """
        if self.q == 0:
            return 1.0
        loss, squared_norm = facts.mean_loss, facts.squared_norm
        if loss is None or squared_norm is None:
            missing = "mean_loss" if loss is None else "squared_norm"
            raise ValueError(
                f"an update came without its {missing}, which fairness weighs it by; let its "
                "sites send it, or set q = 0"
            )
        if loss < 0:
            raise ValueError(
                f"mean_loss is {loss:g}, and fairness weighs losses that are never negative; add "
                "a constant to the loss, or set q = 0"
            )
        if squared_norm == 0:
            return 1.0
        if loss == 0:
            return 0.0
        return 1.0 / (1.0 + self.q * (squared_norm / self.lipschitz) / loss)
