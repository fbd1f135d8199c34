"""What `make docs` needs beyond mkdocs: pages made at build, and pages read as GitHub reads them.

- The README and other documents outside `docs/` become pages (`DOCUMENTS`).
- A file of the repository that a page links to, outside `docs/`, becomes a page that shows it, or
  is copied; a folder becomes a list of its files. So the site needs no address of a repository.
- The reference is made from docstrings and from the command line itself.
- Lists are indented by four, as Python-Markdown wants them; GitHub reads them either way.

mkdocs loads this file by its path, and calls the functions `on_...`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import typer.main
from markdown_it import MarkdownIt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import anabranch
from anabranch_lab.cli import app
from anabranch_lab.run.scenario import Scenario

ROOT = Path(__file__).parent.parent
DOCUMENTS = {
    "README.md": "index.md",
    "examples/README.md": "examples.md",
    "examples/interop/flower-app/README.md": "flower-app.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown"}
LINK = re.compile(r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=\))")
ROLE = re.compile(r":(?:class|func|meth|data|mod|exc|attr):<code>([\w.]+)</code>")

_origins: dict[str, str] = {}  # by page: the document that its relative links start from
_made: dict[str, str] = {}  # by path in the repository, of what lies outside docs/: its place here


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all pages that have no file in docs/."""
    _origins.clear()
    _made.clear()
    texts = {page: (ROOT / path).read_text("utf-8") for path, page in DOCUMENTS.items()}
    _origins.update({page: path for path, page in DOCUMENTS.items()})
    _made.update(DOCUMENTS)
    for file in files.documentation_pages():
        _origins[file.src_uri] = f"docs/{file.src_uri}"
        texts[file.src_uri] = Path(str(file.abs_src_path)).read_text("utf-8")
    for page, text in texts.items():
        if page not in files.src_uris:
            files.append(File.generated(config, page, content=text))
        for target, _ in LINK.findall(text):
            path = _path(_origins[page], target)
            if path is not None and not path.endswith(".md"):
                _show(path, files, config)
    for page, text in {
        "reference/anabranch.md": _public_names(),
        "reference/commands.md": _commands(),
        "reference/scenario.md": _tables(),
    }.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to pages of the site, and indent lists."""
    origin, uri = _origins.get(page.file.src_uri), page.file.src_uri
    if origin is None:
        return markdown

    def lead(link: re.Match[str]) -> str:
        path = _path(origin, link[1])
        if path is None:
            return link[0]
        place = _made.get(path, path.removeprefix("docs/"))
        return os.path.relpath(place, PurePosixPath(uri).parent) + (link[2] or "")

    return _indent_lists(LINK.sub(lead, markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Make links of names that docstrings mention, where the reference has them."""

    def refer(role: re.Match[str]) -> str:
        name = role[1].removeprefix("anabranch.")
        return f'<autoref optional identifier="anabranch.{name}"><code>{role[1]}</code></autoref>'

    return ROLE.sub(refer, html)


def _path(origin: str, target: str) -> str | None:
    """Return the path in the repository that a link leads to; None if it leaves it or its page."""
    if not target or "://" in target:
        return None
    return os.path.normpath(PurePosixPath(origin).parent / target)


def _show(path: str, files: Files, config: MkDocsConfig) -> None:
    """Make a page of a file or a folder, or copy the file, unless mkdocs does so already."""
    source = ROOT / path
    if path in _made or (path.startswith("docs/") and source.is_file()):
        return
    if not source.exists():
        return  # mkdocs warns of the link
    if source.is_dir():
        entries = sorted(each for each in source.iterdir() if each.name[0] not in "._")
        for entry in entries:
            _show(f"{path}/{entry.name}", files, config)
        _made[path] = f"files/{path}/index.md"
        links = (
            f"- [{each.name}]({os.path.relpath(place, f'files/{path}')})"
            for each in entries
            for at in [f"{path}/{each.name}"]
            for place in [_made.get(at, at.removeprefix("docs/"))]
        )
        text = f"# {path}\n\n" + "\n".join(links) + "\n"
    elif language := LANGUAGES.get(source.suffix):
        _made[path] = f"files/{path}.md"
        text = f"# {path}\n\n`````{language}\n{source.read_text('utf-8')}`````\n"
    else:
        _made[path] = f"files/{path}"
        files.append(File.generated(config, _made[path], abs_src_path=str(source)))
        return
    file = File.generated(config, _made[path], content=text)
    file.inclusion = InclusionLevel.NOT_IN_NAV
    files.append(file)


def _public_names() -> str:
    """Return the reference of what `import anabranch` gives."""
    names = [name for name in anabranch.__all__ if not name.startswith("_")]
    functions = [name for name in names if inspect.isfunction(getattr(anabranch, name))]
    errors = [name for name in names if name.endswith(("Error", "Aborted"))]
    parts = {
        "Ways to join": functions,
        "Classes": [name for name in names if name not in functions and name not in errors],
        "Errors": errors,
    }
    parts["Classes"].sort(key=lambda name: name != "Group")  # first what `join` returns
    text = "# Python: `import anabranch`\n"
    for title, members in parts.items():
        text += f"\n## {title}\n"
        for name in members:
            text += f"\n::: anabranch.{name}\n    options: {{heading_level: 3}}\n"
    return text


def _commands() -> str:
    """Return what every command says of itself, with its arguments and options."""
    group: Any = typer.main.get_command(app)
    text = f"# Command line: `anabranch`\n\n{group.help}\n"
    for name, command in group.commands.items():
        context = command.context_class(command, info_name=name)
        usage = " ".join(["anabranch", name, *command.collect_usage_pieces(context)])
        text += f"\n## {name}\n\n```console\n{usage}\n```\n\n{inspect.cleandoc(command.help)}\n"
        records = [each.get_help_record(context) for each in command.params]
        rows = [f"| `{_cell(spelt)}` | {_cell(said)} |" for spelt, said in filter(None, records)]
        if rows:
            text += "\n| option | |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    return text


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _tables() -> str:
    """Return the reference of every table that a scenario file may have, from its docstring."""
    text = "# Scenario files: every table and key\n\nEach parameter is a key of its table.\n"
    for place, table in _structs(msgspec.inspect.type_info(Scenario), "", set()):
        kind = table.__struct_config__.tag
        title = f'{place}.kind = "{kind}"' if kind else f"[{place}]" if place else "The whole file"
        text += (
            f"\n::: {table.__module__}.{table.__qualname__}\n"
            f"    options: {{heading: '{title}', toc_label: '{title}', "
            "heading_level: 2, members: false, separate_signature: false}\n"
        )
    return text


def _structs(found: Any, place: str, seen: set[Any]) -> Iterator[tuple[str, Any]]:
    """Yield each struct that may stand at a place of a file, or within one, and its own place."""
    if isinstance(found, msgspec.inspect.StructType):
        if found.cls not in seen:
            seen.add(found.cls)
            yield place, found.cls
            for field in found.fields:
                inner = f"{place}.{field.encode_name}" if place else field.encode_name
                yield from _structs(field.type, inner, seen)
        return
    parts = [getattr(found, name, ()) for name in ("types", "item_types")]
    parts += [
        [getattr(found, name)] for name in ("item_type", "value_type") if hasattr(found, name)
    ]
    for part in parts:
        for each in part:
            yield from _structs(each, place, seen)


def _indent_lists(text: str) -> str:
    """Return the text with what is in lists indented by four, and blank lines where they are due.

    Python-Markdown wants one before a list, and after an item of several paragraphs. It wants one
    word after a fence, the language.
    """
    lines = text.split("\n")
    depth, offset = [0] * len(lines), [0] * len(lines)  # of each line: lists it is in, its indent
    markers: dict[int, str] = {}
    spaced: set[int] = set()
    level = 0
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "list_item_open" and token.map is not None:
            level += 1
            begin, end = token.map
            marker = re.match(r"\s*([-*+]|\d+[.)])\s+", lines[begin])
            assert marker is not None, lines[begin]
            markers[begin] = marker[1]
            depth[begin:end] = [level] * (end - begin)
            offset[begin:end] = [len(marker[0])] * (end - begin)
            if not all(line.strip() for line in lines[begin:end]):
                spaced.add(end)
        elif token.type == "list_item_close":
            level -= 1
        elif token.type == "fence" and token.map is not None and " " in token.info:
            first = token.map[0]
            lines[first] = lines[first].removesuffix(token.info) + token.info.split()[0]
        elif token.type.endswith("list_open") and token.map is not None and level == 0:
            spaced.add(token.map[0])
    made = []
    for number, line in enumerate(lines):
        if number in spaced and made and made[-1]:
            made.append("")
        outer, rest = depth[number], line[offset[number] :]
        if number in markers:
            outer, rest = outer - 1, f"{markers[number]} {rest}"
        elif line[: offset[number]].strip():  # a paragraph's line that is not indented
            rest = line.lstrip()
        made.append("    " * outer + rest if rest.strip() else "")
    return "\n".join(made)
