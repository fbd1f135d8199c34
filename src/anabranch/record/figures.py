"""Figures of plans and runs, for reports and dashboards.

Plotly takes half a second to import, so this module and the others that import it (`_style`,
`_charts` and the twin's) are themselves imported where a page is written, never at the top of
another module.

Plotly reads text as a dialect of HTML, so every name is escaped on its way in.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from anabranch.overlay import Overlay
from anabranch.plan import NO_PARENT, Plan, Tree, link_load
from anabranch.record import _timeline, units
from anabranch.record._layout import Points, site_positions
from anabranch.record._losses import LossCurve
from anabranch.record._style import (
    ALERT,
    BUSY_COLOURS,
    COLOURS,
    GREY,
    finish,
    link_name,
    mark_faults,
    site_name,
)
from anabranch.record.summary import RunSummary, observed

Pair = tuple[int, int]

_BAND = 0.036  # the strip beside a link's centre line where its traffic is drawn, data units
_LABELLED_LINKS = 48  # beyond this many, rates on the drawing hide more than they tell
_NAMED_SITES = 80  # of more, only roots are named: the rest say their names when pointed at
_HEATMAP_ROWS = 40


def library() -> str:
    """Return the JavaScript that `to_html` relies on; a page needs it once."""
    return str(get_plotlyjs())


def to_html(figure: go.Figure, element_id: str) -> str:
    """Return a figure as an HTML fragment that loads nothing."""
    fragment = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=element_id,
        config={"responsive": True, "displaylogo": False},
    )
    return str(fragment)


def trees(overlay: Overlay, plan: Plan) -> go.Figure:
    """Draw an overlay and the trees of one plan on it.

    Every directed link has a strip on its right-hand side, as roads have lanes. A grey strip is as
    wide as the link is busy compared with the busiest one, which is red. In it runs a line for
    each tree, with arrows the way data flows to the root; where a tree's way down is not its way
    up mirrored, the way down is dotted. The legend switches trees on and off.

    Raises:
        PlanError: the plan does not fit the overlay.
    """
    plan.check_fits(overlay)
    points = site_positions(overlay)
    figure = go.Figure()
    _draw_links(figure, overlay, plan, points)
    _draw_trees(figure, overlay, plan, points)
    _label_rates(figure, overlay, points)
    _draw_sites(figure, overlay, plan, points)
    low, high = points.min(axis=0) - 0.07, points.max(axis=0) + 0.1
    width, tall = high - low
    legend_rows = -(-len(plan.trees) // 4)
    finish(figure, height=round(40 + 26 * legend_rows + 540 * min(1.0, max(0.45, tall / width))))
    figure.update_xaxes(visible=False, range=[float(low[0]), float(high[0])])
    figure.update_yaxes(visible=False, range=[float(low[1]), float(high[1])], scaleanchor="x")
    figure.update_layout(
        legend={"itemsizing": "constant", "y": 0, "yanchor": "top"},
        margin={"l": 4, "r": 4, "t": 30, "b": 8},
    )
    return figure


def _strip(points: Points, pair: Pair, place: float) -> tuple[Points, Points]:
    """Return the ends of a line along a link, at a place in [0, 1] across its strip."""
    start, stop = points[pair[0]], points[pair[1]]
    along = (stop - start) / max(float(np.hypot(*(stop - start))), 1e-9)
    right = np.array([along[1], -along[0]]) * _BAND * place
    return start + right, stop + right


def _segments(points: Points, pairs: Iterable[Pair], place: Mapping[Pair, float]) -> go.Scatter:
    """Return an unstyled trace of arrows: for each link its start, the arrow and its end."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    sizes: list[int] = []
    for pair in pairs:
        start, stop = _strip(points, pair, place[pair])
        arrow = start + 0.62 * (stop - start)
        # Four digits are finer than a pixel, and keep pages of dense overlays small.
        xs += [*(round(float(point[0]), 4) for point in (start, arrow, stop)), None]
        ys += [*(round(float(point[1]), 4) for point in (start, arrow, stop)), None]
        sizes += [0, 12, 0, 0]
    return go.Scatter(
        x=xs,
        y=ys,
        mode="lines+markers",
        marker={
            "symbol": "arrow",
            "angleref": "previous",
            "size": sizes,
            "opacity": 1,
            "line": {"width": 0},
        },
        hoverinfo="skip",
    )


def _draw_links(figure: go.Figure, overlay: Overlay, plan: Plan, points: Points) -> None:
    load = link_load(plan)
    busy_s = {  # for each bit of buffer
        (link.source, link.target): load.get((link.source, link.target), 0.0) / link.goodput_bps
        for link in overlay
    }
    busiest_s = max(busy_s.values(), default=0.0) or 1.0
    busyness = {pair: value_s / busiest_s for pair, value_s in busy_s.items()}
    idle_opacity = min(0.35, 30 / max(1, len(busyness)))  # hundreds of lines add up to black
    middle = dict.fromkeys(busyness, 0.5)
    for low, high, width, colour in (  # plotly has one width for each trace
        (-1.0, 0.0, 1, f"rgba({GREY},{idle_opacity:.2f})"),
        (0.0, 1 / 3, 4, f"rgba({GREY},.25)"),
        (1 / 3, 2 / 3, 8, f"rgba({GREY},.25)"),
        (2 / 3, 0.999, 12, f"rgba({GREY},.3)"),
        (0.999, math.inf, 22, "rgba(224,72,90,.4)"),  # shows from under any number of trees
    ):
        pairs = [pair for pair, value in busyness.items() if low < value <= high]
        if pairs:
            trace = _segments(points, pairs, middle)
            trace.update(
                mode="lines",
                marker=None,
                line={"width": width, "color": colour},
                showlegend=False,
            )
            figure.add_trace(trace)
    centres = [np.add(*_strip(points, pair, 0.5)) / 2 for pair in busyness]
    figure.add_trace(
        go.Scatter(
            x=[round(float(centre[0]), 4) for centre in centres],
            y=[round(float(centre[1]), 4) for centre in centres],
            mode="markers",
            marker={"size": 22, "opacity": 0},
            hoverinfo="text",
            hovertext=[
                f"{link_name(overlay, pair)}: {units.rate(link.goodput_bps)}<br>"
                f"{units.buffers(load.get(pair, 0.0))} a round, "
                f"{units.percent(share)} as busy as the busiest link"
                for link, (pair, share) in zip(overlay, busyness.items(), strict=True)
            ],
            showlegend=False,
        )
    )


def _draw_trees(figure: go.Figure, overlay: Overlay, plan: Plan, points: Points) -> None:
    ways = [
        (_hops(plan, tree, tree.up, upwards=True), _down_hops(plan, tree)) for tree in plan.trees
    ]
    users: defaultdict[Pair, list[int]] = defaultdict(list)
    for index, (up, down) in enumerate(ways):
        for pair in dict.fromkeys((*up, *down)):
            users[pair].append(index)
    for index, (tree, (up, down)) in enumerate(zip(plan.trees, ways, strict=True)):
        place = {
            pair: (trees_here.index(index) + 0.5) / len(trees_here)
            for pair, trees_here in users.items()
            if index in trees_here
        }
        colour = COLOURS[index % len(COLOURS)]
        name = f"{index + 1}. {site_name(overlay, tree.root)} {units.percent(tree.share)}"
        line = {"width": 1.5 + 1.5 * tree.share, "color": colour}
        for pairs, dash in ((up, "solid"), (down, "dot")):
            if pairs or dash == "solid":  # a tree of one site has no link, and stays in the legend
                trace = _segments(points, pairs, place)
                trace.update(
                    name=name,
                    line={**line, "dash": dash},
                    marker_color=colour,
                    legendgroup=str(index),
                    showlegend=dash == "solid",
                )
                figure.add_trace(trace)


def _hops(plan: Plan, tree: Tree, parents: Sequence[int], *, upwards: bool) -> list[Pair]:
    """Return the links a tree uses one way, each once, relays included."""
    hops: dict[Pair, None] = {}
    for site, parent in enumerate(parents):
        if parent != NO_PARENT:
            edge = (site, parent) if upwards else (parent, site)
            hops.update(dict.fromkeys(pairwise(plan.path(*edge))))
    return list(hops)


def _down_hops(plan: Plan, tree: Tree) -> list[Pair]:
    """Return the links of the way down, or none where it mirrors the way up."""
    up = _hops(plan, tree, tree.up, upwards=True)
    down = _hops(plan, tree, tree.down, upwards=False)
    return [] if {(b, a) for a, b in up} == set(down) else down


def _draw_sites(figure: go.Figure, overlay: Overlay, plan: Plan, points: Points) -> None:
    rooted = [0.0] * overlay.size
    for tree in plan.trees:
        rooted[tree.root] += tree.share
    diameters = [13 + 22 * math.sqrt(share) for share in rooted]
    figure.add_trace(
        go.Scatter(
            x=points[:, 0].tolist(),
            y=points[:, 1].tolist(),
            mode="markers",
            hoverinfo="text",
            hovertext=[
                f"{site_name(overlay, site)}: root of {units.percent(share)} of the buffer"
                for site, share in enumerate(rooted)
            ],
            marker={
                "size": diameters,
                "color": ["#2d6a8e" if share else "#8a97a0" for share in rooted],
                "opacity": 1,
                "line": {"width": 2, "color": "#ffffff"},
            },
            showlegend=False,
        )
    )
    crowded = overlay.size > _NAMED_SITES
    names = [
        go.layout.Annotation(
            x=float(x),
            y=float(y),
            text=f"<b>{site_name(overlay, site)}</b>",
            showarrow=False,
            yshift=diameter / 2 + 10,
            bgcolor="rgba(255,255,255,.6)",
            borderpad=0,
        )
        for site, ((x, y), diameter) in enumerate(zip(points, diameters, strict=True))
        if rooted[site] or not crowded
    ]
    figure.update_layout(annotations=[*figure.layout.annotations, *names])


def _label_rates(figure: go.Figure, overlay: Overlay, points: Points) -> None:
    """Write rates beside strips, nearer the source; once where both ways have the same."""
    if len(overlay.links) > _LABELLED_LINKS:
        return
    for link in overlay:
        back = overlay.link(link.target, link.source)
        if back is not None and back.goodput_bps == link.goodput_bps:
            if link.source > link.target:
                continue
            along, across = 0.5, 0.0
        else:
            along, across = 0.32, 1.3
        start, stop = _strip(points, (link.source, link.target), across)
        x, y = start + along * (stop - start)
        figure.add_annotation(
            x=float(x),
            y=float(y),
            text=f"{link.goodput_bps / 1e6:.3g}",
            showarrow=False,
            font={"size": 10},
            bgcolor="rgba(255,255,255,.75)",
            borderpad=0,
        )


def round_times(runs: Mapping[str, RunSummary]) -> go.Figure:
    """Draw every completed round's time, one row for each run, with its prediction and limit."""
    figure = go.Figure()
    for (name, run), colour in zip(runs.items(), _cycle(len(runs)), strict=True):
        figure.add_trace(
            go.Box(
                x=list(run.round_s),
                y=[html.escape(name)] * len(run.round_s),
                orientation="h",
                boxpoints="all",
                jitter=0.4,
                pointpos=0,
                marker={"color": colour, "size": 5, "opacity": 0.6},
                line={"width": 1.5},
                fillcolor="rgba(0,0,0,0)",
                width=0.55,
                hoverinfo="x",
                showlegend=False,
            )
        )
    shaped = {name: run for name, run in runs.items() if run.started.shaped}
    for what, symbol, values_s in (
        ("predicted", "diamond-open", [run.started.predicted_s for run in shaped.values()]),
        ("physical limit", "line-ns-open", [run.started.limit_s for run in shaped.values()]),
    ):
        if set(values_s) <= {None}:
            continue
        figure.add_trace(
            go.Scatter(
                x=values_s,
                y=[html.escape(name) for name in shaped],
                mode="markers",
                name=what,
                marker={
                    "symbol": symbol,
                    "size": 13 if symbol.startswith("diamond") else 30,
                    "color": f"rgb({GREY})",
                    "line": {"width": 2.5},
                },
                hovertemplate="%{x:.3g} s",
            )
        )
    values_s = [value for run in runs.values() for value in run.round_s if value > 0]
    if values_s and max(values_s) > 8 * min(values_s):
        figure.update_xaxes(type="log", dtick="D2")
    else:
        figure.update_xaxes(rangemode="tozero")
    figure.update_xaxes(title="round time, seconds")
    _list_runs_downwards(figure, runs)
    finish(figure, height=130 + 64 * len(runs))
    return figure


def limits(runs: Mapping[str, RunSummary]) -> go.Figure:
    """Draw how near each run's predicted and measured round times come to the physical limit.

    Runs that did not feel the overlay's rates, or whose limit was not computed, are left out.
    """
    limited = {
        name: (run, run.started.limit_s)
        for name, run in runs.items()
        if run.started.shaped and run.started.limit_s is not None
    }
    figure = go.Figure()
    for what, colour, values_s in (
        (
            "predicted",
            f"rgba({GREY},.55)",
            [run.started.predicted_s for run, _ in limited.values()],
        ),
        (observed(runs.values()), COLOURS[0], [run.median_round_s for run, _ in limited.values()]),
    ):
        shares = [
            limit_s / value_s if value_s else 0.0
            for (_, limit_s), value_s in zip(limited.values(), values_s, strict=True)
        ]
        figure.add_trace(
            go.Bar(
                x=[100 * share for share in shares],
                y=[html.escape(name) for name in limited],
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
        )
    figure.add_vline(x=100, line={"color": ALERT, "width": 2, "dash": "dash"})
    figure.add_annotation(
        x=100, y=1, yref="paper", yanchor="bottom", text="physical limit", showarrow=False
    )
    figure.update_xaxes(title="share of the physical limit, %", range=[0, 122])
    figure.update_layout(barmode="group", bargap=0.3)
    _list_runs_downwards(figure, limited)
    finish(figure, height=130 + 64 * len(limited))
    return figure


def utilisation(run: RunSummary, overlay: Overlay) -> go.Figure:
    """Draw how busy each link was over time: a row for each link, coloured by share of its rate.

    The busiest rows only, where there are very many links.
    """
    mean_share = {
        (link.source, link.target): 8
        * run.link_bytes.get((link.source, link.target), 0)
        / link.goodput_bps
        for link in overlay
    }
    busiest = sorted(mean_share, key=lambda pair: -mean_share[pair])[:_HEATMAP_ROWS]
    rows = [pair for pair in mean_share if pair in set(busiest)]
    edges_s = _timeline.bin_edges_s([run])
    shares = []
    for pair in rows:
        link = overlay.link(*pair)
        assert link is not None
        shares.append(_timeline.shares(link, run.links.get(pair, ()), edges_s))
    figure = go.Figure(
        go.Heatmap(
            x=edges_s.tolist(),
            y=[link_name(overlay, pair) for pair in rows],
            z=[[round(100 * float(share), 1) for share in row] for row in shares],
            zmin=0,
            zmax=100,
            colorscale=BUSY_COLOURS,
            colorbar={"title": {"text": "% of<br>rate"}, "thickness": 12},
            hovertemplate="%{y}<br>at %{x:.3g} s: %{z} % of its rate<extra></extra>",
        )
    )
    figure.update_xaxes(title="seconds since the run began", showgrid=False)
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, dtick=1)
    finish(figure, height=110 + 20 * max(4, len(rows)))
    mark_faults(figure, run.faults)
    return figure


def accuracy(runs: Mapping[str, RunSummary]) -> go.Figure:
    """Draw accuracy over time, all runs in one figure, with their targets."""
    figure = go.Figure()
    for (name, run), colour in zip(runs.items(), _cycle(len(runs)), strict=True):
        figure.add_trace(
            go.Scatter(
                x=[point.at_s for point in run.accuracy],
                y=[100 * point.accuracy for point in run.accuracy],
                mode="lines+markers",
                name=html.escape(name),
                line={"color": colour, "width": 2},
                customdata=[point.round for point in run.accuracy],
                hovertemplate="%{y:.2f} % at %{x:.4g} s, after round %{customdata}",
            )
        )
    targets = {run.started.target_accuracy for run in runs.values()}
    for target in sorted(target for target in targets if target is not None):
        figure.add_hline(
            y=100 * target,
            line={"dash": "dash", "width": 1.5, "color": f"rgb({GREY})"},
            annotation={"text": f"target {units.percent(target)}"},
            annotation_position="bottom right",
        )
    figure.update_xaxes(title="seconds since the run began", rangemode="tozero")
    figure.update_yaxes(title="accuracy, %")
    finish(figure, height=420)
    figure.update_layout(showlegend=True)
    mark_faults(figure, [fault for run in runs.values() for fault in run.faults])
    return figure


def loss(curves: Mapping[str, LossCurve], against: Literal["time", "iterations"]) -> go.Figure:
    """Draw how the loss of each run fell, all in one figure, over time or over iterations."""
    figure = go.Figure()
    for (name, curve), colour in zip(curves.items(), _cycle(len(curves)), strict=True):
        x = curve.at_s if against == "time" else curve.iterations
        figure.add_trace(
            go.Scatter(
                x=[round(float(value), 4) for value in x],
                y=[None if math.isnan(value) else float(f"{value:.5g}") for value in curve.loss],
                mode="lines",
                name=html.escape(name),
                line={"color": colour, "width": 2},
                hovertemplate="loss %{y:.4g} "
                + ("at %{x:.4g} s" if against == "time" else "after %{x:.4g} iterations"),
            )
        )
    title = "seconds since the run began" if against == "time" else "iterations of a worker, mean"
    figure.update_xaxes(title=title, rangemode="tozero")
    figure.update_yaxes(title="training loss", rangemode="tozero")
    finish(figure, height=380)
    figure.update_layout(showlegend=True)
    return figure


def _cycle(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]


def _list_runs_downwards(figure: go.Figure, runs: Mapping[str, object]) -> None:
    figure.update_yaxes(
        categoryorder="array",
        categoryarray=[html.escape(name) for name in runs],
        autorange="reversed",
        automargin=True,
        showgrid=False,
    )
