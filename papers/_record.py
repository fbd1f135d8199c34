"""What runs came to, by their settings: the part of a result's JSON that its script can read again.

Everything that a run depends on, except the code, is its settings: for a trial the scenario and the
overlay, for another job the function and its argument. A run's key is a digest of them. So a script
that would run something else now does not find its run, and the page that has its figures is old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar

import msgspec

Made = TypeVar("Made")


class NotRecorded(LookupError):
    """A script asks for a run that its JSON does not have."""


@dataclass(frozen=True, slots=True)
class Ran(Generic[Made]):
    """A run that was made.

    Args:
        made: what it came to.
        cpu_s: CPU time that it took, seconds.
    """

    made: Made
    cpu_s: float


class Store(Protocol):
    """Where a lab looks for runs before it makes them."""

    def find(self, settings: str, kind: type[Made]) -> Ran[Made] | None:
        """Return a run with these settings, or None."""

    def add(self, settings: str, ran: Ran[Any]) -> None:
        """Keep a run."""


def key(settings: str) -> str:
    """Return the key of a run in a JSON.

    >>> key("simulated, a star")
    '8f795ff90b8a0ef2'
    """
    return sha256(settings.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Record:
    """Runs of an experiment, as its JSON has them: a :class:`Store` that makes no run.

    Args:
        runs: by key; each has its ``key``, its ``cpu_s``, and ``made``, what it came to.
    """

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Record:
        """Return the runs of a result's JSON."""
        return cls({each["key"]: each for each in document["runs"]})

    def find(self, settings: str, kind: type[Made]) -> Ran[Made]:
        """Return the run with these settings.

        Raises:
            NotRecorded: it is not there.
        """
        found = self.runs.get(key(settings))
        if found is None:
            raise NotRecorded(f"no run has these settings: {settings[:300]}")
        made = msgspec.convert(found["made"], kind, strict=False)
        return Ran(made, found["cpu_s"])

    def add(self, settings: str, ran: Ran[Any]) -> None:
        """Record a run."""
        name = key(settings)
        self.runs[name] = {"key": name, "cpu_s": round(ran.cpu_s, 2), "made": plain(ran.made)}


def plain(made: Any) -> Any:
    """Return a value as JSON holds it; fields of a dataclass that have their defaults are left out.

    >>> plain(Ran((1, 2.5), 0.1))
    {'made': [1, 2.5], 'cpu_s': 0.1}
    """
    if is_dataclass(made):
        return {
            each.name: plain(value)
            for each in fields(made)
            if (value := getattr(made, each.name)) != default(each)
        }
    if isinstance(made, Mapping):
        return {name: plain(each) for name, each in made.items()}
    if isinstance(made, list | tuple):
        return [plain(each) for each in made]
    return msgspec.to_builtins(made)


def default(each: Field[Any]) -> Any:
    """Return the default of a dataclass's field; MISSING if it has none."""
    if each.default_factory is not MISSING:
        return each.default_factory()
    return each.default
