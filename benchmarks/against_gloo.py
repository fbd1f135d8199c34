"""An unshaped all-reduce of 61 M float32 over processes of one machine, ours beside gloo's.

    python benchmarks/against_gloo.py                          # nine processes
    python benchmarks/against_gloo.py --sites 3
    python benchmarks/against_gloo.py --tcp                    # both over TCP
    python benchmarks/against_gloo.py --on-loss abort          # a lost site ends ours, too

Every process joins both groups; rounds of ours and of gloo take turns, so both feel the same
machine. Both compute the sum. Ours goes through the public API, with the plan and the size of
chunks that the scheduler chooses; chunks go through shared memory unless asked otherwise.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Literal

import common
from anabranch import Group, Service, spawn
from anabranch.net import _shared_memory as shared_memory
from anabranch.overlay import random_complete
from anabranch.plan import LEAST_CHUNK_ELEMENTS
from anabranch.scheduler.deal import ByShare

ELEMENTS = 61_100_840
SYSTEMS = "gloo", "anabranch"
_OVER_TCP = "AGAINST_GLOO_OVER_TCP"
if _OVER_TCP in os.environ:  # in each process, which begins with this file
    shared_memory.is_possible = lambda: False
OnNan = Literal["raise", "allow"]
Figures = dict[str, list[float]]  # one for each round, by system


def measure(
    group: Group,
    gloo_port: int,
    gloo_ranks: tuple[int, ...],
    rounds: int,
    on_nan: Literal["raise", "allow"],
) -> tuple[Figures, Figures]:
    """Return the seconds and the CPU seconds of each round at this site."""
    import torch
    import torch.distributed as dist

    group.on_nan = on_nan
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{gloo_port}",
        rank=gloo_ranks[group.rank],
        world_size=group.size,
    )
    tensor = torch.empty(ELEMENTS)
    total = group.size * (group.size - 1) / 2
    calls: dict[str, Callable[[torch.Tensor], object]] = {
        "gloo": dist.all_reduce,
        "anabranch": partial(group.all_reduce, op="sum"),
    }
    seconds: Figures = {system: [] for system in SYSTEMS}
    cpu_s: Figures = {system: [] for system in SYSTEMS}
    for number in range(rounds + 1):
        for system, all_reduce in calls.items():
            tensor.fill_(float(group.rank))
            dist.barrier()
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            all_reduce(tensor)
            took_s, took_cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
            assert bool((tensor == total).all())
            dist.barrier()
            if number:  # the first round of each opens connections
                seconds[system].append(took_s)
                cpu_s[system].append(took_cpu_s)
    dist.destroy_process_group()
    return seconds, cpu_s


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, choices=(3, 9), default=9)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--gloo-order", help="the sites' ranks along gloo's ring, as 0,2,1")
    parser.add_argument("--least-chunk-elements", type=int, default=LEAST_CHUNK_ELEMENTS)
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--tcp", action="store_true", help="share no memory")
    parser.add_argument("--on-nan", choices=("raise", "allow"), default="raise")
    parser.add_argument("--on-loss", choices=("complete", "abort"), default="complete")
    options = parser.parse_args()
    if options.tcp:
        os.environ[_OVER_TCP] = "1"
    order = list(range(options.sites))
    if options.gloo_order is not None:
        order = [int(rank) for rank in options.gloo_order.split(",")]
        if sorted(order) != list(range(options.sites)):
            parser.error(f"--gloo-order must name each of 0 to {options.sites - 1} once")
    gloo_ranks = tuple(order.index(site) for site in range(options.sites))
    # No link is shaped here, so the plan is made for equal ones.
    service = Service(
        random_complete(options.sites, 0, low_bps=1e10, high_bps=1e10, latency_s=0.0, loss=0.0),
        awareness=None,
        deal=ByShare(),
        least_chunk_elements=options.least_chunk_elements,
        on_loss=options.on_loss,
    )
    answers = spawn(measure, service, [free_port(), gloo_ranks, options.rounds, options.on_nan])
    # A round lasts until its last process has the result.
    rounds_s: Figures = {
        system: [max(row) for row in zip(*(own[system] for own, _ in answers), strict=True)]
        for system in SYSTEMS
    }
    cpu_s: Figures = {
        system: [sum(row) for row in zip(*(own[system] for _, own in answers), strict=True)]
        for system in SYSTEMS
    }
    ratio = median(g / a for g, a in zip(rounds_s["gloo"], rounds_s["anabranch"], strict=True))
    print(
        f"{options.sites} sites: gloo {median(rounds_s['gloo']):.2f} s, "
        f"anabranch {median(rounds_s['anabranch']):.2f} s, gloo/anabranch {ratio:.2f}; CPU of all "
        f"{median(cpu_s['gloo']):.1f} s against {median(cpu_s['anabranch']):.1f} s"
    )
    if options.dry:
        return
    common.write(
        "against_gloo"
        + ("" if options.sites == 9 else f"_{options.sites}")
        + ("_tcp" if options.tcp else "")
        + ("_complete" if options.on_loss == "complete" else ""),
        seed=0,
        sites=options.sites,
        elements=ELEMENTS,
        on_loss=options.on_loss,
        on_nan=options.on_nan,
        least_chunk_elements=options.least_chunk_elements,
        gloo_order=list(order),
        gloo_s=common.spread(rounds_s["gloo"]),
        anabranch_s=common.spread(rounds_s["anabranch"]),
        gloo_over_anabranch=ratio,
        gloo_cpu_s=common.spread(cpu_s["gloo"]),
        anabranch_cpu_s=common.spread(cpu_s["anabranch"]),
    )


if __name__ == "__main__":
    main()
