import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from anabranch_lab.tasks._idx import DataError, parse_idx, parse_idx_gz


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


@settings(deadline=None)
@given(arrays(np.uint8, array_shapes(min_dims=1, max_dims=3, min_side=0)))
def test_what_was_written_is_read_back(array):
    np.testing.assert_array_equal(parse_idx(idx(array), array.ndim, "f"), array)
    np.testing.assert_array_equal(parse_idx_gz(gzip.compress(idx(array)), array.ndim, "f"), array)


@settings(deadline=None)
@given(st.data())
def test_any_cut_is_named_a_truncation(data):
    whole = idx(np.zeros((2, 3, 4), np.uint8))
    length = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DataError, match="train-images is truncated"):
        parse_idx(whole[:length], 3, "train-images")


def test_a_byte_too_many_is_refused():
    with pytest.raises(DataError, match=r"labels is too long: .* \(2,\), 10 bytes .* has 11"):
        parse_idx(idx(np.zeros(2, np.uint8)) + b"\0", 1, "labels")


def test_a_huge_shape_is_refused_by_its_length_without_an_allocation():
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", *[2**32 - 1] * 3)
    with pytest.raises(DataError, match="truncated"):
        parse_idx(header, 3, "f")


@pytest.mark.parametrize(
    "magic",
    [bytes([0, 0, 8, 3]), bytes([0, 0, 0x0D, 1]), bytes([1, 0, 8, 1])],
    ids=["images for labels", "floats", "not IDX"],
)
def test_another_magic_number_is_refused(magic):
    with pytest.raises(DataError, match=f"0x{magic.hex()}, not 0x00000801"):
        parse_idx(magic + bytes(12), 1, "labels")


def test_gzip_damage_is_refused():
    packed = gzip.compress(idx(np.arange(200, dtype=np.uint8)))
    flipped = bytearray(packed)
    flipped[len(packed) // 2] ^= 0xFF
    for damaged in (b"not gzip", packed[:-9], bytes(flipped)):
        with pytest.raises(DataError, match="labels is no intact gzip file"):
            parse_idx_gz(damaged, 1, "labels")
