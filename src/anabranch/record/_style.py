"""The look that all figures share."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anabranch.overlay import Overlay
from anabranch.record import units
from anabranch.record.events import FaultInjected

# Twelve hues that stand out on white and on near-black.
COLOURS = (
    "#2f7ed8", "#e8743b", "#19a979", "#bf399e", "#d9a400", "#6c8893",
    "#e0485a", "#13a4b4", "#945ecf", "#8a6d3b", "#5fa82a", "#525df4",
)  # fmt: skip
GREY = "128,128,128"
ALERT = "#e0485a"
BUSY_COLOURS = [[0, "rgba(47,126,216,.08)"], [0.6, "#2f7ed8"], [1, ALERT]]


def site_name(overlay: Overlay, site: int) -> str:
    """Return a site's name, escaped."""
    return html.escape(overlay.sites[site].name)


def link_name(overlay: Overlay, pair: tuple[int, int]) -> str:
    """Return a link's name, escaped."""
    return f"{site_name(overlay, pair[0])} → {site_name(overlay, pair[1])}"


def finish(figure: go.Figure, *, height: int) -> None:
    """Give a figure the look that all share; the page recolours its text in dark mode."""
    figure.update_layout(
        template="none",
        height=height,
        margin={"l": 12, "r": 12, "t": 36, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": f"rgba({GREY},.6)"},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#2b2f36"},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    )
    axis = {"gridcolor": f"rgba({GREY},.22)", "zeroline": False, "automargin": True}
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis)


def panels(titles: Sequence[str], heights: Sequence[int], *, shared_x: bool) -> go.Figure:
    """Return panels below each other, each with its title at the left, heights in pixels."""
    gap = 44 if shared_x else 92
    total = sum(heights) + gap * (len(heights) - 1)
    figure = make_subplots(
        rows=len(heights),
        cols=1,
        row_heights=list(heights),
        vertical_spacing=gap / total if len(heights) > 1 else 0,
        shared_xaxes=shared_x,
        subplot_titles=list(titles),
    )
    figure.update_annotations(x=0, xanchor="left", font={"size": 14})
    finish(figure, height=total + 130)
    figure.update_layout(
        margin={"t": 66}, legend={"y": 1 + 34 / total, "yanchor": "bottom", "x": 0}
    )
    return figure


def fault_text(fault: FaultInjected) -> str:
    """Return what to show under the pointer for a fault, escaped."""
    what = f"over: {fault.detail}" if fault.over else fault.detail
    return f"{html.escape(what)}<br>at {units.seconds(fault.at_s)}"


def mark_faults(figure: go.Figure, faults: Iterable[FaultInjected]) -> None:
    """Draw a line through a figure of one panel at each fault, with its words under the pointer."""
    faults = list(faults)
    if not faults:
        return
    xs: list[float | None] = []
    ys: list[float | None] = []
    texts: list[str] = []
    for fault in faults:
        xs += [fault.at_s, fault.at_s, None]
        ys += [0, 1, None]
        texts += [fault_text(fault)] * 3
    figure.add_trace(
        go.Scatter(
            x=xs,
            y=ys,
            yaxis="y2",
            mode="lines+markers",
            name="fault",
            line={"color": ALERT, "width": 1, "dash": "dot"},
            marker={"symbol": "triangle-down", "size": [0, 10, 0] * len(faults), "opacity": 1},
            text=texts,
            hoverinfo="text",
            showlegend=True,
        )
    )
    figure.update_layout(
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        showlegend=True,
    )
