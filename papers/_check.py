"""Check results against today's scripts and today's code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import papers
from anabranch_lab.tasks.kinds import DataError
from papers import _scripts
from papers._lab import Lab
from papers._record import Ran, Record, plain
from papers._result import said

RESULTS = Path(__file__).parent.parent / "docs" / "reproductions" / "results"

OF_THE_RUNS = (
    *("experiment", "title", "seed", "quick", "world", "commit", "versions"),
    *("language", "runs"),
)
"""Keys of a result's JSON that only new runs change."""
_SAME = 1e-6
"""Between a number and the same one of another machine; last bits of sums of floats differ."""


class Missing(Exception):
    """The smallest run has been made again: the script need not go on.

    Args:
        settings: of the run.
        ran: the whole run, also what its script does not use.
    """

    def __init__(self, settings: Any, ran: Ran[Any]) -> None:
        self.settings, self.ran = settings, ran


@dataclass(frozen=True, slots=True)
class AllButOne:
    """A :class:`papers._record.Store` of recorded runs, without one, which is made again.

    Args:
        record: all runs.
        key: of the run that is missing.
    """

    record: Record
    key: str

    def find(self, settings: Any, kind: type[Any]) -> Ran[Any] | None:
        """Return the recorded run, or None for the missing one."""
        ran = self.record.find(settings, kind)
        return None if self.record.key_of(settings) == self.key else ran

    def add(self, settings: Any, ran: Ran[Any]) -> None:
        """Say that the run was made again."""
        raise Missing(settings, ran)


def differences(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield how today's script differs from a result's JSON, without making a run.

    Raises:
        NotRecorded: the script is gone, or it asks for a run that was not made: its settings have
            changed.
    """
    record = Record.of(document)
    now = json.loads(json.dumps(said(_experiment(document).make(_lab(document, record)))))
    was = {name: of for name, of in document.items() if name not in OF_THE_RUNS}
    for ours, theirs in zip(now["rows"], was["rows"], strict=False):
        if ours != theirs:
            yield f"a row is {ours} now, and was {theirs}"
    if len(now["rows"]) != len(was["rows"]):
        yield f"there are {len(now['rows'])} rows now, and there were {len(was['rows'])}"
    if now["notes"] != was["notes"]:
        yield f"the notes are {now['notes']} now, and were {was['notes']}"
    for name in sorted((now.keys() | was.keys()) - {"rows", "notes"}):
        if now.get(name) != was.get(name):
            yield f"{name} differs"
    if unasked := record.runs.keys() - record.asked:
        yield f"its script does not ask for {len(unasked)} of its runs, such as {min(unasked)}"


def said_anew(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result's JSON with what today's script says of its runs, without unused ones.

    Raises:
        NotRecorded: see :func:`differences`.
    """
    about = {name: document[name] for name in OF_THE_RUNS if name not in ("language", "runs")}
    record = Record.of(document)
    result = _experiment(document).make(_lab(document, record))
    runs = [each for each in document["runs"] if each["key"] in record.asked]
    return {**about, **said(result), "language": document["language"], "runs": runs}


@dataclass(frozen=True, slots=True)
class Again:
    """The smallest run of a result, made again.

    Args:
        about: its labels, or its key.
        cpu_s: CPU time that it took now, seconds.
        differs: fields that differ, as text; empty where the run came to the same.
    """

    about: str
    cpu_s: float
    differs: tuple[str, ...]


def again(document: Mapping[str, Any], data_dir: Path | None) -> Again | None:
    """Make a result's smallest run again; None where it has no run, or runs of real processes.

    A number that a script computes before its runs, such as how long they last, is no run if there
    are others.

    Raises:
        DataError: the run needs data that are not here.
    """
    record = Record.of(document)
    if document["world"] == "emulated" or not record.runs:
        return None
    each_run = record.runs.values()
    runs = [each for each in each_run if isinstance(each["made"], Mapping)] or each_run
    smallest = min(runs, key=lambda each: (each["cpu_s"], each["key"]))
    store = AllButOne(record, smallest["key"])
    lab = _lab(document, store, data_dir)
    try:
        _experiment(document).make(lab)
    except Missing as missing:
        ran, now = missing.ran, plain(missing.ran.made)
        recorded = lab.record.runs.get(lab.record.key_of(missing.settings))
    else:
        raise DataError("its script does without the data that its smallest run needs")
    was = smallest["made"]
    if recorded is not None:  # what this part of the script uses, and what others use
        now = recorded["made"] | {name: now[name] for name in now.keys() & was.keys()}
    labels = was.get("labels", {}) if isinstance(was, Mapping) else {}
    about = ", ".join(map(str, labels.values())) or smallest["key"]
    return Again(about, ran.cpu_s, tuple(_differing(was, json.loads(json.dumps(now)))))


def _differing(was: Any, now: Any, where: str = "") -> Iterator[str]:
    if isinstance(was, dict) and isinstance(now, dict):
        for name in sorted(was.keys() | now.keys()):
            if name not in ("labels", "scenario_file"):
                yield from _differing(was.get(name), now.get(name), f"{where}.{name}".strip("."))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for number, pair in enumerate(zip(was, now, strict=True)):
            yield from _differing(*pair, f"{where}[{number}]")
    elif isinstance(was, float) and isinstance(now, float):
        if not math.isclose(was, now, rel_tol=_SAME, abs_tol=_SAME):
            yield f"{where} was {was}, is {now}"
    elif was != now:
        yield f"{where} was {was}, is {now}"


def documents(folder: Path, names: Iterable[str] = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the results in a folder, in order: of all experiments, or of some or their papers."""
    found = [(path, json.loads(path.read_text("utf-8"))) for path in sorted(folder.glob("*.json"))]
    of_paper: dict[str, set[str]] = {}
    for _, document in found:
        name = document["experiment"]
        for each in (name, name.partition("/")[0]):
            of_paper.setdefault(each, set()).add(name)
    wanted = set[str]()
    for name in names:  # of a script that is gone, too
        wanted |= of_paper.get(name) or {each.name for each in _scripts.find(name)}
    for path, document in found:
        if not wanted or document["experiment"] in wanted:
            yield path, document


def _experiment(document: Mapping[str, Any]) -> papers.Experiment:
    name = document["experiment"]
    if name not in _scripts.EXPERIMENTS:
        raise papers.NotRecorded(f"no script makes {name}; remove its JSON")
    return _scripts.EXPERIMENTS[name]


def _lab(
    document: Mapping[str, Any], store: Record | AllButOne, data_dir: Path | None = None
) -> Lab:
    return Lab(
        None,
        quick=document["quick"],
        seed=document["seed"],
        emulate=document["world"] == "emulated",
        data_dir=data_dir,
        kept=store,
    )
