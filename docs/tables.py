"""Tables of docs/reproductions, from the JSON of `python -m papers`: `make pages`.

A table stands between two comments, and is never edited by hand:

    <!-- from results/haaf-fig12.json -->
    <!-- end -->

The path is relative to the page. `, crossed at ": "` after it makes a line of what stands before
this text in what a row is a figure of, and a column of what follows
(`papers.comparison`). Where the first comment says `to come from` instead of `from`,
figures are older than their JSON: what stands between the comments stays until the file is there.

A page `results/NAME.md` is what `python -m papers` wrote beside `results/NAME.json`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from papers import Row, comparison, page

REPRODUCTIONS = Path(__file__).parent / "reproductions"
BLOCK = re.compile(
    r"<!-- (?P<when>to come from|from) (?P<path>\S+?\.json)"
    r"(?:, crossed at \"(?P<at>[^\"]+)\")? -->\n.*?<!-- end -->",
    re.DOTALL,
)


def pages() -> list[Path]:
    """Return the pages that have tables, or are made as a whole."""
    return sorted(REPRODUCTIONS.glob("**/*.md"))


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
        crossed = f', crossed at "{at}"' if at else ""
        document = json.loads(path.read_text("utf-8"))
        table = comparison([Row(**row) for row in document["rows"]], crossed_at=at)
        options = " --quick" if document["quick"] else ""
        options += " --emulate" if document["world"] == "emulated" else ""
        options += f" --seed {document['seed']}" if document["seed"] else ""
        command = f"python -m papers {document['experiment']}{options}"
        commit = document["commit"][:7]
        commit += " with uncommitted changes" if document["commit"].endswith("-dirty") else ""
        return (
            f"<!-- from {found['path']}{crossed} -->\n\n{table}\n\n"
            f"([JSON]({found['path']}), by `{command}` at commit {commit})\n\n"
            "<!-- end -->"
        )

    return BLOCK.sub(block, text)


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
