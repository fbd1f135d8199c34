"""Curves for a page: `docs/curves.py` draws them from the JSON, whose key is ``picture``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

Curve = Sequence[tuple[float, float]]


def picture(x: str, y: str, panels: Mapping[str, Mapping[str, Curve]]) -> dict[str, Any]:
    """Return curves as a result's JSON holds them; hand it in as ``Result.data``.

    Args:
        x, y: names of the axes, with units; a y of ``accuracy`` is drawn as a percentage.
        panels: (x, y) points of each line, by the panel's name and the line's.
    """
    drawn = {
        panel: {name: [list(point) for point in line] for name, line in lines.items()}
        for panel, lines in panels.items()
    }
    return {"picture": {"x": x, "y": y, "panels": drawn}}


def middle(curves: Sequence[Curve], points: int = 40) -> list[tuple[float, float]]:
    """Return the median of curves: at even moments, the median of the latest values.

    Args:
        curves: of each seed; (seconds, value), in order of time.
        points: how many moments there are, until half of the curves have ended.

    >>> middle([[(1.0, 0.2), (2.0, 0.4)], [(1.0, 0.4), (2.0, 0.8)]], points=2)
    [(1.0, 0.3), (2.0, 0.6)]
    """
    ends = [curve[-1][0] for curve in curves if curve]
    if not ends:
        return []
    found = []
    for at in np.linspace(0.0, median(ends), points + 1)[1:]:
        seen = [max((each for each in curve if each[0] <= at), default=None) for curve in curves]
        values = [each[1] for each in seen if each is not None]
        if values:
            found.append((round(float(at), 2), round(median(values), 4)))
    return found
