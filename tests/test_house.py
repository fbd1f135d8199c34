"""The picture of the house in docs/house.md is the house: who imports whom, room by room."""

from __future__ import annotations

import ast
import re
from itertools import product
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "anabranch"
ROOMS = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} | {"cli"}


def room_of(module: str) -> str | None:
    """Return the room a module of ours lies in, or None."""
    parts = module.split(".")
    return parts[1] if parts[0] == "anabranch" and len(parts) > 1 and parts[1] in ROOMS else None


def imported() -> set[tuple[str, str]]:
    """Return every pair (room, room it imports from), wherever in a file the import stands."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            found |= {(room, to) for to in map(room_of, modules) if to and to != room}
    return {(room, to) for room, to in found if room in ROOMS}


def drawn() -> set[tuple[str, str]]:
    """Return the arrows of the picture."""
    found = set()
    for left, right in re.findall(r"^  (.+) --> (.+)$", (ROOT / "docs/house.md").read_text(), re.M):
        found |= set(product(left.split(" & "), right.split(" & ")))
    return found


def test_every_import_follows_the_arrows_of_the_picture() -> None:
    reach = drawn()
    while more := {(a, d) for (a, b), (c, d) in product(reach, reach) if b == c} - reach:
        reach |= more
    assert not any(a == b for a, b in reach), "the picture has a circle"
    assert imported() - reach == set()


def test_every_arrow_of_the_picture_is_an_import() -> None:
    assert drawn() - imported() == set()


def test_every_room_is_in_the_picture() -> None:
    text = (ROOT / "docs/house.md").read_text()
    for room in ROOMS - {"cli"}:
        assert f"\n  {room}/" in text
