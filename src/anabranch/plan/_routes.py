"""Relay routes: the paths of messages between two sites without a link.

The shape of a star or of a balanced tree ignores the overlay, so some of its edges have no link.
The sites between forward the messages of such an edge whole. A route takes the fewest hops, as
plain IP routing does. In a tie, it takes the least transfer delay (sum of 1 / goodput); then the
path that comes first in order of site indices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from heapq import heappop, heappush

from anabranch.overlay import Overlay
from anabranch.plan._model import link_of


def relay_routes(
    overlay: Overlay, edges: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return a route for every edge without a link.

    Args:
        overlay: strongly connected, so that each route exists.
        edges: ordered pairs (source, target) of distinct sites.

    Returns:
        ``{(source, target): (source, relay, ..., target)}``, as :class:`Plan` takes them.
    """
    missing = {(s, t) for s, t in edges if overlay.link(s, t) is None}
    by_source, by_target = defaultdict(set), defaultdict(set)
    for source, target in missing:
        by_source[source].add(target)
        by_target[target].add(source)
    # One search serves all edges with a common end; both directions give the same routes.
    if len(by_source) <= len(by_target):
        found = [_search(overlay, s, far, backward=False) for s, far in by_source.items()]
    else:
        found = [_search(overlay, t, far, backward=True) for t, far in by_target.items()]
    routes = {(path[0], path[-1]): path for paths in found for path in paths}
    return dict(sorted(routes.items()))


def hub_load(overlay: Overlay, hub: int) -> dict[tuple[int, int], float]:
    """Return the load of a star's links, by (source, target), in buffers.

    The routes to a hub form a tree, and so do the routes from it: a link carries a buffer for each
    site beyond it. So the load follows without a list of the star's routes.
    """
    load: dict[tuple[int, int], float] = {}
    others = {*range(overlay.size)} - {hub}
    for backward in (True, False):
        beyond = dict.fromkeys(others, 1.0)
        for path in reversed(_search(overlay, hub, others, backward=backward)):
            site, near = (path[0], path[1]) if backward else (path[-1], path[-2])
            hop = (site, near) if backward else (near, site)
            load[hop] = load.get(hop, 0.0) + beyond[site]  # a hop of both ways carries both
            if near != hub:
                beyond[near] += beyond[site]
    return load


def _search(
    overlay: Overlay, end: int, wanted: set[int], *, backward: bool
) -> list[tuple[int, ...]]:
    """Return the best path from ``end`` to each wanted site, or to it where ``backward``.

    Dijkstra's search over keys (hops, delay, path). A path's prefix (suffix, where backward) of
    least key stays least when both are extended by the same hop, so the first arrival is best.
    """
    neighbours = overlay.sources if backward else overlay.targets
    found: list[tuple[int, ...]] = []
    settled: set[int] = set()
    heap: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, (end,))]
    left = set(wanted)
    while left:
        hops, delay, path = heappop(heap)
        site = path[0] if backward else path[-1]
        if site in settled:
            continue
        settled.add(site)
        if site in left:
            left.remove(site)
            found.append(path)
        for other in neighbours[site]:
            if other not in settled:
                hop = (other, site) if backward else (site, other)
                extended = (other, *path) if backward else (*path, other)
                further = delay + 1.0 / link_of(overlay, *hop).goodput_bps
                heappush(heap, (hops + 1, further, extended))
    return found
