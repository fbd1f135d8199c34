"""What sites say beside an average, and what its mean tells."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.train.trailer import TRAILER_ELEMENTS, Agreement, read_trailer, write_trailer

_MOST_OFF = 1e-4
_BASE = 0x0123456789ABCDEF


def mean(*said: np.ndarray, weights: tuple[float, ...] = ()) -> np.ndarray:
    return np.average(said, axis=0, weights=weights or None).astype(np.float32)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.1, 3.0, 7.7)])
@pytest.mark.parametrize(
    ("others", "heard"),
    [
        ((True, 3, "rules", _BASE), Agreement(True, True, True, True)),
        ((False, 0, "rules", _BASE), Agreement(True, True, True, True)),  # the first goes on
        ((True, 3, "others", _BASE), Agreement(True, True, False, True)),
        ((True, 3, "rules", _BASE ^ 1), Agreement(True, True, True, False)),
        ((True, 3, "rules", _BASE ^ 1 << 63), Agreement(True, True, True, False)),
    ],
)
def test_one_site_that_differs_is_heard_by_all(
    others: tuple[bool, int, str, int], heard: Agreement, weights: tuple[float, ...]
) -> None:
    said = [
        write_trailer(True, 4, "rules", _BASE),
        write_trailer(True, 4, "rules", _BASE),
        write_trailer(*others),
    ]
    assert {len(each) for each in said} == {TRAILER_ELEMENTS}
    for order in (said, said[::-1]):
        assert read_trailer(mean(*order, weights=weights), _MOST_OFF) == heard


def test_all_have_finished_once_none_goes_on() -> None:
    finished = write_trailer(False, 0, "rules", 0)
    assert read_trailer(mean(finished, finished), _MOST_OFF) == Agreement(False, False, True, True)
    late = write_trailer(False, 2, "rules", 0)
    assert read_trailer(mean(finished, late), _MOST_OFF) == Agreement(False, True, True, True)
