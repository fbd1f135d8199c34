"""The figures of a twin's report: both worlds in one picture, in the same two colours throughout.

Blue, dashed, is simulated; orange is measured. The two differ in lightness and dash too.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from anabranch.overlay import Overlay
from anabranch.plan import Plan, link_load
from anabranch.record import _timeline, units
from anabranch.record._style import (
    ALERT,
    COLOURS,
    GREY,
    fault_text,
    finish,
    link_name,
    panels,
)
from anabranch.record.summary import RunSummary
from anabranch.record.twin import AGREEMENT, TwinRow

_LINKS = 5  # the busiest ones are drawn
_POINTS = 400  # of a line that shows bytes over time
_SPAN_S = "seconds since the run began"


@dataclass(frozen=True)
class _World:
    """How one world's run is drawn."""

    name: str
    run: RunSummary
    colour: str
    faint: str
    line: dict[str, object]

    @property
    def legend(self) -> dict[str, object]:
        return {"name": self.name, "legendgroup": self.name}


def _worlds(simulated: RunSummary, measured: RunSummary) -> tuple[_World, _World]:
    """Return both worlds in drawing order: the dashed line goes over the solid one."""
    orange, blue = COLOURS[1], COLOURS[0]
    return (
        _World("measured", measured, orange, "rgba(232,116,59,.16)", {"color": orange, "width": 3}),
        _World(
            "simulated",
            simulated,
            blue,
            "rgba(0,0,0,0)",
            {"color": blue, "width": 2, "dash": "5px,2px"},
        ),
    )


def errors(rows: Sequence[tuple[str, TwinRow]]) -> go.Figure:
    """Draw how far each route's measured time per round is from the simulated one.

    Args:
        rows: name and comparison of each route.
    """
    known = [(name, row, row.measured_over_simulated) for name, row in rows]
    timed = [(name, row, ratio) for name, row, ratio in known if ratio is not None]
    off = [100 * (ratio - 1) for _, _, ratio in timed]
    reach = 1.25 * max(100 * AGREEMENT, *(abs(value) for value in off))
    figure = go.Figure(
        go.Scatter(
            x=off,
            y=[html.escape(name) for name, _, _ in timed],
            mode="markers+text",
            marker={
                "size": 13,
                "opacity": 1,
                "color": [COLOURS[1] if row.agrees else ALERT for _, row, _ in timed],
                "symbol": ["circle" if row.agrees else "x" for _, row, _ in timed],
            },
            text=[f"{value:+.1f} %" for value in off],
            textposition=["middle right" if value >= 0 else "middle left" for value in off],
            hovertext=[
                f"{html.escape(name)}: simulated {units.seconds(row.simulated_s)}, "
                f"measured {units.seconds(row.measured_s)}"
                for name, row, _ in timed
            ],
            hoverinfo="text",
            cliponaxis=False,
            showlegend=False,
        )
    )
    figure.add_vrect(
        x0=-100 * AGREEMENT,
        x1=100 * AGREEMENT,
        fillcolor=f"rgba({GREY},.14)",
        line_width=0,
        layer="below",
    )
    figure.add_vline(x=0, line={"color": f"rgb({GREY})", "width": 1.5})
    figure.add_annotation(
        x=0,
        y=1,
        yref="paper",
        yanchor="bottom",
        text=f"within {units.percent(AGREEMENT)}",
        showarrow=False,
    )
    figure.update_xaxes(
        title="measured time per round, % above or below the simulated one", range=[-reach, reach]
    )
    figure.update_yaxes(
        categoryorder="array",
        categoryarray=[html.escape(name) for name, _, _ in timed],
        autorange="reversed",
    )
    finish(figure, height=130 + 40 * len(timed))
    return figure


def timeline(simulated: RunSummary, measured: RunSummary) -> go.Figure:
    """Draw both runs over time and over rounds.

    Above: the payload that all links together had carried by each moment, with a dot where each
    round ended and a cross where a fault was injected. Below: each round's time by its number,
    with the predicted one. Where both worlds evaluated the model, also accuracy over time.
    """
    worlds = _worlds(simulated, measured)
    titles = ["Payload carried by all links", "Round times"]
    heights = [270, 190]
    if simulated.accuracy and measured.accuracy:
        titles.append("Accuracy")
        heights.append(190)
    figure = panels(titles, heights, shared_x=False)
    _draw_progress(figure, worlds)
    _draw_rounds(figure, worlds)
    if len(titles) == 3:
        for world in worlds:
            figure.add_trace(
                go.Scatter(
                    x=[point.at_s for point in world.run.accuracy],
                    y=[100 * point.accuracy for point in world.run.accuracy],
                    mode="lines",
                    line=world.line,
                    showlegend=False,
                    hovertemplate="%{y:.2f} % at %{x:.4g} s",
                    **world.legend,
                ),
                row=3,
                col=1,
            )
        figure.update_xaxes(title=_SPAN_S, rangemode="tozero", row=3, col=1)
        figure.update_yaxes(title="%", row=3, col=1)
    return figure


def _draw_progress(figure: go.Figure, worlds: Sequence[_World]) -> None:
    totals = [sum(world.run.link_bytes.values()) for world in worlds]
    unit_bytes, unit = next(
        (scale, unit)
        for scale, unit in ((1e9, "GB"), (1e6, "MB"), (0.0, "kB"))
        if max(totals) >= scale
    )
    unit_bytes = unit_bytes or 1e3
    for world in worlds:
        run = world.run
        moments_s = np.linspace(0.0, run.total_s, _POINTS)
        ends_s = np.array([done.at_s for done in run.rounds])
        faults_s = np.array([fault.at_s for fault in run.faults])
        figure.add_trace(
            go.Scatter(
                x=[round(float(at_s), 4) for at_s in moments_s],
                y=(_timeline.bytes_by(run, moments_s) / unit_bytes).tolist(),
                mode="lines",
                line=world.line,
                hoverinfo="skip",
                **world.legend,
            ),
            row=1,
            col=1,
        )
        figure.add_trace(
            go.Scatter(
                x=ends_s.tolist(),
                y=(_timeline.bytes_by(run, ends_s) / unit_bytes).tolist(),
                mode="markers",
                marker={
                    "color": world.colour,
                    "size": 8 if len(ends_s) <= 40 else 4,
                    "opacity": 1,
                },
                text=[
                    f"{world.name}: round {done.round} ended at {units.seconds(done.at_s)}"
                    for done in run.rounds
                ],
                hoverinfo="text",
                showlegend=False,
                legendgroup=world.name,
            ),
            row=1,
            col=1,
        )
        if len(faults_s):
            figure.add_trace(
                go.Scatter(
                    x=faults_s.tolist(),
                    y=(_timeline.bytes_by(run, faults_s) / unit_bytes).tolist(),
                    mode="markers",
                    marker={
                        "symbol": "x-thin",
                        "size": 11,
                        "opacity": 1,
                        "line": {"width": 2.5, "color": world.colour},
                    },
                    text=[f"{world.name}: {fault_text(fault)}" for fault in run.faults],
                    hoverinfo="text",
                    showlegend=False,
                    legendgroup=world.name,
                ),
                row=1,
                col=1,
            )
    figure.update_xaxes(title=_SPAN_S, rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title=unit, rangemode="tozero", row=1, col=1)


def _draw_rounds(figure: go.Figure, worlds: Sequence[_World]) -> None:
    numbers = [done.round for world in worlds for done in world.run.rounds]
    for world in worlds:
        rounds = world.run.rounds
        figure.add_trace(
            go.Scatter(
                x=[done.round for done in rounds],
                y=list(world.run.interval_s),
                mode="lines+markers" if len(rounds) <= 40 else "lines",
                line=world.line,
                marker={"size": 8, "color": world.colour, "opacity": 1},
                showlegend=False,
                hovertemplate="round %{x}: %{y:.3g} s",
                **world.legend,
            ),
            row=2,
            col=1,
        )
    if numbers:
        figure.add_trace(
            go.Scatter(
                x=[min(numbers), max(numbers)],
                y=[worlds[0].run.started.predicted_s] * 2,
                mode="lines",
                name="predicted",
                line={"color": f"rgb({GREY})", "width": 1.5, "dash": "dot"},
                hovertemplate="predicted: %{y:.3g} s<extra></extra>",
            ),
            row=2,
            col=1,
        )
    figure.update_xaxes(title="round", row=2, col=1)
    figure.update_yaxes(title="seconds", rangemode="tozero", row=2, col=1)


def busiest_links(
    simulated: RunSummary, measured: RunSummary, overlay: Overlay, plan: Plan
) -> go.Figure | None:
    """Draw how busy a plan's busiest links were over time, a panel for each, both worlds in it.

    None where no link is used or neither log says what links carried.
    """
    worlds = _worlds(simulated, measured)
    load = link_load(plan)
    used = [link for link in overlay if load.get((link.source, link.target), 0.0) > 0]
    if not used or not (simulated.links or measured.links):
        return None
    used.sort(key=lambda link: -load[link.source, link.target] / link.goodput_bps)
    drawn = used[:_LINKS]
    recorded = [run for run in (simulated, measured) if run.links]
    edges_s = _timeline.bin_edges_s(recorded, whole_rounds=True)
    shares = {
        (link, world.name): 100
        * _timeline.shares(link, world.run.links.get((link.source, link.target), ()), edges_s)
        for link in drawn
        for world in worlds
    }
    highest = max(float(row.max()) for row in shares.values())
    figure = panels(
        [
            f"{link_name(overlay, (link.source, link.target))}, {units.rate(link.goodput_bps)}"
            for link in drawn
        ],
        [80] * len(drawn),
        shared_x=True,
    )
    for row, link in enumerate(drawn, start=1):
        for world in worlds:
            steps = [round(float(share), 1) for share in shares[link, world.name]]
            figure.add_trace(
                go.Scatter(
                    x=[round(float(at_s), 4) for at_s in edges_s],
                    y=[*steps, steps[-1]],  # a step holds to the right, and the last bin ends
                    mode="lines",
                    line={**world.line, "width": 1.5, "shape": "hv"},
                    fill="tozeroy",
                    fillcolor=world.faint,
                    showlegend=row == 1,
                    hovertemplate="%{y} % at %{x:.3g} s",
                    **world.legend,
                ),
                row=row,
                col=1,
            )
    figure.update_xaxes(title=_SPAN_S, row=len(drawn), col=1)
    # One range for all panels: the eye compares heights.
    figure.update_yaxes(title="% of rate", range=[0, max(105.0, 1.05 * highest)], dtick=50)
    return figure
