"""A scheduler's memory in an SQLite file: one row, rewritten and synchronised.

The file's ``user_version`` is 1 once the group has ended, until another group begins. It is 2 where
the group ended early; the row then holds the reason, and no other group begins with the file.

It holds the run's secret, with which its reader could pose as any site. So only its owner may read
it; SQLite gives the files beside it (``-wal``, ``-shm``) the same mode.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from anabranch.log.store import LogError

_APPLICATION_ID = 0x616E626A  # "anbj": tells our files from other SQLite files
_OWNERS = 0o600
_OPEN, _ENDED, _ENDED_EARLY = 0, 1, 2
_SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS memory (only INTEGER PRIMARY KEY CHECK (only = 1), data BLOB NOT NULL);
PRAGMA application_id = {_APPLICATION_ID};
COMMIT;
"""


class JournalBusy(LogError):
    """Another scheduler holds the journal's lock."""


class Journal:
    """A file that outlives its scheduler; see :class:`anabranch.scheduler.memory.Journal`.

    Args:
        path: the file; created if it does not exist.

    Attributes:
        had_ended: whether the group of the file's previous scheduler has ended.
        why_ended: why that group ended early; None where it did not.

    Raises:
        JournalBusy: another scheduler holds its lock.
        LogError: it cannot be created or read, or is another program's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        try:
            # SQLite would create it readable by all users.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, _OWNERS))
            self._connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise LogError(f"the journal {path} cannot be used: {error}") from None
        try:
            ended = self._take()
            self.had_ended = ended != _OPEN
            told = self.load() if ended == _ENDED_EARLY else None
            self.why_ended = None if told is None else told.decode()
        except (LogError, sqlite3.Error) as error:
            self._connection.close()
            if isinstance(error, LogError):
                raise
            why, kind = str(error), LogError
            if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                why, kind = "another scheduler uses it", JournalBusy
            raise kind(f"the journal {path} cannot be used: {why}") from None
        self._inode = self._path.stat().st_ino

    def _take(self) -> int:
        """Lock the file, and return whether and how its last group has ended."""
        run = self._connection.execute
        (found,) = run("PRAGMA application_id").fetchone()
        tables = run("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if found != _APPLICATION_ID and (found or tables):
            raise LogError(f"{self._path} is no journal of a scheduler; give another file")
        self._close_to_others()
        # The lock lasts until this process ends, in any way: two schedulers must not share a file.
        run("PRAGMA locking_mode = EXCLUSIVE")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)
        (ended,) = run("PRAGMA user_version").fetchone()
        return int(ended)

    def _close_to_others(self) -> None:
        """Remove other users' access to a file that an earlier release created."""
        try:
            for each in (self._path, *(Path(f"{self._path}{end}") for end in ("-wal", "-shm"))):
                if each.exists() and each.stat().st_mode & ~_OWNERS & 0o777:
                    each.chmod(_OWNERS)
        except OSError as error:
            raise LogError(
                f"the journal {self._path} holds a secret that other users can read, and its mode "
                f"cannot be changed: {error.strerror}; remove it, or give another file"
            ) from None

    def begin(self) -> None:
        """Record that another group begins.

        Raises:
            LogError: the file cannot be written.
        """
        self._write(f"PRAGMA user_version = {_OPEN}")

    def load(self) -> bytes | None:
        """Return the row's data; None where there is no row.

        Raises:
            LogError: the file cannot be read.
        """
        try:
            row = self._connection.execute("SELECT data FROM memory").fetchone()
        except sqlite3.Error as error:
            raise LogError(f"the journal {self._path} cannot be read: {error}") from None
        return None if row is None else bytes(row[0])

    def save(self, data: bytes) -> None:
        """Replace the row's data.

        Raises:
            LogError: the file cannot be written, or is no longer at its path, where another
                scheduler would look for it.
        """
        try:
            is_there = self._path.stat().st_ino == self._inode
        except OSError:
            is_there = False
        if not is_there:
            raise LogError(f"the journal {self._path} is gone: it was moved, deleted or replaced")
        try:
            self._connection.execute("INSERT OR REPLACE INTO memory VALUES (1, ?)", (data,))
        except sqlite3.Error as error:
            raise LogError(f"the journal {self._path} cannot be written: {error}") from None

    def clear(self) -> None:
        """Delete the row, as the group has ended."""
        self._write(f"BEGIN; DELETE FROM memory; PRAGMA user_version = {_ENDED}; COMMIT;")

    def end_early(self, why: str) -> None:
        """Keep only the reason why the group ended, so that no other group begins with this file.

        Raises:
            LogError: the file cannot be written.
        """
        run = self._connection.execute
        try:
            run("BEGIN")
            run("INSERT OR REPLACE INTO memory VALUES (1, ?)", (why.encode(),))
            run(f"PRAGMA user_version = {_ENDED_EARLY}")
            run("COMMIT")
        except sqlite3.Error as error:
            raise LogError(f"the journal {self._path} cannot be written: {error}") from None

    def _write(self, script: str) -> None:
        try:
            self._connection.executescript(script)
        except sqlite3.Error as error:
            raise LogError(f"the journal {self._path} cannot be written: {error}") from None

    def now_s(self) -> float:
        """Return seconds by the machine's clock."""
        return time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connection.close()
