"""The figures of a twin's report: both worlds in each figure, always in the same two colours.

Dashed blue is simulated; solid orange is measured. The colours differ in lightness too.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from anabranch.log import units
from anabranch.log.summary import RunSummary
from anabranch.overlay import Overlay
from anabranch.plan import Plan, link_load
from anabranch_lab.reports import _timeline
from anabranch_lab.reports._style import (
    ALERT,
    COLOURS,
    GREY,
    SECONDS,
    dots,
    fault_text,
    finish,
    line,
    link_name,
    list_downwards,
    panels,
)
from anabranch_lab.reports._twin import AGREEMENT, TwinRow

_LINKS = 5  # the busiest ones are drawn
_POINTS = 400  # of a line that shows bytes over time

# In drawing order: the dashed line goes over the solid one.
_LOOKS: dict[str, dict[str, Any]] = {
    "measured": {"color": COLOURS[1], "width": 3},
    "simulated": {"color": COLOURS[0], "width": 2, "dash": "5px,2px"},
}
_FAINT = {"measured": "rgba(232,116,59,.16)", "simulated": "rgba(0,0,0,0)"}


def errors(rows: Sequence[TwinRow]) -> go.Figure:
    """Draw the difference of each route's measured time per round from the simulated one."""
    timed = [(row, 100 * (r - 1)) for row in rows if (r := row.measured_over_simulated) is not None]
    names = [html.escape(row.label) for row, _ in timed]
    bound = 100 * AGREEMENT
    reach = 1.25 * max(bound, *(abs(off) for _, off in timed))
    figure = go.Figure()
    dots(
        figure,
        [off for _, off in timed],
        names,
        [
            f"{name}: simulated {units.seconds(row.simulated_s)}, "
            f"measured {units.seconds(row.measured_s)}"
            for name, (row, _) in zip(names, timed, strict=True)
        ],
        mode="markers+text",
        size=13,
        color=[COLOURS[1] if row.agrees else ALERT for row, _ in timed],
        symbol=["circle" if row.agrees else "x" for row, _ in timed],
        text=[f"{off:+.1f} %" for _, off in timed],
        textposition=["middle right" if off >= 0 else "middle left" for _, off in timed],
        showlegend=False,
    )
    band = {"fillcolor": f"rgba({GREY},.14)", "line_width": 0, "layer": "below"}
    figure.add_vrect(x0=-bound, x1=bound, **band)
    figure.add_vline(x=0, line={"color": f"rgb({GREY})", "width": 1.5})
    top = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    figure.add_annotation(x=0, text=f"within {units.percent(AGREEMENT)}", **top)
    title = "measured time per round, % above or below the simulated one"
    figure.update_xaxes(title=title, range=[-reach, reach])
    finish(figure, height=130 + 40 * len(timed))
    list_downwards(figure, names)
    return figure


def timeline(simulated: RunSummary, measured: RunSummary) -> go.Figure:
    """Draw both runs over time and over rounds.

    Above: the payload that all links together had carried by each moment, with a dot where each
    round ended and a cross where a fault was injected. Below: each round's time by its number,
    with the predicted one. Where both worlds evaluated the model, also accuracy over time.
    """
    worlds = {"measured": measured, "simulated": simulated}
    titles, heights = ["Payload carried by all links", "Round times"], [270, 190]
    evaluated = bool(simulated.accuracy and measured.accuracy)
    if evaluated:
        titles.append("Accuracy")
        heights.append(190)
    figure = panels(titles, heights, shared_x=False)
    most = max(sum(run.link_bytes.values()) for run in worlds.values())
    unit_bytes, unit = (1e9, "GB") if most >= 1e9 else (1e6, "MB") if most >= 1e6 else (1e3, "kB")
    for name, run in worlds.items():
        _draw_payload(figure, name, run, unit_bytes)
    numbers = [done.round for run in worlds.values() for done in run.rounds]
    for name, run in worlds.items():
        look: dict[str, Any] = {**_LOOKS[name], "legendgroup": name, "showlegend": False}
        line(
            figure,
            [done.round for done in run.rounds],
            run.interval_s,
            row=2,
            mode="lines+markers" if len(run.rounds) <= 40 else "lines",
            marker={"size": 8, "color": look["color"], "opacity": 1},
            name=name,
            hovertemplate="round %{x}: %{y:.3g} s",
            **look,
        )
        if evaluated:
            percents = [100 * point.accuracy for point in run.accuracy]
            hover = "%{y:.2f} % at %{x:.4g} s"
            moments_s = [point.at_s for point in run.accuracy]
            line(figure, moments_s, percents, row=3, name=name, hovertemplate=hover, **look)
    if numbers:
        line(
            figure,
            [min(numbers), max(numbers)],
            [simulated.started.predicted_s] * 2,
            row=2,
            name="predicted",
            color=f"rgb({GREY})",
            width=1.5,
            dash="dot",
            hovertemplate="predicted: %{y:.3g} s<extra></extra>",
        )
    for row, (x, y) in enumerate(((SECONDS, unit), ("round", "seconds"), (SECONDS, "%")), start=1):
        if row <= len(titles):
            figure.update_xaxes(title=x, row=row, col=1)
            figure.update_yaxes(title=y, row=row, col=1)
    figure.update_xaxes(rangemode="tozero", row=1, col=1)
    figure.update_xaxes(rangemode="tozero", row=3 if evaluated else 1, col=1)
    for row in (1, 2):
        figure.update_yaxes(rangemode="tozero", row=row, col=1)
    return figure


def _draw_payload(figure: go.Figure, name: str, run: RunSummary, unit_bytes: float) -> None:
    look = _LOOKS[name]

    def carried(moments_s: Sequence[float]) -> list[float]:
        found: list[float] = (_timeline.bytes_by(run, np.array(moments_s)) / unit_bytes).tolist()
        return found

    moments_s = np.linspace(0.0, run.total_s, _POINTS)
    times_s = np.round(moments_s, 4).tolist()
    group = {"name": name, "legendgroup": name}
    line(figure, times_s, carried(moments_s.tolist()), row=1, hoverinfo="skip", **look, **group)
    ends_s = [done.at_s for done in run.rounds]
    texts = [
        f"{name}: round {done.round} ended at {units.seconds(done.at_s)}" for done in run.rounds
    ]
    quiet: dict[str, Any] = {"row": 1, "legendgroup": name, "showlegend": False}
    size = 8 if len(ends_s) <= 40 else 4
    dots(figure, ends_s, carried(ends_s), texts, color=look["color"], size=size, **quiet)
    if run.faults:
        faults_s = [fault.at_s for fault in run.faults]
        texts = [f"{name}: {fault_text(fault)}" for fault in run.faults]
        cross = {"symbol": "x-thin", "size": 11, "line": {"width": 2.5, "color": look["color"]}}
        dots(figure, faults_s, carried(faults_s), texts, marker=cross, **quiet)


def busiest_links(
    simulated: RunSummary, measured: RunSummary, overlay: Overlay, plan: Plan
) -> go.Figure | None:
    """Draw how busy a plan's busiest links were over time, a panel for each, with both worlds.

    Return None if no link is used, or if neither log has the links' bytes.
    """
    worlds = {"measured": measured, "simulated": simulated}
    load = link_load(plan)
    used = [link for link in overlay if load.get((link.source, link.target), 0.0) > 0]
    recorded = [run for run in worlds.values() if run.links]
    if not used or not recorded:
        return None
    used.sort(key=lambda link: -load[link.source, link.target] / link.goodput_bps)
    drawn = {(link.source, link.target): link for link in used[:_LINKS]}
    edges_s = _timeline.bin_edges_s(recorded, whole_rounds=True)
    times_s = np.round(edges_s, 4).tolist()
    titles = [
        f"{link_name(overlay, pair)}, {units.rate(link.goodput_bps)}"
        for pair, link in drawn.items()
    ]
    figure = panels(titles, [80] * len(drawn), shared_x=True)
    highest = 100.0
    for row, (pair, link) in enumerate(drawn.items(), start=1):
        for name, run in worlds.items():
            shares = 100 * _timeline.shares(link, run.links.get(pair, ()), edges_s)
            highest = max(highest, float(shares.max()))
            steps = np.round(shares, 1).tolist()
            line(
                figure,
                times_s,
                [*steps, steps[-1]],  # a step holds to its right edge, so the last bin needs an end
                row=row,
                **{**_LOOKS[name], "width": 1.5, "shape": "hv"},
                fill="tozeroy",
                fillcolor=_FAINT[name],
                name=name,
                legendgroup=name,
                showlegend=row == 1,
                hovertemplate="%{y} % at %{x:.3g} s",
            )
    figure.update_xaxes(title=SECONDS, row=len(drawn), col=1)
    # One range for all panels, so that heights are comparable.
    figure.update_yaxes(title="% of rate", range=[0, 1.05 * highest], dtick=50)
    return figure
