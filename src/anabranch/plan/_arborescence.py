"""Cheap ways: a parent for every site, so that all reach one root, at low price and depth.

A way is an array of parents; the root is its own parent. Prices and hop times are matrices from
parent to child, shape (n, n). A way up is found on the transposed matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.intp]

_LOOKS = 8  # searches for lighter parents; nearly all ways stop changing after three


def cheapest_way(price: _Floats, root: int) -> _Ints:
    """Return the way of least total price: an arborescence out of the root, by Edmonds' algorithm.

    A walk goes from a site to its cheapest source, then to that source's cheapest source, and so
    on, until it meets a site that is known to reach the root. Where the walk closes a ring, the
    ring becomes one *group*. A source of the group replaces the source of the member it enters, so
    it costs its own price less the replaced price. In the end the groups are opened, outermost
    first: the group's source becomes the source of one member, and the other members keep theirs
    (Gabow, Galil, Spencer and Tarjan, Combinatorica 1986, on a matrix).

    Args:
        price: >= 0 from row to column; infinite where there is no link.
        root: reaches every site over finite prices.

    Returns:
        Each site's parent, shape (n,). Of equally cheap sources, the one of lowest index.
    """
    groups = _contracted(price, root)
    return _opened(root, groups)


def least_totals(price: _Floats) -> _Floats:
    """Return the total price of the cheapest way of each root, shape (n,).

    Groups form, for no particular root, until one holds all sites. The prices that groups pay to be
    entered are dual values: a root's cheapest way costs the sum of what the groups without it pay.

    Args:
        price: as for :func:`cheapest_way`; any site reaches any other over finite prices.

    >>> table = np.array([[np.inf, 1.0, np.inf], [5.0, np.inf, 1.0], [4.0, 5.0, np.inf]])
    >>> least_totals(table)
    array([2., 5., 5.])
    """
    n = len(price)
    groups = _contracted(price, None)
    paid = np.array(groups.paid)
    within = np.zeros(len(paid))  # what a group and all groups that hold it pay
    if n > 1:
        paid[-1] = 0.0  # the group of all sites has no source
    for group in reversed(range(len(paid))):
        within[group] += paid[group]
        within[groups.rings[group]] += within[group]
    totals: _Floats = paid.sum() - within[:n]
    return totals


@dataclass(frozen=True, slots=True)
class _Groups:
    """All sites, then the groups in the order in which they formed: one entry each.

    Args:
        source: the site that enters it at the least price.
        paid: that price.
        rings: its parts; a site has none.
        entered: the place of the part that each site would enter.
    """

    source: list[int]
    paid: list[float]
    rings: list[list[int]]
    entered: list[_Ints]


def _contracted(price: _Floats, root: int | None) -> _Groups:
    """Return the groups that form until all sites reach the root, or for None until one has all."""
    n = len(price)
    sites = np.arange(n)
    table = price.T.copy()
    table[sites, sites] = np.inf
    # One entry for each site, then one for each group as it forms:
    into = list(table)  # the price of entering it from each site
    source: list[int] = table.argmin(axis=1).tolist()
    paid: list[float] = table[sites, source].tolist()
    members: list[list[int]] = [[site] for site in range(n)]
    rings: list[list[int]] = [[] for _ in range(n)]  # the parts
    entered: list[_Ints] = [sites[:0]] * n  # the part that each site would enter
    group_of = list(range(n))  # of each site, the outermost group
    settled, walked = [False] * n, [False] * n
    if root is not None:
        settled[root] = True
    for start in range(n):
        walk: list[int] = []
        here = group_of[start]
        while not settled[here]:
            if not walked[here]:
                walked[here] = True
                walk.append(here)
                here = group_of[source[here]]
                continue
            at = walk.index(here)
            ring = walk[at:]
            del walk[at:]
            extra = np.array([into[part] for part in ring])
            extra -= np.array([paid[part] for part in ring])[:, None]
            best = extra.argmin(axis=0)
            least = extra[best, sites]
            inside = [site for part in ring for site in members[part]]
            least[inside] = np.inf
            here = len(into)
            into.append(least)
            source.append(int(least.argmin()))  # any, once all are inside
            paid.append(float(least[source[here]]))
            members.append(inside)
            rings.append(ring)
            entered.append(best)
            for site in inside:
                group_of[site] = here
            settled.append(len(inside) == n)
            walked.append(False)
        for part in walk:
            settled[part] = True
    return _Groups(source, paid, rings, entered)


def _opened(root: int, groups: _Groups) -> _Ints:
    """Return each site's parent: the source of the outermost group that is entered through it."""
    source, rings, entered = groups.source, groups.rings, groups.entered
    n = sum(not parts for parts in rings)
    way = np.full(n, root)
    opened = [False] * len(source)
    for outer in reversed(range(len(source))):
        if opened[outer] or outer == root:
            continue
        part = outer
        while rings[part]:
            opened[part] = True
            part = rings[part][entered[part][source[outer]]]
        opened[part] = True
        way[part] = source[outer]
    return way


def lighten(way: _Ints, price: _Floats, hop_s: _Floats, root: int, weight: float) -> _Ints:
    """Return a way whose sites pay more to be nearer to the root.

    Each site takes the parent of the least ``price + weight * seconds from the root`` among the
    sites that are nearer to the root, so that no circle can close. Then distances are measured
    again. The price of a site's own distance is a guess: only the farthest site's distance counts.

    Args:
        way: where to begin.
        price: as for :func:`cheapest_way`.
        hop_s: seconds from row to column, > 0; infinite where there is no link.
        root: the way's.
        weight: price of a second, > 0.
    """
    fixed = price + weight * hop_s
    far_s = seconds_from(root, way, hop_s)
    for _ in range(_LOOKS):
        worth = np.where(far_s[:, None] < far_s, fixed + weight * far_s[:, None], np.inf)
        lighter = worth.argmin(axis=0)
        lighter[root] = root
        if np.array_equal(lighter, way):
            break
        way = lighter
        far_s = seconds_from(root, way, hop_s)
    return way


def seconds_from(root: int, way: _Ints, hop_s: _Floats) -> _Floats:
    """Return how long each site's path from the root takes, shape (n,)."""
    far_s: _Floats = hop_s[way, np.arange(len(way))]
    far_s[root] = 0.0
    while (way != root).any():  # each turn doubles the hops that a site has counted
        far_s = far_s + far_s[way]
        way = way[way]
    return far_s
