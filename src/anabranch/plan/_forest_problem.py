"""The input of a forest planner: sites that train, a server, a network.

A transfer over a link takes ``latency + 8 * size / rate`` seconds. A transfer over several links
takes the sum, since relays store and forward. The rate is the link's goodput, or the rate of a
slower port at either end. Transfers that share a link or a port do not slow each other, as in the
paper's eq. 11 to 13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from anabranch.overlay import Overlay
from anabranch.plan._fapt import check_site
from anabranch.plan._load import port_bps, ports_on
from anabranch.plan._model import PlanError
from anabranch.plan._shortest import ShortestPaths, shortest_paths


@dataclass(frozen=True)
class ForestProblem:
    """Sites that train, the server that holds their model, and eq. 14's weights (HAAF, section 4).

    Args:
        overlay: the network; traced links and drifting latencies count as they are at time 0.
        server: index of the site of the global parameter server, which may train too.
        compute_s: for each site that trains, by index, the seconds of its local training
            (t_v of eq. 11), >= 0. Other sites only relay.
        size_bytes: of the parameters, and of a gradient, > 0.
        latency_weight: lambda_1 of eq. 14, >= 0.
        spread_weight: lambda_2 of eq. 14, >= 0. The paper's values are the defaults.

    Raises:
        PlanError: the server or a site that trains is not in the overlay, or none trains.
        ValueError: a time, a size or a weight out of range.
    """

    overlay: Overlay
    server: int
    compute_s: Mapping[int, float]
    size_bytes: float
    latency_weight: float = 0.5
    spread_weight: float = 0.1

    def __post_init__(self) -> None:
        check_site(self.overlay, self.server, "server")
        if not self.compute_s:
            raise PlanError("no site trains; give the compute time of at least one")
        for site, seconds in self.compute_s.items():
            check_site(self.overlay, site, "compute_s:")
            if not 0 <= seconds < math.inf:
                raise ValueError(
                    f"site {self.overlay.sites[site].name} computes for {seconds:g} s, which must "
                    "be finite and >= 0"
                )
        if not 0 < self.size_bytes < math.inf:
            raise ValueError(f"size_bytes is {self.size_bytes:g}, which must be finite and > 0")
        for name in ("latency_weight", "spread_weight"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name} is {getattr(self, name):g}, which must be finite and >= 0"
                )

    @cached_property
    def sites(self) -> tuple[int, ...]:
        """The sites that train, in order of index."""
        return tuple(sorted(self.compute_s))

    @cached_property
    def hop_s(self) -> npt.NDArray[np.float64]:
        """Seconds of one transfer over each link, from row to column; inf where there is none."""
        seconds = np.full((self.overlay.size, self.overlay.size), np.inf)
        for link in self.overlay:
            ends = ports_on(self.overlay, link.source, link.target)
            rate_bps = min([link.goodput_bps, *(port_bps(self.overlay, port) for port in ends)])
            seconds[link.source, link.target] = link.latency_s + 8 * self.size_bytes / rate_bps
        return seconds

    @cached_property
    def paths(self) -> ShortestPaths:
        """The fastest ways between all pairs of sites, in seconds of one transfer."""
        return shortest_paths(self.hop_s)
