"""Weights that fall polynomially with staleness (HAAF, eq. 9; Xie et al., 2019)."""

from __future__ import annotations

import math
from typing import ClassVar

from anabranch._typed_toml import Table
from anabranch.merge._merge import UpdateFacts


class Staleness(Table, frozen=True, kw_only=True, tag_field="kind", tag="staleness"):
    """An update that is s versions old weighs ``(s + 1) ** -a``.

    Args:
        a: the staleness factor, how fast weights fall, >= 0; with 0 all weigh 1. HAAF takes 0.8.

    Raises:
        ValueError: a negative factor.
    """

    a: float = 0.8
    weighs_data: ClassVar[bool] = False
    asks_loss: ClassVar[bool] = False
    asks_norm: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.a < math.inf:
            raise ValueError(f"a is {self.a:g}, which must be finite and 0 or more")

    def weight(self, facts: UpdateFacts) -> float:
        """Return the weight, in (0, 1]; 1 for an update that is not stale.

        >>> Staleness(a=0.5).weight(UpdateFacts(staleness=3, samples=1, all_samples=1))
        0.5
        """
        return float((facts.staleness + 1.0) ** -self.a)
