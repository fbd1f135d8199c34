"""What a core carries bounds a site whose links are faster, and changes nothing elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from anabranch.overlay import (
    BUILT_IN,
    Overlay,
    random_complete,
    random_geographic,
    random_sparse,
)
from anabranch.plan import CORE_BPS, Packed, Ring, within_cores

KINDS: list[Callable[[int, int], Overlay]] = [random_sparse, random_geographic, random_complete]


def carries_less_than_a_core(overlay: Overlay) -> bool:
    rates_bps = [0.0] * overlay.size
    for link in overlay.links:
        rates_bps[link.target] += link.rate_bps
    return max(rates_bps) < CORE_BPS


@pytest.mark.parametrize(
    "overlay",
    [each for made in BUILT_IN.values() if carries_less_than_a_core(each := made())]
    + [draw(7, 3) for draw in KINDS],
    ids=lambda overlay: overlay.name,
)
@pytest.mark.parametrize("planner", [Packed(), Ring()])
def test_where_links_carry_less_than_a_core_plans_are_the_same_to_the_bit(
    overlay: Overlay, planner: Packed | Ring
) -> None:
    for elements in (1000, 60_000_000):
        plan = planner.plan(overlay, elements=elements)
        assert planner.plan(within_cores(overlay), elements=elements) == plan


def test_a_port_that_is_slower_than_a_core_stays() -> None:
    slow = random_complete(3, 0)
    sites = tuple(replace(site, uplink_bps=1e6, downlink_bps=1e12) for site in slow.sites)
    for site in within_cores(replace(slow, sites=sites)).sites:
        assert (site.uplink_bps, site.downlink_bps) == (1e6, CORE_BPS)
