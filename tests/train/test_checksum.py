import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.train.checksum import checksum

ELEMENTS = st.sampled_from([2, 100, 4095, 4096, 4097, 12_288, 20_000])


@settings(deadline=None)
@given(ELEMENTS, st.data())
def test_the_checksum_catches_any_flipped_bit(elements, data):
    buffer = np.random.default_rng(elements).standard_normal(elements).astype(np.float32)
    before = checksum(buffer)
    place = data.draw(st.integers(0, elements - 1))
    buffer.view(np.uint32)[place] ^= np.uint32(1 << data.draw(st.integers(0, 31)))
    assert checksum(buffer) != before


@settings(deadline=None)
@given(ELEMENTS, st.data())
def test_the_checksum_catches_any_swap(elements, data):
    buffer = np.random.default_rng(elements).permutation(elements).astype(np.float32)
    before = checksum(buffer)
    a = data.draw(st.integers(0, elements - 1))
    b = data.draw(st.integers(0, elements - 1).filter(lambda b: b != a))
    buffer[[a, b]] = buffer[[b, a]]
    assert checksum(buffer) != before


def test_the_checksum_catches_a_swap_within_a_column_where_the_column_sums_cannot():
    buffer = np.arange(3 * 4096 + 5, dtype=np.float32)
    before = checksum(buffer)
    for a, b in ((3, 3 + 4096), (3, 3 + 3 * 4096)):
        swapped = buffer.copy()
        swapped[[a, b]] = swapped[[b, a]]
        assert checksum(swapped) != before


def test_the_checksum_tells_zeros_and_nans_by_their_bits():
    zeros = np.zeros(10, np.float32)
    assert checksum(zeros) != checksum(-zeros)
    nans = np.full(10, np.nan, np.float32)
    assert checksum(nans) == checksum(nans.copy())


def test_the_checksum_of_known_data_never_changes():
    assert checksum(np.arange(10_000, dtype=np.float32)) == 0xA0C02ED9DA22BD29
    assert 0 <= checksum(np.empty(0, np.float32)) < 2**64
