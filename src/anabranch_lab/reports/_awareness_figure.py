"""The figure of a run that measured its network: its links, its plans, its round times.

All panels share the time axis, so a reader can follow downwards: a link slows down, the measured
rate follows, the scheduler plans again, and round times recover.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go

from anabranch.log import units
from anabranch.log.events import LinkMeasured, PlanIssued
from anabranch.log.summary import CompletedRound, Wait
from anabranch.overlay import Link
from anabranch_lab.reports._awareness import (
    Blocker,
    blockers,
    most_changed,
    true_rate_bps,
    true_steps,
)
from anabranch_lab.reports._style import (
    ALERT,
    COLOURS,
    GREY,
    SECONDS,
    dots,
    fault_text,
    line,
    link_name,
    panels,
)
from anabranch_lab.reports.runs import Run

_LINKS = 6  # drawn: the measured links that changed most
_ROWS = 8  # of links that rounds waited for
_NAMED_PLANS = 12  # names of more would overlap; the pointer still shows them
_NAMED_CHANGES = 6  # links under the pointer
_DOTTED_POINTS = 120  # dots hide a line of more points

_MEASURED, _PLAN, _ROUND, _BEGAN = COLOURS[0], COLOURS[8], COLOURS[2], COLOURS[1]

_Panel = tuple[str, int, Callable[[go.Figure, int], None]]  # title, height, draw(figure, row)


def awareness(run: Run) -> go.Figure | None:
    """Draw a run's measurements, its new plans and its round times; None if there are none."""
    summary = run.summary
    end_s = summary.total_s or 1.0
    rows: list[_Panel] = []
    if summary.plans or summary.faults:
        title = "Plans issued" if summary.plans else "Faults"
        rows.append((title, 26, partial(_draw_marks, run)))
    for index, link in enumerate(most_changed(summary, run.overlay)[:_LINKS]):
        title = f"{link_name(run.overlay, (link.source, link.target))}, Mbit/s"
        rows.append((title, 84, partial(_draw_link, run, link, end_s, index == 0)))
    if summary.rounds:
        rows.append(("Round time, s", 150, partial(_draw_rounds, run, end_s)))
    held_up = blockers(summary)
    if held_up:
        shown = held_up[:_ROWS]
        count = f" ({len(shown)} of {len(held_up)} links)" if len(held_up) > _ROWS else ""
        title = f"Where waiting began{count}"
        rows.append((title, 16 + 20 * len(shown), partial(_draw_waits, run, shown)))
    if not rows:
        return None
    figure = panels([title for title, _, _ in rows], [tall for _, tall, _ in rows], shared_x=True)
    for number, (_, _, draw) in enumerate(rows, start=1):
        draw(figure, number)
    _rule(figure, [plan.at_s for plan in summary.plans], _PLAN, "dash")
    _rule(figure, [fault.at_s for fault in summary.faults], ALERT, "dot")
    figure.update_xaxes(range=[0, 1.02 * end_s])
    figure.update_xaxes(title=SECONDS, row=len(rows), col=1)
    figure.update_layout(barmode="overlay", showlegend=True)
    return figure


def _rule(figure: go.Figure, moments_s: Sequence[float], colour: str, dash: str) -> None:
    """Draw a line through all panels at each moment."""
    if moments_s:
        # One path for all moments: a shape for each would make pages of long runs slow.
        path = "".join(f"M{at_s:.6g},0L{at_s:.6g},1" for at_s in moments_s)
        where = {"type": "path", "xref": "x", "yref": "paper", "layer": "below"}
        look = {"color": colour, "width": 1.5, "dash": dash}
        figure.add_shape(path=path, line=look, **where)


def _draw_marks(run: Run, figure: go.Figure, row: int) -> None:
    """Draw a mark for each plan issued and each fault, with its text under the pointer."""
    plans, faults = run.summary.plans, run.summary.faults
    if plans:
        dots(
            figure,
            [plan.at_s for plan in plans],
            [0.5] * len(plans),
            [plan_text(run, plan) for plan in plans],
            row=row,
            mode="markers+text" if len(plans) <= _NAMED_PLANS else "markers",
            name="new plan",
            symbol="diamond",
            size=12,
            color=_PLAN,
            text=[f" {plan.version}" for plan in plans],
            textposition="middle right",
        )
    if faults:
        texts = [fault_text(fault) for fault in faults]
        moments_s = [fault.at_s for fault in faults]
        look = {"name": "fault", "symbol": "triangle-down", "size": 11, "color": ALERT}
        dots(figure, moments_s, [0.5] * len(faults), texts, row=row, **look)
    figure.update_yaxes(visible=False, range=[0, 1], fixedrange=True, row=row, col=1)


def plan_text(run: Run, plan: PlanIssued) -> str:
    """Return the text under the pointer for a plan issued, escaped."""
    lines = [f"<b>Plan {plan.version}</b> at {units.seconds(plan.at_s)}"]
    lines += [html.escape(line) for line in textwrap.wrap(plan.why, 72)]
    lines += [
        f"{html.escape(run.link((change.source, change.target)))}: "
        f"{units.rate(change.was_bps) if change.was_bps else 'assumed'} → "
        f"{units.rate(change.now_bps)}"
        for change in plan.changed[:_NAMED_CHANGES]
    ]
    if more := len(plan.changed[_NAMED_CHANGES:]):
        lines.append(f"and {units.count(more, 'more link')}")
    if plan.before_s is not None and plan.after_s is not None:
        before, after = units.seconds(plan.before_s), units.seconds(plan.after_s)
        lines.append(f"predicted round: {before} → {after}")
    return "<br>".join(lines)


def _draw_link(
    run: Run, link: Link, end_s: float, first: bool, figure: go.Figure, row: int
) -> None:
    """Draw a link's measured rates over its true one; the legend shows the first link's lines."""

    def group(name: str) -> dict[str, Any]:
        return {"row": row, "name": name, "legendgroup": name, "showlegend": first}

    if run.summary.started.shaped:
        steps = true_steps(run.overlay, link, end_s)
        line(
            figure,
            [*(start_s for start_s, _ in steps), end_s],
            [rate_bps / 1e6 for _, rate_bps in (*steps, steps[-1])],
            color=f"rgba({GREY},.6)",
            width=4,
            shape="hv",
            hoverinfo="skip",
            **group("true rate"),
        )
    series = run.summary.measured[link.source, link.target]
    line(
        figure,
        [estimate.at_s for estimate in series],
        [estimate.rate_bps / 1e6 for estimate in series],
        mode="lines+markers" if len(series) <= _DOTTED_POINTS else "lines",
        color=_MEASURED,
        width=1.5,
        marker={"size": 5, "color": _MEASURED, "opacity": 1},
        hovertext=[_estimate_text(run, link, estimate) for estimate in series],
        hoverinfo="text",
        **group("measured rate"),
    )
    figure.update_yaxes(rangemode="tozero", nticks=4, row=row, col=1)


def _estimate_text(run: Run, link: Link, estimate: LinkMeasured) -> str:
    told = [f"{units.rate(estimate.rate_bps)} measured at {units.seconds(estimate.at_s)}"]
    if run.summary.started.shaped:
        true_bps = true_rate_bps(run.overlay, link, estimate.at_s)
        told.append(f"{units.rate(true_bps)} true")
    told.append(f"over {units.count(estimate.chunks, 'chunk')}")
    if estimate.latency_s is not None:
        told.append(f"latency {units.seconds(estimate.latency_s)}")
    return "<br>".join(told)


def _draw_rounds(run: Run, end_s: float, figure: go.Figure, row: int) -> None:
    """Draw round times, filled and open in turn from plan to plan, and the predicted times."""
    rounds, started = run.summary.rounds, run.summary.started
    turns = {version: turn for turn, version in enumerate(dict.fromkeys(r.version for r in rounds))}
    dots(
        figure,
        [done.at_s for done in rounds],
        [done.seconds for done in rounds],
        [
            f"round {done.round}, plan {done.version}: {units.seconds(done.seconds)}<br>"
            f"ended at {units.seconds(done.at_s)}"
            for done in rounds
        ],
        row=row,
        mode="lines+markers",
        cliponaxis=None,
        name="round",
        line={"color": _ROUND, "width": 1},
        symbol=["circle-open" if turns[r.version] % 2 else "circle" for r in rounds],
        size=8 if len(rounds) <= _DOTTED_POINTS else 5,
        color=_ROUND,
        marker={"line": {"width": 2, "color": _ROUND}},
    )
    predicted = [(0.0, started.predicted_s)] if started.shaped else []
    predicted += [
        (plan.at_s, plan.after_s) for plan in run.summary.plans if plan.after_s is not None
    ]
    if predicted:
        line(
            figure,
            [*(at_s for at_s, _ in predicted), end_s],
            [value_s for _, value_s in (*predicted, predicted[-1])],
            row=row,
            name="predicted when planned",
            color=f"rgb({GREY})",
            width=1.5,
            dash="dot",
            shape="hv",
            hovertemplate="predicted: %{y:.3g} s<extra></extra>",
        )
    figure.update_yaxes(rangemode="tozero", nticks=6, row=row, col=1)


def _draw_waits(run: Run, shown: Sequence[Blocker], figure: go.Figure, row: int) -> None:
    """Draw each round as a bar at the link where its waiting began, and at links it passed."""
    place = {(blocker.source, blocker.target): i for i, blocker in enumerate(shown)}
    rounds = {done.round: done for done in run.summary.rounds}
    waits = [wait for wait in run.summary.waits if wait.began is not None]
    for name, colour, found in (
        ("passed on", f"rgba({GREY},.45)", [(w, pair) for w in waits for pair in w.links[:-1]]),
        ("waiting began", _BEGAN, [(wait, wait.links[-1]) for wait in waits]),
    ):
        bars = [(wait, pair, rounds[wait.round]) for wait, pair in found if pair in place]
        if bars:
            figure.add_bar(
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
                row=row,
                col=1,
            )
    names = [html.escape(run.link(pair)) for pair in place]
    ticks = {"tickvals": list(place.values()), "ticktext": names, "showgrid": False}
    figure.update_yaxes(range=[len(place) - 0.5, -0.5], row=row, col=1, **ticks)


def wait_text(run: Run, wait: Wait, done: CompletedRound) -> str:
    """Return the text under the pointer for a chain of waiting, escaped."""
    tree = "" if wait.tree is None else f" (tree {wait.tree + 1})"
    names = " ← ".join(html.escape(run.site(site)) for site in wait.sites)
    return f"round {done.round}, {units.seconds(done.seconds)}<br>{names}{tree}"
