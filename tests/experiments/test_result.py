"""The files of a result say how it was made, and hold every run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from anabranch import __version__
from anabranch.experiments import Outcome, Result, Row, write_result

RESULT = Result(
    (Row("trees over star", "6.7x", "2.0x", "relays pass chunks on"),),
    (
        Outcome({"system": "star", "draw": 1}, "star-1.toml", 3, 30.5, 0.1 + 0.2, 0),
        Outcome({"system": "a, b"}, "a-b.toml", 4, 20.0, 5.0, 2),
    ),
    ("One draw.",),
)


def write(folder: Path) -> tuple[Path, Path, Path]:
    return write_result(
        "netstorm/fig99", "a title", RESULT, folder, seed=7, quick=True, emulated=False
    )


def test_the_page_has_seed_versions_rows_and_runs(tmp_path: Path):
    page, _, _ = write(tmp_path / "new")
    assert page.name == "netstorm-fig99.json"
    found = json.loads(page.read_text())
    assert (found["seed"], found["quick"], found["world"]) == (7, True, "simulated")
    assert found["versions"]["anabranch"] == __version__
    assert "commit" in found
    assert found["rows"] == [
        {
            "what": "trees over star",
            "paper": "6.7x",
            "ours": "2.0x",
            "why": "relays pass chunks on",
        }
    ]
    assert found["runs"][0]["labels"] == {"system": "star", "draw": 1}
    assert found["notes"] == ["One draw."]


def test_the_table_has_a_line_for_each_run_and_a_column_for_each_label(tmp_path: Path):
    _, table, _ = write(tmp_path)
    lines = table.read_text().splitlines()
    about = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    assert about["experiment"] == '"netstorm/fig99"'
    assert about["seed"] == "7"
    rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
    assert [row["system"] for row in rows] == ["star", "a, b"]
    assert [row["draw"] for row in rows] == ["1", ""]
    assert float(rows[0]["round_s"]) == 0.1 + 0.2
    assert rows[1]["scenario"] == "a-b.toml"


def test_the_comparison_is_a_page(tmp_path: Path):
    _, _, text = write(tmp_path)
    lines = text.read_text().splitlines()
    assert lines[0] == "# netstorm/fig99: a title"
    assert lines[2].startswith("By `anabranch reproduce netstorm/fig99`, commit ")
    assert lines[4:] == [
        "|  | paper | ours | what differs, and why |",
        "| --- | --- | --- | --- |",
        "| trees over star | 6.7x | 2.0x | relays pass chunks on |",
        "",
        "One draw.",
    ]


def test_the_same_result_is_written_alike(tmp_path: Path):
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
