from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linprog

from anabranch.overlay import Link, Overlay, Site, internet2_9
from anabranch.plan import (
    NO_PARENT,
    balanced,
    fapt,
    least_latency_s,
    limit_rate_bps,
    limit_s,
    packed,
    predict,
    share_of_limit,
    spanning,
    star,
)

from .networks import all_plans, all_ways, build, overlays, random_overlay, with_ports


def packed_rate_bps(overlay: Overlay) -> float:
    """Pack all (root, way up, way down) triples of a small overlay by one linear program."""
    links = {(link.source, link.target): i for i, link in enumerate(overlay)}
    triples = []
    for root in range(overlay.size):
        ups = list(all_ways(overlay, root, up=True))
        for down in all_ways(overlay, root, up=False):
            descents = [links[p, site] for site, p in enumerate(down) if p != NO_PARENT]
            for up in ups:
                use = np.zeros(len(links))
                use[descents] += 1
                use[[links[site, p] for site, p in enumerate(up) if p != NO_PARENT]] += 1
                triples.append(use)
    uses = np.array(triples).T
    table, most_bps = [*uses], [link.goodput_bps for link in overlay]
    for i, site in enumerate(overlay.sites):
        for end, port_bps in enumerate((site.uplink_bps, site.downlink_bps)):
            if port_bps is not None:
                table.append(uses[[at for pair, at in links.items() if pair[end] == i]].sum(axis=0))
                most_bps.append(port_bps)
    unit = max(most_bps)
    result = linprog(-np.ones(len(triples)), A_ub=table, b_ub=np.array(most_bps) / unit)
    return float(-result.fun * unit)


@pytest.mark.parametrize("ports", [0.0, 0.6])
@pytest.mark.parametrize("one_way", [0.0, 0.6])
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("seed", range(8))
def test_the_limit_is_the_best_packing_of_all_trees(n, seed, one_way, ports):
    overlay = random_overlay(n, seed, density=0.6, one_way=one_way, ports=ports)
    assert limit_rate_bps(overlay) == pytest.approx(packed_rate_bps(overlay), rel=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_limit_is_exact_where_rates_differ_by_orders_of_magnitude(seed):
    rng = np.random.default_rng(seed)
    rates = 10 ** rng.uniform(4, 9, size=(4, 4))
    overlay = build(4, [(a, b, rates[a, b]) for a in range(4) for b in range(4) if a != b])
    assert limit_rate_bps(overlay) == pytest.approx(packed_rate_bps(overlay), rel=1e-6)
    ports_bps = 10 ** rng.uniform(4, 9, size=(2, 4))
    overlay = with_ports(overlay, uplink_bps=ports_bps[0], downlink_bps=ports_bps[1])
    assert limit_rate_bps(overlay) == pytest.approx(packed_rate_bps(overlay), rel=1e-6)


def partitions(sites: list[int]) -> Iterator[list[set[int]]]:
    if not sites:
        yield []
        return
    first, *rest = sites
    for parts in partitions(rest):
        yield [{first}, *parts]
        for i, part in enumerate(parts):
            yield [*parts[:i], part | {first}, *parts[i + 1 :]]


@pytest.mark.parametrize("n", [2, 5, 7])
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_on_symmetric_links_the_limit_is_the_strength_of_the_graph(n, density, seed):
    overlay = random_overlay(n, seed, density=density, symmetric=True)
    strength = math.inf
    for parts in partitions(list(range(n))):
        if len(parts) > 1:
            part_of = {site: i for i, part in enumerate(parts) for site in part}
            both_ways = sum(
                e.goodput_bps for e in overlay if part_of[e.source] != part_of[e.target]
            )
            strength = min(strength, both_ways / 2 / (len(parts) - 1))
    assert limit_rate_bps(overlay) == pytest.approx(strength, rel=1e-6)


def test_two_sites_are_as_fast_as_their_slower_link():
    assert limit_rate_bps(build(2, [(0, 1, 5e6), (1, 0, 3e6)])) == pytest.approx(3e6)


def test_a_ring_of_one_way_links_carries_half_its_rate():
    """Up and down together go 2 (n - 1) hops for each bit; n links offer n times the rate."""
    ring = build(5, [(i, (i + 1) % 5, 8e6) for i in range(5)])
    assert limit_rate_bps(ring) == pytest.approx(8e6 * 5 / 8)


def test_a_complete_overlay_of_equal_links_carries_half_a_sites_links():
    """Strength of the complete graph: n / 2 times one link."""
    complete = build(6, [(a, b, 1e6) for a in range(6) for b in range(6) if a != b])
    assert limit_rate_bps(complete) == pytest.approx(3e6)


def complete(n: int, rate_bps: float) -> Overlay:
    return build(n, [(a, b, rate_bps) for a in range(n) for b in range(n) if a != b])


def test_the_site_of_the_slowest_port_sends_and_receives_the_buffer_once():
    ports_bps = [100e6, 50e6, 25e6]
    overlay = with_ports(complete(3, 1e9), uplink_bps=ports_bps, downlink_bps=ports_bps)
    assert limit_rate_bps(overlay) == pytest.approx(25e6, rel=1e-9)
    assert limit_s(overlay, 16 * 2**20) == pytest.approx(8 * 16 * 2**20 / 25e6, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_equal_ports_reach_the_known_bound_of_all_reduce(n):
    """2 (n - 1) / n buffers through each port: Patarasuk and Yuan, JPDC 2009."""
    overlay = with_ports(complete(n, 1e9), uplink_bps=[8e6] * n, downlink_bps=[8e6] * n)
    assert limit_rate_bps(overlay) == pytest.approx(8e6 * n / (2 * (n - 1)), rel=1e-6)


@pytest.mark.parametrize("name", ["uplink_bps", "downlink_bps"])
@pytest.mark.parametrize("port_bps", [1e6, 6e6, 7.9e6, 8e6, 100e6])
def test_the_hub_of_a_star_sends_and_receives_the_buffer_once_for_each_leaf(port_bps, name):
    links = [way for leaf in range(1, 5) for way in ((0, leaf, 2e6), (leaf, 0, 2e6))]
    overlay = with_ports(build(5, links), **{name: [port_bps, None, None, None, None]})
    assert limit_rate_bps(overlay) == pytest.approx(min(2e6, port_bps / 4), rel=1e-9)
    assert share_of_limit(star(overlay, hub=0), overlay) == pytest.approx(1)


def test_ports_as_fast_as_all_their_links_together_change_nothing():
    overlay = random_overlay(9, 3)
    goodput_bps = overlay.goodput_matrix_bps()
    wide = with_ports(
        overlay, uplink_bps=goodput_bps.sum(axis=1), downlink_bps=goodput_bps.sum(axis=0)
    )
    assert limit_rate_bps(wide) == pytest.approx(limit_rate_bps(overlay), rel=1e-9)


def test_loss_does_not_count_against_a_port():
    overlay = build(2, [(0, 1, 8e6), (1, 0, 8e6)], loss=0.5)
    overlay = with_ports(overlay, uplink_bps=[4e6, 4e6])
    assert limit_rate_bps(overlay) == pytest.approx(4e6)


@settings(deadline=None, max_examples=10)
@given(overlays())
def test_no_plan_beats_the_limit(overlay):
    for plan in all_plans(overlay):
        assert 0 < share_of_limit(plan, overlay) <= 1 + 1e-6, plan.label


def test_a_single_site_knows_no_limit():
    alone = build(1, [])
    assert limit_rate_bps(alone) == math.inf
    assert limit_s(alone, 1e9) == 0
    assert share_of_limit(star(alone), alone) == 1


def test_internet2_9_limit_and_shares():
    overlay = internet2_9()
    assert limit_rate_bps(overlay) == pytest.approx(109.978e6, rel=1e-6)
    assert limit_s(overlay, 244_000_000) == pytest.approx(17.7490 + 4 * 0.03, abs=1e-4)
    shares = [
        share_of_limit(plan, overlay)
        for plan in (
            star(overlay),
            balanced(overlay),
            spanning(overlay),
            fapt(overlay),
            fapt(overlay, roots=9),
        )
    ]
    assert shares == pytest.approx([0.1418, 0.2364, 0.3500, 0.2909, 0.5358], abs=1e-4)


def test_the_limit_of_a_larger_sparse_overlay_is_its_worst_placed_site():
    overlay = random_overlay(20, 1, density=0.2)
    goodput = overlay.goodput_matrix_bps()
    worst = min(goodput.sum(axis=0).min(), goodput.sum(axis=1).min())
    assert limit_rate_bps(overlay) == pytest.approx(worst, rel=1e-6)


def test_a_small_buffer_is_bound_by_latency():
    hops = ((0, 1, 0.1), (1, 2, 0.3))
    links = [Link(*way, 1e9, s) for a, b, s in hops for way in ((a, b), (b, a))]
    line = Overlay("line", (Site("a"), Site("b"), Site("c")), tuple(links))
    assert least_latency_s(line) == pytest.approx(0.6)  # at b; at the ends it is 0.8
    assert limit_s(line, 1) == pytest.approx(0.6)
    assert limit_s(line, 1e9) == pytest.approx(8e9 / limit_rate_bps(line) + 0.4)


def test_a_buffer_crosses_the_slowest_links_and_then_reaches_the_farthest_site():
    slow, far = Link(0, 1, 1e6, 0.1), Link(1, 2, 9e6, 0.3)
    links = [*(slow, far), *(Link(each.target, each.source, 9e6, 0.2) for each in (slow, far))]
    line = Overlay("line", (Site("a"), Site("b"), Site("c")), tuple(links))
    assert limit_s(line, 1e6) == pytest.approx(8.0 + 0.4)
    ported = Overlay("line", (Site("a"), Site("b", uplink_bps=0.5e6), Site("c")), tuple(links))
    assert limit_s(ported, 1e6) >= 16.0 + 0.4
    pair = Overlay("pair", (Site("a"), Site("b")), (Link(0, 1, 1e6, 0.1), Link(1, 0, 1e6, 0.1)))
    assert limit_s(pair, 1e6) == pytest.approx(8.0 + 0.1)


def test_internet2_9_takes_its_latency_on_top_of_its_slowest_cut():
    overlay = internet2_9()
    bits_s = 8 * 3.5e6 / limit_rate_bps(overlay)
    assert limit_s(overlay, 3.5e6) == pytest.approx(bits_s + 4 * 0.03)


def test_links_without_latency_are_links():
    assert least_latency_s(complete(4, 1e6)) == pytest.approx(0.0, abs=1e-300)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(overlays())
def test_no_prediction_is_below_the_limit(overlay):
    for size_bytes in (1e3, 1e6, 1e9):
        took_s = predict(packed(overlay), overlay, size_bytes, chunk_bytes=1e5).contention_s
        assert took_s >= (1 - 1e-6) * limit_s(overlay, size_bytes)
