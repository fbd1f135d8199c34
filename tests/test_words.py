"""Prose names the machine that acts: a short list of words that hide it, and what to write instead.

It reads docstrings, comments and messages of src/, and the pages. Rows of tables are left out: they
come from result files, as runs wrote them. Code between back quotes and in fences is, too.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

WORDS = {
    r"(no|some|any|every)(body|one)|no one": "the thing that acts: a site, a worker, a task",
    r"whom|whoever": "the noun, or which",
    r"lets? [^.,;:]{0,40}go on": "permit, release, wake",
    r"what is (not )?there": "the noun; what has come",
}
"""By the pattern of what not to write, of whole words: what to write."""

AS_A_NAME = re.compile(r"``.*?``|`.*?`|:\w+:`.*?`", re.S)
FENCE = re.compile(r"^( *)```.*?^\1```", re.M | re.S)


def prose(source: str) -> list[tuple[int, str]]:
    """Return docstrings, messages and comments of a Python file, each with its line."""
    found = []
    inside: set[ast.AST] = set()  # of an f-string, which is read whole
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            parts = [v.value if isinstance(v, ast.Constant) else "{}" for v in node.values]
            found.append((node.lineno, "".join(map(str, parts))))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            found.append((node.lineno, node.value))
    before = 0  # the line of a comment that has a line of its own
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text, line = token.string.lstrip("# "), token.start[0]
            is_alone = token.line.lstrip().startswith("#")
            if is_alone and before == line - 1:
                text = f"{found.pop()[1]} {text}"
            found.append((line, text))
            before = line if is_alone else 0
    return [(line, text) for line, text in found if " " in text]


def paragraphs(page: str) -> list[tuple[int, str]]:
    """Return the paragraphs of a page, each with its line."""
    blank = FENCE.sub(lambda found: "\n" * found.group().count("\n"), page)
    pieces = re.finditer(r"^[#|].*|(?:^[^#|\n].*\n?)+", blank, re.M)
    found = [(blank.count("\n", 0, piece.start()) + 1, piece.group()) for piece in pieces]
    return [(line, text) for line, text in found if not text.startswith("|")]


def of(path: Path) -> list[tuple[int, str]]:
    """Return what people read of a file, each piece with its line."""
    text = path.read_text(encoding="utf-8")
    return paragraphs(text) if path.suffix == ".md" else prose(text)


def mannerisms(path: Path) -> list[str]:
    """Return each hit in a file, as a line to go to."""
    pieces = [(line, " ".join(AS_A_NAME.sub("_", text).split())) for line, text in of(path)]
    return [
        f"{path.relative_to(ROOT)}:{line}: {hit.group()!r}; write {instead}"
        for line, text in pieces
        for pattern, instead in WORDS.items()
        for hit in re.finditer(rf"\b({pattern})\b", text, re.I)
    ]


@pytest.mark.parametrize("folder", ["src/anabranch", "src/anabranch_lab", "docs"])
def test_prose_names_the_thing_that_acts(folder: str) -> None:
    files = [*(ROOT / folder).rglob("*.md" if folder == "docs" else "*.py")]
    if folder == "docs":
        files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert len(files) > 10
    hits = [hit for path in sorted(files) for hit in mannerisms(path)]
    assert not hits, "\n".join(hits)


def test_docstrings_comments_messages_and_pages_are_read_but_neither_code_nor_tables() -> None:
    code = '"""Nobody\nwaits here."""\n\nx = f"a {1} for" " whom"  # so on\n# what is\n# there\n'
    assert [text for _, text in prose(code)] == [
        "Nobody\nwaits here.",
        "a {} for whom",
        "so on",
        "what is there",
    ]
    page = "# Whom\n\nText\nof `whom`.\n\n| whom |\n\n```\nwhom\n```\n"
    assert paragraphs(page) == [(1, "# Whom"), (3, "Text\nof `whom`.\n")]
