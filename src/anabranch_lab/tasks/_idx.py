"""The IDX format of MNIST and its successors, read strictly.

A file begins with a magic number: two zero bytes, one byte for the element type, one for the number
of dimensions. Each dimension's size follows as a big-endian 32-bit integer, then the elements in C
order. Only unsigned bytes (type 0x08) are read, since the data sets use no other type.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib

import numpy as np
import numpy.typing as npt

_UNSIGNED_BYTE = 0x08


class DataError(ValueError):
    """A data file is missing or cannot be used; the message names it and the fix."""


def parse_idx(data: bytes, dimensions: int, where: str) -> npt.NDArray[np.uint8]:
    """Return the array that an IDX file holds.

    Args:
        data: the whole file, uncompressed.
        dimensions: how many it must have: 3 for images, 1 for labels.
        where: the file's name, for the errors.

    Returns:
        A read-only view of ``data``, in the shape the header states.

    Raises:
        DataError: another magic number, or a length that does not match the header.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 5, 7]), 1, "labels").tolist()
    [5, 7]
    """
    header_bytes = 4 + 4 * dimensions
    if len(data) < header_bytes:
        raise DataError(
            f"{where} is truncated: {len(data)} bytes cannot hold an IDX header of {header_bytes}; "
            "replace the file"
        )
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if data[:4] != magic:
        raise DataError(
            f"{where} begins with 0x{data[:4].hex()}, not 0x{magic.hex()}: it is not an IDX file "
            f"of unsigned bytes in {dimensions} dimensions"
        )
    shape = struct.unpack(f">{dimensions}I", data[4:header_bytes])
    expected_bytes = header_bytes + math.prod(shape)
    if len(data) != expected_bytes:
        sense = "truncated" if len(data) < expected_bytes else "too long"
        raise DataError(
            f"{where} is {sense}: its header promises shape {shape}, {expected_bytes} bytes in "
            f"all, and it has {len(data)}; replace the file"
        )
    return np.frombuffer(data, np.uint8, offset=header_bytes).reshape(shape)


def parse_idx_gz(data: bytes, dimensions: int, where: str) -> npt.NDArray[np.uint8]:
    """Return the array that a gzip-compressed IDX file holds; see `parse_idx`."""
    try:
        plain = gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{where} is no intact gzip file ({error}); replace the file") from error
    return parse_idx(plain, dimensions, where)
