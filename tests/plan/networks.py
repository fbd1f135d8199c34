"""What the plan tests share: small and random overlays, and every tree of a small one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import strategies as st

from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import NO_PARENT, Plan, balanced, fapt, spanning, star


def build(
    n: int, links: Iterable[tuple[int, int, float]], *, latency_s: float = 0.0, loss: float = 0.0
) -> Overlay:
    """Return an overlay of sites named from 1 and (source, target, rate in bit/s) links."""
    return Overlay(
        "test",
        tuple(Site(str(i + 1)) for i in range(n)),
        tuple(Link(s, t, float(rate), latency_s, loss) for s, t, rate in links),
    )


def random_overlay(
    n: int,
    seed: int,
    *,
    density: float = 1.0,
    symmetric: bool = False,
    one_way: float = 0.0,
    latency_s: float = 0.0,
    ports: float = 0.0,
) -> Overlay:
    """Return a strongly connected overlay with rates of 20..155 Mbit/s.

    Args:
        n: sites.
        seed: of the draw.
        density: chance that a pair is joined, beside the ring that joins all.
        symmetric: both directions at one rate.
        one_way: chance that a joined pair beside the ring has one direction only.
        latency_s: of every link.
        ports: chance that a site has an uplink, and that it has a downlink, as fast as a link.
    """
    rng = np.random.default_rng(seed)
    ring = {(min(i, (i + 1) % n), max(i, (i + 1) % n)) for i in range(n) if n > 1}
    links: list[tuple[int, int, float]] = []
    for a in range(n):
        for b in range(a + 1, n):
            in_ring = (a, b) in ring
            if not in_ring and rng.random() >= density:
                continue
            forward, backward = (float(rate) * 1e6 for rate in rng.integers(20, 156, size=2))
            pair = [(a, b, forward), (b, a, forward if symmetric else backward)]
            if not in_ring and rng.random() < one_way:
                pair.pop(int(rng.integers(2)))
            links += pair
    overlay = build(n, links, latency_s=latency_s)
    for name in ("uplink_bps", "downlink_bps") if ports else ():
        rates_bps = rng.integers(20, 156, size=n) * 1e6
        given = zip(rng.random(n) < ports, rates_bps.tolist(), strict=True)
        overlay = with_ports(overlay, **{name: [bps if has else None for has, bps in given]})
    return overlay


def with_ports(overlay: Overlay, **rates_bps: Iterable[float | None]) -> Overlay:
    """Return the overlay with an ``uplink_bps`` or ``downlink_bps`` (or both) for each site."""
    for name, given in rates_bps.items():
        pairs = zip(overlay.sites, given, strict=True)
        overlay = replace(overlay, sites=tuple(replace(site, **{name: bps}) for site, bps in pairs))
    return overlay


def overlays(max_sites: int = 7) -> st.SearchStrategy[Overlay]:
    return st.builds(
        random_overlay,
        st.integers(2, max_sites),
        st.integers(0, 10_000),
        density=st.sampled_from([0.0, 0.3, 1.0]),
        symmetric=st.booleans(),
        one_way=st.sampled_from([0.0, 0.5]),
        latency_s=st.sampled_from([0.0, 0.03]),
        ports=st.sampled_from([0.0, 0.0, 0.5]),
    )


def all_plans(overlay: Overlay) -> list[Plan]:
    """Return a plan of each kind."""
    return [
        star(overlay),
        balanced(overlay, arity=2),
        balanced(overlay, arity=3),
        spanning(overlay),
        fapt(overlay),
        fapt(overlay, roots=overlay.size),
    ]


def all_ways(overlay: Overlay, root: int, *, up: bool) -> Iterator[tuple[int, ...]]:
    """Yield the parents of every spanning arborescence at a root, into it or out of it."""
    n = overlay.size
    neighbours = overlay.targets if up else overlay.sources
    for parents in product(*([NO_PARENT] if i == root else neighbours[i] for i in range(n))):
        reached, grew = {root}, True
        while grew:
            joined = {i for i in range(n) if parents[i] in reached} | reached
            grew, reached = len(joined) > len(reached), joined
        if len(reached) == n:
            yield parents
