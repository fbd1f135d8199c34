"""What an experiment found, beside what the paper says, and the files that keep it."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from anabranch.experiments._lab import Outcome
from anabranch.run.control import versions


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: the paper's and ours.

    Args:
        what: what it is a figure of.
        paper: the paper's, as it states it; empty where it states none.
        ours: ours.
        why: which setting differs, and why ours is another.
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
        outcomes: the runs it was made of.
        notes: what holds for all rows, a sentence each.
        data: what else the JSON is to keep, by name; numbers, texts, lists and dicts.
    """

    rows: tuple[Row, ...]
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)


def write_result(
    name: str, title: str, result: Result, folder: Path, *, seed: int, quick: bool, emulated: bool
) -> tuple[Path, Path, Path]:
    """Write a result as JSON, its runs as CSV, and its comparison as Markdown; return where.

    Args:
        name: the experiment's, such as ``netstorm/fig13``.
        title: what it is about.
        result: what it found.
        folder: where to.
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
    stem = name.replace("/", "-")
    page = folder / f"{stem}.json"
    document = {
        **about,
        "notes": result.notes,
        "rows": [asdict(row) for row in result.rows],
        "runs": [asdict(outcome) for outcome in result.outcomes],
        **result.data,
    }
    page.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    table = folder / f"{stem}.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        for key, value in about.items():
            file.write(f"# {key}: {json.dumps(value, ensure_ascii=False)}\n")
        _write_runs(file, result.outcomes)
    text = folder / f"{stem}.md"
    text.write_text(_markdown(name, title, result, about), encoding="utf-8")
    return page, table, text


def _markdown(name: str, title: str, result: Result, about: Mapping[str, Any]) -> str:
    """Return the comparison as a page."""
    has_why = any(row.why for row in result.rows)
    headings = ["", "paper", "ours", *(["what differs, and why"] if has_why else [])]
    lines = [
        f"# {name}: {title}",
        "",
        f"By `anabranch reproduce {name}`, commit {about['commit']}.",
    ]
    lines += ["", f"| {' | '.join(headings)} |", f"| {' | '.join('---' for _ in headings)} |"]
    for row in result.rows:
        cells = [row.what, row.paper, row.ours, *([row.why] if has_why else [])]
        lines.append(f"| {' | '.join(each.replace('|', '/') for each in cells)} |")
    for note in result.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


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
    # An installed copy may lie in a checkout of something else.
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
