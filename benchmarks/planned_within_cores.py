"""Packed trees on links faster than a core, planned with what a core carries and without it.

    python benchmarks/planned_within_cores.py    # some minutes

Drawn networks of 5 to 15 sites, a millisecond apart, whose links carry 0.02 to 155 Gbit/s. A
simulated site takes in and sends out no more than `anabranch.plan.CORE_BPS` each way. The same
buffer is exchanged over packed trees that were planned for the links alone, and over those that a
group plans. The figure is the time of a round of the former over that of the latter.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

import common
from anabranch.log import read_events, summarise
from anabranch.overlay import Overlay, random_complete, random_geographic, random_sparse
from anabranch.plan import CORE_BPS, FromFile, Packed, Plan, dumps, within_cores
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Exchange
from anabranch_lab.run.simulate import simulate

SITES = 5, 9, 15
KINDS: dict[str, Callable[[int, np.random.Generator], Overlay]] = {
    "sparse": random_sparse,
    "geographic": random_geographic,
    "complete": random_complete,
}
DRAWS = 3
# Drawn rates are 20 to 155 Mbit/s.
TIMES_AS_FAST = 1, 10, 100, 1000
LATENCY_S = 0.001
SIZE_BYTES = 1_000_000_000
CHUNK_ELEMENTS = 1 << 18


def near_and_fast(overlay: Overlay, times: float) -> Overlay:
    links = (
        replace(link, rate_bps=times * link.rate_bps, latency_s=LATENCY_S) for link in overlay.links
    )
    return replace(overlay, links=tuple(links))


def planned(overlay: Overlay) -> Plan:
    return Packed().plan(overlay, elements=SIZE_BYTES // 4, chunk_elements=CHUNK_ELEMENTS)


def round_s(overlay: Overlay, plan: Plan) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "plan.json"), Path(folder, "run.db")
        path.write_text(dumps(plan))
        scenario = Scenario(
            overlay="drawn",
            route=FromFile(path=str(path)),
            task=Exchange(elements=SIZE_BYTES // 4),
            stop=Stop(rounds=1),
            chunk_elements=CHUNK_ELEMENTS,
        )
        simulate(scenario, overlay, log)
        [found] = summarise(event for _, event in read_events(log)).round_s
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, help="links so many times as fast as drawn, alone")
    options = parser.parse_args()
    results = {}
    for times in TIMES_AS_FAST if options.times is None else (options.times,):
        ratios = []
        for sites in SITES:
            for kind, draw in KINDS.items():
                for number in range(DRAWS):
                    links = near_and_fast(draw(sites, np.random.default_rng([number])), times)
                    world = within_cores(links)
                    without_s = round_s(world, planned(links))
                    with_s = round_s(world, planned(world))
                    ratios.append(without_s / with_s)
                    print(
                        f"{kind}, {sites} sites, {times} times: {without_s:.4g} s without, "
                        f"{with_s:.4g} s with; {ratios[-1]:.3f}",
                        flush=True,
                    )
        results[f"{times} times"] = {
            "least": min(ratios),
            "median": median(ratios),
            "most": max(ratios),
            "all": ratios,
        }
    if options.times is None:
        common.write(
            "planned_within_cores",
            seed=0,
            core_bps=CORE_BPS,
            size_bytes=SIZE_BYTES,
            draws=DRAWS,
            without_over_with=results,
        )


if __name__ == "__main__":
    main()
