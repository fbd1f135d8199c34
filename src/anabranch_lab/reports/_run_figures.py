"""Figures that compare runs: round times, the limit, accuracy, loss; and how busy links were."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Literal

import plotly.graph_objects as go

from anabranch.log import units
from anabranch.log.summary import RunSummary, observed
from anabranch.overlay import Overlay
from anabranch_lab.reports import _timeline
from anabranch_lab.reports._losses import LossCurve
from anabranch_lab.reports._style import (
    ALERT,
    COLOURS,
    GREY,
    SECONDS,
    finish,
    heatmap,
    line,
    link_name,
    list_downwards,
    mark_faults,
)

_HEATMAP_ROWS = 40


def round_times(runs: Mapping[str, RunSummary]) -> go.Figure:
    """Draw every completed round's time, one row for each run, with its prediction and limit."""
    figure = go.Figure()
    for index, (name, run) in enumerate(runs.items()):
        figure.add_box(
            x=list(run.round_s),
            y=[html.escape(name)] * len(run.round_s),
            orientation="h",
            boxpoints="all",
            jitter=0.4,
            pointpos=0,
            marker={"color": COLOURS[index % len(COLOURS)], "size": 5, "opacity": 0.6},
            line={"width": 1.5},
            fillcolor="rgba(0,0,0,0)",
            width=0.55,
            hoverinfo="x",
            showlegend=False,
        )
    shaped = {html.escape(name): run.started for name, run in runs.items() if run.started.shaped}
    for what, symbol, size, values_s in (
        ("predicted", "diamond-open", 13, [started.predicted_s for started in shaped.values()]),
        ("physical limit", "line-ns-open", 30, [started.limit_s for started in shaped.values()]),
    ):
        if set(values_s) <= {None}:
            continue
        colour = {"color": f"rgb({GREY})", "line": {"width": 2.5}}
        figure.add_scatter(
            x=values_s,
            y=list(shaped),
            mode="markers",
            name=what,
            marker={"symbol": symbol, "size": size, **colour},
            hovertemplate="%{x:.3g} s",
        )
    times_s = [value for run in runs.values() for value in run.round_s if value > 0]
    far_apart = times_s and max(times_s) > 8 * min(times_s)
    scale = {"type": "log", "dtick": "D2"} if far_apart else {"rangemode": "tozero"}
    figure.update_xaxes(title="round time, seconds", **scale)
    finish(figure, height=130 + 64 * len(runs))
    list_downwards(figure, [html.escape(name) for name in runs])
    return figure


def limits(runs: Mapping[str, RunSummary]) -> go.Figure:
    """Draw how close each run's predicted and measured round times come to the physical limit.

    Runs whose links were not held to the overlay's rates, or whose limit was not computed, are
    left out.
    """
    limited = {
        html.escape(name): (run, run.started.limit_s)
        for name, run in runs.items()
        if run.started.shaped and run.started.limit_s is not None
    }
    predicted_s = [run.started.predicted_s for run, _ in limited.values()]
    measured_s = [run.median_round_s for run, _ in limited.values()]
    figure = go.Figure()
    for what, colour, values_s in (
        ("predicted", f"rgba({GREY},.55)", predicted_s),
        (observed(runs.values()), COLOURS[0], measured_s),
    ):
        shares = [
            limit_s / value_s if value_s else 0.0
            for (_, limit_s), value_s in zip(limited.values(), values_s, strict=True)
        ]
        figure.add_bar(
            x=[100 * share for share in shares],
            y=list(limited),
            orientation="h",
            name=what,
            marker={"color": colour},
            text=[
                f"{units.percent(share)} · {units.seconds(value_s)}" if value_s else "none"
                for share, value_s in zip(shares, values_s, strict=True)
            ],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="skip",
        )
    figure.add_vline(x=100, line={"color": ALERT, "width": 2, "dash": "dash"})
    top = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    figure.add_annotation(x=100, text="physical limit", **top)
    figure.update_xaxes(title="share of the physical limit, %", range=[0, 122])
    figure.update_layout(barmode="group", bargap=0.3)
    finish(figure, height=130 + 64 * len(limited))
    list_downwards(figure, list(limited))
    return figure


def utilisation(run: RunSummary, overlay: Overlay) -> go.Figure:
    """Draw how busy each link was over time: a row for each link, coloured by share of its rate.

    Of many links only the busiest have a row.
    """
    carried = run.link_bytes
    links = {(link.source, link.target): link for link in overlay}
    busiest = sorted(links, key=lambda pair: -carried.get(pair, 0) / links[pair].goodput_bps)
    shown = set(busiest[:_HEATMAP_ROWS])
    edges_s = _timeline.bin_edges_s([run])
    rows = {
        link_name(overlay, pair): 100 * _timeline.shares(link, run.links.get(pair, ()), edges_s)
        for pair, link in links.items()
        if pair in shown
    }
    figure = heatmap(edges_s, list(rows), list(rows.values()), "% of its rate")
    mark_faults(figure, run.faults)
    return figure


def accuracy(runs: Mapping[str, RunSummary]) -> go.Figure:
    """Draw accuracy over time, all runs in one figure, with their targets."""
    figure = go.Figure()
    for index, (name, run) in enumerate(runs.items()):
        line(
            figure,
            [point.at_s for point in run.accuracy],
            [100 * point.accuracy for point in run.accuracy],
            mode="lines+markers",
            name=html.escape(name),
            color=COLOURS[index % len(COLOURS)],
            width=2,
            customdata=[point.round for point in run.accuracy],
            hovertemplate="%{y:.2f} % at %{x:.4g} s, after round %{customdata}",
        )
    targets = {run.started.target_accuracy or 0.0 for run in runs.values()}
    for target in sorted(targets - {0.0}):
        figure.add_hline(
            y=100 * target,
            line={"dash": "dash", "width": 1.5, "color": f"rgb({GREY})"},
            annotation={"text": f"target {units.percent(target)}"},
            annotation_position="bottom right",
        )
    figure.update_xaxes(title=SECONDS, rangemode="tozero")
    figure.update_yaxes(title="accuracy, %")
    finish(figure, height=420)
    figure.update_layout(showlegend=True)
    mark_faults(figure, [fault for run in runs.values() for fault in run.faults])
    return figure


def split(run: RunSummary) -> go.Figure:
    """Draw how many samples of each label each site trains on."""
    names = [html.escape(run.sites[site]) for site in run.labels]
    labels = range(max(map(len, run.labels.values())))
    figure = go.Figure(
        go.Heatmap(
            x=[str(label) for label in labels],
            y=names,
            z=list(run.labels.values()),
            zmin=0,
            colorscale=[[0, "rgba(47,126,216,.08)"], [1, "#2f7ed8"]],
            colorbar={"title": {"text": "samples"}, "thickness": 12},
            xgap=1,
            ygap=1,
            hovertemplate="%{y}: %{z} samples of label %{x}<extra></extra>",
        )
    )
    figure.update_xaxes(title="label", type="category", showgrid=False)
    list_downwards(figure, names)
    rows = min(20 * max(4, len(names)), max(800, 6 * len(names)))
    finish(figure, height=110 + rows)
    return figure


def loss(curves: Mapping[str, LossCurve], against: Literal["time", "iterations"]) -> go.Figure:
    """Draw the loss of each run, all in one figure, over time or over iterations."""
    over_time = against == "time"
    moment = "at %{x:.4g} s" if over_time else "after %{x:.4g} iterations"
    figure = go.Figure()
    for index, (name, curve) in enumerate(curves.items()):
        line(
            figure,
            [round(float(value), 4) for value in (curve.at_s if over_time else curve.iterations)],
            [None if math.isnan(value) else float(f"{value:.5g}") for value in curve.loss],
            name=html.escape(name),
            color=COLOURS[index % len(COLOURS)],
            width=2,
            hovertemplate=f"loss %{{y:.4g}} {moment}",
        )
    title = SECONDS if over_time else "iterations of a worker, mean"
    figure.update_xaxes(title=title, rangemode="tozero")
    figure.update_yaxes(title="training loss", rangemode="tozero")
    finish(figure, height=380)
    figure.update_layout(showlegend=True)
    return figure
