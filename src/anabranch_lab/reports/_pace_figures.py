"""Figures of a pace: workers' phases, servers' load, times between updates, and staleness."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence

import plotly.graph_objects as go

from anabranch.log.pacing import Iteration, PaceSummary
from anabranch.log.summary import RunSummary
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch_lab.reports import _timeline
from anabranch_lab.reports._ports import server_ports
from anabranch_lab.reports._style import (
    ALERT,
    COLOURS,
    GREY,
    SECONDS,
    dots,
    finish,
    heatmap,
    line,
    mark_faults,
    site_name,
)
from anabranch_lab.reports.runs import TreeSpan

_MOST_WORKERS = 32  # rows of more would be too thin to read
_MOST_ITERATIONS = 12  # of each worker: the beginning, where a pace settles
_MOST_PORTS = 40


def _pace(run: RunSummary) -> PaceSummary:
    assert run.pace is not None
    return run.pace


def phases(run: RunSummary, plan: Plan) -> go.Figure:
    """Draw the first iterations of each worker as bars: pull, compute, push, wait; by trees."""
    trees = {w: index for index, group in enumerate(plan.groups) for w in group.workers}
    by_tree = sorted(_pace(run).iterations.items(), key=lambda each: trees.get(each[0], 0))
    workers = by_tree[:_MOST_WORKERS]
    shown: list[tuple[str, Iteration]] = [
        (html.escape(run.sites[site]), each)
        for site, series in workers
        for each in series[:_MOST_ITERATIONS]
    ]
    figure = go.Figure()
    for phase, colour, spans_s in (
        ("pulling", f"rgb({GREY})", [(each.went_s, each.pull_s) for _, each in shown]),
        (
            "computing",
            COLOURS[0],
            [
                (each.went_s + each.pull_s, each.asked_s - each.went_s - each.pull_s)
                for _, each in shown
            ],
        ),
        ("pushing", COLOURS[1], [(each.asked_s, each.push_s) for _, each in shown]),
        ("waiting", ALERT, [(each.came_s, each.blocked_s) for _, each in shown]),
    ):
        figure.add_bar(
            name=phase,
            orientation="h",
            y=[name for name, _ in shown],
            base=[begin_s for begin_s, _ in spans_s],
            x=[length_s for _, length_s in spans_s],
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate=f"%{{y}}: {phase}, %{{x:.3g}} s<extra></extra>",
        )
    figure.update_layout(barmode="overlay", bargap=0.3)
    figure.update_xaxes(title=SECONDS, range=[0, _shown_s(run)])
    figure.update_yaxes(autorange="reversed", showgrid=False, dtick=1)
    finish(figure, height=130 + 18 * len(workers))
    mark_faults(figure, run.faults)
    return figure


def _shown_s(run: RunSummary) -> float:
    """Return the end of the iterations that are drawn; 1 where there are none."""
    shown = [each for row in _pace(run).iterations.values() for each in row[:_MOST_ITERATIONS]]
    return max((each.came_s + each.blocked_s for each in shown), default=1.0)


def ports(run: RunSummary, overlay: Overlay, plan: Plan) -> go.Figure:
    """Draw how busy each server's port was, both ways, during the iterations that are drawn.

    The unit is the share of the port's capacity, or Mbit/s where the capacity is not known. The
    run must have a record of the bytes that its links carried.
    """
    edges_s = _timeline.bin_edges_s([run], until_s=_shown_s(run))
    uses = server_ports(run, overlay, plan, edges_s)[:_MOST_PORTS]
    names = [f"{site_name(overlay, use.site)}, {use.way}" for use in uses]
    rows = [100 * use.shares if use.shares is not None else use.carried_bps / 1e6 for use in uses]
    figure = heatmap(edges_s, names, rows, "% of its rate" if run.started.shaped else "Mbit/s")
    figure.update_xaxes(range=[0, _shown_s(run)])
    mark_faults(figure, run.faults)
    return figure


def gaps(run: RunSummary) -> go.Figure:
    """Draw the distribution of the time between updates (R²SP, Fig. 9)."""
    ordered_s = sorted(_pace(run).gaps_s)
    reached = [100 * (k + 1) / len(ordered_s) for k in range(len(ordered_s))]
    figure = go.Figure()
    hover = "%{y:.0f} % within %{x:.3g} s<extra></extra>"
    line(figure, ordered_s, reached, shape="hv", color=COLOURS[0], hovertemplate=hover)
    figure.update_xaxes(title="seconds between an update and the one before", rangemode="tozero")
    figure.update_yaxes(title="% of updates", range=[0, 101])
    finish(figure, height=280)
    return figure


def steps(run: RunSummary, trees: Sequence[TreeSpan]) -> go.Figure:
    """Draw when each tree of a forest moved the model, and by what factor."""
    figure = go.Figure()
    for index, span in enumerate(trees):
        group = span.group
        made = _pace(run).steps_of(group.workers[0], span.from_s, span.until_s)
        names = html.escape(", ".join(run.sites[worker] for worker in group.workers))
        factors = [1.0 if each.factor is None else each.factor for each in made]
        texts = [
            f"{names}: update {each.update}, missed {each.missed}, factor {factor:.3g}"
            for each, factor in zip(made, factors, strict=True)
        ]
        dots(
            figure,
            [each.at_s for each in made],
            factors,
            texts,
            name=names,
            color=COLOURS[index % len(COLOURS)],
            size=6,
        )
    figure.update_layout(showlegend=True)
    figure.update_xaxes(title=SECONDS)
    figure.update_yaxes(title="factor", rangemode="tozero")
    finish(figure, height=320)
    mark_faults(figure, run.faults)
    return figure


def staleness(run: RunSummary) -> go.Figure:
    """Draw how many updates missed each number of others' updates."""
    counted = Counter(dict(_pace(run).missed))
    missed = list(range(max(counted, default=0) + 1))
    figure = go.Figure()
    hover = "%{y} updates missed %{x} of others<extra></extra>"
    counts = [counted[each] for each in missed]
    figure.add_bar(x=missed, y=counts, marker={"color": COLOURS[0]}, hovertemplate=hover)
    figure.update_xaxes(title="updates of others that an update missed")
    figure.update_yaxes(title="updates")
    finish(figure, height=280)
    return figure
