"""How finely a buffer is cut. Pure.

A chunk's way through its tree is what an exchange waits for at its beginning and end, so deep trees
want small chunks. But each chunk costs every site on its way a message in and out, however small it
is, so a site that moves much wants large ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from anabranch.overlay import Overlay
from anabranch.plan import Plan, filling_elements, link_load, steady_rate_bps

MOST_ELEMENTS = 1 << 20
MESSAGE_S = 100e-6
"""What it costs a site to receive a chunk and send it on, whatever its size, seconds of a core:
``benchmarks/message_cost.py`` measured 96 to 100 us where 25 sites share two cores, and 130 to 139
where nine do. No run measures it itself, so that one that is repeated has the same chunks."""
_HANDLING_SHARE = 0.25  # of a core that a site may spend on messages as such
_LEAST_A_TREE = 8  # chunks
_ELEMENT_BITS = 32.0
_LARGE_ELEMENTS = 1 << 26  # taken for a buffer whose size is not known yet


@dataclass(frozen=True)
class ChunkRule:
    """How finely one run cuts its buffers.

    Args:
        deep: whether the trees are many and deep.
        elements: the most elements of every chunk; None for what fits the buffer and its plan.
        least_elements: the fewest that this then is.
        cores: see ``chunk_elements``.
        served: whether a model is served, whose chunks stay the same whatever plans follow.
    """

    deep: bool
    elements: int | None = None
    least_elements: int = 1
    cores: float = math.inf
    served: bool = False

    def before_plan(self, elements: int | None) -> int:
        """Return the most elements of a chunk that a plan is made for, and of a served model.

        Args:
            elements: of the buffer; None where that is not known.
        """
        known = _LARGE_ELEMENTS if elements is None else elements
        filling = filling_elements(known, self.deep)
        return self.elements or max(filling, self.least_elements)

    def under(self, plan: Plan, elements: int, overlay: Overlay) -> int:
        """Return the most elements of a chunk under a plan.

        Args:
            plan, overlay: which links carry how much.
            elements: of the buffer.
        """
        if self.elements is not None or self.served:
            return self.before_plan(elements)
        found = chunk_elements(elements, plan, overlay, self.deep, self.cores)
        return max(found, self.least_elements)


def chunk_elements(
    elements: int, plan: Plan, overlay: Overlay, deep: bool, cores: float = math.inf
) -> int:
    """Return the most elements of a chunk.

    As small as lets the trees fill quickly, and not so small that the busiest site spends more than
    a quarter of a core on messages as such, or all of them together a quarter of the cores they
    share; but a few chunks for each tree in any case.

    Args:
        elements: of the buffer.
        plan, overlay: which links carry how much of it.
        deep: whether the plan's trees are many and deep.
        cores: how many processor cores the sites share; infinite where each has its own.
    """
    if len(plan.members) == 1:
        return filling_elements(elements, deep)  # nothing is moved
    moved = [0.0] * overlay.size  # buffers in and out, by site
    for (source, target), buffers in link_load(plan).items():
        moved[source] += buffers
        moved[target] += buffers
    core_bps = steady_rate_bps(plan, overlay) * max(max(moved), sum(moved) / cores)
    handling = MESSAGE_S * core_bps / (_ELEMENT_BITS * _HANDLING_SHARE)
    most = elements // (_LEAST_A_TREE * len(plan.trees))
    handling = min(handling, most, MOST_ELEMENTS)
    return max(filling_elements(elements, deep), math.ceil(handling), 1)
