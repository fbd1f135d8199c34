"""Measured networks: CSV tables, and folders of iperf3 and ping results.

A CSV file is a matrix whose first cell names the quantity (``Mbit/s``, ``rtt_ms``), or a list with
a line for each link. In a folder each file belongs to a pair of sites: ``paris--austin.json`` is
the output of ``iperf3 --json`` at paris, ``paris--austin.txt`` that of ping.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch._text import read_text
from anabranch.overlay._model import GraphLacks, Link, Overlay, OverlayError, Site
from anabranch.overlay._quantities import Kind, Quantity, amount, quantity_of, seems, unit_of
from anabranch.overlay._rates import UniformRates
from anabranch.overlay._sources import Sources

_SOURCE = {"source", "src", "from", "srcregion", "sourceregion", "fromregion", "sender"}
_TARGET = {"target", "dst", "dest", "destination", "to", "destregion", "dstregion", "toregion"}
_TARGET |= {"targetregion", "receiver"}
_NOTHING = {"", "-", "n/a", "na", "none"}  # cells that mean no link
_Pair = tuple[str, str]
_PING_TIMES = re.compile(r"= *([\d.]+)/([\d.]+)/([\d.]+)(?:/[\d.]+)? *ms")
_PING_TIMES_WINDOWS = re.compile(r"Average = ([\d.]+) *ms")
_PING_LOSS = re.compile(r"([\d.]+)% (?:packet )?loss")


@dataclass
class _Figures:
    """The figures that files give for pairs of sites, each with the words for its source."""

    names: dict[str, None] = field(default_factory=dict)  # in the order of the files
    of: dict[Kind, dict[_Pair, tuple[float, str]]] = field(
        default_factory=lambda: {"rate": {}, "latency": {}, "loss": {}}
    )
    sources: Sources = field(default_factory=Sources)

    def add(self, kind: Kind, pair: _Pair, value: float, source: str, where: str) -> None:
        """Add a figure.

        Raises:
            OverlayError: the pair has another figure already; ``where`` names this one.
        """
        self.names.update(dict.fromkeys(pair))
        before = self.of[kind].setdefault(pair, (value, source))
        if before != (value, source):
            raise OverlayError(
                f"{where}: a second {kind} of {pair[0]}->{pair[1]}, {value:g} after "
                f"{before[0]:g}; keep one"
            )


def read_table(
    path: str | Path,
    *,
    rate: float | UniformRates | None = None,
    default_latency_s: float | None = None,
    latencies: str | Path | None = None,
) -> Overlay:
    """Read a CSV file, or a folder of measurements, as an overlay.

    Args:
        path: a ``.csv`` file or a folder.

            A *matrix* has the sites' names in its first line and its first column, a row for each
            source, a column for each target. Its first cell names the quantity: a unit (``Mbit/s``,
            ``ms``), or a name with one (``rate_mbps``, ``rtt_ms``: half of it is the latency). An
            empty cell or ``-`` is no link; the diagonal is not read.

            A *list* has a first line that names the columns, and then a line for each link. The
            columns are ``source`` and ``target`` (or ``src``, ``dest``, ``from``, ``to``...), and
            ``rate_mbps``, ``latency_ms``, ``packet_loss`` or other usual names with their units.

            A *folder* holds files ``SOURCE--TARGET.json``, as ``iperf3 --json`` writes them at the
            source, and ``SOURCE--TARGET.txt``, as ping does. iperf3 gives the receiver's rate. ping
            gives the loss and, as the latency of both ways, half of the mean round trip.
        rate: of links without one, as for `read_graph`.
        default_latency_s: of links without one, seconds.
        latencies: another such file or folder, for latencies and losses alone.

    Raises:
        GraphLacks: a link has no rate or no latency, and no argument gives it.
        OverlayError: a file cannot be read, or gives a figure that no link can have.
    """
    path = Path(path)
    figures = _Figures()
    try:
        _read(path, figures)
        if latencies is not None:
            _read(Path(latencies), figures, leave_out=("rate",))
        return _overlay(path, figures, rate, default_latency_s)
    except GraphLacks as lacks:
        raise lacks.within(str(path)) from None


def _read(path: Path, figures: _Figures, leave_out: Iterable[Kind] = ()) -> None:
    own = _Figures(sources=figures.sources)
    if path.is_dir():
        _read_folder(path, own)
    else:
        _read_csv(path, own)
    for kind, found in own.of.items():
        for pair, (value, source) in found.items():
            if kind in leave_out:
                own.sources.leave(source, f"{value:g}", "is of a file that gives latencies")
            else:
                figures.add(kind, pair, value, source, str(path))


def _overlay(
    path: Path, figures: _Figures, rate: float | UniformRates | None, latency_s: float | None
) -> Overlay:
    draws = rate.draws_bps() if isinstance(rate, UniformRates) else None
    index = {name: number for number, name in enumerate(figures.names)}
    of, sources = figures.of, figures.sources
    links = []
    for pair in of["rate"] or of["latency"]:
        if pair in of["rate"]:
            rate_bps, source = of["rate"][pair]
        elif rate is not None:
            rate_bps, source = next(draws) if draws else float(rate), "as given"  # type: ignore[arg-type]
        else:
            said = f"link {pair[0]}->{pair[1]} has no rate"
            raise GraphLacks(said, "rate", "give read_table the rate of such links: rate=155e6")
        sources.use("rate", source)
        own_s, source = of["latency"].get(pair, (latency_s, "as given"))
        if own_s is None:
            said = f"link {pair[0]}->{pair[1]} has no latency"
            raise GraphLacks(said, "latency", "give one in seconds: default_latency_s=0.03")
        sources.use("latency", source)
        loss, source = of["loss"].get(pair, (0.0, "0, for none is given"))
        sources.use("loss", source)
        # Measured rates are goodput; a link's rate counts lost packets too.
        links.append(Link(index[pair[0]], index[pair[1]], rate_bps / (1 - loss), own_s, loss))
    for kind in ("latency", "loss"):
        for pair, (value, source) in of[kind].items():
            if of["rate"] and pair not in of["rate"]:
                sources.leave(
                    source, f"{pair[0]}->{pair[1]}: {value:g}", "is of no link with a rate"
                )
    return Overlay(path.stem, tuple(map(Site, figures.names)), tuple(links), sources.lines())


def _read_csv(path: Path, figures: _Figures) -> None:
    lines = read_text(path, OverlayError).splitlines()
    first = next((line for line in lines if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    table = [
        (number, [cell.strip() for cell in row])
        for number, row in enumerate(csv.reader(lines, delimiter=delimiter), 1)
        if any(cell.strip() for cell in row)
    ]
    if len(table) < 2:
        raise OverlayError(f"{path}: no rows; a table has a line of names, and rows below it")
    for number, row in table:
        if len(row) != len(table[0][1]):
            raise OverlayError(
                f"{path}:{number}: {len(row)} cells, and the first line has {len(table[0][1])}"
            )
    names = ["".join(re.findall(r"\w", cell)).replace("_", "").lower() for cell in table[0][1]]
    ends = [
        next((i for i, name in enumerate(names) if name in of), None) for of in (_SOURCE, _TARGET)
    ]
    if ends[0] is not None and ends[1] is not None:
        _read_list(path, table, (ends[0], ends[1]), figures)
    elif table[0][1][1:] == [row[0] for _, row in table[1:]]:
        _read_matrix(path, table, figures)
    else:
        raise OverlayError(
            f"{path}: neither a list nor a matrix: a list has columns source and target, a matrix "
            "the same names in its first line and its first column, in the same order"
        )


_Table = list[tuple[int, list[str]]]


def _read_matrix(path: Path, table: _Table, figures: _Figures) -> None:
    corner, *targets = table[0][1]
    of = quantity_of(corner)
    for kind in ("rate", "latency"):
        if of is None and (unit := unit_of(kind, corner)) is not None:
            of = Quantity(kind, unit)
    if of is None:
        raise OverlayError(
            f"{path}:1: the first cell is {corner!r}; let it say what the numbers are: Mbit/s, ms, "
            "or rtt_ms"
        )
    source = f"{corner} of {path.name}"
    figures.names.update(dict.fromkeys(targets))
    for number, (name, *cells) in table[1:]:
        for target, cell in zip(targets, cells, strict=True):
            if target != name and cell.lower() not in _NOTHING:
                value = _amount(of, cell, f"{path}:{number}: {name}->{target}")
                figures.add(of.kind, (name, target), value, source, f"{path}:{number}")


def _read_list(path: Path, table: _Table, ends: tuple[int, int], figures: _Figures) -> None:
    columns: dict[int, Quantity] = {}
    for column, heading in enumerate(table[0][1]):
        if column in ends:
            continue
        of = quantity_of(heading)
        if of is not None and of.kind not in {each.kind for each in columns.values()}:
            columns[column] = of
        elif of is not None or seems(heading, "") is not None:
            why = "is a second column of its kind" if of else "has no usual name"
            figures.sources.leave(heading, table[1][1][column], why)
    if not columns:
        raise OverlayError(
            f"{path}:1: no column of rates or latencies; name one such as rate_mbps, latency_ms or "
            "rtt_ms"
        )
    for number, row in table[1:]:
        pair = row[ends[0]], row[ends[1]]
        if pair[0] == pair[1]:
            continue
        for column, of in columns.items():
            if row[column].lower() not in _NOTHING:
                value = _amount(of, row[column], f"{path}:{number}: {table[0][1][column]}")
                source = f"{table[0][1][column]} of {path.name}"
                figures.add(of.kind, pair, value, source, f"{path}:{number}")


def _amount(of: Quantity, cell: str, where: str) -> float:
    try:
        return of.share * amount(of.kind, cell, of.unit)
    except ValueError as error:
        raise OverlayError(f"{where} {cell!r} {error}") from None


def _read_folder(folder: Path, figures: _Figures) -> None:
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".txt"))
    if not files:
        raise OverlayError(
            f"{folder} holds no measurement; name each SOURCE--TARGET.json (iperf3 --json) or "
            "SOURCE--TARGET.txt (ping)"
        )
    for path in files:
        source, dashes, target = path.stem.partition("--")
        if not (source and dashes and target) or source == target:
            raise OverlayError(f"{path}: name it SOURCE--TARGET{path.suffix}, of two sites")
        read = _iperf3 if path.suffix == ".json" else _ping
        for kind, way, value, of in read(path, read_text(path, OverlayError)):
            pair = (source, target) if way else (target, source)
            figures.add(kind, pair, value, of, str(path))


_Found = Iterator[
    tuple[Kind, bool, float, str]
]  # kind, whether from source to target, value, source of the figure


def _iperf3(path: Path, text: str) -> _Found:
    try:
        document: dict[str, Any] = json.loads(text)
        if "error" in document:
            raise OverlayError(f"{path}: iperf3 failed: {document['error']}; measure again")
        forward = not document["start"]["test_start"].get("reverse")
        end = document["end"]
        ways = [(forward, end["sum_received"])]
        if "sum_received_bidir_reverse" in end:
            ways.append((not forward, end["sum_received_bidir_reverse"]))
        rates = [(way, float(each["bits_per_second"])) for way, each in ways]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, OverlayError):
            raise
        raise OverlayError(f"{path} is no result of iperf3 --json: {error!r}") from None
    for way, rate_bps in rates:
        if not rate_bps > 0:
            raise OverlayError(f"{path}: iperf3 carried nothing; measure again")
        yield "rate", way, rate_bps, "iperf3"


def _ping(path: Path, text: str) -> _Found:
    times = _PING_TIMES.search(text)
    mean_ms = times[2] if times else None
    if mean_ms is None and (windows := _PING_TIMES_WINDOWS.search(text)):
        mean_ms = windows[1]
    if mean_ms is None:
        raise OverlayError(f"{path} holds no times of ping, such as min/avg/max = 9/10/12 ms")
    loss = _PING_LOSS.search(text)
    for way in (True, False):
        yield "latency", way, float(mean_ms) / 2e3, "half of ping's mean"
        if loss and float(loss[1]) < 100:
            # A ping may be lost on either way.
            yield "loss", way, 1 - (1 - float(loss[1]) / 100) ** 0.5, "ping, a half on each way"
