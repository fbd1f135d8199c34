"""The figure of a plan: its trees on the overlay, and how busy they make each link."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go

from anabranch.log import units
from anabranch.overlay import Link, Overlay
from anabranch.plan import NO_PARENT, Plan, link_load
from anabranch_lab.reports._layout import Points, site_positions
from anabranch_lab.reports._style import COLOURS, GREY, dots, finish, link_name, site_name

Pair = tuple[int, int]
Words = dict[str, object]

_BAND = 0.036  # the strip beside a link's centre line where its traffic is drawn, data units
_LABELLED_LINKS = 48  # rates of more would overlap
_NAMED_SITES = 80  # with more, only roots are named; other names are under the pointer


def trees(overlay: Overlay, plan: Plan) -> go.Figure:
    """Draw an overlay and the trees of one plan on it.

    Every directed link has a strip on its right-hand side, like a lane of a road. A strip's width
    is the link's load relative to the busiest link's. The busiest strip is red, the others are
    grey. In the strip runs a line for each tree, with arrows in the direction of data towards the
    root. Where a tree's way down is not its way up mirrored, the way down is dotted. The legend
    switches trees on and off.

    Args:
        overlay: with its rates. A measured rate is bold. A link with an assumed rate has a question
            mark and counts as idle.
        plan: for the overlay's sites.

    Raises:
        PlanError: the plan does not fit the overlay.
    """
    plan.check_fits(overlay)
    points = site_positions(overlay)
    figure = go.Figure()
    _draw_links(figure, overlay, plan, points)
    _draw_trees(figure, overlay, plan, points)
    # All at once, since plotly copies all existing annotations when one is added.
    annotations = [*_rates(overlay, points), *_draw_sites(figure, overlay, plan, points)]
    low, high = points.min(axis=0) - 0.07, points.max(axis=0) + 0.1
    width, tall = high - low
    legend_rows = -(-len(plan.trees) // 4)
    finish(figure, height=round(40 + 26 * legend_rows + 540 * min(1.0, max(0.45, tall / width))))
    figure.update_xaxes(visible=False, range=[float(low[0]), float(high[0])])
    figure.update_yaxes(visible=False, range=[float(low[1]), float(high[1])], scaleanchor="x")
    figure.update_layout(
        annotations=annotations,
        legend={"itemsizing": "constant", "y": 0, "yanchor": "top"},
        margin={"l": 4, "r": 4, "t": 30, "b": 8},
    )
    return figure


def _strips(
    points: Points, pairs: Sequence[Pair], places: Sequence[float]
) -> tuple[Points, Points]:
    """Return the ends of lines along links, each at a place in [0, 1] across its strip."""
    sources, targets = np.array(pairs, int).reshape(-1, 2).T
    start, stop = points[sources], points[targets]
    along = stop - start
    along /= np.maximum(np.hypot(along[:, :1], along[:, 1:]), 1e-9)
    right = np.stack([along[:, 1], -along[:, 0]], 1) * (_BAND * np.array(places))[:, None]
    return start + right, stop + right


def _segments(
    points: Points, pairs: Sequence[Pair], places: Sequence[float], **look: Any
) -> go.Scatter:
    """Return a trace of arrows: for each link its start, the arrow and its end."""
    start, stop = _strips(points, pairs, places)
    gap = np.full_like(start, np.nan)
    route = np.stack([start, start + 0.62 * (stop - start), stop, gap], 1).reshape(-1, 2)
    # Pages hold arrays as bytes; float32 keeps pages of dense overlays small.
    x, y = route.astype(np.float32).T
    sizes = np.tile(np.array([0, 12, 0, 0], np.uint8), len(pairs))
    arrow = {"symbol": "arrow", "angleref": "previous", "size": sizes, "opacity": 1}
    marker = {**arrow, "line": {"width": 0}, "color": look["line"]["color"]}
    shown = {"mode": "lines+markers", "marker": marker, "hoverinfo": "skip", **look}
    return go.Scatter(x=x, y=y, **shown)


def _draw_links(figure: go.Figure, overlay: Overlay, plan: Plan, points: Points) -> None:
    load = link_load(plan)
    busy_s = {  # for each bit of buffer
        pair: 0.0 if link.basis == "assumed" else load.get(pair, 0.0) / link.goodput_bps
        for link in overlay
        for pair in ((link.source, link.target),)
    }
    busiest_s = max(busy_s.values(), default=0.0) or 1.0
    busyness = {pair: value_s / busiest_s for pair, value_s in busy_s.items()}
    idle_opacity = min(0.35, 30 / max(1, len(busyness)))  # hundreds of lines would add up to black
    for low, high, width, colour in (  # plotly has one width for each trace
        (-1.0, 0.0, 1, f"rgba({GREY},{idle_opacity:.2f})"),
        (0.0, 1 / 3, 4, f"rgba({GREY},.25)"),
        (1 / 3, 2 / 3, 8, f"rgba({GREY},.25)"),
        (2 / 3, 0.999, 12, f"rgba({GREY},.3)"),
        (0.999, math.inf, 22, "rgba(224,72,90,.4)"),  # visible under any number of trees
    ):
        pairs = [pair for pair, value in busyness.items() if low < value <= high]
        if pairs:
            line = {"width": width, "color": colour}
            look = {"mode": "lines", "marker": None, "line": line, "showlegend": False}
            figure.add_trace(_segments(points, pairs, [0.5] * len(pairs), **look))
    texts = [
        f"{link_name(overlay, pair)}: rate assumed<br>{units.buffers(load.get(pair, 0.0))} a round"
        if link.basis == "assumed"
        else f"{link_name(overlay, pair)}: {units.rate(link.goodput_bps)}, {link.basis}<br>"
        f"{units.buffers(load.get(pair, 0.0))} a round, "
        f"{units.percent(share)} as busy as the busiest link"
        for link, (pair, share) in zip(overlay, busyness.items(), strict=True)
    ]
    pairs = list(busyness)
    x, y = (np.add(*_strips(points, pairs, [0.5] * len(pairs))) / 2).round(4).T
    dots(figure, x.tolist(), y.tolist(), texts, size=22, marker={"opacity": 0}, showlegend=False)


def _draw_trees(figure: go.Figure, overlay: Overlay, plan: Plan, points: Points) -> None:
    ways = []
    users: defaultdict[Pair, list[int]] = defaultdict(list)
    for index, tree in enumerate(plan.trees):
        up, down = _hops(plan, tree.up), _hops(plan, tree.down, down=True)
        mirrored = {(b, a) for a, b in up} == set(down)
        ways.append((up, [] if mirrored else down))
        for pair in dict.fromkeys((*ways[-1][0], *ways[-1][1])):
            users[pair].append(index)
    traces = []
    for index, (tree, (up, down)) in enumerate(zip(plan.trees, ways, strict=True)):
        colour, root = COLOURS[index % len(COLOURS)], site_name(overlay, tree.root)
        for pairs, dash in ((up, "solid"), (down, "dot")):
            if pairs or dash == "solid":  # a tree of one site has no link, but is in the legend
                places = [(users[pair].index(index) + 0.5) / len(users[pair]) for pair in pairs]
                trace = _segments(
                    points,
                    pairs,
                    places,
                    name=f"{index + 1}. {root} {units.percent(tree.share)}",
                    line={"width": 1.5 + 1.5 * tree.share, "color": colour, "dash": dash},
                    legendgroup=str(index),
                    showlegend=dash == "solid",
                )
                traces.append(trace)
    figure.add_traces(traces)


def _hops(plan: Plan, parents: Sequence[int], *, down: bool = False) -> list[Pair]:
    """Return the links a tree uses one way, each once, relays included."""
    edges = [(site, parent) for site, parent in enumerate(parents) if parent != NO_PARENT]
    paths = [plan.path(*(edge[::-1] if down else edge)) for edge in edges]
    return list(dict.fromkeys(hop for path in paths for hop in pairwise(path)))


def _draw_sites(figure: go.Figure, overlay: Overlay, plan: Plan, points: Points) -> list[Words]:
    """Draw the sites, and return their names."""
    rooted = [0.0] * overlay.size
    for tree in plan.trees:
        rooted[tree.root] += tree.share
    diameters = [13 + 22 * math.sqrt(share) for share in rooted]
    texts = [
        f"{site_name(overlay, site)}: root of {units.percent(share)} of the buffer"
        for site, share in enumerate(rooted)
    ]
    marker = {
        "size": diameters,
        "color": ["#2d6a8e" if share else "#8a97a0" for share in rooted],
        "line": {"width": 2, "color": "#ffffff"},
    }
    dots(
        figure, points[:, 0].tolist(), points[:, 1].tolist(), texts, marker=marker, showlegend=False
    )
    return [
        _words(x, y, f"<b>{site_name(overlay, site)}</b>", yshift=diameter / 2 + 10)
        for site, ((x, y), diameter) in enumerate(zip(points.tolist(), diameters, strict=True))
        if rooted[site] or overlay.size <= _NAMED_SITES
    ]


def _words(x: float, y: float, text: str, **look: object) -> Words:
    where = {"x": x, "y": y, "text": text, "showarrow": False, "borderpad": 0}
    return {"bgcolor": "rgba(255,255,255,.7)", **where, **look}


def _rates(overlay: Overlay, points: Points) -> Iterator[Words]:
    """Yield rates beside strips, nearer the source; one if both directions have the same rate."""

    def text(link: Link) -> str:
        said = f"{link.goodput_bps / 1e6:.3g}"
        return {"given": said, "measured": f"<b>{said}</b>", "assumed": "?"}[link.basis]

    if len(overlay.links) > _LABELLED_LINKS:
        return
    for link in overlay:
        back = overlay.link(link.target, link.source)
        same = back is not None and text(back) == text(link)
        if same and link.source > link.target:
            continue
        along, across = (0.5, 0.0) if same else (0.32, 1.3)
        (start,), (stop,) = _strips(points, [(link.source, link.target)], [across])
        x, y = (start + along * (stop - start)).tolist()
        yield _words(x, y, text(link), font={"size": 10})
