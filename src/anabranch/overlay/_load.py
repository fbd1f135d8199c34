"""One door to every overlay: a built-in name, or a file known by its suffix."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from anabranch._text import read_text
from anabranch.overlay._built_in import BUILT_IN
from anabranch.overlay._graph_files import GRAPH_SUFFIXES, read_graph
from anabranch.overlay._model import Overlay, OverlayError
from anabranch.overlay._rates import UniformRates
from anabranch.overlay._toml import loads


def load(
    source: str | Path,
    rate: float | UniformRates | None = None,
    *,
    default_latency_s: float | None = None,
    largest_part: bool = False,
    unknown_rate_bps: float | None = None,
) -> Overlay:
    """Return the overlay that a built-in name or a file holds.

    Args:
        source: a built-in name, such as ``"internet2-9"``, or the path of a file that ends in
            ``.toml`` (our own format), ``.gml`` or ``.graphml``.
        rate: for graph files: the rate of edges that have no capacity, a constant in bit/s or a
            rule. `read_graph` has more choices.
        default_latency_s: for graph files: the one-way delay of edges whose ends have no position.
        largest_part: for graph files: keep the largest part alone of a graph in several.
        unknown_rate_bps: for ``.toml`` files: of links that have no rate; None where each must.

    Raises:
        GraphLacks: a graph file does not say what these arguments would.
        OverlayError: an unknown name or suffix, a missing file, a file that does not hold an
            overlay, or a graph-file argument for something else.

    >>> load("internet2-9").size
    9
    """
    path = Path(source)
    suffix = path.suffix.lower()
    if suffix in GRAPH_SUFFIXES:
        _check_exists(path)
        return read_graph(
            path, rate=rate, default_latency_s=default_latency_s, largest_part=largest_part
        )
    if rate is not None or default_latency_s is not None or largest_part:
        raise OverlayError(
            f"{source} states its own rates and latencies; what fills in a rate, a latency or a "
            f"part is for files that end in {' or '.join(GRAPH_SUFFIXES)}: leave it out"
        )
    if str(source) in BUILT_IN:
        return BUILT_IN[str(source)]()
    if suffix != ".toml":
        suffixes = ", ".join((".toml", *GRAPH_SUFFIXES))
        raise OverlayError(
            f"{source} is neither a built-in overlay nor a file that ends in one of {suffixes}"
            f"{_nearest_built_in(path)}"
        )
    _check_exists(path)
    return loads(read_text(path, OverlayError), str(path), unknown_rate_bps, path.parent)


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise OverlayError(f"there is no file {path}; check the path{_nearest_built_in(path)}")


def _nearest_built_in(path: Path) -> str:
    near = get_close_matches(path.stem, BUILT_IN, n=1)
    if near:
        return f"; did you mean the built-in {near[0]!r}?"
    return f"; built in: {', '.join(sorted(BUILT_IN))}"
