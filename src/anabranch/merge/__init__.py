"""Pure: the weight of an update when it becomes part of the model, one file a rule.

A rule is a frozen value (:class:`Merge`) that weighs an update by a few numbers
(:class:`UpdateFacts`). One list, :data:`AnyMerge`, names all rules.
"""

from typing import get_args as _get_args

from anabranch.merge._data_size import DataSize
from anabranch.merge._fairness import Fairness
from anabranch.merge._mean import Mean
from anabranch.merge._merge import Merge, UpdateFacts
from anabranch.merge._outliers import Judge, OutlierFilter, cosine
from anabranch.merge._product import Factor, Product
from anabranch.merge._robust import Krum, Median, TrimmedMean
from anabranch.merge._staleness import Staleness

Robust = TrimmedMean | Median | Krum
AnyMerge = Factor | Product | Robust
MERGES: tuple[type[AnyMerge], ...] = _get_args(AnyMerge)


def filter_of(merge: AnyMerge) -> OutlierFilter | None:
    """Return the outlier filter that a rule is or, as a product, contains; None without one."""
    rules = merge.of if isinstance(merge, Product) else (merge,)
    return next((rule for rule in rules if isinstance(rule, OutlierFilter)), None)


__all__ = [
    "MERGES",
    "AnyMerge",
    "DataSize",
    "Factor",
    "Fairness",
    "Judge",
    "Krum",
    "Mean",
    "Median",
    "Merge",
    "OutlierFilter",
    "Product",
    "Robust",
    "Staleness",
    "TrimmedMean",
    "UpdateFacts",
    "cosine",
    "filter_of",
]
