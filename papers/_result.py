"""An experiment's findings beside the paper's, and the files that keep them."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from anabranch.log.releases import versions
from papers._lines import dumps
from papers._record import plain

if TYPE_CHECKING:
    from papers._experiment import Experiment
    from papers._lab import Lab

_HEADINGS = {
    "what": "",
    "paper": "paper",
    "literal": "literal",
    "ours": "ours",
    "seeds": "seeds",
    "why": "what differs, and why",
}
_ALWAYS = ("what", "paper", "ours")


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity: the paper's value and ours.

    Args:
        what: the quantity.
        paper: the paper's value, as the paper states it; empty where it states none.
        ours: our value.
        why: which setting differs or is smaller, and why our value differs: an experiment that
            isolates the reason, or that it is not known.
        literal: the value of the paper's scheme as its text has it, where ours is another scheme.
        seeds: how many, and of what.
    """

    what: str
    paper: str
    ours: str
    why: str = ""
    literal: str = ""
    seeds: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """An experiment's findings.

    Args:
        rows: the comparison.
        notes: for all rows, a sentence or more each.
        data: further values for the JSON, by name; numbers, texts, lists and dicts.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def write_result(
    experiment: Experiment, result: Result, lab: Lab, folder: Path
) -> tuple[Path, Path, Path]:
    """Write a result as JSON, its runs as CSV, and its comparison as Markdown; return the paths.

    Args:
        experiment: what was made.
        result: its findings.
        lab: made its runs.
        folder: of the files; those of an emulated experiment have ``-emulated`` in their names.
    """
    about = {
        "experiment": experiment.name,
        "title": experiment.title,
        "seed": lab.seed,
        "quick": lab.quick,
        "world": "emulated" if lab.emulate else "simulated",
        "commit": _commit(),
        "versions": versions(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    stem = experiment.name.replace("/", "-") + ("-emulated" if lab.emulate else "")
    written = folder / f"{stem}.json"
    document = {
        **about,
        **said(result),
        "language": sorted(lab.record.language),
        "runs": list(lab.record.runs.values()),
    }
    as_json = dumps(document) + "\n"
    written.write_text(as_json, encoding="utf-8")
    table = folder / f"{stem}.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        for key, value in about.items():
            file.write(f"# {key}: {json.dumps(value, ensure_ascii=False)}\n")
        _write_runs(file, [each["made"] for each in lab.record.runs.values()])
    text = folder / f"{stem}.md"
    text.write_text(page(json.loads(as_json)), encoding="utf-8")
    return written, table, text


def said(result: Result) -> dict[str, Any]:
    """Return what a script says of its runs, as the JSON has it."""
    rows = [plain(row) for row in result.rows]
    return {"notes": list(result.notes), "rows": rows, **plain(result.data)}


def page(document: Mapping[str, Any]) -> str:
    """Return a result as a page in Markdown.

    Args:
        document: the content of its JSON.
    """
    name = document["experiment"]
    lines = [
        f"# {name}: {document['title']}",
        "",
        f"By `python -m papers {name}`, commit {document['commit']}.",
        "",
        comparison([Row(**row) for row in document["rows"]]),
    ]
    for note in document["notes"]:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def comparison(rows: Sequence[Row], *, crossed_at: str | None = None) -> str:
    """Return rows as a table in Markdown, without a line break at its end.

    Args:
        rows: the quantities.
        crossed_at: a text that splits each row's ``what`` at its last occurrence. The part before
            names a line of the table, the part after names a column. The cell has our value, with
            the paper's in parentheses. None: a line for each row.
    """
    if crossed_at is not None:
        return _crossed(rows, crossed_at)
    shown = [
        field for field in _HEADINGS if field in _ALWAYS or any(getattr(row, field) for row in rows)
    ]
    cells = [[getattr(row, field) for field in shown] for row in rows]
    return _table([_HEADINGS[field] for field in shown], cells)


def _crossed(rows: Sequence[Row], at: str) -> str:
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        line, cut, column = row.what.rpartition(at)
        if not cut:
            raise ValueError(f"{row.what!r} cannot be cut at {at!r}")
        literal = row.literal and f"literal {row.literal}"
        said = "; ".join(filter(None, (row.ours, literal, row.seeds, row.why)))
        cells.setdefault(line, {})[column] = f"{said} (paper: {row.paper})" if row.paper else said
    columns = list(dict.fromkeys(column for line in cells.values() for column in line))
    return _table(
        ["", *columns],
        [[line, *(found.get(column, "") for column in columns)] for line, found in cells.items()],
    )


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(each.replace('|', '/') for each in line)} |" for line in cells)


def _write_runs(file: TextIO, made: Sequence[Any]) -> None:
    outcomes = [each for each in made if isinstance(each, Mapping) and "labels" in each]
    labels = list(dict.fromkeys(key for each in outcomes for key in each["labels"]))
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*labels, "round_s", "rounds", "total_s", "plans", "scenario"])
    for each in outcomes:
        writer.writerow(
            [
                *(each["labels"].get(key, "") for key in labels),
                *(repr(each["round_s"]), each["rounds"], repr(each["total_s"]), each["plans"]),
                each["scenario_file"],
            ]
        )


def _commit() -> str | None:
    """Return the commit of the source that runs, ``-dirty`` if changed; None outside a checkout."""
    here = Path(__file__)
    # An installed copy may be in a checkout of another project.
    if not _git(here.parent, "ls-files", here.name):
        return None
    return _git(here.parent, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() or None
