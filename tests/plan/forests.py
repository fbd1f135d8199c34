"""What the tests of forests share: random problems, all trees of few sites, a cycle by events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import count, product

import numpy as np

from anabranch.overlay import Overlay
from anabranch.plan import ABSENT, NO_PARENT, ForestProblem, Plan, Tree

from .networks import random_overlay


def random_problem(
    trainers: int,
    seed: int,
    *,
    relays: int = 0,
    symmetric: bool = True,
    density: float = 1.0,
    compute_s: float = 1.0,
) -> ForestProblem:
    """Return sites that train, drawn among others that relay, and a server, drawn among all.

    Rates of 20 to 155 Mbit/s and 1 MB make transfers of 0.05 to 0.4 s and 30 ms of latency;
    compute times are drawn evenly up to ``compute_s``.
    """
    n = trainers + relays
    overlay = random_overlay(n, seed, density=density, symmetric=symmetric, latency_s=0.03)
    rng = np.random.default_rng(seed)
    sites = rng.permutation(n)[:trainers].tolist()
    times = {site: compute_s * float(rng.random()) for site in sorted(sites)}
    return ForestProblem(overlay, int(rng.integers(n)), times, size_bytes=1e6)


def seconds_between(problem: ForestProblem) -> list[list[float]]:
    """Return the seconds of the fastest way from row to column, by relaxing all links."""
    n = problem.overlay.size
    found = [[0.0 if a == b else math.inf for b in range(n)] for a in range(n)]
    for _ in range(n):
        for link in problem.overlay:
            hop_s = link.latency_s + 8 * problem.size_bytes / link.goodput_bps
            for row in found:
                row[link.target] = min(row[link.target], row[link.source] + hop_s)
    return found


def all_parents(root: int, sites: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield the parents of every tree over these sites at a root, whatever links there are."""
    others = [site for site in sites if site != root]
    for parents in product(sites, repeat=len(others)):
        tree = dict(zip(others, parents, strict=True))
        reached = {root}
        while more := {site for site in tree if tree[site] in reached} - reached:
            reached |= more
        if len(reached) == len(sites):
            yield {root: NO_PARENT, **tree}


def as_parents(size: int, tree: dict[int, int]) -> tuple[int, ...]:
    return tuple(tree.get(site, ABSENT) for site in range(size))


def times_of(
    problem: ForestProblem,
    between_s: list[list[float]],
    up: dict[int, int],
    down: dict[int, int],
) -> tuple[float, float]:
    """Return period and latency of a tree whose edges take the fastest ways: eq. 11 to 13."""
    (root,) = (site for site, parent in up.items() if parent == NO_PARENT)

    def start_s(site: int) -> float:
        if site == root:
            return between_s[problem.server][root]
        return start_s(down[site]) + between_s[down[site]][site]

    def send_s(site: int) -> float:
        children = [child for child in up if up[child] == site]
        came_s = [send_s(child) + between_s[child][site] for child in children]
        return max([problem.compute_s[site] + start_s(site), *came_s])

    period_s = send_s(root) + between_s[root][problem.server]
    return period_s, period_s - min(map(send_s, up))


def simulated_cycle(problem: ForestProblem, plan: Plan) -> tuple[float, dict[int, float]]:
    """Return when the server has the sum, and when each site sent, by moving messages hop by hop.

    A site that a message passes forwards it and does nothing else.
    """
    (tree,) = plan.trees
    members = plan.members
    hop_s = {
        (link.source, link.target): link.latency_s + 8 * problem.size_bytes / link.goodput_bps
        for link in problem.overlay
    }
    between_s = seconds_between(problem)
    missing = {site: {site} | {c for c in members if tree.up[c] == site} for site in members}
    sent_s: dict[int, float] = {}
    number = count()
    events: list[tuple[float, int, str, tuple[int, ...], int]] = []

    def at(time_s: float, what: str, way: tuple[int, ...], source: int) -> None:
        heappush(events, (time_s, next(number), what, way, source))

    at(between_s[problem.server][tree.root], "parameters", (tree.root,), -1)
    while True:
        now_s, _, what, way, source = heappop(events)
        if len(way) > 1:
            at(now_s + hop_s[way[0], way[1]], what, way[1:], source)
            continue
        (site,) = way
        if what == "parameters":
            at(now_s + problem.compute_s[site], "sum", (site,), site)
            for child in members:
                if tree.down[child] == site:
                    at(now_s, "parameters", plan.path(site, child), site)
            continue
        missing[site].remove(source)
        if not missing[site]:
            sent_s[site] = now_s
            if site == tree.root:
                return now_s + between_s[tree.root][problem.server], sent_s
            at(now_s, "sum", plan.path(site, tree.up[site]), site)


def random_plan(problem: ForestProblem, seed: int) -> Plan:
    """Return a random tree, other ways up than down, over routes that need not be the fastest."""
    rng = np.random.default_rng(seed)
    root = int(rng.choice(problem.sites))

    def parents() -> tuple[int, ...]:
        joined, tree = [root], {root: NO_PARENT}
        for site in rng.permutation([s for s in problem.sites if s != root]).tolist():
            tree[site] = int(rng.choice(joined))
            joined.append(site)
        return as_parents(problem.overlay.size, tree)

    up, down = parents(), parents()
    edges = [(site, parent) for site, parent in enumerate(up) if parent >= 0]
    edges += [(parent, site) for site, parent in enumerate(down) if parent >= 0]
    routes = {}
    for edge in edges:
        way = _random_way(problem.overlay, rng, *edge)
        if len(way) > 2:
            routes[edge] = way
    return Plan(1, (Tree(root, 1.0, up, down),), routes)


def _random_way(
    overlay: Overlay, rng: np.random.Generator, source: int, target: int
) -> tuple[int, ...]:
    way = [source]
    while way[-1] != target:
        way.append(int(rng.choice(overlay.targets[way[-1]])))
        if way[-1] in way[:-1]:
            del way[way.index(way[-1]) + 1 :]
    return tuple(way)
