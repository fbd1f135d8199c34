"""How good and how fast the searches for a forest of aggregation trees are.

    OPENBLAS_NUM_THREADS=1 python benchmarks/forest.py

Networks as in section 6.1 of HAAF: every pair of sites linked at 1 to 10 Gbit/s and 10 to 50 ms
one way, drawn evenly, alike both ways; a server that does not train; compute times of a Gini
coefficient of 0.1, 0.3 or 0.6. The paper gives neither the size of its CNN-6 nor how long a site
computes: here 2 M float32 and a second on the mean. Seconds are the processor's, of one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import combinations
from statistics import mean, median

import numpy as np

import common
from anabranch.fleet import uneven_samples_per_s
from anabranch.overlay import Link, Overlay, Site
from anabranch.plan import EdaForest, ExactForest, Forest, ForestProblem, LocalForest
from anabranch.plan._forest import grown
from anabranch.plan._forest_groups import GroupCosts
from anabranch.plan._forest_local import local_optimum

SIZE_BYTES = 4 * 2_000_000
GINI = (0.1, 0.3, 0.6)
SMALL = {10: 50}  # sites: seeds
LARGE = {12: 5, 50: 3, 200: 2}

Search = Callable[[ForestProblem], Forest]


def wan(n: int, seed: int, gini: float) -> ForestProblem:
    """Return n sites that train, and a server."""
    rng = np.random.default_rng([n, seed])
    links = []
    for pair in combinations(range(n + 1), 2):
        rate_bps, latency_s = rng.uniform(1e9, 10e9), rng.uniform(0.010, 0.050)
        links += [Link(*pair, rate_bps, latency_s), Link(*pair[::-1], rate_bps, latency_s)]
    sites = (*(Site(f"site{i}") for i in range(n)), Site("server"))
    speeds = uneven_samples_per_s(n, 1.0, gini, seed)
    scale = mean(1 / speed for speed in speeds)
    compute_s = {site: 1 / speed / scale for site, speed in enumerate(speeds)}
    return ForestProblem(Overlay(f"wan-{n}", sites, tuple(links)), n, compute_s, SIZE_BYTES)


def local_alone(problem: ForestProblem) -> Forest:
    """The local search without the exact one, which takes its place up to 10 sites."""
    groups = GroupCosts(problem)
    return grown(problem, groups, local_optimum(problem, groups, seed=0))


def timed(search: Search, problem: ForestProblem) -> tuple[Forest, float]:
    began_s = time.process_time()
    found = search(problem)
    return found, time.process_time() - began_s


def against_the_best() -> Iterator[dict[str, object]]:
    """Each search against the exact one."""
    searches = {"local": local_alone, "eda": EdaForest().search}
    for n, seeds in SMALL.items():
        for gini in GINI:
            problems = [wan(n, seed, gini) for seed in range(seeds)]
            exact = [timed(ExactForest().search, problem) for problem in problems]
            best = [forest.objective for forest, _ in exact]
            row: dict[str, object] = {
                "sites": n,
                "gini": gini,
                "seeds": seeds,
                "exact": {
                    "objective": common.spread(best),
                    "seconds": median(seconds for _, seconds in exact),
                },
            }
            for name, search in searches.items():
                found = [timed(search, problem) for problem in problems]
                above = [
                    forest.objective / b - 1 for (forest, _), b in zip(found, best, strict=True)
                ]
                row[name] = {
                    "best_found": sum(each < 1e-9 for each in above),
                    "above_best_mean": mean(above),
                    "above_best_most": max(above),
                    "seconds": median(seconds for _, seconds in found),
                }
                print(n, gini, name, row[name], flush=True)
            yield row


def against_each_other() -> Iterator[dict[str, object]]:
    """The local search, the paper's, and what a single tree costs."""
    searches: dict[str, Search] = {
        "local": LocalForest().search,
        "eda": EdaForest().search,
        "one_tree": EdaForest(most_trees=1).search,
    }
    for n, seeds in LARGE.items():
        for gini in GINI:
            problems = [wan(n, seed, gini) for seed in range(seeds)]
            row: dict[str, object] = {"sites": n, "gini": gini, "seeds": seeds}
            for name, search in searches.items():
                found = [timed(search, problem) for problem in problems]
                row[name] = {
                    "objective": common.spread([forest.objective for forest, _ in found]),
                    "trees": common.spread([len(forest.trees) for forest, _ in found]),
                    "seconds": common.spread([seconds for _, seconds in found]),
                }
                print(n, gini, name, row[name], flush=True)
            yield row


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    common.write(
        "forest",
        seed=0,
        size_bytes=SIZE_BYTES,
        against_the_best=list(against_the_best()),
        against_each_other=list(against_each_other()),
    )


if __name__ == "__main__":
    main()
