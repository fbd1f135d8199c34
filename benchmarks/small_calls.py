"""Small calls over processes of one machine, ours beside gloo's: what a call costs, not a byte.

    chrt -r 10 python benchmarks/small_calls.py                # two, three and nine processes
    python benchmarks/small_calls.py --sites 3 --dry

Every process joins both groups; blocks of calls of ours and of gloo take turns, so both feel the
same machine. A call sums 4 floats or 100 KB; or 500 tensors of 200 KB are summed by 500 calls that
are under way at once, or by one call that has them all (gloo's is ``all_reduce_coalesced``). In
five further groups the 500 calls are the first, before there is a plan for their size. A block's
time ends with its last result; settlements are waited for after that. Ours use shared memory, and
gloo uses TCP, as each does by default. Our scheduler is a process of this machine, too.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import common
from against_gloo import free_port
from anabranch import Group, Service, spawn
from anabranch.overlay import random_complete

SYSTEMS = "gloo", "anabranch"
SMALL = {"4 floats": 4, "100 KB": 25_000}
MANY, MANY_ELEMENTS = 500, 50_000
STARTS = 5  # groups whose first calls are many
CASES = (*SMALL, "500 calls", "500 tensors")
Figures = dict[str, dict[str, list[float]]]  # seconds a call of each block, by case and system


def measure(group: Group, gloo_port: int, blocks: int, calls: int) -> Figures:
    """Return the seconds of each block at this site: of one call, or of all of many at once."""
    import torch
    import torch.distributed as dist

    systems = systems_of(group, gloo_port)
    figures: Figures = {case: {each: [] for each in SYSTEMS} for case in CASES}
    for case, elements in SMALL.items():
        tensor = torch.zeros(elements)
        for number in range(blocks + 1):
            for system, all_reduce in in_turn(systems, number):
                dist.barrier()
                began_s = time.perf_counter()
                for _ in range(calls):
                    all_reduce(tensor)
                took_s = (time.perf_counter() - began_s) / calls
                group.settle()
                if number:  # the first block opens connections, and gets the first lease
                    figures[case][system].append(took_s)
        tensor.fill_(group.rank)
        for all_reduce in systems.values():
            answer = tensor.clone()
            all_reduce(answer)
            assert bool((answer == group.size * (group.size - 1) / 2).all())
    tensors = [torch.zeros(MANY_ELEMENTS) for _ in range(MANY)]
    as_one: dict[str, Callable[[], object]] = {
        "gloo": partial(dist.all_reduce_coalesced, tensors),
        "anabranch": partial(group.all_reduce, tensors, op="sum"),
    }
    one_by_one = {system: partial(all_of, each, tensors) for system, each in systems.items()}
    for case, ways in (("500 calls", one_by_one), ("500 tensors", as_one)):
        for number in range(blocks + 1):
            for system, reduce_all in in_turn(ways, number):
                dist.barrier()
                began_s = time.perf_counter()
                reduce_all()
                took_s = time.perf_counter() - began_s
                group.settle()
                if number:
                    figures[case][system].append(took_s)
    dist.barrier()
    dist.destroy_process_group()
    return figures


def measure_first(group: Group, gloo_port: int) -> dict[str, float]:
    """Return the seconds of many calls at once, the first ones of both groups."""
    import torch
    import torch.distributed as dist

    found = {}
    for system, all_reduce in systems_of(group, gloo_port).items():
        tensors = [torch.full((MANY_ELEMENTS,), float(group.rank)) for _ in range(MANY)]
        dist.barrier()
        began_s = time.perf_counter()
        all_of(all_reduce, tensors)
        found[system] = time.perf_counter() - began_s
        whole = group.size * (group.size - 1) / 2
        assert all(bool((each == whole).all()) for each in tensors)
    dist.barrier()
    dist.destroy_process_group()
    return found


def systems_of(group: Group, gloo_port: int) -> dict[str, Callable[..., Any]]:
    """Return the all-reduce of each system, after the processes have joined gloo's group, too."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{gloo_port}",
        rank=group.rank,
        world_size=group.size,
    )
    return {"gloo": dist.all_reduce, "anabranch": partial(group.all_reduce, op="sum")}


def all_of(all_reduce: Callable[..., Any], tensors: list[Any]) -> None:
    """Sum each tensor by a call of its own, all under way at once."""
    handles = [all_reduce(each, async_op=True) for each in tensors]
    for handle in handles:
        handle.wait()


def in_turn(systems: dict[str, Any], number: int) -> list[tuple[str, Any]]:
    """Return the systems, each first in every other block."""
    return [*systems.items()][:: -1 if number % 2 else 1]


def compare(sites: int, blocks: int, calls: int) -> list[dict[str, Any]]:
    """Return the figures of both systems; a block lasts until its last process has the result."""
    # No link is shaped here, so the plan is made for equal ones.
    overlay = random_complete(sites, 0, low_bps=1e10, high_bps=1e10, latency_s=0.0, loss=0.0)
    service = Service(overlay, awareness=None)
    answers = spawn(measure, service, [free_port(), blocks, calls])
    cases = {
        case: {
            system: [
                max(each) for each in zip(*(own[case][system] for own in answers), strict=True)
            ]
            for system in SYSTEMS
        }
        for case in answers[0]
    }
    starts = [spawn(measure_first, service, [free_port()]) for _ in range(STARTS)]
    cases["500 calls, the first"] = {
        system: [max(own[system] for own in each) for each in starts] for system in SYSTEMS
    }
    rows: list[dict[str, Any]] = []
    for case, slowest in cases.items():
        ratio = median(g / a for g, a in zip(*(slowest[each] for each in SYSTEMS), strict=True))
        row = {
            f"{system}_ms": common.spread([1e3 * each for each in slowest[system]])
            for system in SYSTEMS
        }
        rows.append({"sites": sites, "calls": case, **row, "gloo_over_anabranch": ratio})
        said = ", ".join(f"{each} {1e3 * median(slowest[each]):.2f} ms" for each in SYSTEMS)
        print(f"{sites} sites, {case}: {said}, gloo/anabranch {ratio:.2f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[2, 3, 9])
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--calls", type=int, default=200, help="in a block, one after another")
    parser.add_argument("--dry", action="store_true", help="write no file")
    options = parser.parse_args()
    rows = [row for sites in options.sites for row in compare(sites, options.blocks, options.calls)]
    if not options.dry:
        blocks, calls = options.blocks, options.calls
        common.write("small_calls", seed=0, blocks=blocks, calls=calls, rows=rows)


if __name__ == "__main__":
    main()
