from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.log import LinkMeasured, summarise
from anabranch.overlay import Overlay
from anabranch.plan import Plan, Tree
from anabranch_lab.reports import MeasuredRate, measured_rates
from anabranch_lab.reports._awareness import (
    Blocker,
    TreeChange,
    blockers,
    most_changed,
    tree_change,
    true_rate_bps,
    true_steps,
)


def measured(source: int, target: int, at_s: float, rate_bps: float) -> LinkMeasured:
    return LinkMeasured(
        at_s=at_s,
        site=target,
        source=source,
        target=target,
        rate_bps=rate_bps,
        latency_s=None,
        chunks=4,
    )


def test_a_measurement_is_held_against_the_true_rate_of_its_moment(
    aware, changing: Overlay
) -> None:
    rates = [
        r for r in measured_rates(summarise(aware()), changing) if (r.source, r.target) == (1, 0)
    ]
    assert [rate.true_bps for rate in rates] == [40e6, 40e6, 10e6, 10e6, 10e6]
    assert [rate.error for rate in rates] == pytest.approx([0.05, 0.05, 1.5, 0.05, 0.1])
    assert rates[2] == MeasuredRate(1, 0, 12.0, 25e6, 10e6, straddles=True)


def test_the_first_measurement_after_a_change_straddles_it(aware, changing: Overlay) -> None:
    rates = measured_rates(summarise(aware()), changing)
    assert [(r.source, r.at_s) for r in rates if r.straddles] == [(1, 12.0)]


def test_a_first_measurement_straddles_a_change_since_the_run_began(
    start, changing: Overlay
) -> None:
    summary = summarise(
        [start(on=changing), measured(1, 0, 11.0, 10e6), measured(1, 0, 12.0, 10e6)]
    )
    assert [rate.straddles for rate in measured_rates(summary, changing)] == [True, False]


def test_no_true_rate_is_known_where_links_were_not_held_to_the_overlay(
    aware, changing: Overlay
) -> None:
    assert measured_rates(summarise(aware(shaped=False)), changing) == ()


def test_measurements_of_links_the_overlay_lacks_are_left_out(start, overlay: Overlay) -> None:
    summary = summarise([start(), measured(0, 9, 1.0, 1e6)])
    assert measured_rates(summary, overlay) == ()
    assert most_changed(summary, overlay) == []


def test_the_true_rate_is_what_loss_and_ports_leave(overlay: Overlay) -> None:
    sites = (replace(overlay.sites[0], uplink_bps=30e6), *overlay.sites[1:])
    links = tuple(replace(link, loss=0.5) for link in overlay)
    ported = replace(overlay, sites=sites, links=links)
    rates_bps = {(link.source, link.target): true_rate_bps(ported, link, 0.0) for link in ported}
    assert rates_bps[0, 1] == 30e6  # the port
    assert rates_bps[1, 0] == 20e6  # the loss; Oslo's uplink is not on this way
    assert rates_bps[2, 3] == 40e6


def test_true_rates_are_steps_up_to_the_end(changing: Overlay) -> None:
    link = changing.link(1, 0)
    assert link is not None
    assert true_steps(changing, link, 20.0) == [(0.0, 40e6), (10.0, 10e6)]
    assert true_steps(changing, link, 9.0) == [(0.0, 40e6)]


def test_links_that_changed_most_come_first(aware, changing: Overlay, start) -> None:
    def order(*events) -> list[tuple[int, int]]:
        summary = summarise(events)
        return [(link.source, link.target) for link in most_changed(summary, changing)]

    steady = [measured(2, 3, at_s, rate_bps) for at_s, rate_bps in ((1.0, 1e6), (19.0, 1e9))]
    assert order(*aware()[:-1], *steady) == [(1, 0), (2, 3), (0, 1)]
    # What is not true does not count, unless no truth is known.
    unshaped = [start(on=changing, shaped=False), measured(1, 0, 1.0, 1e6), *steady]
    assert order(*unshaped) == [(2, 3), (1, 0)]


def test_trees_are_told_apart_by_root_and_ways(star: Plan, packed: Plan) -> None:
    assert tree_change(star, packed) == TreeChange(trees=2, added=2, reweighted=0)
    assert tree_change(packed, packed) == TreeChange(trees=2, added=0, reweighted=0)
    first, second = packed.trees
    moved = Plan(4, (replace(first, share=0.5), replace(second, share=0.5)))
    assert tree_change(packed, moved) == TreeChange(trees=2, added=0, reweighted=2)
    rooted = Plan(4, (first, Tree(0, 0.25, (-1, 0, 0, 0), (-1, 0, 0, 0))))
    assert tree_change(packed, rooted) == TreeChange(trees=2, added=1, reweighted=0)


def test_links_on_which_most_waiting_began_come_first(aware) -> None:
    assert blockers(summarise(aware())) == (
        Blocker(1, 0, began=(1, 2, 3, 4, 5, 6), passed_on=0, median_s=2.0),
        Blocker(1, 3, began=(7, 8, 9, 10), passed_on=0, median_s=1.0),
        Blocker(0, 3, began=(), passed_on=6, median_s=None),
    )


def test_no_link_is_blamed_where_no_site_said_which_neighbour_it_waited_for(run) -> None:
    assert blockers(summarise(run())) == ()
