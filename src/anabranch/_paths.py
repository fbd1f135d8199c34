"""Names of files that our programs choose."""

from __future__ import annotations

from pathlib import Path


def parts_of(path: Path) -> list[Path]:
    """Return this path and those that ``next_free`` has made of it, as far as they are there."""
    free = next_free(path)
    numbers = range(2, int(free.stem.removeprefix(f"{path.stem}-"))) if free != path else ()
    return [] if free == path else [path, *(path.with_stem(f"{path.stem}-{n}") for n in numbers)]


def next_free(path: Path) -> Path:
    """Return this path, or with the first number behind its name that no file has."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_stem(f"{path.stem}-{number}")
    return free
