"""How chunks are dealt to the trees of a plan: parameters, as scenario files spell them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from anabranch import plan as plans
from anabranch._typed_toml import Positive, Table
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.scheduler._dispatch import needed_window
from anabranch.scheduler.calls._dealing import Dispatching
from anabranch.site.channel import between_reports_s

_ELEMENT_BYTES = 4


class ByShare(Table, frozen=True, kw_only=True, tag_field="kind", tag="by-share"):
    """Deal all chunks to the trees when the round begins, in proportion to their shares.

    Args:
        cut: of an all-reduce. ``buffer``: each tree gets its share of the elements, cut evenly.
            ``tensors``: each tensor is cut on its own, and each tree gets its share of the chunks,
            whatever their sizes (NetStorm, IV-C).
    """

    cut: Literal["buffer", "tensors"] = "buffer"


class Adaptive(Table, frozen=True, kw_only=True, tag_field="kind", tag="adaptive"):
    """Give the next chunk to the tree that ended one, during the round.

    Between two members all trees use the same links, and none can be faster than another. So all
    chunks are dealt when the round begins there, unless a window is given.

    Args:
        window: the most chunks under way; None for the number that the plan needs.
    """

    window: Positive | None = None

    def dispatching(self, believed: Callable[[], Overlay], round_trip_s: float) -> Dispatching:
        """Return how the scheduler dispatches chunks.

        Args:
            believed: returns the network as believed now.
            round_trip_s: between a site and the scheduler, as far as that is known before sites
                tell theirs.
        """

        def dispatching(
            plan: Plan, elements: int, chunk_elements: int, told_s: float
        ) -> tuple[int, int]:
            chunks = len(plans.cut(plan, elements, chunk_elements))
            if self.window is None and len(plan.members) == 2:
                return chunks, chunks
            longest_s = max(round_trip_s, told_s)
            window = self.window or needed_window(
                plan,
                believed(),
                _ELEMENT_BYTES * chunk_elements,
                chunks,
                longest_s,
                between_reports_s(longest_s),
            )
            return chunks, window

        return dispatching


AnyDeal = ByShare | Adaptive


def cuts_tensors(deal: AnyDeal | None) -> bool:
    """Return whether no chunk of an all-reduce has elements of two tensors."""
    return isinstance(deal, ByShare) and deal.cut == "tensors"


def adaptive_of(deal: AnyDeal | None, deep: bool) -> Adaptive | None:
    """Return how chunks are dispatched during an exchange; None if all are dealt before it.

    Args:
        deal: the deal of the scenario; None for the one that suits the trees.
        deep: whether the trees are many and deep.
    """
    if deal is None:
        return Adaptive() if deep else None
    return deal if isinstance(deal, Adaptive) else None
