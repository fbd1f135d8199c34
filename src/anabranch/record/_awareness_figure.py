"""The figure of a run that watched its network: what it measured, what it did, and what came of it.

All panels share the time axis, so that one can read downwards: a link slows down, the measured rate
follows, the scheduler plans again, and round times recover.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from anabranch.overlay import Link
from anabranch.record import units
from anabranch.record._runs import Run
from anabranch.record._style import ALERT, COLOURS, GREY, fault_text, link_name, panels
from anabranch.record.awareness import (
    Blocker,
    blockers,
    most_changed,
    true_rate_bps,
    true_steps,
)
from anabranch.record.events import LinkMeasured, PlanIssued
from anabranch.record.summary import CompletedRound, Wait

_LINKS = 6  # of those measured, the ones that changed most are drawn
_ROWS = 8  # of the links that were waited for
_NAMED_PLANS = 12  # names of more would overlap; the pointer still tells
_NAMED_CHANGES = 6  # links under the pointer
_DOTTED_POINTS = 120  # on a line of more, dots hide the line

_MEASURED, _PLAN, _ROUND, _BEGAN = COLOURS[0], COLOURS[8], COLOURS[2], COLOURS[1]
_PASSED_ON = f"rgba({GREY},.45)"


@dataclass(frozen=True)
class _Panel:
    """One panel, and how to fill it.

    Args:
        title: HTML.
        height: pixels.
        draw: given the figure and the panel's row.
    """

    title: str
    height: int
    draw: Callable[[go.Figure, int], None]


def awareness(run: Run) -> go.Figure | None:
    """Draw what a run measured, when it planned again, and its round times; None without any."""
    summary = run.summary
    end_s = summary.total_s or 1.0
    rows: list[_Panel] = []
    if summary.plans or summary.faults:
        title = "Plans issued" if summary.plans else "Faults"
        rows.append(_Panel(title, 26, lambda figure, row: _draw_marks(figure, row, run)))
    drawn = most_changed(summary, run.overlay)[:_LINKS]
    rows += [_link_panel(run, link, end_s, first=link is drawn[0]) for link in drawn]
    if summary.rounds:
        rows.append(
            _Panel("Round time, s", 150, lambda figure, row: _draw_rounds(figure, row, run, end_s))
        )
    held_up = blockers(summary)
    if held_up:
        shown = held_up[:_ROWS]
        count = f" ({len(shown)} of {len(held_up)} links)" if len(held_up) > _ROWS else ""
        rows.append(
            _Panel(
                f"Where waiting began{count}",
                16 + 20 * len(shown),
                lambda figure, row: _draw_waits(figure, row, run, shown),
            )
        )
    if not rows:
        return None
    figure = panels([row.title for row in rows], [row.height for row in rows], shared_x=True)
    for number, row in enumerate(rows, start=1):
        row.draw(figure, number)
    _rule(figure, [plan.at_s for plan in summary.plans], _PLAN, "dash")
    _rule(figure, [fault.at_s for fault in summary.faults], ALERT, "dot")
    figure.update_xaxes(range=[0, 1.02 * end_s])
    figure.update_xaxes(title="seconds since the run began", row=len(rows), col=1)
    figure.update_layout(barmode="overlay", showlegend=True)
    return figure


def _rule(figure: go.Figure, moments_s: Sequence[float], colour: str, dash: str) -> None:
    """Draw a line through all panels at each moment."""
    if not moments_s:
        return
    # One path for all of them: a shape each would make pages of long runs slow.
    path = "".join(f"M{at_s:.6g},0L{at_s:.6g},1" for at_s in moments_s)
    figure.add_shape(
        type="path",
        path=path,
        xref="x",
        yref="paper",
        layer="below",
        line={"color": colour, "width": 1.5, "dash": dash},
    )


def _draw_marks(figure: go.Figure, row: int, run: Run) -> None:
    """Draw a mark, with its words under the pointer, for each plan issued and each fault."""
    plans, faults = run.summary.plans, run.summary.faults
    if plans:
        named = len(plans) <= _NAMED_PLANS
        figure.add_trace(
            go.Scatter(
                x=[plan.at_s for plan in plans],
                y=[0.5] * len(plans),
                mode="markers+text" if named else "markers",
                name="new plan",
                marker={"symbol": "diamond", "size": 12, "color": _PLAN, "opacity": 1},
                text=[f" {plan.version}" for plan in plans],
                textposition="middle right",
                hovertext=[plan_text(run, plan) for plan in plans],
                hoverinfo="text",
                cliponaxis=False,
            ),
            row=row,
            col=1,
        )
    if faults:
        figure.add_trace(
            go.Scatter(
                x=[fault.at_s for fault in faults],
                y=[0.5] * len(faults),
                mode="markers",
                name="fault",
                marker={"symbol": "triangle-down", "size": 11, "color": ALERT, "opacity": 1},
                hovertext=[fault_text(fault) for fault in faults],
                hoverinfo="text",
                cliponaxis=False,
            ),
            row=row,
            col=1,
        )
    figure.update_yaxes(visible=False, range=[0, 1], fixedrange=True, row=row, col=1)


def plan_text(run: Run, plan: PlanIssued) -> str:
    """Return what to show under the pointer for a plan issued, escaped."""
    lines = [f"<b>Plan {plan.version}</b> at {units.seconds(plan.at_s)}"]
    lines += [html.escape(line) for line in textwrap.wrap(plan.why, 72)]
    lines += [
        f"{html.escape(run.link((change.source, change.target)))}: "
        f"{units.rate(change.was_bps)} → {units.rate(change.now_bps)}"
        for change in plan.changed[:_NAMED_CHANGES]
    ]
    if more := len(plan.changed[_NAMED_CHANGES:]):
        lines.append(f"and {units.count(more, 'more link')}")
    lines.append(f"predicted round: {units.seconds(plan.before_s)} → {units.seconds(plan.after_s)}")
    return "<br>".join(lines)


def _link_panel(run: Run, link: Link, end_s: float, *, first: bool) -> _Panel:
    def draw(figure: go.Figure, row: int) -> None:
        if run.summary.started.shaped:
            steps = true_steps(run.overlay, link, end_s)
            figure.add_trace(
                go.Scatter(
                    x=[*(start_s for start_s, _ in steps), end_s],
                    y=[rate_bps / 1e6 for _, rate_bps in (*steps, steps[-1])],
                    mode="lines",
                    line={"color": f"rgba({GREY},.6)", "width": 4, "shape": "hv"},
                    name="true rate",
                    legendgroup="true rate",
                    showlegend=first,
                    hoverinfo="skip",
                ),
                row=row,
                col=1,
            )
        series = run.summary.measured[link.source, link.target]
        figure.add_trace(
            go.Scatter(
                x=[estimate.at_s for estimate in series],
                y=[estimate.rate_bps / 1e6 for estimate in series],
                mode="lines+markers" if len(series) <= _DOTTED_POINTS else "lines",
                line={"color": _MEASURED, "width": 1.5},
                marker={"size": 5, "color": _MEASURED, "opacity": 1},
                name="measured rate",
                legendgroup="measured rate",
                showlegend=first,
                hovertext=[_estimate_text(run, link, estimate) for estimate in series],
                hoverinfo="text",
            ),
            row=row,
            col=1,
        )
        figure.update_yaxes(rangemode="tozero", nticks=4, row=row, col=1)

    pair = (link.source, link.target)
    return _Panel(f"{link_name(run.overlay, pair)}, Mbit/s", 84, draw)


def _estimate_text(run: Run, link: Link, estimate: LinkMeasured) -> str:
    told = [f"{units.rate(estimate.rate_bps)} measured at {units.seconds(estimate.at_s)}"]
    if run.summary.started.shaped:
        true_bps = true_rate_bps(run.overlay, link, estimate.at_s)
        told.append(f"{units.rate(true_bps)} true")
    told.append(f"over {units.count(estimate.chunks, 'chunk')}")
    if estimate.latency_s is not None:
        told.append(f"latency {units.seconds(estimate.latency_s)}")
    return "<br>".join(told)


def _draw_rounds(figure: go.Figure, row: int, run: Run, end_s: float) -> None:
    """Draw round times, filled and open in turn from plan to plan, and what was predicted."""
    rounds = run.summary.rounds
    turns = {version: turn for turn, version in enumerate(dict.fromkeys(r.version for r in rounds))}
    figure.add_trace(
        go.Scatter(
            x=[done.at_s for done in rounds],
            y=[done.seconds for done in rounds],
            mode="lines+markers",
            name="round",
            line={"color": _ROUND, "width": 1},
            marker={
                "symbol": ["circle-open" if turns[r.version] % 2 else "circle" for r in rounds],
                "size": 8 if len(rounds) <= _DOTTED_POINTS else 5,
                "color": _ROUND,
                "line": {"width": 2, "color": _ROUND},
                "opacity": 1,
            },
            hovertext=[
                f"round {done.round}, plan {done.version}: {units.seconds(done.seconds)}<br>"
                f"ended at {units.seconds(done.at_s)}"
                for done in rounds
            ],
            hoverinfo="text",
        ),
        row=row,
        col=1,
    )
    started = run.summary.started
    foretold = [(0.0, started.predicted_s)] if started.shaped else []
    foretold += [(plan.at_s, plan.after_s) for plan in run.summary.plans]
    if foretold:
        figure.add_trace(
            go.Scatter(
                x=[*(at_s for at_s, _ in foretold), end_s],
                y=[value_s for _, value_s in (*foretold, foretold[-1])],
                mode="lines",
                name="predicted when planned",
                line={"color": f"rgb({GREY})", "width": 1.5, "dash": "dot", "shape": "hv"},
                hovertemplate="predicted: %{y:.3g} s<extra></extra>",
            ),
            row=row,
            col=1,
        )
    figure.update_yaxes(rangemode="tozero", nticks=6, row=row, col=1)


def _draw_waits(figure: go.Figure, row: int, run: Run, shown: Sequence[Blocker]) -> None:
    """Draw a bar as long as each round for the link where its waiting began, and on its way."""
    place = {(blocker.source, blocker.target): i for i, blocker in enumerate(shown)}
    rounds = {done.round: done for done in run.summary.rounds}
    waits = [wait for wait in run.summary.waits if wait.began is not None]
    for name, colour, found in (
        ("passed on", _PASSED_ON, [(wait, pair) for wait in waits for pair in wait.links[:-1]]),
        ("waiting began", _BEGAN, [(wait, wait.links[-1]) for wait in waits]),
    ):
        bars = [(wait, pair, rounds[wait.round]) for wait, pair in found if pair in place]
        if not bars:
            continue
        figure.add_trace(
            go.Bar(
                orientation="h",
                base=[done.at_s - done.seconds for _, _, done in bars],
                x=[done.seconds for _, _, done in bars],
                y=[place[pair] for _, pair, _ in bars],
                width=0.72,
                name=name,
                marker={"color": colour, "line": {"width": 0}},
                hovertext=[wait_text(run, wait, done) for wait, _, done in bars],
                hoverinfo="text",
                textposition="none",
            ),
            row=row,
            col=1,
        )
    figure.update_yaxes(
        tickvals=list(place.values()),
        ticktext=[html.escape(run.link(pair)) for pair in place],
        range=[len(place) - 0.5, -0.5],
        showgrid=False,
        row=row,
        col=1,
    )


def wait_text(run: Run, wait: Wait, done: CompletedRound) -> str:
    """Return what to show under the pointer for a chain of waiting, escaped."""
    tree = "" if wait.tree is None else f" (tree {wait.tree + 1})"
    names = " ← ".join(html.escape(run.site(site)) for site in wait.sites)
    return f"round {done.round}, {units.seconds(done.seconds)}<br>{names}{tree}"
