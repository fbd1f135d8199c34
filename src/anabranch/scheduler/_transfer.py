"""Chooses which holders of the state send which elements to a site without it. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from anabranch.exchange.ranges import Ranges
from anabranch.overlay import Link, Overlay
from anabranch.plan import ABSENT, NO_PARENT, Plan, Tree


def shares(
    overlay: Overlay,
    lost: Collection[int],
    cut: Collection[tuple[int, int]],
    holders: Collection[int],
    receiver: int,
    elements: int,
    version: int,
) -> list[tuple[int, Ranges, Plan]]:
    """Return which holder of a state sends which elements to a receiver, and by which plan.

    Each holder with links to and from the receiver sends directly, in proportion to its link's
    rate. So all end at once, and keep the receiver's links full. If no holder has such links, the
    one that reaches the receiver fastest sends everything, through other sites.

    Args:
        overlay: the whole network, as believed.
        lost, cut: sites, and links as (source, target), that carry nothing.
        holders: sites that have the whole state.
        receiver: the site that gets it.
        elements: of the state.
        version: of the plans.

    Returns:
        The holder, its elements and a plan of the two alone; empty if no holder reaches it.

    >>> from anabranch.overlay import Link, Site
    >>> links = (Link(0, 2, 1e6), Link(1, 2, 3e6), Link(2, 0, 1e6), Link(2, 1, 1e6))
    >>> three = Overlay("three", (Site("a"), Site("b"), Site("c")), links)
    >>> [(who, what) for who, what, _ in shares(three, (), (), [0, 1], 2, 100, 1)]
    [(0, ((0, 25),)), (1, ((25, 100),))]
    """
    usable = [link for link in overlay if _is_usable(overlay, link, {*lost}, {*cut})]
    rates = {
        link.source: link.rate_bps
        for link in usable
        if link.target == receiver and link.source in holders
    }
    paths: dict[int, tuple[int, ...]] = {source: (source, receiver) for source in rates}
    if not rates:
        path = _fastest(usable, {*holders}, receiver)
        if path is None:
            return []
        rates, paths = {path[0]: 1.0}, {path[0]: path}
    found: list[tuple[int, Ranges, Plan]] = []
    done, sent = 0.0, 0
    for source in sorted(rates):
        done += rates[source]
        upto = round(elements * done / sum(rates.values()))
        if upto > sent:
            plan = _way(overlay.size, paths[source], version)
            found.append((source, ((sent, upto),), plan))
            sent = upto
    return found


def _is_usable(overlay: Overlay, link: Link, lost: set[int], cut: set[tuple[int, int]]) -> bool:
    """Return whether a link and the link back carry data."""
    ends = link.source, link.target
    back = overlay.link(link.target, link.source)
    return back is not None and not {*ends} & lost and not {ends, ends[::-1]} & cut


def _way(size: int, path: tuple[int, ...], version: int) -> Plan:
    """Return a plan in which the first site of a path is the root, and the last site its child."""
    parents = [ABSENT] * size
    parents[path[0]], parents[path[-1]] = NO_PARENT, path[0]
    routes = {}
    if len(path) > 2:
        routes = {(path[0], path[-1]): path, (path[-1], path[0]): path[::-1]}
    tree = Tree(path[0], 1.0, (*parents,), (*parents,))
    return Plan(version, (tree,), routes, "transfer")


def _fastest(usable: Sequence[Link], sources: set[int], receiver: int) -> tuple[int, ...] | None:
    """Return the path over which a large buffer arrives soonest from any of some sites."""
    done: set[int] = set()
    # Ordered by the seconds of a bit on the slowest link, then by the number of links.
    waiting: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, (receiver,))]
    while waiting:
        slowest_s, hops, path = heapq.heappop(waiting)
        site = path[0]
        if site in sources:
            return path
        if site in done:
            continue
        done.add(site)
        for link in usable:
            if link.target == site and link.source not in done:
                each_s = max(slowest_s, 1.0 / link.rate_bps)
                heapq.heappush(waiting, (each_s, hops + 1, (link.source, *path)))
    return None
