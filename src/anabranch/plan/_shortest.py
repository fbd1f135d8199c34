"""Shortest paths between all pairs of sites, both ways, as trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anabranch.plan._model import NO_PARENT


@dataclass(frozen=True, slots=True)
class ShortestPaths:
    """All shortest paths of n sites (each array of shape (n, n)); row r is about site r.

    Args:
        up: from each site to site r, in the unit of the hops.
        up_parent: the tree of those paths: the site that each passes next; ``NO_PARENT`` at r.
        down: from site r to each site.
        down_parent: the tree of those paths: the site that each passes last.
    """

    up: npt.NDArray[np.float64]
    up_parent: npt.NDArray[np.int32]
    down: npt.NDArray[np.float64]
    down_parent: npt.NDArray[np.int32]


def shortest_paths(hops: npt.NDArray[np.float64]) -> ShortestPaths:
    """Find the shortest paths between all pairs of sites.

    Floyd-Warshall in both directions, O(n^3). Of equal paths, it takes the one whose
    highest-numbered relay is lowest, and a direct link before all others. So equal overlays give
    equal trees.

    Args:
        hops: from row to column, shape (n, n), > 0; inf where there is no link. Any site must
            reach any other. The diagonal counts as 0, whatever it holds.
    """
    if len(hops) == 1:
        alone, zero = np.full((1, 1), NO_PARENT, dtype=np.int32), np.zeros((1, 1))
        return ShortestPaths(zero, alone, zero, alone)
    # Relative to the shortest hop, since scipy takes values near 1e-8 for "no edge".
    unit = hops[~np.eye(len(hops), dtype=bool)].min()
    relative = hops / unit
    np.fill_diagonal(relative, 0.0)
    from scipy.sparse import csgraph  # here, because it takes half a second to import

    down, down_parent = csgraph.floyd_warshall(relative, return_predecessors=True)
    # A copy, since scipy's compiled loop swallows its own error on an array that is not C-ordered.
    backward = np.ascontiguousarray(relative.T)
    up, up_parent = csgraph.floyd_warshall(backward, return_predecessors=True)
    for parents in (up_parent, down_parent):
        np.fill_diagonal(parents, NO_PARENT)
    return ShortestPaths(up * unit, up_parent, down * unit, down_parent)
