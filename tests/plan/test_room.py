"""What the room promises about itself: its public names, and that it is pure."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import anabranch.plan as plan

from ..every import every
from ..parsed import nodes

ROOM = Path(plan.__file__).parent
INWARD = (
    *("anabranch.overlay", "anabranch.plan"),
    *("anabranch._lazy", "anabranch._text", "anabranch._typed_toml"),
)
IMPURE = {"asyncio", "os", "pathlib", "random", "socket", "threading", "time"}


def imports_of(file: Path) -> set[str]:
    found = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            found.add(node.module)
    return found


def test_the_room_imports_numbers_and_the_overlay_only():
    for file in ROOM.glob("*.py"):
        for module in imports_of(file):
            top = module.partition(".")[0]
            if top == "anabranch":
                assert module.startswith(INWARD), file
            elif top == "pathlib":
                assert file.name == "_files.py"
            else:
                assert top in {"msgspec", "numpy", "scipy"} | (sys.stdlib_module_names - IMPURE), (
                    file
                )


def test_the_public_list_is_sorted_and_real():
    constants = [name for name in plan.__all__ if name.isupper()]
    classes = [name for name in plan.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in plan.__all__ if name.islower()]
    assert plan.__all__ == sorted(constants) + sorted(classes) + sorted(functions)
    assert every(hasattr(plan, name) for name in plan.__all__)
    public = {name for name in vars(plan) if not name.startswith("_")}
    assert public == set(plan.__all__)
