"""The figure of a plan: its trees on the overlay, and how busy they make each link."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import plotly.graph_objects as go

from anabranch.overlay import Overlay
from anabranch.plan import NO_PARENT, Plan, link_load
from anabranch.record import units
from anabranch.record._layout import Points, site_positions
from anabranch.record._style import COLOURS, GREY, dots, finish, link_name, site_name

Pair = tuple[int, int]

_BAND = 0.036  # the strip beside a link's centre line where its traffic is drawn, data units
_LABELLED_LINKS = 48  # rates of more would overlap
_NAMED_SITES = 80  # of more, only roots are named; the others' names are under the pointer


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
        # Four digits are finer than a pixel, and keep pages of dense overlays small.
        route = [
            np.round(point, 4).tolist() for point in (start, start + 0.62 * (stop - start), stop)
        ]
        xs += [*(x for x, _ in route), None]
        ys += [*(y for _, y in route), None]
        sizes += [0, 12, 0, 0]
    arrow = {"symbol": "arrow", "angleref": "previous", "size": sizes, "opacity": 1}
    marker = {**arrow, "line": {"width": 0}}
    return go.Scatter(x=xs, y=ys, mode="lines+markers", marker=marker, hoverinfo="skip")


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
            look = {"width": width, "color": colour}
            trace.update(mode="lines", marker=None, line=look, showlegend=False)
            figure.add_trace(trace)
    centres = [np.round(np.add(*_strip(points, pair, 0.5)) / 2, 4).tolist() for pair in busyness]
    texts = [
        f"{link_name(overlay, pair)}: {units.rate(link.goodput_bps)}<br>"
        f"{units.buffers(load.get(pair, 0.0))} a round, "
        f"{units.percent(share)} as busy as the busiest link"
        for link, (pair, share) in zip(overlay, busyness.items(), strict=True)
    ]
    xs, ys = zip(*centres, strict=True) if centres else ((), ())
    dots(figure, xs, ys, texts, size=22, marker={"opacity": 0}, showlegend=False)


def _draw_trees(figure: go.Figure, overlay: Overlay, plan: Plan, points: Points) -> None:
    ways = []
    users: defaultdict[Pair, list[int]] = defaultdict(list)
    for index, tree in enumerate(plan.trees):
        up, down = _hops(plan, tree.up), _hops(plan, tree.down, down=True)
        mirrored = {(b, a) for a, b in up} == set(down)
        ways.append((up, [] if mirrored else down))
        for pair in dict.fromkeys((*ways[-1][0], *ways[-1][1])):
            users[pair].append(index)
    for index, (tree, (up, down)) in enumerate(zip(plan.trees, ways, strict=True)):
        place = {
            pair: (trees_here.index(index) + 0.5) / len(trees_here)
            for pair, trees_here in users.items()
            if index in trees_here
        }
        colour, root = COLOURS[index % len(COLOURS)], site_name(overlay, tree.root)
        name = f"{index + 1}. {root} {units.percent(tree.share)}"
        for pairs, dash in ((up, "solid"), (down, "dot")):
            if pairs or dash == "solid":  # a tree of one site has no link, and stays in the legend
                trace = _segments(points, pairs, place)
                trace.update(
                    name=name,
                    line={"width": 1.5 + 1.5 * tree.share, "color": colour, "dash": dash},
                    marker_color=colour,
                    legendgroup=str(index),
                    showlegend=dash == "solid",
                )
                figure.add_trace(trace)


def _hops(plan: Plan, parents: Sequence[int], *, down: bool = False) -> list[Pair]:
    """Return the links a tree uses one way, each once, relays included."""
    edges = [(site, parent) for site, parent in enumerate(parents) if parent != NO_PARENT]
    paths = [plan.path(*(edge[::-1] if down else edge)) for edge in edges]
    return list(dict.fromkeys(hop for path in paths for hop in pairwise(path)))


def _draw_sites(figure: go.Figure, overlay: Overlay, plan: Plan, points: Points) -> None:
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
    for site, ((x, y), diameter) in enumerate(zip(points.tolist(), diameters, strict=True)):
        if rooted[site] or overlay.size <= _NAMED_SITES:
            _write(figure, x, y, f"<b>{site_name(overlay, site)}</b>", yshift=diameter / 2 + 10)


def _write(figure: go.Figure, x: float, y: float, text: str, **look: object) -> None:
    where = {"x": x, "y": y, "text": text, "showarrow": False, "borderpad": 0}
    figure.add_annotation(bgcolor="rgba(255,255,255,.7)", **where, **look)


def _label_rates(figure: go.Figure, overlay: Overlay, points: Points) -> None:
    """Write rates beside strips, nearer the source; once where both ways have the same."""
    if len(overlay.links) > _LABELLED_LINKS:
        return
    for link in overlay:
        back = overlay.link(link.target, link.source)
        same = back is not None and back.goodput_bps == link.goodput_bps
        if same and link.source > link.target:
            continue
        along, across = (0.5, 0.0) if same else (0.32, 1.3)
        start, stop = _strip(points, (link.source, link.target), across)
        x, y = (start + along * (stop - start)).tolist()
        _write(figure, x, y, f"{link.goodput_bps / 1e6:.3g}", font={"size": 10})
