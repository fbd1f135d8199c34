"""Write scenarios and overlays as files, for ``anabranch simulate`` and ``anabranch run``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from anabranch_lab.run.scenario import Scenario


def scenario_toml(scenario: Scenario) -> str:
    """Return a scenario as TOML without defaults; `anabranch_lab.run.scenario.loads` reads it."""
    defaults = {
        field.encode_name: field.default for field in msgspec.structs.fields(type(scenario))
    }
    values = {
        key: value
        for key, value in msgspec.structs.asdict(scenario).items()
        if value != defaults[key]
    }
    return "".join(f"{key} = {_toml(msgspec.to_builtins(each))}\n" for key, each in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        items = (f"{key} = {_toml(each)}" for key, each in value.items() if each is not None)
        return f"{{ {', '.join(items)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)  # TOML and JSON write these values alike


def write_new(folder: Path, name: str, text: str) -> Path:
    """Write a TOML file under a name that is not taken, and return its path."""
    stem = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    path = next(
        path
        for number in count(1)
        if not (path := folder / f"{stem}{'' if number == 1 else f'-{number}'}.toml").exists()
    )
    path.write_text(text, encoding="utf-8")
    return path
