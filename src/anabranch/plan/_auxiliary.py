"""Auxiliary paths: further paths for chunks between tree neighbours (NetStorm, Section VI).

A plan's trees leave some links idle, and sites cannot measure an idle link. So a site may send some
chunks to a tree neighbour by a path other than the primary one. The relays on it forward and never
add up. There are two searches for such paths:

- `algorithm_3` is the paper's. It removes the links of *any* pair's fastest path from the graph,
  finds all fastest paths among the links that are left, and so on. It spends a link for all pairs.
- `disjoint_paths` looks at each pair alone: a link that another pair uses stays. So its paths may
  share links with other trees' primary paths, where chunks would wait for each other.

Both treat links as directed, in the direction that data flows, with transfer delay 1 / goodput. In
the paper's undirected graph a used edge is gone in both directions; `algorithm_3` can do so too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import Literal

import numpy as np
import numpy.typing as npt

from anabranch._typed_toml import Positive, Table
from anabranch.overlay import Overlay
from anabranch.plan._model import Plan, PlanError

_SLOWEST = 10.0  # times its primary's delay an auxiliary path may have
_Paths = dict[tuple[int, int], tuple[tuple[int, ...], ...]]

PathSearch = Callable[[Overlay, Plan], Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]]
"""Finds a plan's auxiliary paths on an overlay."""


class Auxiliary(Table, frozen=True, kw_only=True):
    """Further paths between tree neighbours, over links that the trees leave idle.

    Args:
        search: ``disjoint`` finds them for each pair alone; ``algorithm-3`` is the paper's, where
            a used link leaves the graph in its direction; ``algorithm-3-undirected`` is the paper's
            to the letter, where the other direction leaves with it.
        primary_busy_bound: chunks from which a primary path counts as busy (PRIMARY_BUSY_BOUND).
        busy_when: whether that bound is ``reached`` (IX-C) or ``exceeded`` (VI-A).
        auxiliary_queue_length: chunks that an auxiliary path takes (AUXILIARY_QUEUE_LENGTH).
        when_full: while every path of its pair is full, a chunk may ``wait`` for the first path
            with room, or take the ``primary`` path anyway, as in the paper (VI-A).
    """

    search: Literal["disjoint", "algorithm-3", "algorithm-3-undirected"] = "disjoint"
    primary_busy_bound: Positive = 2
    busy_when: Literal["reached", "exceeded"] = "reached"
    auxiliary_queue_length: Positive = 1
    when_full: Literal["wait", "primary"] = "wait"

    @property
    def busy_from(self) -> int:
        """The number of chunks from which a primary path is busy."""
        return self.primary_busy_bound + (self.busy_when == "exceeded")

    def paths(self, overlay: Overlay, plan: Plan) -> _Paths:
        """Return a plan's auxiliary paths, as of `algorithm_3`.

        Raises:
            PlanError: the plan does not fit the overlay.
        """
        if self.search == "disjoint":
            return disjoint_paths(overlay, plan, slowest=_SLOWEST)
        return algorithm_3(overlay, plan, undirected=self.search == "algorithm-3-undirected")


def with_auxiliary(plan: Plan, overlay: Overlay, search: PathSearch) -> Plan:
    """Return a plan with its auxiliary paths replaced by those that a search finds.

    Where the plan has groups, each group's plan gets paths and the plan itself none.

    Raises:
        PlanError: a path that a plan cannot have, see :class:`Plan`.
    """
    groups = tuple(
        replace(group, plan=with_auxiliary(group.plan, overlay, search)) for group in plan.groups
    )
    return replace(plan, auxiliary={} if groups else search(overlay, plan), groups=groups)


def algorithm_3(overlay: Overlay, plan: Plan, *, undirected: bool = False) -> _Paths:
    """Find auxiliary paths as the paper does, for all pairs of sites together.

    Each turn finds the fastest path of every pair that is still connected, and then removes all
    links of these paths. The paper's listing removes links inside its loop over pairs, but takes
    the paths from a set found before that loop, so the result is the same. The formula in the text
    removes all links at once too. (If a pair could not use the links that earlier pairs took in the
    same turn, each link would serve one pair only. Most pairs of a sparse overlay would then lack
    even a primary path.) Every turn spends a link, so the turns end when no link is left.

    Args:
        overlay: n sites; traced links count at their rate of time 0.
        plan: its tree neighbours are the pairs, and have primary paths. Where a primary path is
            not the fastest, as in plans other than :func:`fapt`'s, the pair's first path is
            auxiliary too.
        undirected: whether a used link is removed in both directions.

    Returns:
        ``{(source, target): paths}`` as :class:`Plan` takes them, in order of the pairs. A pair's
        paths are fastest first, and have no link in common, nor with the primary path. Pairs
        without such a path are left out.

    Raises:
        PlanError: the plan does not fit the overlay.
    """
    plan.check_fits(overlay)
    found: dict[tuple[int, int], list[tuple[int, ...]]] = {pair: [] for pair in _edges(plan)}
    primary = {pair: frozenset(pairwise(plan.path(*pair))) for pair in found}
    goodput_bps = overlay.goodput_matrix_bps()
    fastest_bps = goodput_bps.max(initial=0.0)
    while goodput_bps.any():
        before = _fastest_before(goodput_bps, fastest_bps)
        for (source, target), paths in found.items():
            if before[source, target] >= 0:
                path = _walk_back(before, source, target)
                if primary[source, target].isdisjoint(pairwise(path)):
                    paths.append(path)
        sources, targets = np.nonzero(before >= 0)
        goodput_bps[before[sources, targets], targets] = 0.0
        if undirected:
            goodput_bps[targets, before[sources, targets]] = 0.0
    return {pair: tuple(paths) for pair, paths in found.items() if paths}


def _fastest_before(
    goodput_bps: npt.NDArray[np.float64], fastest_bps: float
) -> npt.NDArray[np.int32]:
    """Return, for each source and target, the site before the target on the fastest path.

    Shape (n, n); negative where there is no path, and where source and target are one site.
    """
    with np.errstate(divide="ignore"):
        # Relative to the fastest link's, since scipy takes delays near 1e-8 for "no edge".
        w_trans = fastest_bps / goodput_bps  # inf where there is no link
    np.fill_diagonal(w_trans, 0.0)
    from scipy.sparse import csgraph  # here, because it takes half a second to import

    before: npt.NDArray[np.int32] = csgraph.floyd_warshall(w_trans, return_predecessors=True)[1]
    return before


def _walk_back(before: npt.NDArray[np.int32], source: int, target: int) -> tuple[int, ...]:
    path = [target]
    while path[-1] != source:
        path.append(int(before[source, path[-1]]))
    return tuple(reversed(path))


def disjoint_paths(
    overlay: Overlay, plan: Plan, *, most: int = 3, slowest: float = math.inf
) -> _Paths:
    """Find auxiliary paths for each pair of tree neighbours alone.

    Remove the primary path's links from the overlay, find the fastest path among the links that are
    left, remove its links too, and so on: the greedy rule of :func:`algorithm_3`, for one pair at a
    time. Equal delays: fewer hops first, then the path that comes first in order of site indices.

    Args:
        overlay: n sites; traced links count at their rate of time 0.
        plan: its tree neighbours are the pairs, and have primary paths.
        most: the most paths for one pair, >= 1.
        slowest: the most times the primary's delay that a path may have. A sender knows how many
            chunks wait, and not how long a path takes; a chunk on a path a hundred times slower
            holds up the whole round.

    Returns:
        Paths as of :func:`algorithm_3`.

    Raises:
        PlanError: the plan does not fit the overlay, or ``most`` is below 1.
    """
    if most < 1:
        raise PlanError(f"cannot find at most {most} auxiliary paths for a pair; ask for 1 or more")
    plan.check_fits(overlay)
    delays = _delays_s_per_bit(overlay)
    found: _Paths = {}
    delay_s_per_bit = {
        (source, target): delay for source, row in enumerate(delays) for delay, target in row
    }
    for source, target in _edges(plan):
        primary = plan.path(source, target)
        spent = set(pairwise(primary))
        longest = slowest * sum(delay_s_per_bit[hop] for hop in spent)
        paths: list[tuple[int, ...]] = []
        while len(paths) < most and (path := _fastest(delays, source, target, spent)):
            if sum(delay_s_per_bit[hop] for hop in pairwise(path)) > longest:
                break  # all further paths are slower
            paths.append(path)
            spent.update(pairwise(path))
        if paths:
            found[source, target] = tuple(paths)
    return found


def _delays_s_per_bit(overlay: Overlay) -> list[list[tuple[float, int]]]:
    """Return each site's links out as (delay in seconds per bit, target), fastest first."""
    delays: list[list[tuple[float, int]]] = [[] for _ in overlay.sites]
    for link in overlay:
        delays[link.source].append((1.0 / link.goodput_bps, link.target))
    return [sorted(row) for row in delays]


def _fastest(
    delays: list[list[tuple[float, int]]], source: int, target: int, spent: set[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Return the fastest path that avoids the spent links, or None where none is left.

    Dijkstra's search over keys (delay, hops, path). It follows no link that leads further than the
    best known way to the target, nor the slower links after it.
    """
    settled: set[int] = set()
    bound = float("inf")  # no path slower than this one can be the fastest
    heap: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, (source,))]
    while heap:
        delay, hops, path = heappop(heap)
        site = path[-1]
        if site == target:
            return path
        if site in settled:
            continue
        settled.add(site)
        for link_delay, other in delays[site]:
            further = delay + link_delay
            if further > bound:
                break
            if other not in settled and (site, other) not in spent:
                if other == target:
                    bound = further
                heappush(heap, (further, hops + 1, (*path, other)))
    return None


def _edges(plan: Plan) -> list[tuple[int, int]]:
    """Return the ordered pairs between which the plan's trees send, each once, sorted."""
    return sorted(
        {(site, up) for tree in plan.trees for site, up in enumerate(tree.up) if up >= 0}
        | {(up, site) for tree in plan.trees for site, up in enumerate(tree.down) if up >= 0}
    )
