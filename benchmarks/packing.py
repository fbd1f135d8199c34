"""How near packed trees come to the limit, how many and how deep they are, and whether they stay.

    PYTHONPATH=. python benchmarks/packing.py    # a quarter of an hour

Drawn networks of three kinds, with rates for each direction, for each pair, and with ports at half
of the ends (tests/plan/test_packed.py draws them). `rounds`: the bound on a round over the limit's
time, for two sizes of buffer. `noise`: all rates are drawn anew within so much of themselves, and
the plan is made again with the one before as `previous`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import fsum
from statistics import median

import common
from anabranch.overlay import (
    Overlay,
    internet2_9,
    random_complete,
    random_geographic,
    random_sparse,
)
from anabranch.plan import Plan, fapt, limit_s, packed, predict, share_of_limit, spanning
from tests.plan.test_packed import mean_depth, shaken, shape, symmetric, with_some_ports

KINDS: dict[str, Callable[[int, int], Overlay]] = {
    "sparse": random_sparse,
    "geographic": random_geographic,
    "complete": random_complete,
}
CHANGES: dict[str, Callable[[Overlay, int], Overlay]] = {
    "": lambda overlay, _: overlay,
    ", symmetric": lambda overlay, _: symmetric(overlay),
    ", with ports": with_some_ports,
}
SEEDS = {9: 50, 50: 5}  # by number of sites
FEWER = {9: 9, 50: 3}  # for rounds and noise
BUFFERS_BYTES = 244e6, 16e6
CHUNK_BYTES = 2**18
NOISE = 0.05, 0.2


def survey(overlays: list[Overlay]) -> dict[str, float]:
    """Return what packed trees come to on networks of one kind."""
    shares, trees, hops, took_s = [], [], [], []
    for overlay in overlays:
        began_s = time.perf_counter()
        plan = packed(overlay)
        took_s.append(time.perf_counter() - began_s)
        shares.append(share_of_limit(plan, overlay))
        trees.append(len(plan.trees))
        hops.append(mean_depth(plan) / 2)
    return {
        "networks": len(overlays),
        "share_of_limit_median": median(shares),
        "share_of_limit_worst": min(shares),
        "trees_median": median(trees),
        "trees_most": max(trees),
        "hops_of_the_longer_way": median(hops),
        "seconds_median": median(took_s),
        "seconds_most": max(took_s),
    }


def rounds(overlays: list[Overlay], size_bytes: float) -> dict[str, float]:
    """Return the bound on a round over the limit's time, the median over networks of one kind."""
    plans: dict[str, Callable[[Overlay], Plan]] = {
        "packed for the size": lambda overlay: packed(overlay, size_bytes=size_bytes),
        "packed, size not given": packed,
        "FAPT, all roots": lambda overlay: fapt(overlay, roots=overlay.size),
        "spanning tree": spanning,
    }
    limits_s = [limit_s(overlay, size_bytes) for overlay in overlays]
    found = {"limit_s": median(limits_s)}
    for name, make in plans.items():
        made = [
            predict(make(overlay), overlay, size_bytes, chunk_bytes=CHUNK_BYTES).contention_s
            for overlay in overlays
        ]
        found[name] = median(a / b for a, b in zip(made, limits_s, strict=True))
    return found


def noise(overlays: list[Overlay], by: float) -> dict[str, float]:
    """Return what a plan is worth after the rates have changed, made again or as it was."""
    as_it_was, again, stayed, took_s = [], [], [], []
    for seed, overlay in enumerate(overlays):
        plan = packed(overlay)
        noisy = shaken(overlay, 1000 + seed, by)  # a seed that drew no rates
        began_s = time.perf_counter()
        later = packed(noisy, previous=plan)
        took_s.append(time.perf_counter() - began_s)
        shapes = {shape(tree) for tree in plan.trees}
        stayed.append(fsum(tree.share for tree in later.trees if shape(tree) in shapes))
        as_it_was.append(share_of_limit(plan, noisy))
        again.append(share_of_limit(later, noisy))
    return {
        "share_of_limit_old_shares": median(as_it_was),
        "share_of_limit_made_again": median(again),
        "share_of_the_buffer_on_trees_that_stayed": median(stayed),
        "seconds_median": median(took_s),
        "seconds_most": max(took_s),
    }


def main() -> None:
    common.no_options(__doc__)
    results: dict[str, dict[str, object]] = {"survey": {}, "rounds": {}, "noise": {}}
    results["survey"]["internet2-9"] = survey([internet2_9()])
    for sites, seeds in SEEDS.items():
        for kind, draw in KINDS.items():
            drawn = [draw(sites, seed) for seed in range(seeds)]
            for name, change in CHANGES.items():
                changed = [change(overlay, seed) for seed, overlay in enumerate(drawn)]
                results["survey"][f"{kind}, {sites}{name}"] = survey(changed)
            for size_bytes in BUFFERS_BYTES:
                results["rounds"][f"{kind}, {sites}, {size_bytes / 1e6:g} MB"] = rounds(
                    drawn[: FEWER[sites]], size_bytes
                )
            for by in NOISE:
                results["noise"][f"{kind}, {sites}, {by:.0%}"] = noise(drawn[: FEWER[sites]], by)
            for part in results.values():
                print(*list(part.items())[-3:], sep="\n", flush=True)
            common.write("packing", seed=0, chunk_bytes=CHUNK_BYTES, **results)


if __name__ == "__main__":
    main()
