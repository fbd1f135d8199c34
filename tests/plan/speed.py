"""How long planning takes, measured by hand: ``PYTHONPATH=src python -m tests.plan.speed``.

With numbers of sites after it, it surveys packed trees instead: how near to the limit they come
over random overlays of each kind, how many they are, how deep, and how stable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from math import fsum
from statistics import median
from time import perf_counter

from anabranch.overlay import (
    Overlay,
    internet2_9,
    random_complete,
    random_geographic,
    random_sparse,
)
from anabranch.plan import (
    balanced,
    fapt,
    limit_rate_bps,
    packed,
    predict,
    share_of_limit,
    spanning,
    star,
)

from .networks import random_overlay
from .test_packed import mean_depth, shaken, shape, symmetric, with_some_ports


def show(what: str, run: Callable[[], object], times: int = 3) -> None:
    """Print the shortest of a few runs."""
    best_s = float("inf")
    for _ in range(times):
        began_s = perf_counter()
        run()
        best_s = min(best_s, perf_counter() - began_s)
    print(f"{what:40} {1e3 * best_s:9.1f} ms")


def measure_planners(n: int) -> None:
    """Measure every planner on a complete overlay, and those that need relays on a sparse one."""
    complete, sparse = random_overlay(n, 0), random_overlay(n, 0, density=3 / n)
    for roots in sorted({1, 10, n}):
        show(f"fapt, {n} sites, {roots} roots", partial(fapt, complete, roots=roots))
    show(f"spanning, {n} sites", partial(spanning, complete))
    for name, overlay in (("complete", complete), ("sparse", sparse)):
        show(f"balanced, {n} sites, {name}, root 0", partial(balanced, overlay, root=0))
        show(f"balanced, {n} sites, {name}, best root", partial(balanced, overlay), times=1)
        show(f"star, {n} sites, {name}, best hub", partial(star, overlay), times=1)
    plan = fapt(complete, roots=10)
    show(f"predict, {n} sites, 10 roots", partial(predict, plan, complete, 244e6, chunk_bytes=1e6))


def measure_limit(n: int, density: float) -> None:
    """Measure the limit on one random overlay."""
    overlay = random_overlay(n, 1, density=density)
    what = f"limit, {n} sites, {len(overlay.links)} links"
    show(what, partial(limit_rate_bps, overlay), times=1)


def survey_packed(n: int, seeds: int) -> None:
    """Print what packed trees reach over many overlays of each kind."""
    print("overlays: share of limit median, worst; trees median, most; depth; ms median, most;")
    print("  after 5 % of noise: share of the buffer on the same trees, median; share of limit")
    changes: dict[str, Callable[[Overlay, int], Overlay]] = {
        "": lambda overlay, _: overlay,
        "symmetric": lambda overlay, _: symmetric(overlay),
        "with ports": with_some_ports,
    }
    for draw in (random_sparse, random_geographic, random_complete):
        for name, change in changes.items():
            overlays = [change(draw(n, seed), seed) for seed in range(seeds)]
            shares, trees, depths, took_ms, kept, later = [], [], [], [], [], []
            for seed, overlay in enumerate(overlays):
                began_s = perf_counter()
                plan = packed(overlay)
                took_ms.append(1e3 * (perf_counter() - began_s))
                shares.append(share_of_limit(plan, overlay))
                trees.append(len(plan.trees))
                depths.append(mean_depth(plan) / 2)
                noisy = shaken(overlay, 1000 + seed)  # a seed that drew no rates
                again = packed(noisy, previous=plan)
                shapes = {shape(tree) for tree in plan.trees}
                kept.append(fsum(tree.share for tree in again.trees if shape(tree) in shapes))
                later.append(share_of_limit(again, noisy))
            print(
                f"{overlays[0].name + ' ' + name:25} {median(shares):.3f} {min(shares):.3f}  "
                f"{median(trees):4.0f} {max(trees):4}  {median(depths):5.1f}  "
                f"{median(took_ms):5.0f} {max(took_ms):5.0f}  "
                f"{median(kept):.2f} {median(later):.3f}",
                flush=True,
            )


def main() -> None:
    """Measure planners on 100 and 1,000 sites, the limit on 9 to 100, packed trees on 9 and 50."""
    measure_planners(100)
    measure_planners(1000)
    show("limit, internet2-9", partial(limit_rate_bps, internet2_9()))
    for n, density in ((9, 1.0), (50, 0.06), (50, 1.0), (100, 0.03), (100, 1.0)):
        measure_limit(n, density)
    show("packed, internet2-9", partial(packed, internet2_9()))
    for n in (9, 50):
        for draw in (random_sparse, random_geographic, random_complete):
            overlay = draw(n, seed=1)
            show(f"packed, {overlay.name}", partial(packed, overlay))
            before = packed(overlay)
            noisy = shaken(overlay, 1000)
            show(f"packed, {overlay.name}, again", partial(packed, noisy, previous=before))


if __name__ == "__main__":
    for sites in map(int, sys.argv[1:]):
        survey_packed(sites, seeds=50)
    if len(sys.argv) == 1:
        main()
