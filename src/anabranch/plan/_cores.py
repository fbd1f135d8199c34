"""The rate that a site's processor can move, as a port, which plans and predictions respect."""

from __future__ import annotations

from dataclasses import replace

from anabranch.overlay import Overlay

CORE_BPS = 20e9
"""Payload that a site can receive, add up and send on at once, each way, bit/s.

One thread of a site moves its data, so this is the rate of one core, however many the site has.
``benchmarks/lane.py`` measured 0.20 s of a core to receive and add up a gigabyte, and 0.19 s to
send one. In trees a site sends as much as it receives. Under TLS a core moves about half. The
rate here is the one without TLS, so that no plan holds a site below what it can do.
"""


def within_cores(overlay: Overlay) -> Overlay:
    """Return an overlay whose sites receive and send no more than a core moves.

    A port that the site's links cannot fill changes no plan: see :mod:`anabranch.plan._packed`.
    """
    return replace(
        overlay,
        sites=tuple(
            replace(
                site,
                uplink_bps=min(site.uplink_bps or CORE_BPS, CORE_BPS),
                downlink_bps=min(site.downlink_bps or CORE_BPS, CORE_BPS),
            )
            for site in overlay.sites
        ),
    )
