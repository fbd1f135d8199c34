"""Names of files that our programs choose."""

from __future__ import annotations

from pathlib import Path


def next_free(path: Path) -> Path:
    """Return this path, or with the first number behind its name that no file has."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free
