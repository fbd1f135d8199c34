"""GML and GraphML graphs as overlays, such as the files of the Internet Topology Zoo.

A link's figures come from the file first. An argument gives a figure that the file lacks. Where
neither gives it, reading fails and names the edge. Rates, latencies and losses are recognised by
their attributes' usual names and units (`_quantities`). `Overlay.provenance` says which attributes
were used, and names unused ones that seem to hold such a quantity.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

from anabranch._text import read_text
from anabranch.overlay._geography import fibre_latency_s
from anabranch.overlay._model import GraphLacks, Link, Overlay, OverlayError, Site
from anabranch.overlay._quantities import (
    USUAL,
    Kind,
    OutOfRange,
    Quantity,
    amount,
    quantity_of,
    seems,
    split_unit,
    unit_of,
)
from anabranch.overlay._rates import UniformRates
from anabranch.overlay._sources import Sources

GRAPH_SUFFIXES = (".gml", ".graphml")


def read_graph(
    path: str | Path,
    *,
    rate: float | UniformRates | None = None,
    default_latency_s: float | None = None,
    loss: float = 0.0,
    capacity: str | None = USUAL,
    latency: str = USUAL,
    geographic: bool = True,
    external: bool = True,
    largest_part: bool = False,
) -> Overlay:
    """Read a GML or GraphML file as an overlay.

    Every node is a site, hyperedge nodes of the Topology Zoo too. A site is named by its
    ``label``; where labels are empty or repeated, the node's id is added: ``None #16``. An
    undirected edge is a link each way. Parallel edges become one link, with the sum of their rates,
    the least of their latencies, and the mean of their losses by rate. An edge from a node to
    itself is left out. Node attributes ``Latitude`` and ``Longitude`` (degrees) are positions.

    Args:
        path: a file that ends in ``.gml`` or ``.graphml``.
        rate: the rate of edges that have no capacity in the file: a constant in bit/s, or a rule
            that draws a rate for each direction.
        default_latency_s: one-way delay of edges for which the file gives neither a latency nor the
            position of both ends, seconds.
        loss: share of packets lost on links for which the file gives none.
        capacity: the edge attribute that holds the rate, with the unit of bare numbers after a
            colon: ``"bandwidth:Mbit/s"``. `USUAL`: any of the usual names, such as
            ``LinkSpeedRaw``, ``bandwidth_mbps``, or ``LinkSpeed`` beside ``LinkSpeedUnits``. None:
            the file's capacities are not read, and every edge takes ``rate``.
        latency: likewise for the one-way delay: ``"delay:ms"``. `USUAL`: names such as
            ``latency_s``, ``delay_ms``, and ``rtt_ms``, of which half counts.
        geographic: whether positions give latency: great-circle distance at two thirds of the
            speed of light. If False, edges without a latency take ``default_latency_s``.
        external: False drops nodes marked ``Internal 0``, which belong to other networks.
        largest_part: True keeps the largest part in which all sites reach each other and drops
            the rest, such as isolated nodes. If False, a graph in several parts is an error.

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
            loss=loss,
            capacity=capacity,
            latency=latency,
            geographic=geographic,
            sources=Sources(),
        )
        reading.check_named(graph)
        sites = _sites(graph)
        merged: dict[tuple[int, int], tuple[float, float, float]] = {}  # rate, lost, latency
        for source, target, edge in _edges(graph, sites):
            sum_bps, lost_bps, least_s = merged.get((source, target), (0.0, 0.0, math.inf))
            rate_bps = reading.rate_bps(edge)
            merged[source, target] = (
                sum_bps + rate_bps,
                lost_bps + rate_bps * reading.loss_of(edge),
                min(least_s, reading.latency_s(edge)),
            )
        links = tuple(
            Link(source, target, rate_bps, latency_s, lost_bps / rate_bps)
            for (source, target), (rate_bps, lost_bps, latency_s) in merged.items()
        )
        reading.name_unused(edge for _, _, edge in _edges(graph, sites))
        return Overlay(path.stem, tuple(sites.values()), links, reading.sources.lines())
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
    """The sources of rates, latencies and losses, by the arguments of `read_graph`."""

    fill_bps: Iterator[float] | None
    default_latency_s: float | None
    loss: float
    capacity: str | None
    latency: str
    geographic: bool
    sources: Sources

    def check_named(self, graph: Any) -> None:
        """Raise OverlayError where no edge has an attribute that an argument names."""
        keys = {key for _, _, given in graph.edges(data=True) for key in given}
        keys |= graph.graph.get("edge_default", {}).keys()
        asked: tuple[tuple[Kind, str | None], ...] = (
            ("rate", self.capacity),
            ("latency", self.latency),
        )
        for kind, named in asked:
            if named is not None and named != USUAL and split_unit(kind, named)[0] not in keys:
                raise OverlayError(
                    f"no edge has {split_unit(kind, named)[0]!r}; the edges have "
                    f"{', '.join(sorted(keys)) or 'no attributes'}"
                )

    def rate_bps(self, edge: _Edge) -> float:
        found, reasons = self._read("rate", edge)
        if found is not None:
            return found
        if self.fill_bps is not None:
            self.sources.use("rate", "as given")
            return next(self.fill_bps)
        why = f" ({reasons[0]})" if reasons else ""
        unread = ": capacity=None leaves the file's unread" if self.capacity is None else why
        numbers = sorted(
            key
            for key, value in edge.attributes.items()
            if isinstance(value, int | float) and key not in ("id", "key") and not quantity_of(key)
        )
        also = f", or say which key holds it: capacity={numbers[0]!r}" if numbers else ""
        raise GraphLacks(
            f"{edge} has no rate{unread}",
            "rate",
            "give read_graph the rate of such edges: rate=155e6 (bit/s) or "
            f"rate=UniformRates(20e6, 155e6, seed=0){also}",
        )

    def latency_s(self, edge: _Edge) -> float:
        found, reasons = self._read("latency", edge)
        if found is not None:
            return found
        if self.geographic:
            found = fibre_latency_s(edge.source, edge.target)
            if found is not None:
                self.sources.use("latency", "of fibre between the sites' positions")
                return found
        if self.default_latency_s is not None:
            self.sources.use("latency", "as given")
            return self.default_latency_s
        unplaced = [s.name for s in (edge.source, edge.target) if s.latitude_deg is None]
        why = f", and {unplaced[0]} has no position" if self.geographic and unplaced else ""
        raise GraphLacks(
            f"{edge} has no latency{f' ({reasons[0]})' if reasons else ''}{why}",
            "latency",
            "give the latency of such edges in seconds: default_latency_s=0.03",
        )

    def loss_of(self, edge: _Edge) -> float:
        found, _ = self._read("loss", edge)
        if found is None:
            self.sources.use("loss", "as given" if self.loss else "0, for none is given")
            return self.loss
        return found

    def _read(self, kind: Kind, edge: _Edge) -> tuple[float | None, list[str]]:
        """Return a quantity from an edge's attributes, and why other attributes were not used."""
        used: tuple[str, float] | None = None
        reasons: list[str] = []
        for key, of in self._candidates(kind, edge.attributes):
            value = edge.attributes[key]
            unit, unit_key = _unit_beside(kind, key, edge.attributes)
            try:
                own = of.share * amount(kind, value, of.unit if unit is None else unit)
            except OutOfRange as error:
                raise OverlayError(
                    f"{edge} has {key} {value!r}, which {error}; mend the file, or leave the edge "
                    "out to model an outage"
                ) from None
            except ValueError as error:
                reasons.append(f"{key} {value!r} {error}")
                self.sources.leave(key, value, str(error))
                continue
            if used is None:
                used = key, own
                self.sources.use(kind, f"{key} and {unit_key}" if unit_key else key)
            elif not math.isclose(used[1], own, rel_tol=0.01):
                self.sources.leave(key, value, f"differs from {used[0]}, which is used")
        return (None if used is None else used[1]), reasons

    def _candidates(self, kind: Kind, attributes: Mapping[str, Any]) -> list[tuple[str, Quantity]]:
        """Return the attributes that hold a quantity; names with a unit come first."""
        named = {"rate": self.capacity, "latency": self.latency, "loss": USUAL}[kind]
        if named is None:
            return []
        if named != USUAL:
            key, unit = split_unit(kind, named)
            of = quantity_of(key)
            share = of.share if of is not None and of.kind == kind else 1.0
            if unit is None and of is not None and of.kind == kind:
                unit = of.unit
            return [(key, Quantity(kind, unit, share))] if key in attributes else []
        found = [(key, of) for key in attributes if (of := quantity_of(key)) and of.kind == kind]
        return sorted(found, key=lambda each: each[1].unit is None)

    def name_unused(self, edges: Iterable[_Edge]) -> None:
        """Record unused attributes that hold, or by an unusual name seem to hold, a quantity."""
        chosen = {self.capacity, self.latency}
        chosen |= {split_unit("rate", self.capacity or "")[0]}
        chosen |= {split_unit("latency", self.latency)[0]}
        for edge in edges:
            for key, value in edge.attributes.items():
                of = quantity_of(key)
                if key in chosen or any(
                    key in (f"{each}{ending}" for ending in _UNITS_BESIDE)
                    for each in edge.attributes
                ):
                    continue
                if of is None and key not in ("id", "key") and (kind := seems(key, value)):
                    named = {"rate": "capacity", "latency": "latency", "loss": None}[kind]
                    advice = f"; name it as the {named} to use it" if named else ""
                    self.sources.leave(key, value, f"has no usual name of a {kind}{advice}")
                elif of is not None and of.kind == "rate" and self.capacity != USUAL:
                    self.sources.leave(key, value, "is not the capacity that was asked for")
                elif of is not None and of.kind == "latency" and self.latency != USUAL:
                    self.sources.leave(key, value, "is not the latency that was asked for")


_UNITS_BESIDE = ("Units", "Unit", "_units", "_unit")


def _unit_beside(
    kind: Kind, key: str, attributes: Mapping[str, Any]
) -> tuple[float | None, str | None]:
    """Return the unit that another attribute states, such as LinkSpeedUnits, and its name."""
    for each in (f"{key}{ending}" for ending in _UNITS_BESIDE):
        if each in attributes:
            return unit_of(kind, str(attributes[each])), each
    return None, None


def _parse(path: Path) -> Any:
    """Read a file with networkx; its graph's nodes are ids, whatever their labels."""
    suffix = path.suffix.lower()
    if suffix not in GRAPH_SUFFIXES:
        raise OverlayError(f"{path} does not end in {' or '.join(GRAPH_SUFFIXES)}; rename it")
    # Here, because the import takes longer than the rest of this package, and few callers need it.
    import networkx as nx

    text = "" if suffix == ".graphml" else read_text(path, OverlayError)
    try:
        if suffix == ".graphml":  # XML declares its encoding
            return nx.read_graphml(path)
        # networkx takes ASCII only, and parallel edges only from files that declare a multigraph.
        # The Topology Zoo's files do not.
        text = text.encode("ascii", "xmlcharrefreplace").decode("ascii")
        if not re.search(r"^\s*multigraph\s+1", text, re.MULTILINE):
            text = re.sub(
                r"^(\s*graph\s*\[)", r"\1 multigraph 1", text, count=1, flags=re.MULTILINE
            )
        return nx.parse_gml(text, label="id")
    except OSError as error:
        raise OverlayError(f"cannot read {path}: {error.strerror}") from error
    # Some malformed files, such as one with a node that is no list, make networkx itself fail.
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
    # networkx reads GraphML's defaults but does not apply them.
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
