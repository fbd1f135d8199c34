"""Names of files that our programs choose."""

from __future__ import annotations

from pathlib import Path

from anabranch._paths import next_free, parts_of


def test_a_second_log_has_the_first_number_that_no_file_has(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    assert next_free(path) == path
    for name in ("group.db", "group-2.db", "group-4.db"):
        (tmp_path / name).touch()
    assert next_free(path) == tmp_path / "group-3.db"


def test_parts_of_a_path_are_those_that_were_free_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    assert parts_of(path) == []
    for count in (1, 2, 3):
        next_free(path).touch()
        assert len(parts_of(path)) == count
    assert parts_of(path) == [path, tmp_path / "group-2.db", tmp_path / "group-3.db"]
