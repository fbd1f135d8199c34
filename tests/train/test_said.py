"""What sites say beside an average, and what its mean tells."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.train.said import SAID_NUMBERS, Heard, hear, say

_MOST_OFF = 1e-4
_BASE = 0x0123456789ABCDEF


def mean(*said: np.ndarray, weights: tuple[float, ...] = ()) -> np.ndarray:
    return np.average(said, axis=0, weights=weights or None).astype(np.float32)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.1, 3.0, 7.7)])
@pytest.mark.parametrize(
    ("others", "heard"),
    [
        ((True, 3, "rules", _BASE), Heard(True, True, True, True)),
        ((False, 0, "rules", _BASE), Heard(True, True, True, True)),  # the first goes on
        ((True, 3, "others", _BASE), Heard(True, True, False, True)),
        ((True, 3, "rules", _BASE ^ 1), Heard(True, True, True, False)),
        ((True, 3, "rules", _BASE ^ 1 << 63), Heard(True, True, True, False)),
    ],
)
def test_one_site_that_differs_is_heard_by_all(
    others: tuple[bool, int, str, int], heard: Heard, weights: tuple[float, ...]
) -> None:
    said = [say(True, 4, "rules", _BASE), say(True, 4, "rules", _BASE), say(*others)]
    assert {len(each) for each in said} == {SAID_NUMBERS}
    for order in (said, said[::-1]):
        assert hear(mean(*order, weights=weights), _MOST_OFF) == heard


def test_all_have_finished_once_none_goes_on() -> None:
    finished = say(False, 0, "rules", 0)
    assert hear(mean(finished, finished), _MOST_OFF) == Heard(False, False, True, True)
    late = say(False, 2, "rules", 0)
    assert hear(mean(finished, late), _MOST_OFF) == Heard(False, True, True, True)
