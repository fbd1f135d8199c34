"""Official data files: from a given directory, this user's cache, or their origin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from anabranch_lab.tasks._idx import DataError


def cache_of(task: str) -> Path:
    """Return the folder that keeps a task's fetched files."""
    import pooch  # here, because it is slow to import and some tasks need no files

    return Path(pooch.os_cache("anabranch")) / task


def fetch(
    task: str,
    url: str,
    known_hash: str | None,
    places: Sequence[Path],
    download: bool,
    missing: str,
) -> Path:
    """Fetch a file that is in none of the places into the last of them.

    Args:
        task: the task that needs the file, for the errors.
        url: of the file, which keeps its name.
        known_hash: in pooch's form, the algorithm and a colon first; None where the caller checks
            the file's content.
        places: the folders without the file; the last is the cache.
        download: whether fetching is allowed.
        missing: the file and the folders without it, for the errors.

    Raises:
        DataError: the file may not be fetched, cannot be, or is not the official one.
    """
    import pooch

    file = url.rpartition("/")[2]
    if download:
        try:
            return Path(pooch.retrieve(url, known_hash, file, places[-1]))
        except (OSError, ValueError) as error:
            fetched = f"fetching {url} failed ({error})"
            cause: Exception | None = error
    else:
        fetched, cause = "it may not be fetched", None
    raise DataError(
        f"task {task!r} needs {missing}, and {fetched}; get it from {url} and give --data-dir the "
        "directory that holds it"
    ) from cause
