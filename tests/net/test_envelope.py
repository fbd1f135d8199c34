"""The line under points that are late but never early, against a search over all lines."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.net._envelope import Point, lateness, least_late_slope, lower_hull

whole = st.integers(-20, 20)
groups = st.lists(st.lists(st.tuples(whole, whole), min_size=1, max_size=7), min_size=1, max_size=4)


def total_lateness(found: list[list[Point]], slope: float) -> float:
    return sum(len(points) * lateness(points, slope) for points in found)


@given(groups)
def test_no_slope_between_any_two_points_leaves_less_lateness(found: list[list[Point]]) -> None:
    slope = least_late_slope(found)
    between = [
        (b[1] - a[1]) / (b[0] - a[0])
        for points in found
        for a, b in combinations(points, 2)
        if a[0] != b[0]
    ]
    if not between:
        assert slope is None
        return
    assert slope is not None
    least = min(total_lateness(found, other) for other in between)  # the optimum is among them
    assert total_lateness(found, slope) == pytest.approx(least, abs=1e-9)


@given(st.lists(st.tuples(whole, whole), min_size=1, max_size=9))
def test_no_point_lies_under_the_hull(points: list[Point]) -> None:
    hull = lower_hull(points)
    assert set(hull) <= set(points)
    assert hull[0][0] == min(points)[0]
    assert hull[-1][0] == max(points)[0]
    for (x0, y0), (x1, y1) in pairwise(hull):
        for x, y in points:
            assert (y - y0) * (x1 - x0) >= (y1 - y0) * (x - x0)


def test_lateness_in_the_midst_changes_nothing() -> None:
    on_time = [(float(x), 3.0 * x) for x in range(9)]
    late = [(x, y + (5.0 if 3 <= x <= 6 else 0.0)) for x, y in on_time]
    assert least_late_slope([late]) == 3.0


def test_groups_share_a_slope_and_nothing_else() -> None:
    assert least_late_slope([[(0, 100), (1, 102)], [(50, -7), (53, -1)], [(8, 3)]]) == 2.0


@pytest.mark.parametrize("found", [[], [[]], [[(1.0, 1.0)], [(1.0, 2.0), (1.0, 3.0)]]])
def test_points_of_one_x_have_no_slope(found: list[list[Point]]) -> None:
    assert least_late_slope(found) is None
