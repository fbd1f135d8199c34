"""Tables of docs/reproductions and docs/figures, from their JSON: `make pages`.

A table stands between two comments, and is never edited by hand:

    <!-- from results/haaf-fig12.json -->
    <!-- end -->

The path is relative to the page. `, crossed at ": "` after it makes a line of what stands before
this text in what a row is a figure of, and a column of what follows
(`papers.comparison`). Where the first comment says `to come from` instead of `from`,
figures are older than their JSON: what stands between the comments stays until the file is there.

A benchmark's JSON is not of one form, so the first comment names the records and the columns:

    <!-- from ../../benchmarks/results/wan_small.json, rows: route; s = round_s -->

`rows` is a key whose value holds the records: a list, or a table by name, whose names are then the
first column. Each column has a heading and a path of keys (`before.round_s`); ` %` after the path
shows a share as a percentage. Medians are shown with the least and the most.

Below a table of `papers` its notes are folded away.

A page `results/NAME.md` is what `python -m papers` wrote beside `results/NAME.json`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from papers import Row, comparison, page

DOCS = Path(__file__).parent
BLOCK = re.compile(
    r"<!-- (?P<when>to come from|from) (?P<path>\S+?\.json)"
    r"(?:, crossed at \"(?P<at>[^\"]+)\"|, (?P<records>\w+): (?P<columns>[^>]+))? -->\n"
    r".*?<!-- end -->",
    re.DOTALL,
)


def pages() -> list[Path]:
    """Return the pages that have tables, or are made as a whole."""
    return sorted([*DOCS.glob("reproductions/**/*.md"), *DOCS.glob("figures/*.md")])


def rendered(text: str, folder: Path) -> str:
    """Return a page with the tables that its JSON files hold.

    Args:
        text: the page.
        folder: where it lies; paths are relative to it.

    Raises:
        FileNotFoundError: a comment names a JSON that is not there.
    """

    def block(found: re.Match[str]) -> str:
        path, at = folder / found["path"], found["at"]
        if found["when"] == "to come from" and not path.exists():
            return found[0]
        document = json.loads(path.read_text("utf-8"))
        if found["records"]:
            how = f"{found['path']}, {found['records']}: {found['columns']}"
            table = _records(document[found["records"]], found["columns"].split("; "))
            about = _conditions(document["machine"], document.get("load_average_before"))
            source = f"([JSON]({found['path']}): {about})"
            return f"<!-- from {how} -->\n\n{table}\n\n{source}\n\n<!-- end -->"
        crossed = f', crossed at "{at}"' if at else ""
        table = comparison([Row(**row) for row in document["rows"]], crossed_at=at)
        options = " --quick" if document["quick"] else ""
        options += " --emulate" if document["world"] == "emulated" else ""
        options += f" --seed {document['seed']}" if document["seed"] else ""
        command = f"python -m papers {document['experiment']}{options}"
        commit = document["commit"][:7]
        commit += " with uncommitted changes" if document["commit"].endswith("-dirty") else ""
        return (
            f"<!-- from {found['path']}{crossed} -->\n\n{table}\n\n"
            f"{_folded(document['notes'])}"
            f"([JSON]({found['path']}), by `{command}` at commit {commit})\n\n"
            "<!-- end -->"
        )

    return BLOCK.sub(block, text)


def _folded(notes: Sequence[str]) -> str:
    """Return the conditions of a table, to be opened by a click; nothing where there are none."""
    if not notes:
        return ""
    paragraphs = "".join(f"<p>{escape(each, quote=False)}</p>\n" for each in notes)
    return f"<details>\n<summary>Conditions</summary>\n{paragraphs}</details>\n\n"


def _records(records: Any, columns: list[str]) -> str:
    """Return a table of a benchmark's records; see the module's docstring for the columns."""
    heads, paths = zip(*(each.partition(" = ")[::2] for each in columns), strict=True)
    if isinstance(records, dict):
        rows = [[name, *(_cell(each, at) for at in paths[1:])] for name, each in records.items()]
    else:
        rows = [[_cell(each, at) for at in paths] for each in records]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def _cell(record: Any, at: str) -> str:
    path, unit, _ = at.partition(" %")
    scale = 100.0 if unit else 1.0
    for key in path.split("."):
        if "failed" in record:
            return "failed"
        if key not in record:
            return ""
        record = record[key]
    if isinstance(record, dict):
        middle, all_ = record["median"], record["all"]
        spread = f" ({_number(min(all_))} to {_number(max(all_))})" if len(all_) > 1 else ""
        return f"{_number(middle)}{spread}"
    return record if isinstance(record, str) else f"{_number(record * scale)}{unit}"


def _number(value: float) -> str:
    """Return a number with three digits that count; all of a whole number's."""
    if value == 0 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _conditions(machine: Any, load_before: list[float] | None) -> str:
    """Return what a benchmark ran on, as its JSON says."""
    load = load_before or machine.get("load_average")
    said = [machine["cpu"], f"{machine['cores']} cores"]
    said += [f"load average {load[0]:.0f}{' before it' if load_before else ''}"] if load else []
    said += ["at real-time priority"] if machine.get("real_time") else []
    return ", ".join(said)


def made(path: Path) -> str:
    """Return what a page must hold by its JSON files."""
    document = path.with_suffix(".json")
    if document.exists():
        return page(json.loads(document.read_text("utf-8")))
    return rendered(path.read_text("utf-8"), path.parent)


if __name__ == "__main__":
    for each in pages():
        if each.read_text("utf-8") != (new := made(each)):
            each.write_text(new, "utf-8")
            print(f"written: {each}")
