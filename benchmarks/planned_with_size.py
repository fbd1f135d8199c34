"""Packed trees against every other route, all planned with what a run knows: 1 KB to 1 GB.

    python benchmarks/planned_with_size.py    # ten minutes to half an hour

Twenty drawn networks of 5 to 24 sites: sparse, geographic, complete, complete with latencies drawn
for each link, and complete behind ports. Each buffer is exchanged in simulation over packed trees
and over every other route that holds rounds of all sites, FAPT with one root and with all. The
figure of a route is the median of its rounds; packed is to be at most 3 % slower than the best.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import common
from anabranch.log import read_events, summarise
from anabranch.overlay import Overlay, random_complete, random_geographic, random_sparse
from anabranch.plan import AnyPlanner, Balanced, Fapt, Packed, Ring, Spanning, Star
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Exchange
from anabranch_lab.run.simulate import simulate

SITES = 5, 9, 15, 24
BUFFERS_BYTES = 1_000, 100_000, 10_000_000, 1_000_000_000
SEED = 0
ROUNDS = 3
LARGE_BYTES, LARGE_ROUNDS = 1e9, 1
# A simulated chunk costs what it costs, whatever its size; so all routes get larger ones of 1 GB.
LARGE_CHUNK_ELEMENTS = 1 << 18
MAY_BE_SLOWER = 1.03


def with_ports(overlay: Overlay, rng: np.random.Generator) -> Overlay:
    """Return an overlay whose sites share an uplink and a downlink among their links."""
    sites = tuple(
        replace(site, uplink_bps=up_bps, downlink_bps=down_bps)
        for site, up_bps, down_bps in zip(
            overlay.sites,
            rng.uniform(50e6, 500e6, overlay.size).tolist(),
            rng.uniform(50e6, 500e6, overlay.size).tolist(),
            strict=True,
        )
    )
    return replace(overlay, sites=sites)


KINDS: dict[str, Callable[[int, np.random.Generator], Overlay]] = {
    "sparse": random_sparse,
    "geographic": random_geographic,
    "complete": random_complete,
    "complete, latencies drawn": lambda n, rng: random_complete(n, rng, latency_s=(0.001, 0.1)),
    "complete, ports": lambda n, rng: with_ports(random_complete(n, rng), rng),
}


def routes(sites: int) -> Iterator[AnyPlanner]:
    yield from (Packed(), Star(), Balanced(), Spanning(), Ring(), Fapt(roots=1), Fapt(roots=sites))


def round_s(overlay: Overlay, route: AnyPlanner, size_bytes: int) -> tuple[str, list[float]]:
    """Return a route's label and how long each of its rounds took, seconds of virtual time."""
    is_large = size_bytes >= LARGE_BYTES
    scenario = Scenario(
        overlay="drawn",
        route=route,
        task=Exchange(elements=size_bytes // 4),
        stop=Stop(rounds=LARGE_ROUNDS if is_large else ROUNDS),
        chunk_elements=LARGE_CHUNK_ELEMENTS if is_large else None,
        seed=SEED,
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "run.db")
        simulate(scenario, overlay, log)
        run = summarise(event for _, event in read_events(log))
    return run.label, list(run.round_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, help="this size of buffer, bytes")
    parser.add_argument("--networks", type=int, help="so many of them, the smallest")
    options = parser.parse_args()
    results = []
    drawn = [(n, kind) for n in SITES for kind in KINDS][: options.networks]
    for number, (sites, kind) in enumerate(drawn):
        overlay = KINDS[kind](sites, np.random.default_rng([SEED, number]))
        for size_bytes in BUFFERS_BYTES:
            if options.only not in (None, size_bytes):
                continue
            rounds = dict(round_s(overlay, route, size_bytes) for route in routes(sites))
            taken = {label: median(each) for label, each in rounds.items()}
            packed, *others = taken
            best = min(others, key=taken.__getitem__)
            over = taken[packed] / taken[best]
            results.append(
                {
                    "network": f"{kind}, {sites} sites",
                    "size_bytes": size_bytes,
                    "packed_over_best_other": over,
                    "best_other": best,
                    "rounds_s": rounds,
                }
            )
            print(
                f"{kind}, {sites} sites, {size_bytes:,} bytes: {packed} {taken[packed]:.4g} s, "
                f"{best} {taken[best]:.4g} s, {over:.3f}{'  SLOWER' * (over > MAY_BE_SLOWER)}",
                flush=True,
            )
    over_best = [float(str(each["packed_over_best_other"])) for each in results]
    slower = sum(over > MAY_BE_SLOWER for over in over_best)
    print(f"{len(results)} cases, {slower} slower by over 3 %; {max(over_best):.3f} at worst")
    if options.only is None and options.networks is None:
        common.write(
            "planned_with_size",
            seed=SEED,
            rounds=ROUNDS,
            large={"rounds": LARGE_ROUNDS, "chunk_elements": LARGE_CHUNK_ELEMENTS},
            packed_over_best_other={
                "least": min(over_best),
                "median": median(over_best),
                "most": max(over_best),
            },
            cases=results,
        )


if __name__ == "__main__":
    main()
