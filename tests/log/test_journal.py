"""What a scheduler remembers outlives its process."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.log.journal import Journal, JournalBusy
from anabranch.log.store import EventLog, LogError


def test_the_last_write_counts(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        assert journal.load() is None
        journal.save(b"one")
        journal.save(b"two")
        assert journal.load() == b"two"
    with Journal(tmp_path / "journal") as journal:
        assert journal.load() == b"two"
        assert not journal.had_ended
        journal.clear()
    with Journal(tmp_path / "journal") as journal:
        assert journal.load() is None
        assert journal.had_ended
    with Journal(tmp_path / "journal") as journal:
        assert journal.had_ended  # so do all see that look
        journal.begin()
    with Journal(tmp_path / "journal") as journal:
        assert not journal.had_ended


def test_the_reason_of_an_early_end_is_all_that_is_kept(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        assert journal.why_ended is None
        journal.save(b"a secret")
        journal.end_early("site 1 (b) failed: KeyError: 'no such file'")
    for _ in range(2):  # so do all see that look
        with Journal(tmp_path / "journal") as journal:
            assert journal.had_ended
            assert journal.why_ended == "site 1 (b) failed: KeyError: 'no such file'"


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    program = """
import os, sys
from pathlib import Path
from anabranch.log.journal import Journal
journal = Journal(Path(sys.argv[1]))
journal.save(b"written")
os.kill(os.getpid(), 9)
"""
    path = tmp_path / "journal"
    killed = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert killed.returncode == -9
    with Journal(path) as journal:
        assert journal.load() == b"written"


def modes(folder: Path) -> dict[str, int]:
    return {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()}


@pytest.fixture
def generous() -> Iterator[None]:
    """Let all files that are made be read and written by every user, where none says otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("generous")
def test_only_its_owner_may_read_the_secret_in_it(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        journal.save(b"secret")
        assert modes(tmp_path) == {"journal": 0o600, "journal-wal": 0o600}
    assert modes(tmp_path) == {"journal": 0o600}


@pytest.mark.usefixtures("generous")
def test_a_journal_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        journal.save(b"secret")
        for name in modes(tmp_path):  # as they were left by an earlier release, which was killed
            (tmp_path / name).chmod(0o644)
        shutil.copytree(tmp_path, tmp_path / "left")
    with Journal(tmp_path / "left" / "journal") as journal:
        assert journal.load() == b"secret"
        assert {*modes(tmp_path / "left").values()} == {0o600}


def test_two_schedulers_do_not_share_one(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.save(b"mine")
        for _ in range(2):
            with pytest.raises(JournalBusy, match="another scheduler uses it"):
                Journal(path)
    with Journal(path) as journal:
        assert journal.load() == b"mine"


def test_another_file_is_left_alone(tmp_path: Path) -> None:
    with EventLog.create(tmp_path / "run.db"):
        pass
    with pytest.raises(LogError, match="is no journal"):
        Journal(tmp_path / "run.db")
    (tmp_path / "text").write_text("x" * 1000)
    with pytest.raises(LogError, match="cannot be used"):
        Journal(tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE something (x)")
    other.close()
    with pytest.raises(LogError, match="is no journal"):
        Journal(tmp_path / "other")
    with pytest.raises(LogError, match="cannot be used"):
        Journal(tmp_path / "missing" / "journal")


def test_a_journal_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Journal(Path("journal")) as journal:
        monkeypatch.chdir("/")
        journal.save(b"here")
        assert journal.load() == b"here"


@pytest.mark.parametrize("happens", ["deleted", "replaced", "moved"])
def test_a_journal_that_another_scheduler_would_not_find_is_an_error(
    happens: str, tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.save(b"one")
        if happens == "moved":
            path.rename(tmp_path / "elsewhere")
        else:
            path.unlink()
        if happens == "replaced":
            path.write_bytes(b"")
        with pytest.raises(LogError, match=r"journal is gone: it was moved, deleted or replaced"):
            journal.save(b"two")
