from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from anabranch.log import FaultInjected, LinkMeasured, PlanIssued, RoundDone, summarise
from anabranch.overlay import Overlay, Site
from anabranch.plan import Plan
from anabranch_lab.reports._awareness_figure import awareness
from anabranch_lab.reports.runs import Run

from ..every import every


@pytest.fixture
def as_run(changing: Overlay, star: Plan, packed: Plan):
    """Return a function that makes a report's run of events."""

    def make(events, on: Overlay = changing) -> Run:
        summary = summarise(events)
        return Run("star", Path("star.db"), summary, on, star, (packed,) * len(summary.plans))

    return make


def titles(figure) -> list[str]:
    return [note.text for note in figure.layout.annotations]


def named(figure, name: str):
    return [trace for trace in figure.data if trace.name == name]


def test_panels_read_downwards_from_plans_over_links_to_rounds(aware, as_run) -> None:
    assert titles(awareness(as_run(aware()))) == [
        "Plans issued",
        "Lima → Oslo, Mbit/s",  # it changed
        "Oslo → Lima, Mbit/s",
        "Round time, s",
        "Where waiting began",
    ]


def test_all_panels_share_the_time_axis(aware, as_run) -> None:
    layout = awareness(as_run(aware())).layout.to_plotly_json()
    axes = [axis for key, axis in layout.items() if key.startswith("xaxis")]
    assert len(axes) == 5
    assert every(axis["range"] == pytest.approx((0, 1.02 * 22)) for axis in axes)
    assert len({axis.get("matches") for axis in axes} - {None}) == 1


def test_measured_rates_are_drawn_over_true_ones(aware, as_run) -> None:
    figure = awareness(as_run(aware()))
    true, _ = named(figure, "true rate")
    measured, _ = named(figure, "measured rate")
    assert (list(true.x), list(true.y)) == ([0.0, 10.0, 22.0], [40.0, 10.0, 10.0])
    assert list(measured.x) == [4.0, 8.0, 12.0, 16.0, 20.0]
    assert list(measured.y) == [38.0, 38.0, 25.0, 9.5, 9.0]
    assert measured.hovertext[0] == (
        "38 Mbit/s measured at 4.00 s<br>40 Mbit/s true<br>over 12 chunks<br>latency 30.0 ms"
    )
    assert [trace.showlegend for trace in named(figure, "measured rate")] == [True, False]


def test_true_rates_are_not_drawn_where_links_were_not_held_to_them(aware, as_run) -> None:
    figure = awareness(as_run(aware(shaped=False)))
    assert named(figure, "true rate") == []
    assert len(named(figure, "measured rate")) == 2
    assert "true" not in named(figure, "measured rate")[0].hovertext[0]


def test_a_plan_issued_says_why_under_the_pointer(aware, as_run) -> None:
    figure = awareness(as_run(aware()))
    [mark] = named(figure, "new plan")
    assert (list(mark.x), list(mark.text)) == ([12.0], [" 3"])
    assert mark.hovertext[0] == (
        "<b>Plan 3</b> at 12.0 s<br>Lima-&gt;Oslo fell from 40 to 25 Mbit/s<br>"
        "Lima → Oslo: 40 Mbit/s → 25 Mbit/s<br>predicted round: 3.20 s → 1.00 s"
    )
    [rule] = figure.layout.shapes
    assert (rule.path, rule.xref, rule.yref) == ("M12,0L12,1", "x", "paper")


def test_round_times_change_their_look_with_the_plan(aware, as_run) -> None:
    [rounds] = named(awareness(as_run(aware())), "round")
    assert list(rounds.x) == [2, 4, 6, 8, 10, 18, 19, 20, 21, 22]
    assert list(rounds.y) == [2, 2, 2, 2, 2, 8, 1, 1, 1, 1]
    assert list(rounds.marker.symbol) == ["circle"] * 6 + ["circle-open"] * 4
    assert rounds.hovertext[5] == "round 6, plan 1: 8.00 s<br>ended at 18.0 s"


def test_predictions_change_with_each_plan(aware, as_run) -> None:
    [predicted] = named(awareness(as_run(aware())), "predicted when planned")
    assert (list(predicted.x), list(predicted.y)) == ([0.0, 12.0, 22.0], [2.5, 1.0, 1.0])
    [only_new] = named(awareness(as_run(aware(shaped=False))), "predicted when planned")
    assert list(only_new.x) == [12.0, 22.0]


def test_waiting_is_a_bar_as_long_as_the_round_where_it_began(aware, as_run) -> None:
    figure = awareness(as_run(aware()))
    [began] = named(figure, "waiting began")
    assert list(began.base) == [0, 2, 4, 6, 8, 10, 18, 19, 20, 21]
    assert list(began.x) == [2, 2, 2, 2, 2, 8, 1, 1, 1, 1]
    assert list(began.y) == [0] * 6 + [1] * 4
    assert began.hovertext[0] == "round 1, 2.00 s<br>Perth ← Oslo ← Lima (tree 1)"
    assert began.hovertext[9] == "round 10, 1.00 s<br>Perth ← Lima (tree 1)"
    [passed_on] = named(figure, "passed on")
    assert list(passed_on.y) == [2] * 6
    assert list(figure.layout.yaxis5.ticktext) == ["Lima → Oslo", "Lima → Perth", "Oslo → Perth"]


def test_only_the_links_that_changed_most_are_drawn(aware, as_run) -> None:
    more = [
        LinkMeasured(
            at_s=5.0 * step,
            site=b,
            source=a,
            target=b,
            rate_bps=80e6 + step * (a + 4 * b) * 1e5,
            latency_s=None,
            chunks=1,
        )
        for a in range(4)
        for b in range(4)
        if a != b
        for step in (0, 1)
    ]
    figure = awareness(as_run([*aware()[:-1], *more]))
    drawn = [title for title in titles(figure) if title.endswith("Mbit/s")]
    assert drawn[0] == "Lima → Oslo, Mbit/s"
    assert len(drawn) == 6


def test_faults_are_marked_beside_plans(aware, as_run) -> None:
    fault = FaultInjected(at_s=10.0, fault="cut", detail="cut <b>Oslo->Lima</b>")
    figure = awareness(as_run([*aware()[:-1], fault]))
    [mark] = named(figure, "fault")
    assert mark.hovertext[0] == "cut &lt;b&gt;Oslo-&gt;Lima&lt;/b&gt;<br>at 10.0 s"
    assert [shape.path for shape in figure.layout.shapes] == ["M12,0L12,1", "M10,0L10,1"]


def test_what_a_log_does_not_tell_has_no_panel(aware, as_run, start) -> None:
    events = [e for e in aware() if not isinstance(e, PlanIssued)]
    assert "Plans issued" not in titles(awareness(as_run(events)))
    events = [e for e in events if not isinstance(e, RoundDone)]
    assert titles(awareness(as_run(events))) == ["Lima → Oslo, Mbit/s", "Oslo → Lima, Mbit/s"]
    assert awareness(as_run([start()])) is None


def test_many_plans_are_marked_without_names(aware, as_run) -> None:
    events = aware()
    [issued] = [event for event in events if isinstance(event, PlanIssued)]
    more = [
        msgspec.structs.replace(
            issued, version=4 + k, at_s=13.0 + k / 10, changed=issued.changed * 9
        )
        for k in range(20)
    ]
    [mark] = named(awareness(as_run([*events[:-1], *more])), "new plan")
    assert mark.mode == "markers"
    assert "and 3 more links" in mark.hovertext[1]


def test_names_cannot_bring_markup(aware, as_run, changing: Overlay) -> None:
    evil = "<script>alert(1)</script>"
    hostile = replace(changing, sites=(Site(evil), *changing.sites[1:]))
    events = [
        msgspec.structs.replace(event, why=evil) if isinstance(event, PlanIssued) else event
        for event in aware(sites=[evil, "Lima", "Kyoto", "Perth"])
    ]
    text = awareness(as_run(events, hostile)).to_json()
    assert "&lt;script" in text
    assert "<script>alert" not in text
