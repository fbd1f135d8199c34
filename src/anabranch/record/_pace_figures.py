"""Figures of a pace: who did what when, how busy servers were, how far apart and stale updates."""

from __future__ import annotations

import html
from collections import Counter
from itertools import chain

import plotly.graph_objects as go

from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.record import _timeline
from anabranch.record._style import (
    ALERT,
    BUSY_COLOURS,
    COLOURS,
    GREY,
    finish,
    mark_faults,
    site_name,
)
from anabranch.record.ports import server_ports
from anabranch.record.summary import RunSummary

_MOST_WORKERS = 32  # more rows hide more than they tell
_MOST_ITERATIONS = 12  # of each worker: the beginning, where a pace settles
_MOST_PORTS = 40
_PHASES = (
    ("pulling", f"rgb({GREY})"),
    ("computing", COLOURS[0]),
    ("pushing", COLOURS[1]),
    ("waiting", ALERT),
)


def phases(run: RunSummary) -> go.Figure:
    """Draw the first iterations of each worker as bars: pull, compute, push, wait."""
    assert run.pace is not None
    workers = dict(list(run.pace.iterations.items())[:_MOST_WORKERS])
    bars: dict[str, list[tuple[str, float, float]]] = {name: [] for name, _ in _PHASES}
    for site, series in workers.items():
        name = html.escape(run.sites[site])
        for each in series[:_MOST_ITERATIONS]:
            computed_from_s = each.went_s + each.pull_s
            bars["pulling"].append((name, each.went_s, each.pull_s))
            bars["computing"].append((name, computed_from_s, each.asked_s - computed_from_s))
            bars["pushing"].append((name, each.asked_s, each.push_s))
            bars["waiting"].append((name, each.came_s, each.blocked_s))
    figure = go.Figure()
    for phase, colour in _PHASES:
        figure.add_trace(
            go.Bar(
                name=phase,
                orientation="h",
                y=[name for name, _, _ in bars[phase]],
                base=[begin_s for _, begin_s, _ in bars[phase]],
                x=[length_s for _, _, length_s in bars[phase]],
                marker={"color": colour, "line": {"width": 0}},
                hovertemplate=f"%{{y}}: {phase}, %{{x:.3g}} s<extra></extra>",
            )
        )
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_xaxes(title="seconds since the run began", range=[0, _shown_s(run)])
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, dtick=1)
    finish(figure, height=130 + 18 * len(workers))
    mark_faults(figure, run.faults)
    return figure


def _shown_s(run: RunSummary) -> float:
    """Return the end of the iterations that are drawn; 1 where there are none."""
    assert run.pace is not None
    shown = [each for row in run.pace.iterations.values() for each in row[:_MOST_ITERATIONS]]
    return max((each.came_s + each.blocked_s for each in shown), default=1.0)


def ports(run: RunSummary, overlay: Overlay, plan: Plan) -> go.Figure:
    """Draw how busy each server's port was, both ways, while the iterations drawn went on.

    In shares of what it can carry, or in Mbit/s where that is not known. The run has a record of
    what its links carried.
    """
    edges_s = _timeline.bin_edges_s([run], until_s=_shown_s(run))
    uses = server_ports(run, overlay, plan, edges_s)[:_MOST_PORTS]
    unit, digits = ("% of its rate", 1) if run.started.shaped else ("Mbit/s", 3)
    rows = [100 * use.shares if use.shares is not None else use.carried_bps / 1e6 for use in uses]
    figure = go.Figure(
        go.Heatmap(
            x=edges_s.tolist(),
            y=[f"{site_name(overlay, use.site)}, {use.way}" for use in uses],
            z=[[round(float(value), digits) for value in row] for row in rows],
            zmin=0,
            zmax=100 if run.started.shaped else None,
            colorscale=BUSY_COLOURS,
            colorbar={"title": {"text": unit.replace(" of its ", " of<br>")}, "thickness": 12},
            hovertemplate=f"%{{y}}<br>at %{{x:.3g}} s: %{{z}} {unit}<extra></extra>",
        )
    )
    figure.update_xaxes(
        title="seconds since the run began", showgrid=False, range=[0, _shown_s(run)]
    )
    figure.update_yaxes(autorange="reversed", automargin=True, showgrid=False, dtick=1)
    finish(figure, height=110 + 22 * max(4, len(rows)))
    mark_faults(figure, run.faults)
    return figure


def gaps(run: RunSummary) -> go.Figure:
    """Draw the distribution of the time between updates (R²SP, Fig. 9)."""
    assert run.pace is not None
    ordered_s = sorted(run.pace.gaps_s)
    figure = go.Figure(
        go.Scatter(
            x=ordered_s,
            y=[100 * (k + 1) / len(ordered_s) for k in range(len(ordered_s))],
            mode="lines",
            line={"shape": "hv", "color": COLOURS[0]},
            hovertemplate="%{y:.0f} % within %{x:.3g} s<extra></extra>",
        )
    )
    figure.update_xaxes(title="seconds between an update and the one before", rangemode="tozero")
    figure.update_yaxes(title="% of updates", range=[0, 101])
    finish(figure, height=280)
    return figure


def staleness(run: RunSummary) -> go.Figure:
    """Draw how many updates missed how many of others."""
    assert run.pace is not None
    counted = Counter(dict(run.pace.missed))
    missed = range(max(chain(counted, [0])) + 1)
    figure = go.Figure(
        go.Bar(
            x=list(missed),
            y=[counted[each] for each in missed],
            marker={"color": COLOURS[0]},
            hovertemplate="%{y} updates missed %{x} of others<extra></extra>",
        )
    )
    figure.update_xaxes(title="updates of others that an update missed", dtick=None)
    figure.update_yaxes(title="updates")
    finish(figure, height=280)
    return figure
