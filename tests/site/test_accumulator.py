"""The accumulator: whatever the order of pieces, the sum is the sum."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anabranch.site.accumulator import Accumulator


@given(
    elements=st.integers(1, 40),
    children=st.integers(0, 3),
    weight=st.sampled_from([1.0, 2.0, 0.5]),
    data=st.data(),
)
def test_own_and_children_in_any_interleaving_add_up(
    elements: int, children: int, weight: float, data: st.DataObject
) -> None:
    # Whole numbers: float32 adds them exactly in any order.
    rows = np.arange((children + 1) * elements, dtype=np.float32).reshape(children + 1, elements)
    expected = weight * rows[0] + rows[1:].sum(axis=0)
    accumulator = Accumulator(elements)
    places = [0] * (children + 1)  # how far each has come; row 0 is the site's own
    waiting = list(range(children + 1))
    while waiting:
        row = data.draw(st.sampled_from(waiting))
        if row == 0:
            accumulator.add_own(rows[0], weight)
            waiting.remove(0)
            continue
        start = places[row]
        stop = data.draw(st.integers(start + 1, elements))
        accumulator.add(start, rows[row, start:stop])
        places[row] = stop
        if stop == elements:
            waiting.remove(row)
    if children:
        assert np.array_equal(accumulator.sum, expected)
