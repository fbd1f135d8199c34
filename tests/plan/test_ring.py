"""Rings: what they carry, and that their order is the best."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.overlay import (
    Link,
    Overlay,
    OverlayError,
    Site,
    internet2_9,
    random_complete,
    random_sparse,
)
from anabranch.plan import (
    Plan,
    PlanError,
    Ring,
    limit_rate_bps,
    link_load,
    relay_routes,
    ring,
    share_of_limit,
    steady_rate_bps,
)
from anabranch.plan import _ring_order as ring_order
from tests.seeds import slow_after

from .networks import build, overlays, random_overlay, with_ports


def uniform(n: int, rate_bps: float) -> Overlay:
    return build(n, [(i, j, rate_bps) for i, j in permutations(range(n), 2)])


def sites_round(plan: Plan) -> tuple[int, ...]:
    """Return the sites in the order of a one-way ring, from site 0 on."""
    order = [0]
    while len(order) < plan.size:
        [after] = {tree.up[order[-1]] for tree in plan.trees if tree.up[order[-1]] >= 0}
        order.append(after)
    return tuple(order)


def latency_round_s(overlay: Overlay, order: Sequence[int]) -> float:
    edges = [*pairwise([*order, order[0]])]
    routes = relay_routes(overlay, edges)
    hops = [hop for edge in edges for hop in pairwise(routes.get(edge, edge))]
    links = {(link.source, link.target): link for link in overlay}
    return sum(links[hop].latency_s for hop in hops)


def test_each_share_goes_once_round_to_its_root_and_once_round_from_it() -> None:
    plan = ring(uniform(4, 1e6), order=[2, 0, 3, 1], both_ways=False, version=7)
    assert plan.version == 7
    assert [tree.root for tree in plan.trees] == [0, 1, 2, 3]
    assert {tree.share for tree in plan.trees} == {0.25}
    first = plan.trees[0]
    assert first.up == (-1, 2, 0, 1)  # 3 begins: to 1, to 2, to 0
    assert first.down == (-1, 3, 1, 0)  # 0 begins: to 3, to 1, to 2


def test_the_other_half_goes_the_other_way() -> None:
    one, other = [
        ring(uniform(5, 1e6), order=o, both_ways=False) for o in ([0, 1, 2, 3, 4], [0, 4, 3, 2, 1])
    ]
    both = ring(uniform(5, 1e6), order=[0, 1, 2, 3, 4], both_ways=True)
    ways = [(tree.root, tree.up, tree.down) for tree in both.trees]
    assert ways[::2] == [(tree.root, tree.up, tree.down) for tree in one.trees]
    assert ways[1::2] == [(tree.root, tree.up, tree.down) for tree in other.trees]
    assert {tree.share for tree in both.trees} == {0.1}


@pytest.mark.parametrize("n", [2, 3, 5, 9, 12])
def test_each_link_carries_what_a_ring_all_reduce_sends_over_it(n: int) -> None:
    overlay = uniform(n, 80e6)
    plan = ring(overlay, both_ways=False)
    assert len(link_load(plan)) == n
    assert [*link_load(plan).values()] == pytest.approx([2 * (n - 1) / n] * n)
    assert steady_rate_bps(plan, overlay) == pytest.approx(80e6 * n / (2 * (n - 1)))


@pytest.mark.parametrize("n", [3, 5, 9, 12])
def test_both_ways_carry_twice_as_much_over_links_that_are_as_fast_both_ways(n: int) -> None:
    overlay = uniform(n, 80e6)
    plan = ring(overlay)
    assert plan.label == "ring, both ways"
    assert steady_rate_bps(plan, overlay) == pytest.approx(80e6 * n / (n - 1))


@pytest.mark.parametrize("n", [3, 6, 10])
def test_both_ways_reach_the_limit_of_a_network_that_is_a_ring(n: int) -> None:
    edges = [(i, (i + 1) % n) for i in range(n)]
    overlay = build(n, [(s, t, 50e6) for i, j in edges for s, t in ((i, j), (j, i))])
    assert share_of_limit(ring(overlay), overlay) == pytest.approx(1.0, rel=1e-6)


def test_one_way_reaches_the_limit_of_equal_ports_and_is_chosen() -> None:
    overlay = with_ports(uniform(6, 1e9), uplink_bps=[40e6] * 6, downlink_bps=[40e6] * 6)
    plan = ring(overlay)
    assert plan.label == "ring"
    assert steady_rate_bps(plan, overlay) == pytest.approx(limit_rate_bps(overlay), rel=1e-6)


def test_one_way_is_chosen_where_the_links_of_a_ring_are_fast_one_way_only() -> None:
    links = [(i, (i + 1) % 5, 90e6) for i in range(5)] + [((i + 1) % 5, i, 30e6) for i in range(5)]
    overlay = build(5, links)
    assert ring(overlay) == ring(overlay, order=[0, 1, 2, 3, 4], both_ways=False)


@settings(deadline=None, max_examples=60)
@given(overlays(max_sites=6), st.booleans())
def test_no_order_is_quicker(overlay: Overlay, both_ways: bool) -> None:
    found = ring(overlay, both_ways=both_ways)
    found_bps = steady_rate_bps(found, overlay)
    best_bps, least_s = 0.0, 0.0
    for others in permutations(range(1, overlay.size)):
        order = (0, *others)
        rate_bps = steady_rate_bps(ring(overlay, order=order, both_ways=both_ways), overlay)
        latency_s = latency_round_s(overlay, order)
        if rate_bps > best_bps * (1 + 1e-9):
            best_bps, least_s = rate_bps, latency_s
        elif rate_bps > best_bps * (1 - 1e-9):
            least_s = min(least_s, latency_s)
    assert found_bps == pytest.approx(best_bps)
    if not both_ways:
        assert latency_round_s(overlay, sites_round(found)) == pytest.approx(least_s)


def test_among_equally_quick_orders_the_one_of_least_latency_is_taken() -> None:
    # Sites on a line, whose latencies are distances: up all the even ones, down all the odd ones.
    sites = tuple(Site(str(i)) for i in range(12))
    place = [5, 0, 9, 3, 11, 1, 7, 10, 2, 6, 8, 4]
    links = tuple(
        Link(i, j, 1e8, 0.001 * abs(place[i] - place[j])) for i, j in permutations(range(12), 2)
    )
    for n in (8, 12):
        some = Overlay(
            "line", sites[:n], tuple(each for each in links if max(each.source, each.target) < n)
        )
        order = sites_round(ring(some, both_ways=False))
        assert latency_round_s(some, order) == pytest.approx(
            0.002 * (max(place[:n]) - min(place[:n]))
        )


@pytest.mark.parametrize(
    "kind",
    slow_after(2, [{}, {"density": 0.3}, {"density": 0.3, "ports": 0.5}, {"symmetric": True}]),
)
@pytest.mark.parametrize("both_ways", [False, True])
def test_steps_find_orders_that_are_nearly_as_quick_as_the_best(
    kind: dict[str, float], both_ways: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares = []
    for seed in range(6):
        overlay = random_overlay(8, seed, latency_s=0.03, **kind)
        best_bps = steady_rate_bps(ring(overlay, both_ways=both_ways), overlay)
        with monkeypatch.context() as patched:
            patched.setattr(ring_order, "_MOST_EXACT", 2)
            found_bps = steady_rate_bps(ring(overlay, both_ways=both_ways), overlay)
        shares.append(found_bps / best_bps)
    assert max(shares) <= 1 + 1e-9
    assert min(shares) > 0.8
    assert sum(shares) / len(shares) > 0.96


def test_of_many_sites_the_ring_is_nearly_as_quick_as_the_best_links_of_any_site() -> None:
    overlay = random_complete(30, 1)
    rates_bps = overlay.goodput_matrix_bps()
    most_bps = min(rates_bps.max(axis=0).min(), rates_bps.max(axis=1).min())
    plan = ring(overlay, both_ways=False)
    assert steady_rate_bps(plan, overlay) > 0.9 * most_bps * 30 / (2 * 29)


def test_with_relays_the_ring_of_many_sites_is_much_quicker_than_in_order_of_index() -> None:
    overlay = random_sparse(30, 1)
    found, plain = [ring(overlay, order=o, both_ways=False) for o in (None, range(30))]
    assert steady_rate_bps(found, overlay) > 2.5 * steady_rate_bps(plain, overlay)


def test_the_order_on_internet2() -> None:
    plan = ring(internet2_9())
    assert sites_round(plan) == (0, 3, 5, 8, 7, 6, 4, 1, 2)
    assert plan.routes  # not all neighbours have links


def test_an_order_by_name_is_kept_with_relays_between() -> None:
    overlay = internet2_9()
    names = tuple(f"dc{i}" for i in (3, 1, 2, 4, 5, 6, 7, 9, 8))
    plan = Ring(order=names, both_ways=False).plan(overlay)
    assert sites_round(plan) == (0, 1, 3, 4, 5, 6, 8, 7, 2)
    plan.check_fits(overlay)


@pytest.mark.parametrize(
    ("order", "error", "named"),
    [
        (("dc1", "dc0"), OverlayError, "no site 'dc0'.*did you mean"),
        (tuple(f"dc{i}" for i in range(1, 9)), PlanError, "every site once: 'dc9' is missing"),
        (
            tuple(f"dc{i}" for i in (1, 2, 3, 4, 5, 6, 7, 8, 8)),
            PlanError,
            "'dc8' is there 2 times, 'dc9' is missing",
        ),
    ],
)
def test_an_order_that_is_no_ring_is_refused(
    order: tuple[str, ...], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        Ring(order=order).plan(internet2_9())


def test_an_index_that_is_no_site_is_refused() -> None:
    with pytest.raises(PlanError, match="'1' is there 2 times, 7 is no site"):
        ring(uniform(3, 1e6), order=[0, 0, 1, 2, 7])
