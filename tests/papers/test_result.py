"""The files of a result say how it was made, and hold every run."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from anabranch import __version__
from papers import Experiment, Lab, Outcome, Result, Row, comparison, page, write_result
from papers._record import Ran

RESULT = Result(
    (Row("trees over star", "6.7x", "2.0x", "relays pass chunks on", seeds="1 draw"),),
    ("One draw.",),
)
OUTCOMES = (
    Outcome({"system": "star", "draw": 1}, "star-1.toml", 3, 30.5, 0.1 + 0.2, 0),
    Outcome({"system": "a, b"}, "a-b.toml", 4, 20.0, 5.0, 2),
)


def write(folder: Path, emulated: bool = False) -> tuple[Path, Path, Path]:
    lab = Lab(None, seed=7, quick=True, emulate=emulated)
    for outcome in OUTCOMES:
        lab.record.add(outcome.scenario_file, Ran(outcome, 0.123))
    lab.record.add("what a map makes is no run", Ran(0.5, 0.1))
    experiment = Experiment("netstorm/fig99", "a title", lambda lab: RESULT)
    return write_result(experiment, RESULT, lab, folder)


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
            "seeds": "1 draw",
        }
    ]
    assert [each["cpu_s"] for each in found["runs"]] == [0.12, 0.12, 0.1]
    assert found["runs"][0]["made"]["labels"] == {"system": "star", "draw": 1}
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
    assert lines[2].startswith("By `python -m papers netstorm/fig99`, commit ")
    assert lines[4:] == [
        "|  | paper | ours | seeds | what differs, and why |",
        "| --- | --- | --- | --- | --- |",
        "| trees over star | 6.7x | 2.0x | 1 draw | relays pass chunks on |",
        "",
        "One draw.",
    ]


def test_the_same_result_is_written_alike(tmp_path: Path):
    first, second = write(tmp_path / "a"), write(tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_an_emulated_one_is_written_beside_the_simulated(tmp_path: Path):
    write(tmp_path)
    write(tmp_path, emulated=True)
    written = {json.loads(path.read_text())["world"]: path.name for path in tmp_path.glob("*.json")}
    assert written == {
        "simulated": "netstorm-fig99.json",
        "emulated": "netstorm-fig99-emulated.json",
    }


def test_the_page_is_what_its_json_holds(tmp_path: Path):
    as_json, _, text = write(tmp_path)
    assert page(json.loads(as_json.read_text())) == text.read_text()


def test_what_differs_has_a_column_only_where_a_row_says_it():
    assert comparison([Row("a", "1", "2")]).splitlines()[0] == "|  | paper | ours |"
    assert comparison([Row("a|b", "1", "2")]).splitlines()[-1] == "| a/b | 1 | 2 |"


def test_a_crossed_table_has_a_line_for_each_beginning_and_a_column_for_each_end():
    rows = [
        Row("Gini 0.1: PS", "", "19 s"),
        Row("Gini 0.1: HAAF", "all alike", "51 s"),
        Row("Gini 0.6: HAAF", "", "57 s", "larger trees"),
    ]
    assert comparison(rows, crossed_at=": ").splitlines() == [
        "|  | PS | HAAF |",
        "| --- | --- | --- |",
        "| Gini 0.1 | 19 s | 51 s (paper: all alike) |",
        "| Gini 0.6 |  | 57 s; larger trees |",
    ]
    with pytest.raises(ValueError, match="'best' cannot be cut at ': '"):
        comparison([*rows, Row("best", "", "1")], crossed_at=": ")
