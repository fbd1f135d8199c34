"""Python files as syntax trees, each read once: many tests look at all of them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file, in no particular order."""
    return tuple(ast.walk(ast.parse(file.read_text("utf-8"))))
