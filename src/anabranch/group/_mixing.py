"""How a step of a served model combines its updates, from the run's merge rule."""

from __future__ import annotations

from typing import Literal

from anabranch.exchange.partition import Mixing
from anabranch.merge import AnyMerge, Robust, filter_of


def mixing_of(
    merge: AnyMerge,
    mixes: Literal["updates", "models", "cache"],
    averaged_elements: int,
    largest_elements: int = 0,
) -> Mixing:
    """Return how servers mix updates.

    Args:
        merge: the run's rule.
        mixes: see :class:`anabranch.scheduler.paced.Serve`.
        averaged_elements, largest_elements: see :class:`Mixing`.
    """
    return Mixing(
        mixes,
        merge.combine if isinstance(merge, Robust) else None,
        filter_of(merge) is not None,
        averaged_elements,
        largest_elements,
    )
