"""Fits a line under points that can be late but never early. Pure.

Queues, pauses and busy processors only ever delay an event. So of all lines of one slope, the right
one lies under every point and touches the earliest. The best slope is the one with the least total
lateness. That is a linear programme in two unknowns, known from estimating the skew of clocks
(Moon, Skelly and Towsley, INFOCOM 1999). Here several groups of points share the slope, each with
its own intercept: runs of chunks on one link, or the two directions in which two clocks are
compared.

The total lateness is convex in the slope. Its derivative steps where the line turns from one edge
of a group's lower convex hull to the next, by (points of the group) x (width of the edge). So the
best slope is a weighted median of hull edges. It needs no iteration and no choice of scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

Point = tuple[float, float]


def lower_hull(points: Iterable[Point]) -> list[Point]:
    """Return the corners of the lower convex hull, from left to right.

    >>> lower_hull([(0, 0), (1, 5), (2, 2), (1, 1), (3, 9)])
    [(0, 0), (2, 2), (3, 9)]
    """
    hull: list[Point] = []
    for x, y in sorted(points):
        if hull and hull[-1][0] == x:
            continue  # of points with equal x, the lowest came first
        while len(hull) >= 2:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x1) < (y - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return hull


def least_late_slope(groups: Iterable[Sequence[Point]]) -> float | None:
    """Return the common slope of lines, one under each group, with the least total lateness.

    Args:
        groups: points (x, y) in any order; y is late by an unknown amount >= 0.

    Returns:
        The slope; the middle of the range if several are equally good; None if no group has two
        different x.

    >>> least_late_slope([[(0, 0.0), (1, 2.0), (2, 9.0), (3, 6.0)]])
    2.0
    """
    # The derivative of the total lateness, left of every edge; and how much it rises in all.
    slope_at_left = total = 0.0
    edges: list[tuple[float, float]] = []
    for points in groups:
        hull = lower_hull(points)
        if not hull:
            continue
        slope_at_left -= sum(x - hull[0][0] for x, _ in points)
        for (x0, y0), (x1, y1) in pairwise(hull):
            edges.append(((y1 - y0) / (x1 - x0), len(points) * (x1 - x0)))
            total += edges[-1][1]
    edges.sort()
    risen = slope_at_left
    for (slope, rise), (after, _) in zip(edges, [*edges[1:], *edges[-1:]], strict=True):
        risen += rise
        if abs(risen) <= 1e-12 * total:
            return (slope + after) / 2
        if risen > 0:
            return slope
    return None


def lateness(points: Sequence[Point], slope: float) -> float:
    """Return the points' mean lateness behind the highest line of this slope under them.

    >>> lateness([(0, 0.0), (1, 2.0), (2, 7.0), (3, 6.0)], slope=2.0)
    0.75
    """
    above = [y - slope * x for x, y in points]
    return sum(above) / len(above) - min(above)
