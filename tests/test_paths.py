"""Names of files that our programs choose."""

from __future__ import annotations

from pathlib import Path

from anabranch._paths import next_free


def test_a_second_log_has_the_first_number_that_no_file_has(tmp_path: Path) -> None:
    path = tmp_path / "group.db"
    assert next_free(path) == path
    for name in ("group.db", "group-2.db", "group-4.db"):
        (tmp_path / name).touch()
    assert next_free(path) == tmp_path / "group-3.db"
