"""Pure: what an update weighs when it becomes part of the model, one file a rule.

A rule is a frozen value (:class:`Merge`), told how an update came about (:class:`UpdateFacts`).
Those that there are stand in one list, :data:`AnyMerge`.
"""

from typing import get_args as _get_args

from anabranch.merge._merge import Merge, UpdateFacts
from anabranch.merge.data_size import DataSize
from anabranch.merge.fairness import Fairness
from anabranch.merge.mean import Mean
from anabranch.merge.product import Factor, Product
from anabranch.merge.staleness import Staleness

AnyMerge = Factor | Product
MERGES: tuple[type[AnyMerge], ...] = _get_args(AnyMerge)

__all__ = [
    "MERGES",
    "AnyMerge",
    "DataSize",
    "Factor",
    "Fairness",
    "Mean",
    "Merge",
    "Product",
    "Staleness",
    "UpdateFacts",
]
