"""What the documents point at is there, on GitHub and in the site that `make docs` builds."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import unicodedata
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

import anabranch
from anabranch._typed_toml import Table
from anabranch_lab.run.scenario import check_simulable, loads
from docs import claims, curves, tables
from papers._picture import picture

from .every import every

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
FENCE = re.compile(r"^( *)(`{3,})(\w*).*?\n(.*?)^\1\2`*$", re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[tuple[str, str]]:
    """Return where a page's relative links lead: a path, empty for the page, and an anchor."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)", text)
    return [(path, anchor) for path, anchor in found if "://" not in path]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that GitHub gives a page's headings, by its rule, and its own."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r'<a id="([^"]+)">', text)
    for heading in re.findall(r"^#{1,6} +(.*?)\s*$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().replace(" ", "-")
        kept = {
            c for c in shown if c in "-_" or unicodedata.category(c)[:1] in "LM" or c.isdecimal()
        }
        name = "".join(c for c in shown if c in kept)
        found.append(name if name not in found else f"{name}-{found.count(name)}")
    return frozenset(found)


@EACH_PAGE
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for path, _ in links(page):
        assert (page.parent / path).exists(), path


@EACH_PAGE
def test_every_link_to_a_heading_leads_to_one(page: Path) -> None:
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if anchor:
            assert target.suffix == ".md", f"{path}#{anchor}"
            assert anchor in anchors(target), f"{path}#{anchor}"


@EACH_PAGE
def test_every_file_named_in_passing_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    places = (ROOT, ROOT / "src", ROOT / "src" / "anabranch", page.parent)
    for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|toml|json))`", text):
        assert any((place / name).exists() for place in places), name


def test_each_cell_of_the_ways_in_is_filled_and_its_test_is_there() -> None:
    text = (ROOT / "docs" / "ways-in.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) > 20
    assert {len(row) for row in rows} == {3}
    assert every(cell.strip() for row in rows for cell in row)
    assert len(named_tests(text)) > 20
    assert not missing_tests(text)


def named_tests(text: str) -> list[tuple[str, str]]:
    """Return the tests that a page names: each one's file and function."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)


def missing_tests(text: str) -> list[str]:
    """Return the tests that a page names and that are not there."""
    return [
        f"{path}::{test}"
        for path, test in named_tests(text)
        if not (ROOT / path).exists()
        or not re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]


def test_each_promise_of_the_contract_on_faults_names_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "faults.md").read_text()
    rows = [line[1:-1].split("|") for line in text.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if row[0].strip() not in ("fault", "---")]
    assert len(promises) > 60
    assert {len(row) for row in promises} == {4}
    assert [row[0] for row in promises if not named_tests(row[3])] == []
    assert not missing_tests(text)


def test_a_test_that_is_not_there_is_missed() -> None:
    assert missing_tests("`tests/test_docs.py::test_none` and `tests/none.py::test_one`") == [
        "tests/test_docs.py::test_none",
        "tests/none.py::test_one",
    ]
    assert not missing_tests("`tests/test_docs.py::test_a_test_that_is_not_there_is_missed`")


def test_the_first_hour_reads_at_most_2500_lines() -> None:
    text = (ROOT / "docs" / "first-hour.md").read_text()
    stops = re.findall(r"^\| `(\S+)` \| (\d+) \|$", text, re.MULTILINE)
    lines = {path: len((ROOT / path).read_text().splitlines()) for path, _ in stops}
    assert len(lines) == len(stops) >= 10
    assert sum(lines.values()) <= 2500
    assert {p: (lines[p], n) for p, n in stops if abs(lines[p] - int(n)) > 0.2 * lines[p]} == {}
    assert text.count("*Question.*") == len(stops)
    assert [path for path, _ in stops if f"\n`{path}`" not in text] == []


MECHANISMS = sorted(ROOT.glob("docs/mechanisms/*.md"))


@pytest.mark.parametrize("page", MECHANISMS, ids=lambda page: page.name)
def test_a_mechanism_is_told_on_150_lines_of_120_characters(page: Path) -> None:
    lines = page.read_text("utf-8").splitlines()
    assert len(lines) <= 150
    prose = [line for line in lines if not line.startswith("|")]  # a table's row cannot be broken
    assert [line for line in prose if len(line) > 120] == []


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `code` span, and (more)\n\n## Same\n\n```\n# no heading\n```\n\n## Same\n\n"
        "## [Linked](else.md) R²SP: 5 %\n\n## snake_case\n"
    )
    assert anchors(page) == {
        "a-code-span-and-more",
        "same",
        "same-1",
        "linked-rsp-5-",
        "snake_case",
    }


def test_every_page_has_its_place_in_the_site() -> None:
    named = set(
        re.findall(r"^ +- (?:[\w ]+: )?([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text(), re.M)
    )
    made = {"index.md", "today.md", "examples.md", "flower-app.md"}
    made |= {"contributing.md", "changelog.md"}
    made |= {f"reference/{page}.md" for page in ("anabranch", "commands", "scenario")}
    docs = ROOT / "docs"
    pages = {page.relative_to(docs).as_posix() for page in docs.glob("**/*.md")}
    assert {page for page in pages if not page.startswith("reproductions/results/")} == named - made


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.name)
def test_a_page_has_the_tables_that_its_json_holds(page: Path) -> None:
    assert page.read_text("utf-8") == tables.made(page), "`make pages` writes it anew"


def test_curves_are_those_of_their_json() -> None:
    for file, svg in curves.pictures().items():
        assert file.read_text("utf-8") == svg, "`make pages` writes it anew"


def test_no_two_lines_of_a_panel_have_the_same_colour() -> None:
    for file in (ROOT / "docs" / "reproductions" / "results").glob("*.json"):
        drawn = json.loads(file.read_text("utf-8")).get("picture", {}).get("panels", {})
        names = list(dict.fromkeys(name for lines in drawn.values() for name in lines))
        for panel, lines in drawn.items():
            colours = {names.index(name) % len(curves.COLOURS) for name in lines}
            assert len(colours) == len(lines), f"{file.name}, {panel}"


def test_a_curve_goes_up_as_accuracy_does() -> None:
    line = [(1.0, 0.0), (180.0, 1.0)]
    panels = {network: {"a < b": line} for network in ("static", "dynamic")}
    drawn = ElementTree.fromstring(curves.picture(picture("seconds", "accuracy", panels)))
    assert {"seconds", "accuracy"} <= {each.text for each in drawn.iter()}
    lines = [each for each in drawn.iter() if each.get("stroke") == curves.COLOURS[0]]
    at = [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in lines
    ]
    assert [[y for _, y in line] for line in at] == 2 * [[298.0, 58.0]]
    assert at[1][0][0] - at[0][0][0] == 380.0
    texts = [each.text for each in drawn.iter() if each.text and each.text.strip()]
    assert {"static", "dynamic", "a < b", "180", "100%"} <= set(texts)


def test_a_grid_has_a_line_for_each_json_and_is_grey_where_none_is_first() -> None:
    cells = {
        "Gini 0": {"name": "b", "lines": ["b", "9 s"]},
        "Gini 1": {"name": "", "lines": ["none"]},
    }
    names = ["a", "b"]
    documents = [
        {"picture": {"grid": {"line": line, "names": names, "cells": cells}}}
        for line in ("lan", "wan")
    ]
    drawn = ElementTree.fromstring(curves.grid(documents))
    boxes = [each.get("fill") for each in drawn.iter() if each.tag.endswith("rect")]
    assert boxes == 2 * [curves.COLOURS[1], "#808080"]
    texts = [each.text for each in drawn.iter() if each.text and each.text.strip()]
    assert texts == ["Gini 0", "Gini 1", "lan", "b", "9 s", "none", "wan", "b", "9 s", "none"]


RESULT = {
    "experiment": "toy/fig1",
    "commit": "0123456789",
    "seed": 0,
    "quick": True,
    "world": "simulated",
    "rows": [{"what": "a: star", "paper": "9 s", "ours": "8 s", "why": ""}],
    "notes": ["Loss < 1."],
}


def test_a_table_is_made_of_the_rows_of_its_json(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(RESULT))
    folded = "<details>\n<summary>Conditions</summary>\n<p>Loss &lt; 1.</p>\n</details>"
    caption = "([JSON](toy.json), by `python -m papers toy/fig1 --quick` at commit 0123456)"
    before, after = "Said before.\n\n<!-- from toy.json", "<!-- end -->\nAnd after.\n"
    assert tables.rendered(f"{before} -->\n| old |\n{after}", tmp_path) == (
        f"{before} -->\n\n|  | paper | ours |\n| --- | --- | --- |\n| a: star | 9 s | 8 s |\n\n"
        f"{folded}\n\n{caption}\n\n{after}"
    )
    made = tables.rendered(f'{before}, crossed at ": " -->\n{after}', tmp_path)
    assert "|  | star |\n| --- | --- |\n| a | 8 s (paper: 9 s) |\n" in made
    assert tables.rendered(made, tmp_path) == made


def test_a_table_of_a_benchmark_has_the_columns_that_its_comment_names(tmp_path: Path) -> None:
    document = {
        "machine": {"cpu": "a CPU", "cores": 2, "load_average": [7.2, 1, 1], "real_time": True},
        "rows": {
            "star": {"round_s": {"median": 12.345, "all": [12.345]}, "share": 0.0987},
            "packed": {"round_s": {"median": 2.0, "all": [1.5, 2.0, 1234.5]}},
            "other": {"failed": "it ended with 1"},
        },
        "results": [{"route": "fapt", "after": {"s": 0.001234}}],
    }
    (tmp_path / "toy.json").write_text(json.dumps(document))
    made = tables.rendered(
        "<!-- from toy.json, rows: route; s = round_s; of the limit = share % -->\n<!-- end -->\n",
        tmp_path,
    )
    assert (
        "| route | s | of the limit |\n| --- | --- | --- |\n| star | 12.3 | 9.87 % |\n"
        "| packed | 2 (1.50 to 1,234) |  |\n| other | failed | failed |\n"
    ) in made
    assert "([JSON](toy.json): a CPU, 2 cores, load average 7, at real-time priority)" in made
    assert tables.rendered(made, tmp_path) == made
    made = tables.rendered(
        "<!-- from toy.json, results: route = route; s = after.s -->\n<!-- end -->\n", tmp_path
    )
    assert "| route | s |\n| --- | --- |\n| fapt | 0.00123 |\n" in made


def test_a_table_that_waits_for_its_json_stays_until_the_file_is_there(tmp_path: Path) -> None:
    text = "<!-- to come from toy.json -->\n\nOlder.\n\n| old |\n\n<!-- end -->\n"
    assert tables.rendered(text, tmp_path) == text
    (tmp_path / "toy.json").write_text(json.dumps(RESULT))
    made = tables.rendered(text, tmp_path)
    assert "<!-- from toy.json -->\n\n|  | paper | ours |\n" in made
    assert "old" not in made
    with pytest.raises(FileNotFoundError):
        tables.rendered(text.replace("to come from toy", "from other"), tmp_path)


@pytest.mark.parametrize("page", claims.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_measured_number_is_traced_to_a_json(page: Path) -> None:
    found = claims.claims(page.read_text("utf-8"), claims.results())
    bare = [claim.text for claim in found if not claim.files and not claim.off]
    assert bare == [], "see `make claims`"


NAMES = ("a.json", "b_1.json", "b_2.json")


def traced(page: str) -> list[tuple[str, tuple[str, ...], str]]:
    """Return how each claim of a page is traced: by what, to which files, or why not."""
    found = claims.claims(page, NAMES)
    return [(claim.where, claim.files, claim.off) for claim in found]


def test_a_claim_is_traced_to_the_nearest_json_that_is_named() -> None:
    assert traced(
        "# Title\n\nIt takes 3 s (`a.json`). It moves 2 GB ([all](results/b_1.json)). No number.\n"
        "Another takes 4 ms.\n\n## Section\n\nIt takes 5 s.\n\nIt is in `b_*.json`.\n"
    ) == [
        ("sentence", ("a.json",), ""),
        ("sentence", ("b_1.json",), ""),
        ("paragraph", ("a.json", "b_1.json"), ""),
        ("section", ("b_1.json", "b_2.json"), ""),
    ]


def test_what_stands_under_a_title_alone_is_not_traced_to_all_that_does() -> None:
    assert traced("# Title\n\nIt takes 3 s.\n\nSee `a.json`.\n") == [("", (), "")]


def test_a_file_that_is_not_there_traces_nothing() -> None:
    assert traced("It takes 3 s (`c.json`).\n") == [("", (), "")]


def test_a_row_of_a_table_is_a_claim_by_its_cells_that_are_not_the_papers() -> None:
    page = (
        "As in `a.json`:\n\n| pace | the paper | round, s | of BSP |\n| --- | --- | --- | --- |\n"
        "| BSP, lead 1.5 | 9.1 | 4 | |\n| ASP | 7.5 | none | 0.5 (0.4 to 0.6) |\n"
        "| other | 3.5 | none | 3 of 8 |\n"
    )
    first, second = claims.claims(page, NAMES)
    assert (first.line, first.numbers) == (5, (("4", "s"),))
    assert (second.line, second.numbers) == (6, (("0.5", ""), ("0.4", ""), ("0.6", "")))
    assert {claim.files for claim in (first, second)} == {("a.json",)}


def test_code_is_no_claim_nor_is_a_number_without_a_unit() -> None:
    assert traced("Call `wait(3 s)` of 8 sites.\n\n```console\ntook 3 s\n```\n") == []


def test_numbers_of_a_list_have_its_unit() -> None:
    (claim,) = claims.claims("It takes 1,200, 1.5 and 8 to 9 s, or 0.9 of the time.\n", NAMES)
    times = [("1,200", "s"), ("1.5", "s"), ("8", "s"), ("9", "s")]
    assert claim.numbers == (*times, ("0.9", ""))


def test_a_comment_takes_a_sentence_off_or_alone_what_follows() -> None:
    assert traced(
        "It waits 3 s. <!-- no JSON: a parameter --> It takes 4 s (`a.json`).\n\n"
        "<!-- no JSON: the paper's -->\n\n- It takes 5 s.\n- Or 6 s (`a.json`).\n\nOr 7 s.\n"
    ) == [
        ("", (), "a parameter"),
        ("sentence", ("a.json",), ""),
        ("", (), "the paper's"),
        ("", (), "the paper's"),
        ("", (), ""),
    ]


def test_a_comment_that_names_a_json_takes_off_until_the_file_is_there() -> None:
    page = "It takes 3 s. <!-- no JSON: older than {} -->\n"
    assert traced(page.format("c.json")) == [("", (), "older than c.json")]
    assert traced(page.format("a.json")) == [("sentence", ("a.json",), "")]


def test_a_made_table_is_traced_to_its_json_and_one_to_come_to_none() -> None:
    table = "\n\n|  | ours |\n| --- | --- |\n| a | 3 s |\n\n<!-- end -->\n"
    assert traced(f"<!-- from results/a.json -->{table}") == [("made", ("a.json",), "")]
    late = f"<!-- to come from results/c.json -->{table}"
    assert traced(late) == [("", (), "older than results/c.json")]


@pytest.mark.parametrize(
    ("number", "unit", "how"),
    [
        ("1.24", "s", "value"),
        ("1,242", "ms", "value"),
        ("1.3", "s", "not found"),
        ("38", "%", "value"),
        ("0.38", "", "value"),
        ("2.00", "s", "value"),  # the median of the list
        ("17.5", "x", "value"),  # within a text
        ("1.6", "times", "quotient"),  # 2 / 1.24, of one key
        ("38.6", "%", "quotient"),  # 1.24 is so much less than 2.0225, the mean
        ("3.5", "times", "not found"),
    ],
)
def test_a_number_is_held_by_a_value_that_rounds_to_it_or_by_a_quotient(
    number: str, unit: str, how: str
) -> None:
    document = {
        "seed": 7,
        "rows": [{"round_s": 1.2418, "share": 0.3812}, {"round_s": [1.9, 2.0, 2.1675]}],
        "said": "17.5x, as ever",
        "fast": True,
        "many": list(range(1000, 1100)),
    }
    assert claims.backed(number, unit, claims.held(document)) == how


@EACH_PAGE
def test_a_comment_that_begins_a_line_ends_no_paragraph(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    assert re.findall(r"^.*\S.*\n *<!-- (?!end).*", text, re.MULTILINE) == []


def test_the_scenarios_of_the_page_about_scenarios_can_be_simulated() -> None:
    text = (ROOT / "docs/scenario.md").read_text(encoding="utf-8")
    found = [code for _, _, language, code in FENCE.findall(text) if language == "toml"]
    assert len(found) == 2
    for code in found:
        check_simulable(loads(code))


def arguments(docstring: str | None) -> list[str]:
    """Return what a docstring says that the arguments are."""
    section = re.search(r"^Args:\n((?:    .*\n?|\n)+)", inspect.cleandoc(docstring or ""), re.M)
    named = re.findall(r"^    (\S[^:]*):", section[1], re.M) if section else []
    return [name for names in named for name in names.split(", ")]


def below(cls: type[Table]) -> list[type[Table]]:
    """Return all classes that inherit from one, and are imported."""
    return [each for child in cls.__subclasses__() for each in (child, *below(child))]


def test_docstrings_name_arguments_that_there_are() -> None:
    public = [getattr(anabranch, name) for name in anabranch.__all__ if not name.startswith("_")]
    classes = [each for each in public if inspect.isclass(each)]
    methods = [of for owner in classes for _, of in inspect.getmembers(owner, inspect.isfunction)]
    for each in (*public, *methods):
        parameters = inspect.signature(each).parameters
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            assert [name for name in arguments(each.__doc__) if name not in parameters] == [], each
    for table in below(Table):  # of scenario files
        assert set(arguments(table.__doc__)) <= set(table.__struct_fields__), table


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page, said in {
        "index": "anabranch",
        "reference/anabranch": "all_reduce",
        "reference/commands": "--checkpoint-every",
        "reference/scenario": "route.kind = &#34;packed&#34;",
    }.items():
        assert said in (tmp_path / f"{page}.html").read_text("utf-8")
