"""Several rules at once (HAAF, eq. 10: data size, fairness and staleness)."""

from __future__ import annotations

import math

from anabranch._typed_toml import Table
from anabranch.merge._data_size import DataSize
from anabranch.merge._fairness import Fairness
from anabranch.merge._mean import Mean
from anabranch.merge._merge import UpdateFacts
from anabranch.merge._outliers import OutlierFilter
from anabranch.merge._staleness import Staleness

Factor = Mean | DataSize | Staleness | Fairness | OutlierFilter


class Product(Table, frozen=True, kw_only=True, tag_field="kind", tag="product"):
    """An update weighs the product of several rules' weights.

    Args:
        of: the rules, at least one; their order does not change the result. At most one is an
            outlier filter.

    Raises:
        ValueError: there is none, or several filters.
    """

    of: tuple[Factor, ...]

    def __post_init__(self) -> None:
        if not self.of:
            raise ValueError('a product of no rules; give one or more, or take kind = "mean"')
        if sum(isinstance(rule, OutlierFilter) for rule in self.of) > 1:
            raise ValueError("a product of several outlier filters; leave one")

    @property
    def weighs_data(self) -> bool:
        """See :class:`anabranch.merge.Merge`."""
        return any(rule.weighs_data for rule in self.of)

    @property
    def asks_loss(self) -> bool:
        """See :class:`anabranch.merge.Merge`."""
        return any(rule.asks_loss for rule in self.of)

    @property
    def asks_norm(self) -> bool:
        """See :class:`anabranch.merge.Merge`."""
        return any(rule.asks_norm for rule in self.of)

    def weight(self, facts: UpdateFacts) -> float:
        """Return the product.

        Raises:
            ValueError: one of the rules cannot weigh this update.

        >>> facts = UpdateFacts(
        ...     staleness=3, samples=300, all_samples=1200, mean_loss=2.0, squared_norm=50.0
        ... )
        >>> haaf = Product(of=(DataSize(), Fairness(q=1.0, lipschitz=100.0), Staleness(a=0.5)))
        >>> haaf.weight(facts)
        0.1
        """
        # sorted, because floating-point products depend on their order
        return math.prod(sorted(rule.weight(facts) for rule in self.of))
