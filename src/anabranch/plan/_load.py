"""How much each link carries in a round, and the steady rate that follows.

The load of a directed link counts *buffers*: 1.0 means that a round sends the whole flat buffer
over it once. A tree of share ``a`` adds ``a`` for each time its way up, its way down or a relay
route of either crosses the link.
"""

from __future__ import annotations

from collections import defaultdict

from anabranch.overlay import Overlay
from anabranch.plan._model import Plan, link_of


def link_load(plan: Plan) -> dict[tuple[int, int], float]:
    """Return the buffers that a round sends over each link it uses, by (source, target)."""
    load: defaultdict[tuple[int, int], float] = defaultdict(float)
    for tree, hop in plan.hops():
        load[hop] += tree.share
    return dict(load)


def steady_rate_bps(plan: Plan, overlay: Overlay) -> float:
    """Return the buffer bits per second a plan completes once its pipeline is full.

    In a long round every link is busy for ``load / goodput`` seconds per bit of buffer, and the
    busiest sets the pace: ``min over links of goodput / load``. Infinite on a single site.

    Raises:
        PlanError: the plan uses a link that the overlay lacks.
    """
    return min(
        (link_of(overlay, *hop).goodput_bps / load for hop, load in link_load(plan).items()),
        default=float("inf"),
    )
