"""An experiment: its name, its title, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from papers._lab import Lab
from papers._result import Result


@dataclass(frozen=True, slots=True)
class Experiment:
    """A table or figure of a paper, made again.

    Args:
        name: the paper and the figure, such as ``netstorm/fig13``.
        title: its subject.
        make: runs it.
        emulable: whether it can also run with real processes over emulated links.
    """

    name: str
    title: str
    make: Callable[[Lab], Result]
    emulable: bool = False
