"""An experiment's findings beside the paper's, and the files that keep them."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from anabranch.log.releases import versions
from papers._lab import Outcome
from papers._lines import dumps


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity: the paper's value and ours.

    Args:
        what: the quantity.
        paper: the paper's value, as the paper states it; empty where it states none.
        ours: our value.
        why: which setting differs, and why our value differs.
    """

    what: str
    paper: str
    ours: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """An experiment's findings.

    Args:
        rows: the comparison.
        outcomes: the runs behind it.
        notes: for all rows, a sentence or more each.
        data: further values for the JSON, by name; numbers, texts, lists and dicts.
    """

    rows: tuple[Row, ...]
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def write_result(
    name: str, title: str, result: Result, folder: Path, *, seed: int, quick: bool, emulated: bool
) -> tuple[Path, Path, Path]:
    """Write a result as JSON, its runs as CSV, and its comparison as Markdown; return the paths.

    Args:
        name: the experiment's, such as ``netstorm/fig13``.
        title: its subject.
        result: its findings.
        folder: of the files; those of an emulated experiment have ``-emulated`` in their names.
        seed, quick, emulated: how it was made.
    """
    about = {
        "experiment": name,
        "title": title,
        "seed": seed,
        "quick": quick,
        "world": "emulated" if emulated else "simulated",
        "commit": _commit(),
        "versions": versions(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    stem = name.replace("/", "-") + ("-emulated" if emulated else "")
    written = folder / f"{stem}.json"
    document = {
        **about,
        "notes": result.notes,
        "rows": [asdict(row) for row in result.rows],
        "runs": [asdict(outcome) for outcome in result.outcomes],
        **result.data,
    }
    as_json = dumps(document) + "\n"
    written.write_text(as_json, encoding="utf-8")
    table = folder / f"{stem}.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        for key, value in about.items():
            file.write(f"# {key}: {json.dumps(value, ensure_ascii=False)}\n")
        _write_runs(file, result.outcomes)
    text = folder / f"{stem}.md"
    text.write_text(page(json.loads(as_json)), encoding="utf-8")
    return written, table, text


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
    has_why = any(row.why for row in rows)
    headings = ["", "paper", "ours", *(["what differs, and why"] if has_why else [])]
    return _table(
        headings,
        [[row.what, row.paper, row.ours, *([row.why] if has_why else [])] for row in rows],
    )


def _crossed(rows: Sequence[Row], at: str) -> str:
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        line, cut, column = row.what.rpartition(at)
        if not cut:
            raise ValueError(f"{row.what!r} cannot be cut at {at!r}")
        said = "; ".join(filter(None, (row.ours, row.why)))
        cells.setdefault(line, {})[column] = f"{said} (paper: {row.paper})" if row.paper else said
    columns = list(dict.fromkeys(column for line in cells.values() for column in line))
    return _table(
        ["", *columns],
        [[line, *(found.get(column, "") for column in columns)] for line, found in cells.items()],
    )


def _table(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    cells = [headings, ["---"] * len(headings), *lines]
    return "\n".join(f"| {' | '.join(each.replace('|', '/') for each in line)} |" for line in cells)


def _write_runs(file: TextIO, outcomes: Sequence[Outcome]) -> None:
    labels = list(dict.fromkeys(key for each in outcomes for key in each.labels))
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*labels, "round_s", "rounds", "total_s", "plans", "scenario"])
    for each in outcomes:
        writer.writerow(
            [
                *(each.labels.get(key, "") for key in labels),
                *(repr(each.round_s), each.rounds, repr(each.total_s), each.plans),
                each.scenario_file,
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
