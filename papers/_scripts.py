"""The scripts of the four papers and of the map, found by listing their files."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from anabranch._typed_toml import listed, nearest
from papers._experiment import Experiment


def _scripts(paper: str) -> Iterator[Any]:
    """Yield the modules of a paper's scripts, in order of their names."""
    folder = Path(__file__).parent / paper
    for path in sorted(folder.glob("[!_.]*.py")):
        yield import_module(f"papers.{paper}.{path.stem}")


EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for paper in ("netstorm", "r2sp", "haaf", "intermittent", "map")
    for figure in _scripts(paper)
    for each in figure.EXPERIMENTS
}
"""Every experiment, by name."""


def find(name: str) -> list[Experiment]:
    """Return the experiment of this name or, if it names a paper, all experiments of that paper.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    papers = dict.fromkeys(each.partition("/")[0] for each in EXPERIMENTS)
    found = [
        each for each in EXPERIMENTS.values() if name in (each.name, each.name.partition("/")[0])
    ]
    if not found:
        near = nearest(name, [*papers, *EXPERIMENTS]) or f"there are {listed(EXPERIMENTS)}"
        raise ValueError(f"no experiment {name!r}; {near}")
    return found
