from __future__ import annotations

import math

import pytest

from papers._compare import compared, interval


def test_times_are_compared_seed_by_seed():
    assert compared([10.0, 10.0], [10.0, 40.0]).startswith("0.500 (")
    assert compared([10.0, 10.0], [20.0, 20.0]) == "0.500 (0.50 to 0.50); sooner in 2 of 2"
    assert compared([10.0, 10.0], [20.0, math.inf]) == "sooner in 2 of 2; in 1 do both reach it"


def test_an_interval_is_students():
    low, high = interval([1.0, 2.0, 3.0, 4.0])
    half = 3.1824 * math.sqrt(5 / 3) / 2  # t of three degrees of freedom
    assert (low, high) == pytest.approx((2.5 - half, 2.5 + half), rel=1e-4)
