"""Beliefs: measured, kept, forgotten, and what a shared port hides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from anabranch.net.throughput import Estimate
from anabranch.overlay import Link, Overlay, Site, internet2_9, redraw
from anabranch.plan import spanning
from anabranch.scheduler._collector import Collector, Latest, equal_rates

from ..every import every


def triangle(rates_bps: Sequence[float], **ports: float) -> Overlay:
    """Return three sites joined by links 0-1, 1-2 and 2-0, alike both ways; site 0 has ports."""
    sites = Site("a", **ports), Site("b"), Site("c")
    links = []
    for (a, b), rate_bps in zip([(0, 1), (1, 2), (2, 0)], rates_bps, strict=True):
        links += [Link(a, b, rate_bps, 0.03, 0.1), Link(b, a, rate_bps, 0.03, 0.1)]
    return Overlay("triangle", sites, tuple(links))


def goodput_bps(overlay: Overlay, source: int, target: int) -> float:
    link = overlay.link(source, target)
    assert link is not None
    return link.goodput_bps


def estimate(rate_bps: float, latency_s: float | None = None) -> Estimate:
    return Estimate(rate_bps, latency_s, 8)


def test_without_measurements_the_initial_belief_stays_and_traces_are_dropped() -> None:
    overlay = internet2_9()
    changing = redraw(overlay, period_s=180, low_bps=20e6, high_bps=155e6, duration_s=900, seed=0)
    belief = Collector(changing).belief(1e6)
    assert [link.trace for link in belief] == [None] * 26
    assert [link.goodput_bps for link in belief] == [link.goodput_bps for link in overlay]
    assert belief.sites == overlay.sites


def test_a_measured_link_has_the_measured_goodput_and_latency() -> None:
    collector = Collector(triangle([50e6, 50e6, 50e6]))
    collector.measured(0, 1, estimate(20e6, 0.07), 5.0)
    belief = collector.belief(5.0)
    link = belief.link(0, 1)
    assert link is not None
    assert link.goodput_bps == pytest.approx(20e6)
    assert (link.latency_s, link.loss) == (0.07, 0.1)
    assert goodput_bps(belief, 1, 0) > 40e6  # the other way is another link
    collector.measured(0, 1, estimate(30e6), 6.0)
    link = collector.belief(6.0).link(0, 1)
    assert link is not None
    assert link.goodput_bps == pytest.approx(30e6)
    assert link.latency_s == 0.07


def test_one_measurement_that_is_far_off_is_not_believed() -> None:
    collector = Collector(triangle([50e6, 50e6, 50e6]))
    found = []
    for tenth, rate_bps in enumerate([20e6, 21e6, 2e9, 20e6, 22e6, 40e6, 41e6, 40e6]):
        collector.measured(0, 1, estimate(rate_bps), 5 + tenth / 10)
        found.append(goodput_bps(collector.belief(6.0), 0, 1) / 1e6)
    assert found == pytest.approx([20, 21, 21, 21, 22, 22, 40, 40])
    collector.measured(0, 1, estimate(5e6), 9.8)  # long after
    assert goodput_bps(collector.belief(9.8), 0, 1) == pytest.approx(5e6)


def test_a_rise_counts_at_once_and_a_fall_once_it_has_lasted() -> None:
    collector = Collector(triangle([50e6, 50e6, 50e6]))
    reports = [*(20 * [100e6]), *(4 * [30e6]), *(20 * [100e6]), *(20 * [30e6]), *(8 * [90e6])]
    found = []
    for place, rate_bps in enumerate(reports):  # four a second
        collector.measured(0, 1, estimate(rate_bps), place / 4)
        found.append(goodput_bps(collector.belief(place / 4), 0, 1) / 1e6)
    assert every(each == pytest.approx(100) for each in found[:44]), "a second is a dip"
    assert found[44:64].index(pytest.approx(30)) in range(10, 14), "three seconds are a fall"
    assert found[64:].index(pytest.approx(90)) in range(3, 6)


def test_a_belief_that_is_not_renewed_fades_towards_the_typical_rate() -> None:
    collector = Collector(triangle([50e6, 50e6, 50e6]), forget_s=100.0)
    collector.measured(0, 1, estimate(1e6), 0.0)
    for now_s in (0.0, 100.0, 1000.0):
        for pair in ((1, 2), (2, 0)):
            collector.measured(*pair, estimate(100e6), now_s)
        belief = collector.belief(now_s)
        kept = math.exp(-now_s / 100)
        assert goodput_bps(belief, 0, 1) == pytest.approx(1e6**kept * 100e6 ** (1 - kept))
        assert goodput_bps(belief, 1, 2) == pytest.approx(100e6)


def test_what_was_only_assumed_counts_for_nothing_once_anything_is_measured() -> None:
    for forget_s in (300.0, math.inf):
        collector = Collector(triangle([1e9] * 3), since_s=-math.inf, forget_s=forget_s)
        assert goodput_bps(collector.belief(0.0), 1, 2) == pytest.approx(0.9e9)
        collector.measured(0, 1, estimate(20e6), 1.0)
        assert goodput_bps(collector.belief(1.0), 1, 2) == pytest.approx(20e6)


def test_a_belief_says_what_each_rate_rests_on() -> None:
    def basis(of: Collector | Latest, now_s: float) -> list[str]:
        return [link.basis for link in of.belief(now_s)]

    given = Collector(triangle([100e6, 50e6, 80e6]), forget_s=100.0)
    assert set(basis(given, 0.0)) == {"given"}
    given.measured(0, 1, estimate(30e6), 1.0)
    assert basis(given, 1.0).count("measured") == 1
    assert set(basis(given, 1000.0)) == {"measured", "assumed"}  # by what the first carries
    equal = equal_rates(triangle([100e6, 50e6, 80e6]))
    for begun in (Collector(equal, since_s=-math.inf), Latest(equal)):
        assert set(basis(begun, 0.0)) == {"assumed"}
        begun.measured(0, 1, estimate(30e6), 1.0)
        assert sorted(basis(begun, 1.0)) == 5 * ["assumed"] + ["measured"]


def rounds_until_used(forget_s: float) -> int | None:
    """Return when a link that was slow in the first minute is used again, in rounds of 10 s.

    Trees follow the belief; links in a tree are measured; a-b recovers from 1 to 100 Mbit/s.
    """
    collector = Collector(triangle([80e6, 60e6, 40e6]), forget_s=forget_s)
    for k in range(200):
        now_s = 10.0 * k
        truth = triangle([1e6 if now_s < 60 else 100e6, 60e6, 40e6])
        used = {hop for _, hop in spanning(collector.belief(now_s)).hops()}
        if now_s > 60 and (0, 1) in used:
            return k
        for source, target in used:
            measured = estimate(goodput_bps(truth, source, target))
            collector.measured(source, target, measured, now_s)
    return None


def test_a_link_that_was_slow_once_is_tried_again_because_it_is_forgotten() -> None:
    assert rounds_until_used(math.inf) is None
    tried = rounds_until_used(60.0)
    assert tried is not None
    assert tried < 40


def test_a_share_of_a_full_port_says_nothing_against_a_link() -> None:
    collector = Collector(triangle([100e6, 50e6, 80e6], uplink_bps=60e6))
    collector.measured(0, 1, estimate(30e6), 1.0)
    collector.measured(0, 2, estimate(31e6), 1.5)
    belief = collector.belief(1.5)
    assert goodput_bps(belief, 0, 1) == pytest.approx(90e6, rel=0.02)
    assert goodput_bps(belief, 0, 2) == pytest.approx(72e6, rel=0.02)


def test_a_share_of_a_full_port_is_the_least_a_link_carries() -> None:
    collector = Collector(triangle([10e6, 50e6, 10e6], downlink_bps=60e6))
    collector.measured(1, 0, estimate(30e6), 1.0)
    collector.measured(2, 0, estimate(28e6), 1.0)
    belief = collector.belief(1.0)
    assert goodput_bps(belief, 1, 0) == pytest.approx(30e6)
    assert goodput_bps(belief, 2, 0) == pytest.approx(28e6)
    later = collector.belief(1e5)
    assert goodput_bps(later, 1, 0) == pytest.approx(30e6)


def test_links_that_leave_their_port_room_are_believed() -> None:
    collector = Collector(triangle([100e6, 50e6, 80e6], uplink_bps=60e6))
    collector.measured(0, 1, estimate(15e6), 1.0)
    collector.measured(0, 2, estimate(31e6), 1.5)
    assert goodput_bps(collector.belief(1.5), 0, 1) == pytest.approx(15e6, rel=0.02)


def test_measurements_of_different_moments_do_not_fill_a_port() -> None:
    collector = Collector(triangle([100e6, 50e6, 80e6], uplink_bps=60e6), together_s=10.0)
    collector.measured(0, 1, estimate(30e6), 1.0)
    collector.measured(0, 2, estimate(31e6), 100.0)
    assert goodput_bps(collector.belief(100.0), 0, 2) == pytest.approx(31e6)


def test_behind_a_full_port_what_was_known_before_is_still_known_reports_later() -> None:
    collector = Collector(triangle([100e6, 50e6, 80e6], uplink_bps=60e6), forget_s=math.inf)
    collector.measured(0, 1, estimate(45e6), 1.0)  # alone, with room left
    for now_s in (20.0, 25.0, 30.0):
        collector.measured(0, 1, estimate(30e6), now_s)
        collector.measured(0, 2, estimate(30e6), now_s)
    assert goodput_bps(collector.belief(30.0), 0, 1) == pytest.approx(45e6)


def test_the_latest_measurement_is_believed_whatever_it_is_and_for_ever() -> None:
    latest = Latest(triangle([50e6, 50e6, 50e6], uplink_bps=60e6))
    for now_s, rate_bps in ((1.0, 40e6), (1.1, 40e6), (1.2, 7e6)):
        latest.measured(0, 1, estimate(rate_bps, 0.02), now_s)
    latest.measured(0, 2, estimate(53e6), 1.2)  # fills the port
    belief = latest.belief(1e6)
    assert goodput_bps(belief, 0, 1) == pytest.approx(7e6)
    assert goodput_bps(belief, 1, 0) == pytest.approx(45e6)  # as it was believed at first
    link = belief.link(0, 1)
    assert link is not None
    assert link.latency_s == 0.02
    assert latest.measured_links == {(0, 1), (0, 2)}


def test_the_latest_measurement_drops_traces() -> None:
    changing = redraw(internet2_9(), period_s=9, low_bps=1e6, high_bps=2e6, duration_s=20, seed=1)
    latest = Latest(changing)
    latest.measured(0, 1, estimate(5e6), 0.0)
    assert every(link.trace is None for link in latest.belief(0.0))


def test_equal_rates_keep_the_links_and_forget_what_they_carry() -> None:
    overlay = internet2_9()
    equal = equal_rates(overlay)
    rates_bps = {round(link.goodput_bps) for link in equal}
    assert len(rates_bps) == 1
    assert [(link.source, link.target, link.latency_s) for link in equal] == [
        (link.source, link.target, link.latency_s) for link in overlay
    ]
    lonely = Overlay("lonely", (Site("a"),), ())
    assert equal_rates(lonely) == lonely


def test_what_cannot_be_is_refused() -> None:
    overlay = triangle([1e6] * 3)
    with pytest.raises(ValueError, match="no link 0->5"):
        Collector(overlay).measured(0, 5, estimate(1e6), 0.0)
    with pytest.raises(ValueError, match="no link 0->5"):
        Latest(overlay).measured(0, 5, estimate(1e6), 0.0)
    with pytest.raises(ValueError, match="forget_s > 0"):
        Collector(overlay, forget_s=0.0)
    kept = replace(overlay, name="other")
    assert Collector(kept).belief(0.0).name == "other"
