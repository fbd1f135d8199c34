"""The event log: one append-only SQLite file per run, readable while it is written.

Write-ahead logging gives the three properties that a log needs: a batch is written whole or not at
all, a killed writer loses only its present batch, and readers and the writer do not wait for each
other. While a run is alive (or after it was killed) the newest events are in ``<log>-wal`` beside
the file, so copy both. A closed log is one file.

Small batches cost less to write than to commit. A simulated run has very many of them and can be
repeated, so there many events share one commit.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from anabranch._typed_toml import BadInput
from anabranch.log.events import Event, UnknownEvent, decode, encode, kind_of

_APPLICATION_ID = 0x616E6162  # "anab": tells our files from other SQLite files
_SCHEMA_VERSION = 1

_Row = tuple[float, str, str]  # at_s, kind, data

_SCHEMA = f"""
BEGIN;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    at_s REAL NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL
);
CREATE TRIGGER no_update BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'an event log is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events
    BEGIN SELECT RAISE(ABORT, 'an event log is append-only'); END;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_SCHEMA_VERSION};
COMMIT;
"""


class LogError(BadInput):
    """A log that cannot be created or read; the message names the file and what to do."""


class EventLog:
    """The writing end of a log. Any thread may use it, one at a time.

    >>> from anabranch.log import RunEnded
    >>> path = getfixture("tmp_path") / "run.db"
    >>> with EventLog.create(path) as log:
    ...     log.append([RunEnded(at_s=3.0, error=None)])
    >>> list(read_events(path))
    [(1, RunEnded(at_s=3.0, error=None, reason=None))]
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, commit_every: int = 1) -> None:
        self._path = path
        self._connection = connection
        self._commit_every = commit_every
        self._waiting: list[_Row] = []
        self._closed = False

    @classmethod
    def create(cls, path: Path, commit_every: int = 1) -> Self:
        """Begin a new log.

        Args:
            path: the file to create.
            commit_every: commit as soon as this many events wait. With 1, readers see every batch
                at once. With more, they lag behind, and a killed process loses waiting events.

        Raises:
            LogError: the path exists already, or its folder does not exist.
            ValueError: `commit_every` is less than 1.
        """
        if commit_every < 1:
            raise ValueError(f"commit_every is {commit_every}, which must be at least 1 event")
        try:
            path.open("xb").close()  # claims the name: of two runs that race for it, one fails
        except FileExistsError:
            raise LogError(
                f"{path} exists, and a log is never overwritten; name another file or remove it"
            ) from None
        except FileNotFoundError:
            raise LogError(f"cannot create {path}: there is no folder {path.parent}") from None
        connection = sqlite3.connect(path, check_same_thread=False)
        # The schema is written before WAL is on, hence into the file itself: from here on a reader
        # finds a valid, empty log.
        connection.executescript(_SCHEMA)
        connection.execute("PRAGMA journal_mode = WAL")
        # Commits survive the death of the process without an fsync for each. After a power cut the
        # log may lack its last batches but is never torn.
        connection.execute("PRAGMA synchronous = NORMAL")
        return cls(path, connection, commit_every)

    def append(self, events: Iterable[Event]) -> None:
        """Add a batch: all of it, or, where this raises or the process dies, none of it.

        Raises:
            LogError: the log is closed, cannot be written, or is gone.
            ValueError: an event cannot be written; see `anabranch.log.events.encode`.
        """
        if self._closed:
            raise LogError("this event log is closed, and takes in no more events")
        self._waiting += [(event.at_s, kind_of(event), encode(event)) for event in events]
        if len(self._waiting) >= self._commit_every:
            self.flush()

    def flush(self) -> None:
        """Commit waiting events, for readers to see. Where this raises, they are lost.

        Raises:
            LogError: the log cannot be written, or its file is gone.
        """
        if not self._waiting:
            return
        rows, self._waiting = self._waiting, []
        if not self._path.exists():  # SQLite would keep writing to a file without a name
            raise LogError(f"the event log {self._path} was removed while it was written")
        try:
            with self._connection:
                self._connection.executemany(
                    "INSERT INTO events (at_s, kind, data) VALUES (?, ?, ?)", rows
                )
        except sqlite3.OperationalError as error:
            raise LogError(
                f"the event log {self._path} cannot be written: {error}; make room there, or let "
                "it go elsewhere"
            ) from error

    def close(self) -> None:
        """Commit waiting events and close the log; closing twice does no harm.

        Raises:
            LogError: see ``flush``; the log is closed nevertheless.
        """
        self._closed = True
        try:
            self.flush()
        finally:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except LogError:
            if error is None:  # else the block's error is the one to see
                raise


def append_after(path: Path, *events: Event) -> None:
    """Add events to a log that its writer has closed.

    Raises:
        LogError: the log cannot be written.
    """
    with closing(sqlite3.connect(path)) as connection:
        _check_is_log(path, connection)
        with EventLog(path, connection) as log:
            log.append(events)


def read_events(path: Path, after_seq: int = 0) -> Iterator[tuple[int, Event | UnknownEvent]]:
    """Yield a log's committed events in the order they were appended.

    The events are those committed when the first one is taken. To follow a live run, call again
    with the last number seen.

    Args:
        path: the log.
        after_seq: yield only events numbered above this; they count from 1.

    Yields:
        An event's number, and the event; an `UnknownEvent` where another release wrote it.

    Raises:
        LogError: there is no file, it is not an event log, it is damaged, or a newer release
            wrote it.
    """
    for seq, data in _stored(path, after_seq):
        yield seq, _decode(path, seq, data)


def fingerprint(path: Path) -> str:
    """Return 64 hexadecimal digits that are equal if and only if two logs hold the same events.

    They are the SHA-256 of the events' stored text, in order, each ended by a line feed, which no
    event contains. The layout of the file does not count. Any SQLite gives the same digits::

        sqlite3 run.db "SELECT data FROM events ORDER BY seq" | sha256sum

    Raises:
        LogError: as for `read_events`, but that events are not decoded.
    """
    digest = hashlib.sha256()
    for _, data in _stored(path):
        digest.update(data.encode() + b"\n")
    return digest.hexdigest()


def _stored(path: Path, after_seq: int = 0) -> Iterator[tuple[int, str]]:
    with closing(_open_to_read(path)) as connection:
        try:
            _check_is_log(path, connection)
            rows = connection.execute(
                "SELECT seq, data FROM events WHERE seq > ? ORDER BY seq", (after_seq,)
            )
            yield from rows
        except sqlite3.DatabaseError as error:
            raise LogError(
                f"{path} is not an event log, or is damaged ({error}); give the file that a run "
                "wrote"
            ) from error


def _open_to_read(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise LogError(f"there is no event log at {path}; give the file that a run wrote")
    # A log has only one writer ever, whose -wal file exists until it closes. Without that file the
    # log cannot change any more. "immutable" then permits SQLite to read from a read-only folder,
    # and prevents that it leaves files there.
    finished = not path.with_name(path.name + "-wal").exists()
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if finished else ''}"
    # A reader may stop early; then the garbage collector closes the connection, in any thread.
    return sqlite3.connect(uri, uri=True, check_same_thread=False)


def _check_is_log(path: Path, connection: sqlite3.Connection) -> None:
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != _APPLICATION_ID:
        raise LogError(f"{path} is not an event log; give the file that a run wrote")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _SCHEMA_VERSION:
        raise LogError(
            f"{path} is an event log of format {version}, and this release reads format "
            f"{_SCHEMA_VERSION}; use the release of anabranch that wrote it"
        )


def _decode(path: Path, seq: int, data: str) -> Event | UnknownEvent:
    try:
        return decode(data)
    except ValueError as error:
        raise LogError(f"{path}, event {seq}: {error}; the log is damaged") from error
