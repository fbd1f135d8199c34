from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.log import FaultInjected, LinkBytes, RunSummary, summarise
from anabranch.overlay import Overlay, Site
from anabranch.plan import Plan, Tree
from anabranch_lab.reports import _twin_figures, compare


@pytest.fixture
def worlds(run) -> tuple[RunSummary, RunSummary]:
    """A run that was simulated in 9 s, and took 12 s."""
    return (
        summarise(run(round_s=(2.0, 4.0, 3.0), world="simulated")),
        summarise(run(round_s=(3.0, 5.0, 4.0))),
    )


def traces(figure, world: str, mode: str):
    return [trace for trace in figure.data if trace.legendgroup == world and trace.mode == mode]


def test_each_world_has_one_colour_in_every_figure(worlds, overlay: Overlay, star: Plan) -> None:
    figures = [_twin_figures.timeline(*worlds), _twin_figures.busiest_links(*worlds, overlay, star)]
    colours = {
        world: {
            trace.line.color
            for figure in figures
            for trace in figure.data
            if trace.legendgroup == world and "lines" in trace.mode
        }
        for world in ("simulated", "measured")
    }
    assert [len(found) for found in colours.values()] == [1, 1]
    assert colours["simulated"] != colours["measured"]


def test_progress_ends_with_all_payload_when_the_run_ended(worlds) -> None:
    figure = _twin_figures.timeline(*worlds)
    for world, end_s in (("simulated", 9.0), ("measured", 12.0)):
        [line] = traces(figure, world, "lines")[:1]
        assert (line.x[0], line.y[0]) == (0.0, 0.0)
        assert (line.x[-1], line.y[-1]) == (end_s, pytest.approx(180.0))  # MB


def test_round_ends_are_marked_on_the_line_of_their_world(worlds) -> None:
    figure = _twin_figures.timeline(*worlds)
    [simulated] = traces(figure, "simulated", "markers")
    [measured] = traces(figure, "measured", "markers")
    assert list(simulated.x) == [2.0, 6.0, 9.0]
    assert list(measured.x) == [3.0, 8.0, 12.0]
    assert list(simulated.y) == pytest.approx([60.0, 120.0, 180.0])


def test_round_times_are_side_by_side_with_the_prediction(worlds) -> None:
    figure = _twin_figures.timeline(*worlds)
    [simulated] = traces(figure, "simulated", "lines+markers")
    [measured] = traces(figure, "measured", "lines+markers")
    [predicted] = [trace for trace in figure.data if trace.name == "predicted"]
    assert list(simulated.x) == list(measured.x) == [0, 1, 2]
    assert (list(simulated.y), list(measured.y)) == ([2.0, 4.0, 3.0], [3.0, 5.0, 4.0])
    assert list(predicted.y) == [2.5, 2.5]


def test_round_times_run_from_end_to_end(run) -> None:
    figure = _twin_figures.timeline(
        summarise(run(round_s=(2.0, 4.0, 3.0), idle_s=1.0, world="simulated")),
        summarise(run(round_s=(3.0, 5.0, 4.0), idle_s=0.5)),
    )
    [simulated] = traces(figure, "simulated", "lines+markers")
    [measured] = traces(figure, "measured", "lines+markers")
    assert (list(simulated.y), list(measured.y)) == ([3.0, 5.0, 4.0], [3.5, 5.5, 4.5])


def test_accuracy_is_drawn_where_both_worlds_evaluated(run, worlds) -> None:
    without = summarise(run(accuracy=()))
    titles = [note.text for note in _twin_figures.timeline(*worlds).layout.annotations]
    assert titles == ["Payload carried by all links", "Round times", "Accuracy"]
    assert len(_twin_figures.timeline(worlds[0], without).layout.annotations) == 2


def test_faults_are_crosses_on_the_line_of_their_world(run, worlds) -> None:
    detail = "cut Oslo->Lima for 2 s"
    faults = [
        FaultInjected(at_s=4.0, fault="cut", detail=detail),
        FaultInjected(at_s=6.0, fault="cut", detail=detail, over=True),
    ]
    figure = _twin_figures.timeline(worlds[0], summarise([*run()[:-1], *faults]))
    [_, cross] = traces(figure, "measured", "markers")
    assert list(cross.x) == [4.0, 6.0]
    assert list(cross.hovertext) == [
        "measured: cut Oslo-&gt;Lima for 2 s<br>at 4.00 s",
        "measured: over: cut Oslo-&gt;Lima for 2 s<br>at 6.00 s",
    ]


def test_the_busiest_links_come_first(worlds, overlay: Overlay, star: Plan) -> None:
    figure = _twin_figures.busiest_links(*worlds, overlay, star)
    titles = [note.text for note in figure.layout.annotations if "→" in note.text]
    assert len(titles) == 5
    assert titles[0] == "Lima → Oslo, 40 Mbit/s"


def test_rounds_out_of_step_look_alike_where_the_record_is_too_coarse_for_them(
    start, overlay: Overlay, star: Plan, run
) -> None:
    """A link that is busy in the first half of each round of 2 s; samples are of 1 s."""

    def ran(late: bool, **changes: object) -> RunSummary:
        events = run(round_s=[2.0] * 8, **changes)[:-1]
        events = [event for event in events if not isinstance(event, LinkBytes)]
        for second in range(16):
            sent = 5_000_000 if second % 2 == late else 0
            events.append(
                LinkBytes(at_s=second + 1.0, source=1, target=0, seconds=1.0, payload_bytes=sent)
            )
        return summarise(events)

    figure = _twin_figures.busiest_links(ran(False, world="simulated"), ran(True), overlay, star)
    measured, simulated = figure.data[:2]
    assert list(measured.y) == list(simulated.y) == [50.0] * 9


def test_there_is_no_figure_of_links_where_none_is_used_or_recorded(
    run, overlay: Overlay, star: Plan
) -> None:
    silent = summarise(run()[:1])
    assert _twin_figures.busiest_links(silent, silent, overlay, star) is None
    alone = Overlay("alone", (Site("Oslo"),), ())
    plan = Plan(1, (Tree(0, 1.0, (-1,), (-1,)),))
    assert _twin_figures.busiest_links(silent, silent, alone, plan) is None


def test_one_world_without_a_record_does_not_hide_the_other(
    run, worlds, overlay: Overlay, star: Plan
) -> None:
    figure = _twin_figures.busiest_links(worlds[0], summarise(run()[:1]), overlay, star)
    measured, simulated = figure.data[:2]
    assert max(measured.y) == 0
    assert max(simulated.y) > 0


def test_a_run_of_nothing_but_its_beginning_can_be_drawn(run) -> None:
    silent = summarise(run()[:1])
    assert _twin_figures.timeline(silent, silent).data


def test_errors_beyond_the_bound_have_another_mark(run, worlds) -> None:
    near = compare(worlds[0], summarise(run(round_s=(3.1,))))
    figure = _twin_figures.errors([compare(*worlds), near])
    [marks] = figure.data
    assert list(marks.x) == pytest.approx([100 / 3, 10 / 3])
    assert list(marks.marker.symbol) == ["x", "circle"]


def test_names_cannot_bring_markup(run, overlay: Overlay, star: Plan) -> None:
    evil = "<script>alert(1)</script>"
    hostile = replace(overlay, sites=(Site(evil), *overlay.sites[1:]))
    fault = FaultInjected(at_s=1.0, fault=evil, detail=evil)
    simulated = summarise([*run(on=hostile, label=evil, world="simulated")[:-1], fault])
    measured = summarise([*run(on=hostile, label=evil)[:-1], fault])
    for figure in (
        _twin_figures.timeline(simulated, measured),
        _twin_figures.busiest_links(simulated, measured, hostile, star),
        _twin_figures.errors([compare(simulated, measured)]),
    ):
        assert "&lt;script" in figure.to_json()
        assert "<script>alert" not in figure.to_json()
