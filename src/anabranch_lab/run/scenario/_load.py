"""Read a scenario file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from anabranch import overlay as overlays
from anabranch._text import read_text
from anabranch._typed_toml import TomlError, decode_toml
from anabranch.overlay import BUILT_IN, GraphLacks, Overlay, OverlayError, UniformRates
from anabranch.plan import AnyPlanner, FromFile
from anabranch_lab.run.scenario._checks import ScenarioError, check, check_keys
from anabranch_lab.run.scenario._model import Graph, Scenario
from anabranch_lab.run.scenario.tasks import Own

_ADVICE = {
    "rate": "give the rate of such links, bit/s: graph.rate_bps = 155e6, or [20e6, 155e6] to draw; "
    'or the attribute that holds it: graph.capacity = "bandwidth:Mbit/s"',
    "latency": "give the latency of such links, seconds: graph.default_latency_s = 0.03; or the "
    'attribute that holds it: graph.latency = "delay:ms"; or graph.latencies = "rtt.csv"',
    "part": "add edges, or keep only that part: graph.largest_part = true",
}


def load(path: Path) -> tuple[Scenario, Overlay]:
    """Read a scenario and its overlay.

    Raises:
        ScenarioError: names the file, the key, and what to do.
        OverlayError: the overlay cannot be used.
    """
    scenario = _from_folder(loads(read_text(path, ScenarioError), str(path)), path.parent)
    source = Path(path.parent, scenario.overlay)
    try:
        is_folder = source.is_dir() and scenario.overlay not in BUILT_IN
        named = source if source.is_file() or is_folder else scenario.overlay
        overlay = _overlay(scenario, named, path.parent)
        check(scenario, overlay)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None
    return scenario, overlay


def _overlay(scenario: Scenario, source: Path | str, folder: Path) -> Overlay:
    graph = scenario.graph or Graph()
    try:
        rate: float | UniformRates | None
        if isinstance(graph.rate_bps, tuple):
            low_bps, high_bps = graph.rate_bps
            rate = UniformRates(low_bps, high_bps, scenario.seed)
        else:
            rate = graph.rate_bps
        return overlays.load(
            source,
            rate,
            default_latency_s=graph.default_latency_s,
            largest_part=graph.largest_part,
            capacity=graph.capacity,
            latency=graph.latency,
            latencies=None if graph.latencies is None else Path(folder, graph.latencies),
        )
    except GraphLacks as lacks:
        raise ScenarioError(f"overlay: {lacks.said}; {_ADVICE[lacks.what]}") from None
    except OverlayError as error:
        if scenario.graph is None:
            raise
        raise ScenarioError(f"graph: {error}") from None


def _from_folder(scenario: Scenario, folder: Path) -> Scenario:
    """Return the scenario with absolute paths of its plans and of its own code."""

    def whole(route: AnyPlanner) -> AnyPlanner:
        if isinstance(route, FromFile):
            return msgspec.structs.replace(route, path=str(Path(folder, route.path).resolve()))
        return route

    routes = scenario.route
    found = tuple(map(whole, routes)) if isinstance(routes, tuple) else whole(routes)
    task = scenario.task
    if isinstance(task, Own):
        task = msgspec.structs.replace(task, folder=str(Path(folder, task.folder).resolve()))
    return msgspec.structs.replace(scenario, route=found, task=task)


def loads(text: str, where: str = "<string>") -> Scenario:
    """Read a scenario from TOML text.

    Raises:
        ScenarioError: names ``where``, the key, and what to do.
    """
    try:
        scenario = decode_toml(text, Scenario)
    except TomlError as error:
        raise ScenarioError(f"{where}: {error}") from error.__cause__
    try:
        check_keys(scenario)
    except ScenarioError as error:
        raise ScenarioError(f"{where}: {error}") from None
    return scenario
