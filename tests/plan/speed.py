"""How long planning takes, measured by hand: ``PYTHONPATH=src python -m tests.plan.speed``.

`benchmarks/packing.py` measures how near to the limit packed trees come.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

from anabranch.overlay import (
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
    ring,
    spanning,
    star,
)

from .networks import random_overlay
from .test_packed import shaken


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


def measure_rings(n: int) -> None:
    """Measure the search for a ring's order, one way and both, on overlays of each kind."""
    for draw in (random_sparse, random_geographic, random_complete):
        overlay = draw(n, seed=1)
        show(f"ring, {overlay.name}", partial(ring, overlay), times=1)


def measure_limit(n: int, density: float) -> None:
    """Measure the limit on one random overlay."""
    overlay = random_overlay(n, 1, density=density)
    what = f"limit, {n} sites, {len(overlay.links)} links"
    show(what, partial(limit_rate_bps, overlay), times=1)


def main() -> None:
    """Measure planners on 100 and 1,000 sites, rings and the limit on 9 to 100, packed trees."""
    measure_planners(100)
    measure_planners(1000)
    for n in (9, 50, 100):
        measure_rings(n)
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
    main()
