from __future__ import annotations

import hashlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from anabranch.log import (
    Event,
    EventLog,
    LogError,
    RunEnded,
    SiteLost,
    UnknownEvent,
    fingerprint,
    read_events,
)

# Appends the batch 0, 1, 2 for every line "commit" it reads, and says when that is done; for
# "stall" it stops in the middle of a batch, its first two events taken and not committed.
WRITER = """
import sys
from pathlib import Path
from anabranch.log import EventLog, SiteLost

def say(word):
    print(word, flush=True)

def batch(stall):
    for site in range(3):
        if stall and site == 2:
            say("stalled")
            sys.stdin.readline()
        yield SiteLost(at_s=1.5, site=site, detail="test")

log = EventLog.create(Path(sys.argv[1]))
say("ready")
for line in sys.stdin:
    log.append(batch(line == "stall\\n"))
    say("committed")
"""


class Writer:
    """A process that writes a log when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@contextmanager
def writer(path: Path) -> Iterator[Writer]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert Writer(process).hear() == "ready"
            yield Writer(process)
        finally:
            process.kill()


def lost(*sites: int) -> list[Event]:
    return [SiteLost(at_s=float(site), site=site, detail="test") for site in sites]


def sites(path: Path, after_seq: int = 0) -> list[tuple[int, int]]:
    return [
        (seq, event.site)
        for seq, event in read_events(path, after_seq)
        if isinstance(event, SiteLost)
    ]


def test_events_come_back_in_order_with_their_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path) as log:
        log.append(lost(4, 2))
        log.append([])
        log.append(lost(3))
    assert list(read_events(path)) == list(enumerate(lost(4, 2, 3), start=1))


def test_reading_resumes_after_a_number(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path) as log:
        log.append(lost(4, 2, 3))
        assert sites(path, after_seq=1) == [(2, 2), (3, 3)]
        assert sites(path, after_seq=3) == []


def test_a_log_is_readable_from_the_moment_it_is_created(tmp_path: Path) -> None:
    with EventLog.create(tmp_path / "run.db"):
        assert list(read_events(tmp_path / "run.db")) == []


def test_a_batch_with_a_bad_event_is_not_written_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path) as log:
        with pytest.raises(ValueError, match="cannot record"):
            log.append([*lost(1), RunEnded(at_s=float("nan"), error=None)])
        log.append(lost(2))
    assert sites(path) == [(1, 2)]


def test_batches_wait_until_enough_events_share_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path, commit_every=3) as log:
        log.append(lost(1))
        log.append(lost(2))
        assert sites(path) == []
        log.append(lost(3, 4))
        assert sites(path) == [(1, 1), (2, 2), (3, 3), (4, 4)]


def test_what_waits_can_be_flushed(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path, commit_every=1000) as log:
        log.append(lost(1))
        log.flush()
        log.flush()
        assert sites(path) == [(1, 1)]


def test_an_error_that_ends_a_run_loses_nothing_that_waits(tmp_path: Path) -> None:
    path = tmp_path / "run.db"

    def fail() -> None:
        with EventLog.create(path, commit_every=1000) as log:
            log.append(lost(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert sites(path) == [(1, 1)]
    assert [file.name for file in tmp_path.iterdir()] == ["run.db"]


def test_a_bad_event_keeps_its_batch_alone_from_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path, commit_every=1000) as log:
        log.append(lost(1))
        with pytest.raises(ValueError, match="cannot record"):
            log.append([*lost(2), RunEnded(at_s=float("nan"), error=None)])
        log.append(lost(3))
    assert sites(path) == [(1, 1), (2, 3)]


@pytest.mark.parametrize("commit_every", [1, 1000])
def test_a_closed_log_takes_in_nothing(tmp_path: Path, commit_every: int) -> None:
    log = EventLog.create(tmp_path / "run.db", commit_every)
    log.close()
    log.close()
    with pytest.raises(LogError, match="is closed"):
        log.append(lost(1))


def test_a_commit_needs_an_event(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        EventLog.create(tmp_path / "run.db", commit_every=0)
    assert not (tmp_path / "run.db").exists()


def test_logs_of_the_same_events_have_one_fingerprint_however_they_were_committed(
    tmp_path: Path,
) -> None:
    with EventLog.create(tmp_path / "a.db") as log:
        log.append(lost(1, 2))
        log.append(lost(3))
    with EventLog.create(tmp_path / "b.db", commit_every=1000) as log:
        for site in (1, 2, 3):
            log.append(lost(site))
    assert fingerprint(tmp_path / "a.db") == fingerprint(tmp_path / "b.db")


@pytest.mark.parametrize("other", [(), (1,), (2, 1), (1, 3), (1, 2, 2)])
def test_any_other_events_have_another_fingerprint(tmp_path: Path, other: tuple[int, ...]) -> None:
    for name, which in (("a", (1, 2)), ("b", other)):
        with EventLog.create(tmp_path / f"{name}.db") as log:
            log.append(lost(*which))
    assert fingerprint(tmp_path / "a.db") != fingerprint(tmp_path / "b.db")


def test_a_fingerprint_is_the_hash_of_the_stored_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path) as log:
        log.append([SiteLost(at_s=1.0, site=0, detail="two\nlines: \N{BULLET}")])
        log.append(lost(1))
    with closing(sqlite3.connect(path)) as connection:
        stored = [data for (data,) in connection.execute("SELECT data FROM events ORDER BY seq")]
    text = "".join(f"{data}\n" for data in stored)
    assert text.count("\n") == 2
    assert fingerprint(path) == hashlib.sha256(text.encode()).hexdigest()


def test_a_reader_that_stops_in_the_middle_may_be_collected_in_another_thread(
    tmp_path: Path,
) -> None:
    with EventLog.create(tmp_path / "run.db") as log:
        log.append(lost(1, 2))
    reading = read_events(tmp_path / "run.db")
    assert next(reading)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(reading.close).result()  # type: ignore[attr-defined]


def test_what_is_no_log_has_no_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no event log"):
        fingerprint(tmp_path / "gone.db")


def test_killed_writer_leaves_every_committed_batch(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with writer(path) as other:
        other.tell("commit")
        assert other.hear() == "committed"
        other.tell("stall")
        assert other.hear() == "stalled"
        other.process.send_signal(signal.SIGKILL)
        assert other.process.wait() == -signal.SIGKILL
    assert sites(path) == [(1, 0), (2, 1), (3, 2)]


def test_reader_sees_committed_events_only_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with writer(path) as other:
        assert sites(path) == []
        other.tell("commit")
        assert other.hear() == "committed"
        assert sites(path) == [(1, 0), (2, 1), (3, 2)]
        other.tell("stall")
        assert other.hear() == "stalled"
        assert sites(path, after_seq=3) == []
        other.tell("go on")
        assert other.hear() == "committed"
        assert sites(path, after_seq=3) == [(4, 0), (5, 1), (6, 2)]


def test_reading_goes_on_undisturbed_by_later_commits(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path) as log:
        log.append(lost(1, 2))
        reading = read_events(path)
        first = next(reading)
        log.append(lost(3))
        assert [first, *reading] == list(enumerate(lost(1, 2), start=1))


def test_a_closed_log_is_a_single_file_and_reading_adds_none(tmp_path: Path) -> None:
    with EventLog.create(tmp_path / "run.db") as log:
        log.append(lost(1))
    assert sites(tmp_path / "run.db") == [(1, 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["run.db"]


@pytest.mark.parametrize("commit_every", [1, 10])
def test_a_disk_without_room_is_named(commit_every: int, tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    log = EventLog.create(path, commit_every)
    log._connection.execute("PRAGMA max_page_count = 20")

    def fill() -> None:
        for site in range(10_000):
            log.append([SiteLost(at_s=0.0, site=site, detail="test")])

    with pytest.raises(LogError, match=r"run\.db cannot be written: .* full; make room there"):
        fill()
    log.close()
    assert len(list(read_events(path))) > 10


def test_a_log_that_was_removed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    log = EventLog.create(path)
    path.unlink()
    with pytest.raises(LogError, match=r"run\.db was removed while it was written"):
        log.append([SiteLost(at_s=0.0, site=0, detail="test")])
    log.close()


def test_an_error_within_counts_more_than_a_log_that_cannot_be_closed(tmp_path: Path) -> None:
    def run(error: Exception | None) -> None:
        path = tmp_path / "run.db"
        with EventLog.create(path, commit_every=10) as log:
            log.append([SiteLost(at_s=0.0, site=0, detail="test")])
            path.unlink()
            if error is not None:
                raise error

    with pytest.raises(LogError, match="was removed"):
        run(None)
    with pytest.raises(ZeroDivisionError):
        run(ZeroDivisionError())


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path) as log:
        log.append(lost(1))
    with pytest.raises(LogError, match=r"run\.db exists, and a log is never overwritten"):
        EventLog.create(path)
    assert sites(path) == [(1, 1)]


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"no folder .*runs"):
        EventLog.create(tmp_path / "runs" / "run.db")


@pytest.mark.parametrize("statement", ["UPDATE events SET at_s = 0", "DELETE FROM events"])
def test_history_cannot_be_changed(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "run.db"
    with EventLog.create(path) as log:
        log.append(lost(1))
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"no event log at .*gone\.db"):
        list(read_events(tmp_path / "gone.db"))


def text_file(path: Path) -> None:
    path.write_text("at_s,kind\n" * 200)


def empty_file(path: Path) -> None:
    path.touch()


def other_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (seq, at_s, kind, data)")


@pytest.mark.parametrize("make", [text_file, empty_file, other_database])
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "run.db")
    with pytest.raises(LogError, match=r"run\.db is not an event log"):
        list(read_events(tmp_path / "run.db"))


def edit(path: Path, statement: str) -> None:
    EventLog.create(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_a_log_of_another_format_is_refused(tmp_path: Path) -> None:
    edit(tmp_path / "run.db", "PRAGMA user_version = 2")
    with pytest.raises(LogError, match="format 2, and this release reads format 1"):
        list(read_events(tmp_path / "run.db"))


def test_an_event_of_another_release_does_not_stop_the_reader(tmp_path: Path) -> None:
    data = '{"kind":"eclipse","at_s":2.5}'
    edit(tmp_path / "run.db", f"INSERT INTO events VALUES (1, 2.5, 'eclipse', '{data}')")
    [(seq, event)] = read_events(tmp_path / "run.db")
    assert isinstance(event, UnknownEvent)
    assert (seq, event.kind) == (1, "eclipse")


def test_a_damaged_event_is_named_by_its_number(tmp_path: Path) -> None:
    edit(tmp_path / "run.db", "INSERT INTO events VALUES (7, 2.5, 'run_ended', '{\"kind')")
    with pytest.raises(LogError, match=r"run\.db, event 7: .*damaged"):
        list(read_events(tmp_path / "run.db"))
