"""The look that all figures share, and the traces that most figures use.

Plotly takes half a second to import. So this module, and the modules that import it, are imported
where a page is written, never at the top of another module. Plotly reads text as a dialect of HTML,
so every name is escaped before plotly gets it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from anabranch.log import units
from anabranch.log.events import FaultInjected
from anabranch.overlay import Overlay
from anabranch_lab.reports._timeline import Floats

# Twelve hues that stand out on white and on near-black.
COLOURS = (
    "#2f7ed8", "#e8743b", "#19a979", "#bf399e", "#d9a400", "#6c8893",
    "#e0485a", "#13a4b4", "#945ecf", "#8a6d3b", "#5fa82a", "#525df4",
)  # fmt: skip
GREY = "128,128,128"
ALERT = "#e0485a"
SECONDS = "seconds since the run began"


def site_name(overlay: Overlay, site: int) -> str:
    """Return a site's name, escaped."""
    return html.escape(overlay.sites[site].name)


def link_name(overlay: Overlay, pair: tuple[int, int]) -> str:
    """Return a link's name, escaped."""
    return f"{site_name(overlay, pair[0])} → {site_name(overlay, pair[1])}"


def finish(figure: go.Figure, *, height: int) -> None:
    """Give a figure the common look; the page recolours its text in dark mode."""
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
    figure.update_layout(margin={"t": 66}, legend={"y": 1 + 34 / total})
    return figure


def line(
    figure: go.Figure, x: Sequence[Any], y: Sequence[Any], row: int | None = None, **look: Any
) -> None:
    """Draw a line; ``color``, ``width``, ``dash`` and ``shape`` apply to the line."""
    style = {key: look.pop(key) for key in ("color", "width", "dash", "shape") if key in look}
    trace = go.Scatter(x=list(x), y=list(y), line=style, **{"mode": "lines", **look})
    figure.add_trace(trace, row=row, col=row and 1)


def dots(
    figure: go.Figure,
    x: Sequence[Any],
    y: Sequence[Any],
    texts: Sequence[str],
    row: int | None = None,
    **look: Any,
) -> None:
    """Draw dots with text under the pointer; ``color``, ``size``, ``symbol`` apply to the dots."""
    marker = {"opacity": 1, **look.pop("marker", {})}
    marker |= {key: look.pop(key) for key in ("color", "size", "symbol") if key in look}
    hover = {"hovertext": list(texts), "hoverinfo": "text"}
    style = {"mode": "markers", "cliponaxis": False, **hover, **look}
    trace = go.Scatter(x=list(x), y=list(y), marker=marker, **style)
    figure.add_trace(trace, row=row, col=row and 1)


def heatmap(edges_s: Floats, names: Sequence[str], rows: Sequence[Any], unit: str) -> go.Figure:
    """Draw use over time, a row for each name; the scale ends at 100 if the unit begins with %."""
    share = unit.startswith("%")
    figure = go.Figure(
        go.Heatmap(
            x=edges_s.tolist(),
            y=list(names),
            z=[[round(float(value), 1 if share else 3) for value in row] for row in rows],
            zmin=0,
            zmax=100 if share else None,
            colorscale=[[0, "rgba(47,126,216,.08)"], [0.6, "#2f7ed8"], [1, ALERT]],
            colorbar={"title": {"text": unit.replace(" of its ", " of<br>")}, "thickness": 12},
            hovertemplate=f"%{{y}}<br>at %{{x:.3g}} s: %{{z}} {unit}<extra></extra>",
        )
    )
    figure.update_xaxes(title=SECONDS, showgrid=False)
    list_downwards(figure, names)
    figure.update_yaxes(dtick=1)
    finish(figure, height=110 + 20 * max(4, len(rows)))
    return figure


def list_downwards(figure: go.Figure, names: Sequence[str]) -> None:
    """Name the rows of a figure, the first at the top; the names are escaped already."""
    # Without the type, names such as "10" or "2020-01-01" make an axis of numbers or dates.
    order = {"type": "category", "categoryorder": "array", "categoryarray": list(names)}
    figure.update_yaxes(autorange="reversed", showgrid=False, **order)


def fault_text(fault: FaultInjected) -> str:
    """Return the text under the pointer for a fault, escaped."""
    what = f"over: {fault.detail}" if fault.over else fault.detail
    return f"{html.escape(what)}<br>at {units.seconds(fault.at_s)}"


def mark_faults(figure: go.Figure, faults: Iterable[FaultInjected]) -> None:
    """Draw a line through a figure of one panel at each fault, with its text under the pointer."""
    faults = list(faults)
    if not faults:
        return
    dots(
        figure,
        [x for fault in faults for x in (fault.at_s, fault.at_s, None)],
        [0, 1, None] * len(faults),
        [text for fault in faults for text in [fault_text(fault)] * 3],
        mode="lines+markers",
        name="fault",
        line={"color": ALERT, "width": 1, "dash": "dot"},
        color=ALERT,
        symbol="triangle-down",
        size=[0, 10, 0] * len(faults),
        yaxis="y2",
        showlegend=True,
    )
    hidden = {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True}
    figure.update_layout(yaxis2=hidden, showlegend=True)
