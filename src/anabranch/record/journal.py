"""What a scheduler must remember, in an SQLite file: one row, written anew and synchronised."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from anabranch.record.log import LogError

_APPLICATION_ID = 0x616E626A  # "anbj": tells our files from other SQLite files
_SCHEMA = f"""
BEGIN;
CREATE TABLE IF NOT EXISTS memory (only INTEGER PRIMARY KEY CHECK (only = 1), data BLOB NOT NULL);
PRAGMA application_id = {_APPLICATION_ID};
COMMIT;
"""


class Journal:
    """A file that outlives its scheduler; see :class:`anabranch.scheduler.memory.Journal`.

    Args:
        path: the file; it is made if there is none.

    Raises:
        LogError: it cannot be made or read, is another program's, or another scheduler has it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(path, timeout=0.0, isolation_level=None)
            (found,) = self._connection.execute("PRAGMA application_id").fetchone()
            tables = self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            if found != _APPLICATION_ID and (found or tables):
                raise LogError(f"{path} is no journal of a scheduler; give another file")
            # Held until this process ends, however it does: two schedulers must not share it.
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            why = "another scheduler uses it" if "locked" in str(error) else str(error)
            raise LogError(f"the journal {path} cannot be used: {why}") from None

    def load(self) -> bytes | None:
        """Return what was written last; None where there is nothing.

        Raises:
            LogError: it cannot be read.
        """
        try:
            row = self._connection.execute("SELECT data FROM memory").fetchone()
        except sqlite3.Error as error:
            raise LogError(f"the journal {self._path} cannot be read: {error}") from None
        return None if row is None else bytes(row[0])

    def save(self, data: bytes) -> None:
        """Write this in place of what was.

        Raises:
            LogError: it cannot be written.
        """
        try:
            self._connection.execute("INSERT OR REPLACE INTO memory VALUES (1, ?)", (data,))
        except sqlite3.Error as error:
            raise LogError(f"the journal {self._path} cannot be written: {error}") from None

    def clear(self) -> None:
        """Forget everything, as the group has ended."""
        try:
            self._connection.execute("DELETE FROM memory")
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
