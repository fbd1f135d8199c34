"""Where to draw each site: on the map if all positions are known, else by distance in hops."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import numpy.typing as npt

from anabranch.overlay import Overlay

Points = npt.NDArray[np.float64]

_MANY_SITES = 200  # with more sites, a single one's place matters less
_LEAST_GAP = 0.2  # between two sites, as a share of the drawing's longer side


def site_positions(overlay: Overlay) -> Points:
    """Return where to draw the sites, shape (n, 2), x to the right and y up, in a unit square.

    The same overlay always gives the same drawing. Sites too close for their names are pushed
    apart, so map positions are not exact.
    """
    if overlay.size == 1:
        return np.array([[0.5, 0.5]])
    degrees = [(site.longitude_deg, site.latitude_deg) for site in overlay.sites]
    if any(None in pair for pair in degrees):
        points = _by_hops(overlay)
    else:
        points = _on_map(np.array(cast(list[tuple[float, float]], degrees)))
    return _fit(_push_apart(_fit(points)))


def _on_map(degrees: Points) -> Points:
    """Project (longitude, latitude), keeping sites on both sides of the Pacific together."""
    longitude, latitude = degrees.T
    order = np.sort(longitude % 360)
    gaps = np.diff(order, append=order[0] + 360)
    west_edge = order[(int(np.argmax(gaps)) + 1) % len(order)]  # the widest gap is cut open
    x = (longitude - west_edge) % 360
    return np.column_stack([x * math.cos(math.radians(float(latitude.mean()))), latitude])


def _by_hops(overlay: Overlay) -> Points:
    """Move sites from a circle until distances come near the number of hops (SMACOF)."""
    from scipy.sparse.csgraph import shortest_path  # here, because it takes half a second

    n = overlay.size
    linked = overlay.goodput_matrix_bps() > 0
    hops = shortest_path(linked | linked.T, unweighted=True)
    angle = 2 * math.pi * np.arange(n) / n
    points: Points = n / 4 * np.column_stack([np.cos(angle), np.sin(angle)])
    weight = 1 / np.where(hops > 0, hops, np.inf) ** 2
    pull = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    for _ in range(200 if n <= _MANY_SITES else 20):
        apart = np.linalg.norm(points[:, None] - points[None], axis=2)
        ratio = weight * np.divide(hops, apart, out=np.zeros_like(apart), where=apart > 1e-9)
        points = pull @ ((np.diag(ratio.sum(axis=1)) - ratio) @ points)
    _, _, axes = np.linalg.svd(points - points.mean(axis=0))
    points = (points - points.mean(axis=0)) @ axes.T  # the longer side is horizontal
    points *= np.where(points[0] > 0, -1, 1)
    return points  # the first site is at the lower left


def _push_apart(points: Points) -> Points:
    """Move pairs closer than the least gap apart, a little at a time."""
    from scipy.spatial import KDTree  # here, because it takes half a second to import

    points = points.copy()
    n = len(points)
    gap = min(_LEAST_GAP, 0.55 / math.sqrt(n))
    for _ in range(100):
        near = sorted(KDTree(points).query_pairs(0.99 * gap))
        for i, j in near:
            step = points[j] - points[i]
            apart = float(np.hypot(*step))
            if apart < gap:
                turn = 2 * math.pi * (i + j / n) / n  # for two sites at one spot
                way = step / apart if apart > 1e-9 else (math.cos(turn), math.sin(turn))
                move = 0.5 * (gap - apart) * np.asarray(way)
                points[i] -= move
                points[j] += move
        if not near:
            break
    return points


def _fit(points: Points) -> Points:
    """Scale and shift into the unit square, both axes alike, centred."""
    low, high = points.min(axis=0), points.max(axis=0)
    extent = float((high - low).max())
    fitted: Points = (points - (low + high) / 2) / (extent or 1.0) + 0.5
    return fitted
