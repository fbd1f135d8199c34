"""How busy the ports of servers are, both ways. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from anabranch.log import units
from anabranch.log.summary import RunSummary
from anabranch.overlay import Overlay
from anabranch.plan import Plan, port_bps
from anabranch_lab.reports import _timeline
from anabranch_lab.reports._timeline import Floats

Way = Literal["in", "out"]
WAYS: tuple[Way, ...] = ("in", "out")


@dataclass(frozen=True, slots=True, eq=False)
class PortUse:
    """The traffic in one direction of a server's port, in bins of time."""

    site: int  # the server
    way: Way  # "in" for updates, or "out" for models
    carried_bps: Floats  # payload in each bin, of all trees, shape (B,), bit/s
    # Shape (B,), bit/s: the port's rate, or the sum of its links' rates if that is lower. None if
    # the run was not held to the overlay's rates, so that no capacity is known.
    capacity_bps: Floats | None

    @property
    def shares(self) -> Floats | None:
        """How busy the port was in each bin; 1 is its capacity.

        A bin may have more than 1 where the record is as fine as the messages: bytes that a link
        accepts in one bin may leave it in the next.
        """
        return None if self.capacity_bps is None else self.carried_bps / self.capacity_bps


@dataclass(frozen=True, slots=True)
class MeanUse:
    """How busy all servers' ports together were in one direction, over a whole run."""

    carried_bps: float  # payload, bit/s
    share: float | None  # of the capacity; None if that is unknown

    def __str__(self) -> str:
        return units.rate(self.carried_bps) if self.share is None else units.percent(self.share)


def server_ports(
    run: RunSummary, overlay: Overlay, plan: Plan, edges_s: Floats
) -> tuple[PortUse, ...]:
    """Return both directions of each server's port, in order of site, without ports without links.

    Args:
        run: what ran.
        overlay, plan: its overlay and plan; the roots of the plan's trees are the servers.
        edges_s: edges of the bins.
    """
    return tuple(
        use
        for site in sorted({tree.root for tree in plan.trees})
        for way in WAYS
        if (use := _use(run, overlay, site, way, edges_s)) is not None
    )


def mean_use(run: RunSummary, overlay: Overlay, plan: Plan, way: Way) -> MeanUse | None:
    """Return how busy the servers' ports were in one direction; None if nothing was recorded."""
    if not run.links or run.total_s <= 0:
        return None
    whole_s = np.linspace(0.0, run.total_s, _timeline.MOST_BINS + 1)
    uses = [use for use in server_ports(run, overlay, plan, whole_s) if use.way == way]
    if not uses:
        return None
    carried_bps = float(sum(use.carried_bps.mean() for use in uses))
    capacities_bps = [use.capacity_bps for use in uses if use.capacity_bps is not None]
    capacity_bps = float(sum(each.mean() for each in capacities_bps))
    return MeanUse(carried_bps, carried_bps / capacity_bps if capacity_bps else None)


def _use(run: RunSummary, overlay: Overlay, site: int, way: Way, edges_s: Floats) -> PortUse | None:
    links = [link for link in overlay if site == (link.target if way == "in" else link.source)]
    if not links:
        return None
    carried_bps, links_bps = np.zeros(len(edges_s) - 1), np.zeros(len(edges_s) - 1)
    for link in links:
        samples = run.links.get((link.source, link.target), ())
        carried_bps += _timeline.rates_bps(samples, edges_s)
        links_bps += _timeline.goodput_bps(link, edges_s)
    if not run.started.shaped:
        return PortUse(site, way, carried_bps, None)
    cap_bps = port_bps(overlay, (site, "downlink" if way == "in" else "uplink"))
    return PortUse(site, way, carried_bps, np.minimum(links_bps, cap_bps))
