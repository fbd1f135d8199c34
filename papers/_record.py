"""What runs came to, by their settings: the part of a result's JSON that its script can read again.

Everything that a run depends on, except the code, is its settings: for a trial the scenario and the
overlay, for another job the function and its argument. A run's key is a digest of them. So a script
that would run something else now does not find its run, and the page that has its figures is old.

A key that has come into the language of scenarios since then, and that has its default, changes
nothing: a JSON names the fields that its runs had.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
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

    def find(self, settings: Any, kind: type[Made]) -> Ran[Made] | None:
        """Return a run with these settings, or None."""

    def add(self, settings: Any, ran: Ran[Any]) -> None:
        """Keep a run."""


@cache  # msgspec compiles annotations at each call
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, msgspec.structs.FieldInfo], ...]:
    """Return a struct's fields, each with its name in a language, such as ``Fapt.roots``."""
    return tuple((f"{kind.__name__}.{each.name}", each) for each in msgspec.structs.fields(kind))


_AS_THEY_ARE = {str, int, bool, type(None)}  # most values, so they are looked for first


def written(settings: Any, names: set[str], language: Collection[str] | None = None) -> str:
    """Return a run's settings as text.

    Args:
        settings: structs, dataclasses, numbers and texts, also in lists, tuples and tables.
        names: gets the name of each field that the text has, such as ``Fapt.roots``.
        language: fields of structs that were there when the run was made. A field that has come
            since is left out where it has its default. None: all fields are written.
    """

    def write(value: Any) -> Any:
        if type(value) in _AS_THEY_ARE:
            return value
        if isinstance(value, msgspec.Struct):
            found = {"": type(value).__name__}
            for name, each in _fields(type(value)):
                of = getattr(value, each.name)
                if language is None or name in language or not _has_default(each, of):
                    names.add(name)
                    found[each.name] = write(of)
            return found
        if is_dataclass(value):
            told = {each.name: write(getattr(value, each.name)) for each in fields(value)}
            return {"": type(value).__name__, **told}
        if isinstance(value, Mapping):
            return {str(name): write(of) for name, of in value.items()}
        if isinstance(value, list | tuple | range):
            return [write(of) for of in value]
        if isinstance(value, float):
            return float(f"{value:.12g}")  # not its last bits, which a rearranged formula changes
        return msgspec.to_builtins(value)

    return json.dumps(write(settings))


def _has_default(each: msgspec.structs.FieldInfo, value: Any) -> bool:
    if each.default_factory is not msgspec.NODEFAULT:
        return bool(value == each.default_factory())
    return each.default is not msgspec.NODEFAULT and bool(value == each.default)


def key(text: str) -> str:
    """Return the key of a run in a JSON, by its settings as text.

    >>> key("simulated, a star")
    '8f795ff90b8a0ef2'
    """
    return sha256(text.encode()).hexdigest()[:16]


@dataclass(slots=True)
class Record:
    """Runs of an experiment, as its JSON has them: a :class:`Store` that makes no run.

    Args:
        runs: by key; each has its ``key``, its ``cpu_s``, and ``made``, what it came to.
        language: the fields of all runs' settings.
        asked: keys of the runs that were found.
    """

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    language: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Record:
        """Return the runs of a result's JSON.

        Raises:
            NotRecorded: it was made before runs had keys.
        """
        if "language" not in document:
            raise NotRecorded(f"runs of {document['experiment']} have no keys yet; make it again")
        return cls({each["key"]: each for each in document["runs"]}, set(document["language"]))

    def key_of(self, settings: Any) -> str:
        """Return the key that a run with these settings has here."""
        return key(written(settings, set(), self.language))

    def find(self, settings: Any, kind: type[Made]) -> Ran[Made]:
        """Return the run with these settings.

        Raises:
            NotRecorded: it is not there.
        """
        name = self.key_of(settings)
        self.asked.add(name)
        found = self.runs.get(name)
        if found is None:
            text = written(settings, set(), self.language)
            raise NotRecorded(f"no run has these settings: {text[:300]}")
        made = msgspec.convert(found["made"], kind, strict=False)
        return Ran(made, found["cpu_s"])

    def add(self, settings: Any, ran: Ran[Any]) -> None:
        """Record a run; fields that were recorded of it before stay."""
        name = key(written(settings, self.language))
        made = plain(ran.made)
        if name in self.runs and isinstance(made, dict):
            made = self.runs[name]["made"] | made
        self.runs[name] = {"key": name, "cpu_s": round(ran.cpu_s, 2), "made": made}


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
