"""GML and GraphML graphs as overlays, such as the files of the Internet Topology Zoo.

What a link needs is taken from the file first; an argument fills in what the file does not say;
where neither says it, reading fails and names the edge.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from anabranch._text import read_text
from anabranch.overlay._geography import fibre_latency_s
from anabranch.overlay._model import GraphLacks, Link, Overlay, OverlayError, Site
from anabranch.overlay._rates import UniformRates

GRAPH_SUFFIXES = (".gml", ".graphml")


def read_graph(
    path: str | Path,
    *,
    rate: float | UniformRates | None = None,
    default_latency_s: float | None = None,
    loss: float = 0.0,
    capacity: str | None = "LinkSpeedRaw",
    capacity_unit_bps: float = 1.0,
    geographic: bool = True,
    external: bool = True,
    largest_part: bool = False,
) -> Overlay:
    """Read a GML or GraphML file as an overlay.

    Every node is a site, hyperedge nodes of the Topology Zoo too. A site is named by its
    ``label``; where labels are empty or repeated, the node's id is added: ``None #16``. An
    undirected edge is a link each way. Parallel edges become one link, with the sum of their
    rates and the least of their latencies; an edge from a node to itself carries nothing between
    sites and is left out. Node attributes ``Latitude`` and ``Longitude`` (degrees) are positions.

    Args:
        path: a file that ends in ``.gml`` or ``.graphml``.
        rate: the rate of edges that have no capacity in the file: a constant in bit/s, or a rule
            that draws each direction by itself.
        default_latency_s: one-way delay of edges for which the file gives neither an attribute
            ``latency_s`` nor the position of both ends, seconds.
        loss: share of packets lost on every link.
        capacity: the edge attribute that holds capacity; None to leave the file's capacities
            unread, so that every edge takes ``rate``.
        capacity_unit_bps: what a capacity of 1 means, bit/s: 1e6 where the file counts Mbit/s.
        geographic: whether positions give latency: great-circle distance at two thirds of the
            speed of light. False leaves it to ``default_latency_s``.
        external: False drops nodes marked ``Internal 0``, which belong to other networks.
        largest_part: True keeps the largest part in which all sites reach each other and drops
            the rest, such as isolated nodes; otherwise a graph in several parts is an error.

    Raises:
        OverlayError: a file that cannot be read or parsed, an edge without capacity or latency
            where no argument gives them, an attribute that is not a number, or a graph in parts.
    """
    path = Path(path)
    graph = _parse(path)
    try:
        if not external:
            internal = graph.nodes(data="Internal", default=1)
            graph.remove_nodes_from([node for node, value in internal if value == 0])
        _keep_one_part(graph, largest_part)
        reading = _Reading(
            fill_bps=rate.draws_bps() if isinstance(rate, UniformRates) else _constant(rate),
            default_latency_s=default_latency_s,
            capacity=capacity,
            capacity_unit_bps=capacity_unit_bps,
            geographic=geographic,
        )
        sites = _sites(graph)
        merged: dict[tuple[int, int], tuple[float, float]] = {}  # -> (rate_bps, latency_s)
        for source, target, edge in _edges(graph, sites):
            sum_bps, least_s = merged.get((source, target), (0.0, math.inf))
            merged[source, target] = (
                sum_bps + reading.rate_bps(edge),
                min(least_s, reading.latency_s(edge)),
            )
        links = tuple(
            Link(source, target, rate_bps, latency_s, loss)
            for (source, target), (rate_bps, latency_s) in merged.items()
        )
        return Overlay(path.stem, tuple(sites.values()), links)
    except GraphLacks as lacks:
        raise lacks.within(str(path)) from None
    except OverlayError as error:
        raise OverlayError(f"{path}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Edge:
    """One direction of an edge of the file."""

    source: Site
    target: Site
    attributes: Mapping[str, Any]

    def __str__(self) -> str:
        return f"edge {self.source.name}->{self.target.name}"


@dataclass(frozen=True, slots=True)
class _Reading:
    """Where rates and latencies come from, as `read_graph` was told."""

    fill_bps: Iterator[float] | None
    default_latency_s: float | None
    capacity: str | None
    capacity_unit_bps: float
    geographic: bool

    def rate_bps(self, edge: _Edge) -> float:
        own = None if self.capacity is None else _number(edge.attributes, self.capacity, edge)
        if own is not None:
            rate_bps = own * self.capacity_unit_bps
            if not (rate_bps > 0 and math.isfinite(rate_bps)):
                raise OverlayError(
                    f"{edge} has {self.capacity} {own:g}, which must be finite and > 0; leave the "
                    "edge out to model an outage"
                )
            return rate_bps
        if self.fill_bps is not None:
            return next(self.fill_bps)
        numbers = sorted(
            key
            for key, value in edge.attributes.items()
            if isinstance(value, int | float) and key not in ("id", "key", "latency_s")
        )
        lacks = self.capacity or "rate: capacity=None leaves the file's unread"
        also = f", or say which key holds it: capacity={numbers[0]!r}" if numbers else ""
        raise GraphLacks(
            f"{edge} has no {lacks}",
            "rate",
            "give read_graph the rate of such edges: rate=155e6 (bit/s) or "
            f"rate=UniformRates(20e6, 155e6, seed=0){also}",
        )

    def latency_s(self, edge: _Edge) -> float:
        latency_s = _number(edge.attributes, "latency_s", edge)
        if latency_s is None and self.geographic:
            latency_s = fibre_latency_s(edge.source, edge.target)
        if latency_s is None:
            latency_s = self.default_latency_s
        if latency_s is None:
            unplaced = [s.name for s in (edge.source, edge.target) if s.latitude_deg is None]
            why = f" and {unplaced[0]} no position" if self.geographic and unplaced else ""
            raise GraphLacks(
                f"{edge} has no latency_s{why}",
                "latency",
                "give the latency of such edges in seconds: default_latency_s=0.03",
            )
        return latency_s


def _parse(path: Path) -> Any:
    """Read a file with networkx; its graph's nodes are ids, whatever their labels."""
    suffix = path.suffix.lower()
    if suffix not in GRAPH_SUFFIXES:
        raise OverlayError(f"{path} does not end in {' or '.join(GRAPH_SUFFIXES)}; rename it")
    # Here, because it takes longer to import than the rest of this package and few need it.
    import networkx as nx

    text = "" if suffix == ".graphml" else read_text(path, OverlayError)
    try:
        if suffix == ".graphml":  # XML says its own encoding
            return nx.read_graphml(path)
        # networkx takes ASCII only, and parallel edges only from files that announce them, which
        # those of the Topology Zoo do not.
        text = text.encode("ascii", "xmlcharrefreplace").decode("ascii")
        if not re.search(r"^\s*multigraph\s+1", text, re.MULTILINE):
            text = re.sub(
                r"^(\s*graph\s*\[)", r"\1 multigraph 1", text, count=1, flags=re.MULTILINE
            )
        return nx.parse_gml(text, label="id")
    except OSError as error:
        raise OverlayError(f"cannot read {path}: {error.strerror}") from error
    # networkx stumbles over some malformed files, such as a node that is no list, unawares.
    except (nx.NetworkXException, ParseError, ValueError, AttributeError, TypeError) as error:
        raise OverlayError(f"{path} is not a {suffix[1:]} graph: {error}; mend it") from error


def _keep_one_part(graph: Any, largest: bool) -> None:
    """Remove all but the largest part, or raise OverlayError if there are several."""
    import networkx as nx

    find = nx.strongly_connected_components if graph.is_directed() else nx.connected_components
    parts: list[set[Any]] = sorted(find(graph), key=len, reverse=True)
    outside = [node for node in graph if node not in parts[0]]
    if outside and not largest:
        raise GraphLacks(
            f"the graph is in {len(parts)} parts that do not reach each other: node {outside[0]} "
            f"({graph.nodes[outside[0]].get('label', '')}) is outside the largest one, of "
            f"{len(parts[0])} nodes",
            "part",
            "add edges, or keep only that part: largest_part=True",
        )
    graph.remove_nodes_from(outside)


def _sites(graph: Any) -> dict[Any, Site]:
    labels = {node: str(graph.nodes[node].get("label", node)).strip() for node in graph}
    times = Counter(labels.values())
    return {
        node: Site(
            label if label and times[label] == 1 else f"{label} #{node}".strip(),
            _number(graph.nodes[node], "Latitude", f"node {node}"),
            _number(graph.nodes[node], "Longitude", f"node {node}"),
        )
        for node, label in labels.items()
    }


def _edges(graph: Any, sites: Mapping[Any, Site]) -> Iterator[tuple[int, int, _Edge]]:
    """Yield (source, target, edge) of every direction; an undirected edge has two."""
    index = {node: i for i, node in enumerate(sites)}
    # GraphML's defaults, which networkx reads but does not apply.
    defaults: Mapping[str, Any] = graph.graph.get("edge_default", {})
    for a, b, given in graph.edges(data=True):
        if a == b:
            continue
        attributes = {**defaults, **given}
        yield index[a], index[b], _Edge(sites[a], sites[b], attributes)
        if not graph.is_directed():
            yield index[b], index[a], _Edge(sites[b], sites[a], attributes)


def _constant(rate_bps: float | None) -> Iterator[float] | None:
    return None if rate_bps is None else repeat(float(rate_bps))


def _number(attributes: Mapping[str, Any], key: str, owner: object) -> float | None:
    value = attributes.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OverlayError(f"{owner} has {key} {value!r}, which must be a number; mend the file")
    return float(value)
