from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from anabranch.log import FaultInjected, LinkBytes, summarise
from anabranch.overlay import Link, Overlay, Site, Trace
from anabranch.plan import Plan, PlanError, Tree
from anabranch_lab.reports import _plan_figure
from anabranch_lab.reports import _run_figures as figures
from anabranch_lab.reports._losses import LossCurve


def test_every_tree_is_one_entry_of_the_legend(overlay: Overlay, packed: Plan) -> None:
    figure = _plan_figure.trees(overlay, packed)
    entries = [trace for trace in figure.data if trace.name and trace.showlegend is not False]
    assert [trace.name for trace in entries] == ["1. Kyoto 75 %", "2. Perth 25 %"]
    assert len({trace.legendgroup for trace in entries}) == 2


def arrows(figure, name: str, dash: str) -> int:
    """Return how many links a tree is drawn on, one way."""
    return sum(
        np.isnan(trace.x).sum()
        for trace in figure.data
        if trace.name == name and trace.line.dash == dash
    )


def test_the_way_down_is_drawn_only_where_it_is_not_the_way_up(
    overlay: Overlay, packed: Plan
) -> None:
    figure = _plan_figure.trees(overlay, packed)
    assert [arrows(figure, "1. Kyoto 75 %", dash) for dash in ("solid", "dot")] == [3, 0]
    assert [arrows(figure, "2. Perth 25 %", dash) for dash in ("solid", "dot")] == [3, 3]


def test_relays_are_drawn_as_the_links_they_use(overlay: Overlay, star: Plan) -> None:
    relayed = replace(star, routes={(1, 0): (1, 2, 0), (0, 1): (0, 2, 1)})
    # Kyoto's own edge to Oslo and the end of Lima's route are one link.
    assert arrows(_plan_figure.trees(overlay, relayed), "1. Oslo 100 %", "solid") == 3


def test_the_busiest_link_stands_out(overlay: Overlay, star: Plan) -> None:
    [widest] = [
        trace
        for trace in _plan_figure.trees(overlay, star).data
        if trace.mode == "lines" and trace.line.width == 22
    ]
    assert np.isnan(widest.x).sum() == 1  # Lima to Oslo, at half the others' rate


def test_rates_are_written_once_where_both_ways_have_the_same(overlay: Overlay, star: Plan) -> None:
    texts = [note.text for note in _plan_figure.trees(overlay, star).layout.annotations]
    assert texts.count("80") == 5 + 1  # five pairs, and Oslo to Lima
    assert texts.count("40") == 1


def test_a_plan_for_another_overlay_is_refused(overlay: Overlay) -> None:
    with pytest.raises(PlanError, match="2 sites"):
        _plan_figure.trees(overlay, Plan(1, (Tree(0, 1.0, (-1, 0), (-1, 0)),)))


def test_a_single_site_can_be_drawn() -> None:
    figure = _plan_figure.trees(
        Overlay("alone", (Site("Oslo"),), ()), Plan(1, (Tree(0, 1.0, (-1,), (-1,)),))
    )
    assert "<b>Oslo</b>" in [note.text for note in figure.layout.annotations]


def test_a_split_has_a_row_for_each_site_that_trains(labelled) -> None:
    [drawn] = figures.split(summarise(labelled)).data
    assert (list(drawn.y), list(drawn.x)) == (["Oslo", "Perth"], ["0", "1"])
    assert [list(row) for row in drawn.z] == [[300, 100], [1000, 0]]


def test_names_cannot_bring_markup(overlay: Overlay, star: Plan, run) -> None:
    evil = "<script>alert(1)</script>"
    hostile = replace(overlay, sites=(Site(evil), *overlay.sites[1:]))
    summary = summarise(run(star, on=hostile, label=evil))
    for figure in (
        _plan_figure.trees(hostile, star),
        figures.utilisation(summary, hostile),
        figures.round_times({evil: summary}),
        figures.limits({evil: summary}),
        figures.accuracy({evil: summary}),
        figures.loss({evil: LossCurve(*np.ones((3, 2)))}, "time"),
    ):
        assert "&lt;script" in figure.to_json()
        assert "<script>alert" not in figure.to_json()


def test_losses_of_all_runs_are_drawn_over_time_or_iterations() -> None:
    curves = {
        "a": LossCurve(np.array([2.0, 4.0]), np.array([1.0, 2.0]), np.array([0.5, np.nan])),
        "b": LossCurve(np.array([1.0, 2.0]), np.array([1.0, 2.0]), np.array([0.5, 0.25])),
    }
    over_time, over_iterations = (
        [list(trace.x) for trace in figures.loss(curves, against).data]
        for against in ("time", "iterations")
    )
    assert over_time == [[2.0, 4.0], [1.0, 2.0]]
    assert over_iterations == [[1.0, 2.0], [1.0, 2.0]]
    assert list(figures.loss(curves, "time").data[0].y) == [0.5, None]


def test_round_times_show_every_round_and_what_was_expected(run) -> None:
    figure = figures.round_times({"star": summarise(run(predicted_s=2.5, limit_s=1.0))})
    assert [list(trace.x) for trace in figure.data] == [[2.0, 4.0, 3.0], [2.5], [1.0]]


def test_round_times_far_apart_get_a_logarithmic_axis(run) -> None:
    assert figures.round_times({"a": summarise(run(round_s=(1, 9)))}).layout.xaxis.type == "log"
    assert figures.round_times({"a": summarise(run(round_s=(1, 7)))}).layout.xaxis.type is None


def test_limits_are_shares_of_the_shortest_round(run) -> None:
    predicted, measured = figures.limits(
        {"star": summarise(run(predicted_s=2.0, limit_s=1.5))}
    ).data
    assert list(predicted.x) == [75.0]
    assert list(measured.x) == [50.0]
    assert list(measured.text) == ["50 % · 3.00 s"]


def test_limits_leave_out_runs_that_did_not_feel_the_overlay(run) -> None:
    runs = {"a": summarise(run()), "b": summarise(run(shaped=False))}
    assert [list(trace.y) for trace in figures.limits(runs).data] == [["a"], ["a"]]


def test_limits_leave_out_runs_whose_limit_was_not_computed(run) -> None:
    runs = {"a": summarise(run()), "b": summarise(run(limit_s=None))}
    assert [list(trace.y) for trace in figures.limits(runs).data] == [["a"], ["a"]]


def test_round_times_have_no_entry_for_limits_that_were_not_computed(run) -> None:
    figure = figures.round_times({"a": summarise(run(limit_s=None))})
    assert [trace.name for trace in figure.data] == [None, "predicted"]


def test_simulated_round_times_are_not_called_measured(run) -> None:
    figure = figures.limits({"a": summarise(run(world="simulated"))})
    assert [trace.name for trace in figure.data] == ["predicted", "simulated"]


def test_faults_are_marked_where_time_runs(run, overlay: Overlay) -> None:
    detail = "cut <b>Oslo->Lima</b> for 3 s"
    faults = [
        FaultInjected(at_s=2.5, fault="cut", detail=detail),
        FaultInjected(at_s=5.5, fault="cut", detail=detail, over=True),
    ]
    summary = summarise([*run()[:-1], *faults])
    for figure in (figures.accuracy({"star": summary}), figures.utilisation(summary, overlay)):
        [mark] = [trace for trace in figure.data if trace.name == "fault"]
        assert list(mark.x) == [2.5, 2.5, None, 5.5, 5.5, None]
        escaped = "cut &lt;b&gt;Oslo-&gt;Lima&lt;/b&gt; for 3 s"
        assert mark.hovertext[0] == f"{escaped}<br>at 2.50 s"
        assert mark.hovertext[3] == f"over: {escaped}<br>at 5.50 s"


def test_accuracy_is_drawn_against_time_with_its_target(run) -> None:
    figure = figures.accuracy({"star": summarise(run(accuracy=(0.5, 0.75)))})
    assert list(figure.data[0].x) == [2.0, 6.0]
    assert list(figure.data[0].y) == [50.0, 75.0]
    assert [shape.y0 for shape in figure.layout.shapes] == [90.0]


def heat(figure) -> dict[str, list[float]]:
    [trace] = figure.data
    return dict(zip(trace.y, (list(row) for row in trace.z), strict=True))


def test_utilisation_has_a_row_for_each_link(run, overlay: Overlay) -> None:
    rows = heat(figures.utilisation(summarise(run(round_s=(2.0, 2.0))), overlay))
    assert len(rows) == 12
    assert rows["Oslo → Lima"] == [50.0, 50.0]
    assert rows["Lima → Oslo"] == [100.0, 100.0]
    assert rows["Kyoto → Perth"] == [0.0, 0.0]


def test_utilisation_spreads_intervals_over_even_bins(start, overlay: Overlay) -> None:
    def sent(at_s: float, seconds: float) -> LinkBytes:
        # 10 MB/s is all of 80 Mbit/s.
        return LinkBytes(
            at_s=at_s, source=0, target=1, seconds=seconds, payload_bytes=int(seconds * 10_000_000)
        )

    summary = summarise([start(), sent(1.0, 1.0), sent(4.0, 1.0), sent(5.5, 1.5)])
    figure = figures.utilisation(summary, overlay)
    edges_s = np.array(figure.data[0].x)
    assert np.diff(edges_s) == pytest.approx([5.5 / len(edges_s[1:])] * len(edges_s[1:]))
    shares = np.array(heat(figure)["Oslo → Lima"])
    assert shares @ np.diff(edges_s) == pytest.approx(350, abs=0.5)  # 3.5 s at 100 %
    assert shares.max() <= 100


def test_a_record_of_a_single_moment_can_be_drawn(start, overlay: Overlay) -> None:
    sent = LinkBytes(at_s=2.0, source=0, target=1, seconds=0.0, payload_bytes=10_000_000)
    rows = heat(figures.utilisation(summarise([start(), sent]), overlay))
    assert rows["Oslo → Lima"] == [50.0]


def test_utilisation_follows_a_changing_rate(start, overlay: Overlay) -> None:
    slower = Trace((0.0, 1.0), (80e6, 40e6))
    traced = replace(
        overlay,
        links=tuple(
            replace(link, trace=slower) if (link.source, link.target) == (0, 1) else link
            for link in overlay
        ),
    )
    sample = LinkBytes(at_s=1.0, source=0, target=1, seconds=1.0, payload_bytes=5_000_000)
    summary = summarise([start(), sample, msgspec.structs.replace(sample, at_s=2.0)])
    assert heat(figures.utilisation(summary, traced))["Oslo → Lima"] == [50.0, 100.0]


def test_only_the_busiest_of_very_many_links_are_drawn(run) -> None:
    n = 8
    overlay = Overlay(
        "complete",
        tuple(Site(f"s{i}") for i in range(n)),
        tuple(Link(a, b, 80e6) for a in range(n) for b in range(n) if a != b),
    )
    star = Plan(1, (Tree(0, 1.0, (-1, *[0] * (n - 1)), (-1, *[0] * (n - 1))),), label="star")
    rows = heat(figures.utilisation(summarise(run(star, on=overlay)), overlay))
    assert len(rows) == 40
    assert {f"s0 → s{i}" for i in range(1, n)} < rows.keys()
