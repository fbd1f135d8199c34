from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.overlay import internet2_9, random_complete
from anabranch.plan import (
    Plan,
    PlanError,
    Tree,
    _predict,
    balanced,
    deal,
    fapt,
    predict,
    ring,
    spanning,
    star,
    steady_rate_bps,
)
from anabranch.plan._predict import _bound_s, _Passage

from ..seeds import seeds
from .networks import all_plans, build, overlays, random_overlay, with_ports
from .reference_schedule import round_s

ALEXNET = 61_000_000  # parameters, float32
CHUNK = 2**18  # elements


def reference_and_bound(plan, overlay, elements=ALEXNET, chunk=CHUNK):
    predicted = predict(plan, overlay, 4 * elements, chunk_bytes=4 * chunk)
    return round_s(plan, overlay, elements, chunk), predicted.contention_s


@pytest.mark.parametrize(
    ("make", "seconds"),
    [
        (star, 125.80),
        (balanced, 75.83),
        (spanning, 50.74),
        (fapt, 61.60),
        (lambda overlay: fapt(overlay, roots=9), 33.16),
    ],
    ids=["star", "balanced", "spanning", "fapt-1", "fapt-9"],
)
def test_on_internet2_9_the_bound_is_within_1_percent_of_the_schedule(make, seconds):
    reference, bound = reference_and_bound(make(internet2_9()), internet2_9())
    assert bound == pytest.approx(seconds, abs=0.01)
    assert 0.99 * reference <= bound <= reference * (1 + 1e-6)


@seeds(4, 6)
def test_for_rings_the_bound_is_within_3_percent_of_the_schedule(seed):
    drawn = random_overlay(4 + seed, seed, density=[0.3, 1.0][seed % 2], latency_s=0.03)
    for overlay in (internet2_9(), drawn) if seed == 0 else (drawn,):
        for both_ways in (False, True):
            plan = ring(overlay, both_ways=both_ways)
            reference, bound = reference_and_bound(plan, overlay, chunk=1 << 16)
            assert 0.97 * reference <= bound <= reference * (1 + 1e-6)


@pytest.mark.parametrize("hub", range(9))
def test_the_bound_holds_for_every_hub(hub):
    reference, bound = reference_and_bound(star(internet2_9(), hub=hub), internet2_9())
    assert 0.99 * reference <= bound <= reference * (1 + 1e-6)


@pytest.mark.parametrize("density", [0.2, 1.0])
@seeds(4, 6)
def test_the_bound_is_within_5_percent_on_random_overlays(seed, density):
    overlay = random_overlay(4 + seed, seed, density=density, one_way=0.3, latency_s=0.03)
    for plan in all_plans(overlay):
        reference, bound = reference_and_bound(plan, overlay)
        assert 0.95 * reference <= bound <= reference * (1 + 1e-6), plan.label


@pytest.mark.parametrize("density", [0.2, 1.0])
@seeds(3, 5)
def test_the_bound_is_within_10_percent_where_sites_have_ports(seed, density):
    overlay = random_overlay(4 + seed, seed, density=density, latency_s=0.03, ports=0.6)
    bottlenecks = set()
    for plan in all_plans(overlay):
        reference, bound = reference_and_bound(plan, overlay, ALEXNET // 4)
        assert 0.9 * reference <= bound <= reference * (1 + 1e-6), plan.label
        predicted = predict(plan, overlay, ALEXNET, chunk_bytes=4 * CHUNK)
        assert (predicted.bottleneck is None) != (predicted.bottleneck_port is None)
        bottlenecks.add(predicted.bottleneck_port)
    assert len(bottlenecks - {None}) > 0


@settings(deadline=None)
@given(overlays(max_sites=6), st.integers(1, 40_000), st.integers(500, 20_000))
def test_no_schedule_beats_the_bound(overlay, elements, chunk):
    for plan in all_plans(overlay):
        if len({piece.tree for piece in deal(plan, elements, chunk)}) < len(plan.trees):
            continue  # the bound takes every tree to send, but here one has no whole element
        reference, bound = reference_and_bound(plan, overlay, elements, chunk)
        # deal rounds each tree's part to whole elements; the bound does not
        slack = 2 * 32 / steady_rate_bps(plan, overlay) * overlay.size
        assert bound <= reference * (1 + 1e-9) + slack, plan.label


def test_a_pair_takes_one_chunk_each_way_and_the_rest_in_between():
    """By hand: 4 chunks of 1000 bits at 1000 bit/s up, 0.5 s latency each way, one turns round."""
    overlay = build(2, [(0, 1, 1000.0), (1, 0, 1000.0)], latency_s=0.5)
    predicted = predict(star(overlay, hub=0), overlay, 500, chunk_bytes=125)
    assert predicted.contention_s == 4 * 1 + 0.5 + 1 + 0.5
    assert predicted.paper_s == 4 + 4
    assert predicted.link_load == {(0, 1): 1.0, (1, 0): 1.0}
    assert predicted.link_busy_s == {(0, 1): 4.0, (1, 0): 4.0}


def test_a_hub_answers_two_sites_through_one_uplink():
    """By hand: a first 250 bits come in 0.25 s, then 2 x 1000 bits leave at 1000 bit/s."""
    overlay = build(3, [(0, 1, 1e3), (1, 0, 1e3), (0, 2, 1e3), (2, 0, 1e3)])
    overlay = with_ports(overlay, uplink_bps=[1e3, None, None])
    predicted = predict(star(overlay, hub=0), overlay, 125, chunk_bytes=32)
    assert predicted.contention_s == 0.25 + 2
    assert (predicted.bottleneck, predicted.bottleneck_port) == (None, (0, "uplink"))
    assert predicted.paper_s == 1 + 1
    assert predicted.link_busy_s == dict.fromkeys([(0, 1), (1, 0), (0, 2), (2, 0)], 1.0)


def test_a_chunk_passes_a_link_no_faster_than_its_ports():
    """By hand: 8 bits in one chunk up a link of 8 bit/s from an uplink of 2, down at 8 into 4."""
    overlay = build(2, [(0, 1, 8.0), (1, 0, 8.0)], latency_s=0.5)
    overlay = with_ports(overlay, uplink_bps=[None, 2.0], downlink_bps=[None, 4.0])
    predicted = predict(star(overlay, hub=0), overlay, 1, chunk_bytes=1)
    assert predicted.contention_s == 4 + 0.5 + 2 + 0.5
    assert round_s(star(overlay, hub=0), overlay, 1, 1, element_bytes=1) == 7
    assert predicted.bottleneck_port == (1, "uplink")


def test_drift_does_not_count_in_a_prediction():
    overlay = internet2_9()
    drifting = replace(overlay, links=tuple(replace(e, latency_drift_s=0.5) for e in overlay))
    before, after = (predict(star(o), o, 1e6, chunk_bytes=1e5) for o in (overlay, drifting))
    assert before == after


def test_two_trees_on_one_link_share_it_but_not_in_the_papers_metric():
    overlay = build(2, [(0, 1, 1000.0), (1, 0, 1000.0)])
    halves = Plan(1, (Tree(0, 0.5, (-1, 0), (-1, 0)), Tree(1, 0.5, (1, -1), (1, -1))))
    predicted = predict(halves, overlay, 500, chunk_bytes=1)
    assert predicted.paper_s == 2 + 2
    assert predicted.contention_s >= 4


def test_the_papers_metric_ties_all_trees_of_a_multi_root_plan():
    overlay = internet2_9()
    plan = fapt(overlay, roots=9)
    alone = [
        predict(fapt(overlay, roots=[t.root]), overlay, 1e6, chunk_bytes=1e6).paper_s * t.share
        for t in plan.trees
    ]
    whole = predict(plan, overlay, 1e6, chunk_bytes=1e6).paper_s
    assert alone == pytest.approx([whole] * 9)


def test_the_bottleneck_is_named():
    overlay = internet2_9()
    predicted = predict(fapt(overlay), overlay, 4 * ALEXNET, chunk_bytes=4 * CHUNK)
    assert predicted.bottleneck == max(predicted.link_busy_s, key=predicted.link_busy_s.__getitem__)


def test_nothing_to_send_takes_no_time():
    overlay = internet2_9()
    assert predict(fapt(overlay), overlay, 0, chunk_bytes=1).contention_s == 0
    alone = build(1, [])
    predicted = predict(star(alone), alone, 1e9, chunk_bytes=1)
    assert (predicted.contention_s, predicted.paper_s) == (0, 0)
    assert (predicted.bottleneck, predicted.bottleneck_port) == (None, None)


@pytest.mark.parametrize(("size", "chunk"), [(-1, 1), (1, 0), (math.nan, 1)])
def test_sizes_must_make_sense(size, chunk):
    with pytest.raises(ValueError, match="cannot predict"):
        predict(star(internet2_9()), internet2_9(), size, chunk_bytes=chunk)


def test_a_plan_for_other_sites_is_refused():
    with pytest.raises(PlanError, match="spans 9 sites"):
        predict(star(internet2_9()), random_overlay(4, 1), 1, chunk_bytes=1)


small = st.floats(0, 10)


@given(st.lists(st.builds(_Passage, small, small, small), min_size=1, max_size=7))
def test_serving_the_longest_tail_first_finds_the_worst_set_of_passages(passages):
    worst = max(
        min(p.head_s for p in some)
        + math.fsum(p.work_s for p in some)
        + min(p.tail_s for p in some)
        for count in range(1, len(passages) + 1)
        for some in combinations(passages, count)
    )
    assert _bound_s(passages) == pytest.approx(worst, abs=1e-9)


def test_what_an_edge_is_is_looked_up_once_however_many_trees_cross_it(monkeypatch):
    overlay, looked_up = random_complete(12, 0), []
    plan = fapt(overlay, roots=12)
    monkeypatch.setattr(_predict, "ports_on", lambda overlay, *hop: looked_up.append(hop) or [])
    predict(plan, overlay, 1e6, chunk_bytes=2**18)
    edges = {hop for _, hop in plan.hops()}
    assert edges
    assert len(looked_up) <= len(edges)
