"""The load of each link in a round, and the steady rate that follows.

The load of a directed link counts *buffers*: 1.0 means that a round sends the whole flat buffer
over it once. A tree of share ``a`` adds ``a`` for each time its way up, its way down or a relay
route of either crosses the link. The load of a port is the sum over the links that share it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import inf
from typing import Literal

from anabranch.overlay import Overlay
from anabranch.plan._model import Plan, link_of

Port = tuple[int, Literal["uplink", "downlink"]]
"""A site's port: the site's index, and which way it carries."""


def link_load(plan: Plan) -> dict[tuple[int, int], float]:
    """Return the buffers that a round sends over each link it uses, by (source, target)."""
    load: defaultdict[tuple[int, int], float] = defaultdict(float)
    for tree, hop in plan.hops():
        load[hop] += tree.share
    return dict(load)


def port_load(plan: Plan, overlay: Overlay) -> dict[Port, float]:
    """Return the buffers that a round sends through each port it uses, where sites have a port.

    Raises:
        PlanError: the plan uses a link that the overlay lacks.
    """
    return _port_load(link_load(plan), overlay)


def _port_load(link_loads: Mapping[tuple[int, int], float], overlay: Overlay) -> dict[Port, float]:
    load: defaultdict[Port, float] = defaultdict(float)
    for hop, part in link_loads.items():
        link_of(overlay, *hop)
        for port in ports_on(overlay, *hop):
            load[port] += part
    return dict(load)


def ports_on(overlay: Overlay, source: int, target: int) -> list[Port]:
    """Return the ports at a link's ends that have a finite rate: none, one or two.

    The sites must be the overlay's.
    """
    ends: tuple[Port, Port] = (source, "uplink"), (target, "downlink")
    return [port for port in ends if port_bps(overlay, port) < inf]


def port_bps(overlay: Overlay, port: Port) -> float:
    """Return a port's rate, bit/s of payload; infinite where the site has no such port."""
    index, way = port
    site = overlay.sites[index]
    rate_bps = site.uplink_bps if way == "uplink" else site.downlink_bps
    return inf if rate_bps is None else rate_bps


def steady_rate_bps(plan: Plan, overlay: Overlay) -> float:
    """Return the buffer bits per second a plan completes once its pipeline is full.

    In a long round every link is busy for ``load / goodput`` seconds per bit of buffer, and every
    port for ``load / rate``. The busiest limits the rate: ``min over links and ports of
    rate / load``. Infinite on a single site.

    Raises:
        PlanError: the plan uses a link that the overlay lacks.
    """
    return rate_under_bps(link_load(plan), overlay)


def rate_under_bps(load: Mapping[tuple[int, int], float], overlay: Overlay) -> float:
    """Return the steady rate of a plan whose links have this load, by (source, target).

    Raises:
        PlanError: the overlay lacks a link that has a load.
    """
    ports = _port_load(load, overlay).items()
    rates_bps = [link_of(overlay, *hop).goodput_bps / part for hop, part in load.items()]
    rates_bps += [port_bps(overlay, port) / part for port, part in ports]
    return min(rates_bps, default=inf)
