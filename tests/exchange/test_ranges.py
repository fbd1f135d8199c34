"""Sets of elements, against Python's own."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.ranges import PartOf, Ranges, length, minus, places, union
from anabranch.exchange.terms import Wire

SETS = st.sets(st.integers(0, 40))


def runs(elements: set[int]) -> Ranges:
    return union((element, element + 1) for element in elements)


def elements_of(ranges: Ranges) -> set[int]:
    return {element for start, stop in ranges for element in range(start, stop)}


@given(SETS, SETS)
def test_sets_are_joined_and_taken_away(one: set[int], other: set[int]) -> None:
    assert elements_of(union(runs(one), runs(other))) == one | other
    assert elements_of(minus(runs(one), runs(other))) == one - other
    assert length(runs(one)) == len(one)
    for ranges in (runs(one), union(runs(one), runs(other)), minus(runs(one), runs(other))):
        assert not [(a, b) for a, b in ranges if a >= b]
        assert list(ranges) == sorted(ranges)
    assert runs(one | other) == union(runs(one), runs(other))  # nothing is left in pieces


@given(SETS, SETS)
def test_elements_of_a_part_are_found_in_the_whole(whole: set[int], inside: set[int]) -> None:
    in_order = sorted(whole)
    found = places(runs(whole), runs(inside))
    assert elements_of(found) == {in_order[index] for index in inside if index < len(in_order)}


@given(st.sets(st.integers(0, 40), min_size=1), st.data())
def test_a_part_reads_and_writes_its_elements_alone(part: set[int], data: st.DataObject) -> None:
    array = np.arange(41, dtype=np.float32)
    buffer = PartOf(Flat(array), runs(part))
    assert buffer.elements == len(part)
    start = data.draw(st.integers(0, len(part) - 1))
    stop = data.draw(st.integers(start + 1, len(part)))
    assert buffer.read(start, stop).tolist() == sorted(part)[start:stop]
    memory = buffer.memory(start, stop, Wire.FLOAT32)
    if memory is not None:
        assert np.frombuffer(memory, np.float32).tolist() == sorted(part)[start:stop]
    buffer.write(start, -np.ones(stop - start, np.float32))
    assert {*np.flatnonzero(array == -1.0).tolist()} == set(sorted(part)[start:stop])
