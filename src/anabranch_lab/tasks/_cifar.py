"""CIFAR-10 in its binary form, read strictly.

A file is records of 3073 bytes: the label, then 32 x 32 red, green and blue pixels, plane by plane
and row by row. The official archive has five training files and one test file of 10,000 records.

Files are taken from the first directory that has all of them, plain or compressed by xz; else from
the archive. An official MD5 exists for the archive alone, so loose files are checked only for their
form. A directory that lacks some files is not used: `load_task` has another task for it.
"""

from __future__ import annotations

import hashlib
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from anabranch_lab.tasks._fetch import cache_of, fetch
from anabranch_lab.tasks._idx import DataError

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.uint8]

CLASSES = 10
_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_FILE_RECORDS = 10_000

_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
_ARCHIVE = "cifar-10-binary.tar.gz"
_ARCHIVE_FOLDER = "cifar-10-batches-bin"
_FOLDERS = ("cifar10", "cifar-10", _ARCHIVE_FOLDER)

_PARTS = {
    "cifar-10": (tuple(f"data_batch_{k}.bin" for k in range(1, 6)), ("test_batch.bin",)),
    "cifar-10-part": (tuple(f"data_batch_{k}.bin" for k in range(1, 4)), ("data_batch_5.bin",)),
}

CIFAR_TASKS = tuple(_PARTS)


def parse_cifar(data: bytes, where: str) -> tuple[Pixels, Labels]:
    """Return the images and labels of a file of CIFAR-10 records.

    Args:
        data: the whole file, uncompressed.
        where: the file's name, for the errors.

    Returns:
        Pixels, shape (N, 3, 32, 32), and labels, shape (N,), in [0, 10): read-only views of
        ``data``.

    Raises:
        DataError: no record, a length that is no whole number of records, or an invalid label.
    """
    if not data or len(data) % _RECORD_BYTES:
        raise DataError(
            f"{where} has {len(data)} bytes, which is not one or more records of {_RECORD_BYTES}: "
            "it is truncated, or no CIFAR-10 file in binary form; replace the file"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, _RECORD_BYTES)
    labels = records[:, 0]
    if labels.max() >= CLASSES:
        first = int(np.argmax(labels >= CLASSES))
        raise DataError(
            f"{where} has label {labels[first]} in record {first}, outside 0..{CLASSES - 1}: it is "
            "no CIFAR-10 file in binary form; replace the file"
        )
    return records[:, 1:].reshape(-1, *_SHAPE), labels


def read_cifar(
    task: str, data_dir: Path | None, download: bool
) -> tuple[tuple[Pixels, Labels], tuple[Pixels, Labels]]:
    """Return the training part and the held-out part of a task, each as pixels and labels.

    Args:
        task: one of `CIFAR_TASKS`.
        data_dir: where to look first.
        download: whether to fetch the archive if the files are not found.

    Raises:
        DataError: files are missing or damaged.
    """
    train, held_out = _PARTS[task]
    files = _read(task, (*train, *held_out), data_dir, download)
    parts = [parse_cifar(data, where) for where, data in files]
    for (where, _), (_, labels) in zip(files, parts, strict=True):
        if len(labels) != _FILE_RECORDS:
            raise DataError(
                f"{where} has {len(labels)} records; the official files have {_FILE_RECORDS}: "
                "replace the file"
            )
    return _join(parts[: len(train)]), _join(parts[len(train) :])


def _join(parts: Sequence[tuple[Pixels, Labels]]) -> tuple[Pixels, Labels]:
    return np.concatenate([pixels for pixels, _ in parts]), np.concatenate([at for _, at in parts])


def _read(
    task: str, names: Sequence[str], data_dir: Path | None, download: bool
) -> list[tuple[str, bytes]]:
    """Return each file's path and content."""
    given = [] if data_dir is None else [*(data_dir / each for each in _FOLDERS), data_dir]
    cache = cache_of("cifar-10")
    lacking = []
    for folder in (*given, cache):
        found = [_loose(folder, name) for name in names]
        paths = [path for path in found if path is not None]
        if len(paths) == len(names):
            return [(str(path), _content(path)) for path in paths]
        if paths:
            lacks = [name for name, path in zip(names, found, strict=True) if path is None]
            lacking.append(f"{folder} lacks {', '.join(lacks)}")
    archive = next((at / _ARCHIVE for at in (*given, cache) if (at / _ARCHIVE).is_file()), None)
    if archive is None:
        places = f"it is not in {', '.join(map(str, (*given, cache)))}"
        missing = "; ".join([f"{_ARCHIVE}, or its files: {places}", *lacking])
        archive = fetch(task, _URL, f"md5:{_MD5}", (*given, cache), download, missing)
    return _members(archive, names)


def _loose(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.xz") if path.is_file()), None)


def _content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix != ".xz":
        return data
    try:
        return lzma.decompress(data)
    except lzma.LZMAError as error:
        raise DataError(f"{path} is no intact xz file ({error}); replace the file") from error


def _members(archive: Path, names: Sequence[str]) -> list[tuple[str, bytes]]:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != _MD5:
        raise DataError(
            f"{archive} has MD5 {found}; the official archive has {_MD5}: delete it, or give "
            "--data-dir where an intact one is"
        )
    contents = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix(f"{_ARCHIVE_FOLDER}/")
            content = tar.extractfile(member) if name in names else None
            if content is not None:
                contents[name] = content.read()
    return [(f"{archive}:{name}", contents[name]) for name in names]
