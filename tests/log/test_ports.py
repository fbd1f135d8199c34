"""How busy servers' ports were: closed forms on a square with a star, whose hub serves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anabranch.log import LinkBytes, summarise
from anabranch.overlay import Overlay, Site
from anabranch.plan import Plan
from anabranch_lab.reports._ports import mean_use, server_ports

# Each of three rounds brings 10 MB from each of three sites, and as much back: 240 Mbit in 9 s
# each way. In are 40 + 80 + 80 Mbit/s, out 3 x 80.


def capped(overlay: Overlay, downlink_bps: float) -> Overlay:
    """Give Oslo, the hub, a port."""
    return replace(overlay, sites=(Site("Oslo", downlink_bps=downlink_bps), *overlay.sites[1:]))


def test_a_port_without_a_cap_carries_what_its_links_do(run, overlay: Overlay, star: Plan) -> None:
    summary = summarise(run())
    into, out = (mean_use(summary, overlay, star, way) for way in ("in", "out"))
    assert into is not None
    assert out is not None
    assert into.carried_bps == out.carried_bps == pytest.approx(80e6)
    assert into.share == pytest.approx(80 / 200)
    assert out.share == pytest.approx(80 / 240)
    assert str(into) == "40 %"


@pytest.mark.parametrize(("cap_bps", "share"), [(100e6, 0.8), (1e9, 0.4)])
def test_a_cap_counts_where_it_is_less_than_the_links(
    cap_bps: float, share: float, run, overlay: Overlay, star: Plan
) -> None:
    mean = mean_use(summarise(run()), capped(overlay, cap_bps), star, "in")
    assert mean is not None
    assert mean.share == pytest.approx(share)


def test_bins_show_when_a_port_was_busy(run, overlay: Overlay, star: Plan) -> None:
    edges_s = np.array([0.0, 1.0, 2.0, 6.0, 9.0])  # rounds take 2, 4 and 3 s
    into, out = server_ports(summarise(run()), overlay, star, edges_s)
    assert (into.site, into.way, out.way) == (0, "in", "out")
    assert into.carried_bps == pytest.approx([120e6, 120e6, 60e6, 80e6])
    assert into.shares == pytest.approx([0.6, 0.6, 0.3, 0.4])


def test_the_rates_of_the_moment_count(run, changing: Overlay, star: Plan) -> None:
    summary = summarise(run(on=changing, idle_s=4.0))
    into = server_ports(summary, changing, star, np.array([6.0, 10.0, 14.0]))[0]
    assert into.capacity_bps == pytest.approx([200e6, 170e6])


def test_where_rates_were_not_felt_no_share_is_known(run, overlay: Overlay, star: Plan) -> None:
    mean = mean_use(summarise(run(shaped=False)), overlay, star, "in")
    assert mean is not None
    assert (mean.share, str(mean)) == (None, "80 Mbit/s")


def test_every_root_is_a_server(run, overlay: Overlay, packed: Plan) -> None:
    uses = server_ports(summarise(run(packed)), overlay, packed, np.array([0.0, 9.0]))
    assert [(use.site, use.way) for use in uses] == [(2, "in"), (2, "out"), (3, "in"), (3, "out")]


def test_without_a_record_nothing_is_said(run, overlay: Overlay, star: Plan) -> None:
    silent = [event for event in run() if not isinstance(event, LinkBytes)]
    assert mean_use(summarise(silent), overlay, star, "in") is None
