"""What a site would contribute is checked before it leaves."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.train.work import DivergedError, check_finite


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 500, 999])
def test_a_single_element_that_is_not_finite_is_named(wrong: float, at: int) -> None:
    buffer = np.ones(1000, np.float32)
    buffer[at] = wrong
    with pytest.raises(DivergedError, match=rf"step 7, 1 of 1000 .* index {at} \({wrong}\)"):
        check_finite(buffer, 7)


def test_infinities_that_cancel_are_found() -> None:
    with pytest.raises(DivergedError, match="2 of 3"):
        check_finite(np.array([np.inf, 0, -np.inf], np.float32), 0)


def test_large_numbers_whose_sum_is_not_finite_are_fine() -> None:
    check_finite(np.full(1000, 3e38, np.float32), 0)
    check_finite(np.zeros(0, np.float32), 0)
