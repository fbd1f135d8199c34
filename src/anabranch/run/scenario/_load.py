"""Reading a scenario file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from anabranch import overlay as overlays
from anabranch._typed_toml import TomlError, decode_toml
from anabranch.overlay import Overlay
from anabranch.plan import AnyPlanner, FromFile
from anabranch.run.scenario._checks import ScenarioError, check, check_keys
from anabranch.run.scenario._model import Scenario
from anabranch.run.scenario.tasks import Own


def load(path: Path) -> tuple[Scenario, Overlay]:
    """Read a scenario and its overlay.

    Raises:
        ScenarioError: names the file, the key, and what to do.
        OverlayError: the overlay cannot be used.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot read {path}: {error}") from None
    scenario = _from_folder(loads(text, str(path)), path.parent)
    source = Path(path.parent, scenario.overlay)
    overlay = overlays.load(source if source.is_file() else scenario.overlay)
    try:
        check(scenario, overlay)
    except ScenarioError as error:
        raise ScenarioError(f"{path}: {error}") from None
    return scenario, overlay


def _from_folder(scenario: Scenario, folder: Path) -> Scenario:
    """Return the scenario with the paths of its plans and of its own code made whole."""

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
