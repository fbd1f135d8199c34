"""One function for every source of an overlay: a built-in name, or a file known by its suffix."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from anabranch._text import read_text
from anabranch.overlay._built_in import BUILT_IN
from anabranch.overlay._graph_files import GRAPH_SUFFIXES, read_graph
from anabranch.overlay._model import Overlay, OverlayError
from anabranch.overlay._quantities import USUAL
from anabranch.overlay._rates import UniformRates
from anabranch.overlay._tables import read_table
from anabranch.overlay._toml import loads


def load(
    source: str | Path,
    rate: float | UniformRates | None = None,
    *,
    default_latency_s: float | None = None,
    largest_part: bool = False,
    capacity: str = USUAL,
    latency: str = USUAL,
    latencies: str | Path | None = None,
    unknown_rate_bps: float | None = None,
) -> Overlay:
    """Return the overlay of a built-in name or a file.

    Args:
        source: a built-in name, such as ``"internet2-9"``, or the path of a file that ends in
            ``.toml`` (our own format), ``.gml``, ``.graphml`` or ``.csv``, or a folder of
            measurements.
        rate: for graph files, tables and folders: the rate of links without one, a constant in
            bit/s or a rule.
        default_latency_s: likewise the one-way delay, seconds.
        largest_part: for graph files: keep only the largest part of a graph in several.
        capacity, latency: for graph files: the attribute that holds it, as for `read_graph`.
        latencies: for tables and folders: another such file, for latencies, as for `read_table`.
        unknown_rate_bps: for ``.toml`` files: the rate of links without one, bit/s; None where each
            link must have one.

    Raises:
        GraphLacks: a file lacks a figure, and no argument gives it.
        OverlayError: an unknown name or suffix, a missing file, a file that does not hold an
            overlay, or an argument for another kind of file.

    >>> load("internet2-9").size
    9
    """
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix in GRAPH_SUFFIXES:
        _check_exists(path)
        _check_for(source, "tables and folders of measurements", latencies=latencies)
        return read_graph(
            path,
            rate=rate,
            default_latency_s=default_latency_s,
            capacity=capacity,
            latency=latency,
            largest_part=largest_part,
        )
    _check_for(
        source,
        f"files that end in {' or '.join(GRAPH_SUFFIXES)}",
        largest_part=largest_part or None,
        capacity=None if capacity == USUAL else capacity,
        latency=None if latency == USUAL else latency,
    )
    if suffix == ".csv" or (path.is_dir() and str(source) not in BUILT_IN):
        return read_table(path, rate=rate, default_latency_s=default_latency_s, latencies=latencies)
    _check_for(
        source,
        "graph files, tables and folders of measurements",
        rate=rate,
        default_latency_s=default_latency_s,
        latencies=latencies,
    )
    if str(source) in BUILT_IN:
        return BUILT_IN[str(source)]()
    if suffix != ".toml":
        suffixes = ", ".join((".toml", ".csv", *GRAPH_SUFFIXES))
        raise OverlayError(
            f"{source} is neither a built-in overlay nor a file that ends in one of {suffixes}"
            f"{_nearest_built_in(path)}"
        )
    _check_exists(path)
    return loads(read_text(path, OverlayError), str(path), unknown_rate_bps, path.parent)


def _check_for(source: str | Path, files: str, **given: object) -> None:
    """Raise OverlayError at the first given argument; all of them are for other kinds of file."""
    for name, value in given.items():
        if value is not None:
            raise OverlayError(f"{source} does not take {name}, which is for {files}: leave it out")


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise OverlayError(f"there is no file {path}; check the path{_nearest_built_in(path)}")


def _nearest_built_in(path: Path) -> str:
    near = get_close_matches(path.stem, BUILT_IN, n=1)
    if near:
        return f"; did you mean the built-in {near[0]!r}?"
    return f"; built in: {', '.join(sorted(BUILT_IN))}"
