"""Random overlays of any size: for tests, benchmarks and questions of scale.

Each is strongly connected and follows from its arguments alone: equal seeds give equal overlays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import numpy as np

from anabranch.overlay._geography import FIBRE_M_PER_S, great_circle_m
from anabranch.overlay._model import Link, Overlay, OverlayError, Site
from anabranch.overlay._rates import check_bounds


def random_sparse(
    n: int,
    seed: int | np.random.Generator,
    *,
    degree: float = 2.9,
    low_bps: float = 20e6,
    high_bps: float = 155e6,
    latency_s: float = 0.03,
    loss: float = 0.0002,
) -> Overlay:
    """Draw a sparse overlay that no single lost pair of links can split, like Internet2's.

    It is a ring through all sites in random order, with chords between random pairs until the mean
    degree is reached (or every pair is linked). The defaults are those of NetStorm's evaluation.

    Args:
        n: number of sites, >= 3: with fewer, every link is a bridge.
        seed: a seed, or a generator, which is advanced.
        degree: mean number of neighbours of a site, >= 2, which the ring alone gives.
        low_bps, high_bps: the rate of each direction is drawn uniformly between them, bit/s.
        latency_s: one-way delay of every link, seconds.
        loss: share of packets lost on every link.

    Raises:
        OverlayError: too few sites or neighbours, or bounds out of order.

    >>> overlay = random_sparse(100, seed=7)
    >>> len(overlay.links) / overlay.size
    2.9
    """
    if n < 3:
        raise OverlayError(f"a sparse overlay of {n} sites would hold a bridge; give n >= 3")
    if not degree >= 2:
        raise OverlayError(f"degree is {degree:g}, which must be >= 2: the ring alone gives 2")
    rng = np.random.default_rng(seed)
    ring = rng.permutation(n).tolist()
    pairs = {_pair(a, b) for a, b in zip(ring, ring[1:] + ring[:1], strict=True)}
    wanted = round(min(degree, n - 1) * n / 2)
    while len(pairs) < wanted:
        a, b = rng.integers(n, size=2).tolist()
        if a != b:
            pairs.add(_pair(a, b))
    sites = _numbered_sites(n)
    linked = [(a, b, latency_s) for a, b in sorted(pairs)]
    return Overlay(f"sparse-{n}", sites, _both_ways(linked, rng, low_bps, high_bps, loss))


def random_geographic(
    n: int,
    seed: int | np.random.Generator,
    *,
    neighbours: int = 3,
    low_bps: float = 20e6,
    high_bps: float = 155e6,
    loss: float = 0.0002,
) -> Overlay:
    """Draw sites evenly over the globe; each is linked to near sites.

    Each site has links to its nearest neighbours. The links of the shortest spanning tree join far
    clusters where they are closest. Latency is that of straight fibre.

    Args:
        n: number of sites, >= 2.
        seed: a seed, or a generator, which is advanced.
        neighbours: how many nearest sites each one is linked to, >= 1; others may choose it too.
        low_bps, high_bps: the rate of each direction is drawn uniformly between them, bit/s.
        loss: share of packets lost on every link.

    Raises:
        OverlayError: too few sites or neighbours, or bounds out of order.

    >>> overlay = random_geographic(50, seed=7)
    >>> all(0 < link.latency_s < 0.101 for link in overlay)  # half way round the globe: 100 ms
    True
    """
    # Here, because the import takes most of a second and the rest of this package does not need it.
    from scipy.sparse.csgraph import minimum_spanning_tree

    _check_at_least_two(n)
    if neighbours < 1:
        raise OverlayError(f"neighbours is {neighbours}, which must be >= 1")
    rng = np.random.default_rng(seed)
    # Area on a sphere grows with the sine of the latitude: even over that is even over the globe.
    latitudes_deg = np.degrees(np.arcsin(rng.uniform(-1, 1, n)))
    longitudes_deg = rng.uniform(-180, 180, n)
    distance_m = great_circle_m(
        latitudes_deg[:, None], longitudes_deg[:, None], latitudes_deg, longitudes_deg
    )
    others_m = distance_m + np.diag(np.full(n, np.inf))
    nearest = np.argsort(others_m, axis=1)[:, : min(neighbours, n - 1)]
    pairs = {_pair(a, b) for a, row in enumerate(nearest.tolist()) for b in row}
    tree = minimum_spanning_tree(distance_m).tocoo()
    pairs |= {_pair(a, b) for a, b in zip(tree.row.tolist(), tree.col.tolist(), strict=True)}
    places_deg = zip(latitudes_deg.tolist(), longitudes_deg.tolist(), strict=True)
    sites = tuple(Site(f"site{i}", *place_deg) for i, place_deg in enumerate(places_deg))
    linked = [(a, b, float(distance_m[a, b]) / FIBRE_M_PER_S) for a, b in sorted(pairs)]
    return Overlay(f"geographic-{n}", sites, _both_ways(linked, rng, low_bps, high_bps, loss))


def random_complete(
    n: int,
    seed: int | np.random.Generator,
    *,
    low_bps: float = 20e6,
    high_bps: float = 155e6,
    latency_s: float | tuple[float, float] = 0.03,
    latency_drift_s: float = 0.0,
    loss: float = 0.0002,
) -> Overlay:
    """Draw an overlay with a link from every site to every other, as between cloud regions.

    Args:
        n: number of sites, >= 2; there are ``n * (n - 1)`` links.
        seed: a seed, or a generator, which is advanced.
        low_bps, high_bps: the rate of each direction is drawn uniformly between them, bit/s.
        latency_s: one-way delay of every link, seconds; or (low, high), for a uniform draw for each
            direction.
        latency_drift_s: the most that each message changes the latency, see `Link`.
        loss: share of packets lost on every link.

    Raises:
        OverlayError: too few sites, or bounds out of order.

    >>> len(random_complete(4, seed=7).links)
    12

    The intermittent networks of Malik et al. (II-A), with links of 100 Mbit/s:

    >>> overlay = random_complete(
    ...     9, seed=7, low_bps=1e8, high_bps=1e8, latency_s=(1.0, 5.0), latency_drift_s=0.5
    ... )
    >>> [round(overlay.link(*pair).latency_s, 2) for pair in ((0, 1), (1, 0))]
    [4.5, 3.65]
    """
    _check_at_least_two(n)
    rng = np.random.default_rng(seed)
    linked = [(a, b, 0.0) for a, b in combinations(range(n), 2)]
    links = _both_ways(linked, rng, low_bps, high_bps, loss)
    if isinstance(latency_s, tuple):
        low_s, high_s = latency_s
        if not 0 <= low_s <= high_s < math.inf:
            raise OverlayError(
                f"cannot draw latencies from {low_s:g} to {high_s:g} s; give 0 <= low <= high, "
                "both finite"
            )
        latencies_s = rng.uniform(low_s, high_s, len(links)).tolist()
    else:
        latencies_s = [latency_s] * len(links)
    links = tuple(
        replace(link, latency_s=one_way_s, latency_drift_s=latency_drift_s)
        for link, one_way_s in zip(links, latencies_s, strict=True)
    )
    return Overlay(f"complete-{n}", _numbered_sites(n), links)


def _check_at_least_two(n: int) -> None:
    if n < 2:
        raise OverlayError(f"an overlay of {n} sites has nothing to link; give n >= 2")


def _numbered_sites(n: int) -> tuple[Site, ...]:
    return tuple(Site(f"site{i}") for i in range(n))


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _both_ways(
    linked: Iterable[tuple[int, int, float]],
    rng: np.random.Generator,
    low_bps: float,
    high_bps: float,
    loss: float,
) -> tuple[Link, ...]:
    """Make both links of each (site, site, latency), each with its own rate."""
    check_bounds(low_bps, high_bps)
    directed = [way for a, b, latency_s in linked for way in ((a, b, latency_s), (b, a, latency_s))]
    rates_bps = rng.uniform(low_bps, high_bps, len(directed)).tolist()
    return tuple(
        Link(source, target, rate_bps, latency_s, loss)
        for (source, target, latency_s), rate_bps in zip(directed, rates_bps, strict=True)
    )
