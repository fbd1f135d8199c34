"""How finely a buffer is cut into chunks. Pure.

An exchange waits at its beginning and end for a chunk's way through its tree, so deep trees want
small chunks. But each chunk costs every site on its way a message in and out, whatever its size. So
a site that moves much data wants large chunks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from anabranch.overlay import Overlay
from anabranch.plan import Plan, filling_elements, link_load, steady_rate_bps

MOST_ELEMENTS = 1 << 20
MESSAGE_S = 100e-6
"""The cost for a site to receive a chunk and send it on, whatever its size, seconds of a core.
``benchmarks/message_cost.py`` measured 96 to 100 us where 25 sites share two cores, and 130 to 139
where nine do. A constant, so that reruns cut the same chunks."""
_FEW = 3  # members, among which each tree is shallow
_HANDLING_SHARE = 0.25  # of a core that a site may spend on handling messages
# Where trees are shallow: the most elements of a chunk, and the least chunks of a buffer.
_SHALLOW_ELEMENTS, _SHALLOW_CHUNKS = 1 << 18, 100
_LEAST_A_TREE = 8  # chunks of each tree
_ELEMENT_BITS = 32.0
_LARGE_ELEMENTS = 1 << 26  # assumed for a buffer of unknown size


@dataclass(frozen=True)
class ChunkRule:
    """How finely one run cuts its buffers.

    Args:
        deep: whether the trees are many and deep.
        elements: the most elements of every chunk; None to fit the buffer and its plan.
        least_elements: a lower bound if ``elements`` is None.
        cores: see ``chunk_elements``.
        served: whether a model is served; its chunks stay the same under later plans.
    """

    deep: bool
    elements: int | None = None
    least_elements: int = 1
    cores: float = math.inf
    served: bool = False

    def before_plan(self, elements: int | None) -> int:
        """Return the most elements of a chunk before there is a plan, and of a served model.

        Args:
            elements: of the buffer; None if that is not known.
        """
        known = _LARGE_ELEMENTS if elements is None else elements
        filling = filling_elements(known, self.deep)
        return self.elements or max(filling, self.least_elements)

    def under(self, plan: Plan, elements: int, overlay: Overlay) -> int:
        """Return the most elements of a chunk under a plan.

        Args:
            plan, overlay: the trees, and the links that carry them.
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

    Chunks are small, so that trees fill quickly. They are large enough that the busiest site spends
    at most a quarter of a core on handling messages, and all sites together a quarter of the cores
    they share. Among few members trees are shallow, and fill quickly with larger chunks. In any
    case each tree has a few chunks.

    Args:
        elements: of the buffer.
        plan, overlay: the trees, and the links that carry them.
        deep: whether the plan's trees are many and deep.
        cores: the processor cores that the sites share; infinite if each site has its own.
    """
    if len(plan.members) == 1:
        return filling_elements(elements, deep)  # a lone member sends nothing
    moved = [0.0] * overlay.size  # by site, the buffers that it receives and sends
    for (source, target), buffers in link_load(plan).items():
        moved[source] += buffers
        moved[target] += buffers
    core_bps = steady_rate_bps(plan, overlay) * max(max(moved), sum(moved) / cores)
    wanted = MESSAGE_S * core_bps / (_ELEMENT_BITS * _HANDLING_SHARE)
    most = elements // (_LEAST_A_TREE * len(plan.trees))
    if len(plan.members) <= _FEW:
        wanted = max(wanted, min(elements // _SHALLOW_CHUNKS, _SHALLOW_ELEMENTS))
    wanted = min(wanted, most, MOST_ELEMENTS)
    return max(filling_elements(elements, deep), math.ceil(wanted), 1)
