"""Outcomes of runs, kept in a folder, so that an interrupted experiment can continue."""

from __future__ import annotations

import os
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import msgspec

import anabranch
import anabranch_lab
import papers
from papers._record import Ran, written

Made = TypeVar("Made")


class Outcomes:
    """Runs by their settings and by the code that made them: other code does not find them.

    Args:
        folder: made when the first outcome is added.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, settings: Any, kind: type[Made]) -> Ran[Made] | None:
        """Return the run with these settings, or None if it is not kept.

        Raises:
            ValueError: the file is damaged; names it.
        """
        path = self._path(settings)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            pair: Any = tuple[float, kind]  # type: ignore[valid-type]
            cpu_s, made = msgspec.msgpack.decode(data, type=pair)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is damaged ({error}); remove it") from None
        return Ran(made, cpu_s)

    def add(self, settings: Any, ran: Ran[Any]) -> None:
        """Keep a run; a file is whole or absent, whenever this process ends."""
        path = self._path(settings)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(msgspec.msgpack.encode((ran.cpu_s, ran.made)))
        part.replace(path)

    def _path(self, settings: Any) -> Path:
        name = sha256(f"{_code()}\n{written(settings, set())}".encode()).hexdigest()
        return self._folder / f"{name[:32]}.msgpack"


@cache
def _code() -> str:
    """Return a digest of all code that computes outcomes, and the releases of its libraries."""
    found = sha256()
    for package in (anabranch, anabranch_lab, papers):
        (root,) = map(Path, package.__path__)
        for path in sorted(root.rglob("*.py")):
            name = f"{package.__name__}/{path.relative_to(root).as_posix()}"
            found.update(name.encode() + b"\0" + path.read_bytes())
    releases = [version(each) for each in ("numpy", "scipy", "torch")]
    return " ".join([found.hexdigest(), *releases])
