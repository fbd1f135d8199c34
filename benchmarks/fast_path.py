"""What a call waits for beside its exchange, in virtual time: the scheduler near and far.

    python benchmarks/fast_path.py

Sites are joined pairwise by links of RATE_BPS each way and LATENCY_S; the network is simulated, so
the machine's speed is in none of the figures. Each row has a number of sites, and a size and number
of buffers that are averaged at once, again and again. A call waits for its plan, then for its
result, and perhaps until every member is known to hold that (``settled``). The limit is the time of
the exchange alone, with the scheduler next door.
"""

from __future__ import annotations

import argparse
import asyncio
from itertools import permutations
from statistics import median
from typing import Any

import numpy as np

import common
import virtual
from anabranch.exchange.arithmetic import Flat
from anabranch.exchange.terms import Op, Terms, Wire
from anabranch.group import Service
from anabranch.group.async_group import AsyncGroup
from anabranch.overlay import Link, Overlay, Site
from anabranch_lab.sim.loop import run_virtually

RATE_BPS = 1e9
LATENCY_S = 0.005
FAR_S = 0.030  # one way to the scheduler
NEXT_DOOR_S = 0.0001
SITES = 3, 9
# How many, and elements of each.
BUFFERS = (1, 256), (10, 25_600), (1, 250_000), (1, 6_250_000), (10, 6_250_000)
CALLS = 13  # the first of which make plans and connections, and get the first lease


async def measure(
    sites: int, count: int, elements: int, control_s: float, returns_early: bool
) -> float:
    """Return the median time of calls, in seconds."""
    overlay = Overlay(
        "complete",
        tuple(Site(f"site-{i}") for i in range(sites)),
        tuple(Link(a, b, RATE_BPS, LATENCY_S) for a, b in permutations(range(sites), 2)),
    )
    took_s: list[float] = []

    async def program(group: AsyncGroup) -> None:
        buffers = [np.full(elements, group.index, np.float32) for _ in range(count)]
        for _ in range(CALLS):
            began_s = group.now_s()
            await asyncio.gather(*(mean(group, each) for each in buffers))
            if not group.index:
                took_s.append(group.now_s() - began_s)

    async def mean(group: AsyncGroup, buffer: Any) -> None:
        terms = Terms(Op.MEAN, Wire.FLOAT32, elements)
        await group.exchange(Flat(buffer), terms, returns_early=returns_early)

    await virtual.run(Service(overlay, awareness=None), control_s, program)
    return median(took_s[1:])


def row(sites: int, count: int, elements: int) -> dict[str, Any]:
    """Return the times of one row, in milliseconds, and their ratios to the limit."""
    what = sites, count, elements
    times = {
        "next_door_ms": run_virtually(measure(*what, NEXT_DOOR_S, returns_early=True)),
        "far_ms": run_virtually(measure(*what, FAR_S, returns_early=True)),
        "far_settled_ms": run_virtually(measure(*what, FAR_S, returns_early=False)),
    }
    near_s = times["next_door_ms"]
    found = {name: round(1000 * each_s, 2) for name, each_s in times.items()}
    ratios = {
        name.replace("_ms", "_over_next_door"): round(each_s / near_s, 2)
        for name, each_s in times.items()
        if each_s != near_s
    }
    return {"sites": sites, "buffers": count, "bytes_each": 4 * elements, **found, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args()
    rows = []
    for sites in SITES:
        for count, elements in BUFFERS:
            rows.append(row(sites, count, elements))
            print(rows[-1], flush=True)
    if not options.dry:
        settings = {"rate_bps": RATE_BPS, "latency_s": LATENCY_S, "scheduler_s": FAR_S}
        common.write("fast_path", seed=0, **settings, rows=rows)


if __name__ == "__main__":
    main()
