"""What auxiliary paths the two searches find, and what looking for them costs.

    python benchmarks/auxiliary.py

Nine roots, trees of fastest paths, over `internet2-9` as it is, over its graph with other rates,
and over complete graphs of nine sites: 20 draws of 20 to 155 Mbit/s for each direction. Delays are
those of a bit. Then fifty sites, each a root.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import fmean, median

import numpy as np

import common
from anabranch.overlay import Overlay, internet2_9, random_complete, random_sparse
from anabranch.plan import Plan, algorithm_3, disjoint_paths, dumps, fapt, with_auxiliary

DRAWS = range(20)
Search = Callable[[Overlay, Plan], Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]]
SEARCHES: dict[str, Search] = {
    "algorithm-3": algorithm_3,
    "disjoint": disjoint_paths,
    "disjoint, all": partial(disjoint_paths, most=100),
}


def drawn(seed: int) -> Overlay:
    """Return internet2-9's graph with rates of its own."""
    rng = np.random.default_rng(seed)
    links = (replace(link, rate_bps=float(rng.uniform(20e6, 155e6))) for link in internet2_9())
    return replace(internet2_9(), links=tuple(links))


def delay(overlay: Overlay, path: tuple[int, ...]) -> float:
    links = [overlay.link(*hop) for hop in pairwise(path)]
    return sum(1 / link.goodput_bps for link in links if link is not None)


def neighbours(plan: Plan) -> set[tuple[int, int]]:
    """Return the pairs between which a plan's trees send, each over a link."""
    ups = {(site, to) for tree in plan.trees for site, to in enumerate(tree.up) if to >= 0}
    return ups | {(of, site) for tree in plan.trees for site, of in enumerate(tree.down) if of >= 0}


def look(overlays: list[Overlay], search: str) -> dict[str, object]:
    """Return what one search finds on networks of one kind."""
    have, slower, numbers = [], list[list[float]](), []
    idle_before, idle_after = [], []
    for overlay in overlays:
        plan = with_auxiliary(fapt(overlay, roots=overlay.size), overlay, SEARCHES[search])
        links = {(link.source, link.target) for link in overlay}
        pairs = neighbours(plan)
        assert pairs <= links
        over = {
            hop for paths in plan.auxiliary.values() for path in paths for hop in pairwise(path)
        }
        have.append(sum(bool(plan.auxiliary.get(pair)) for pair in pairs) / len(pairs))
        idle_before.append(1 - len(pairs) / len(links))
        idle_after.append(1 - len(pairs | over) / len(links))
        for pair, paths in plan.auxiliary.items():
            slower.append([delay(overlay, path) / delay(overlay, pair) for path in paths])
            numbers.append(len(paths))
    most = max(numbers, default=0)
    return {
        "pairs_with_a_path": fmean(have),
        "paths_in_all": sum(numbers),
        "most_paths_of_a_pair": most,
        "delay_over_the_primarys": [
            median(each[k] for each in slower if len(each) > k) for k in range(most)
        ],
        "links_idle_without": fmean(idle_before),
        "links_idle_with": fmean(idle_after),
    }


def cost(overlay: Overlay, search: str) -> dict[str, float]:
    """Return how long one search takes on one network, and how large its plan is."""
    plan = fapt(overlay, roots=overlay.size)
    began_s = time.perf_counter()
    found = SEARCHES[search](overlay, plan)
    took_s = time.perf_counter() - began_s
    return {
        "seconds": took_s,
        "most_paths_of_a_pair": max(map(len, found.values()), default=0),
        "plan_bytes": len(dumps(replace(plan, auxiliary=found))),
    }


def main() -> None:
    common.no_options(__doc__)
    kinds = {
        "internet2-9": [internet2_9()],
        "sparse": [drawn(seed) for seed in DRAWS],
        "complete": [random_complete(9, seed) for seed in DRAWS],
    }
    found = {
        kind: {search: look(overlays, search) for search in SEARCHES}
        for kind, overlays in kinds.items()
    }
    fifty = {"sparse, 50": random_sparse(50, 0), "complete, 50": random_complete(50, 0)}
    costs = {
        kind: {search: cost(overlay, search) for search in SEARCHES}
        for kind, overlay in fifty.items()
    }
    print(*found.items(), *costs.items(), sep="\n")
    common.write("auxiliary", seed=0, found=found, costs=costs)


if __name__ == "__main__":
    main()
