"""What a byte costs over emulated links, ours beside gloo's: seconds, and CPU seconds a gigabyte.

    sudo chrt -r 10 python benchmarks/wire_cost.py                       # all cases: four minutes
    sudo python benchmarks/wire_cost.py --only "2 sites, 1 Gbit/s" --dry

A process a site, each in a network namespace, joins both groups; rounds of ours and of gloo take
turns. Links between all sites have the rate both ways, and no latency. ``internet2-9`` has its own
links and rates, without latency and loss, and ``sparse-25`` 25 sites with 20 to 155 Mbit/s. There
gloo's ring has its best order of ranks. The limit is that of packed trees on these links. CPU
seconds are those of all sites, and of our scheduler. A gigabyte is one of 2 (sites - 1) buffers, as
many as trees and rings move from site to site.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import common
import peers
from anabranch.overlay import Link, Overlay, Site, internet2_9, random_sparse
from anabranch.plan import limit_rate_bps
from anabranch_lab.emulate import emulated
from group import schedule

SYSTEMS = "gloo", "anabranch"
COMPLETE = {
    f"{sites} sites, {gbps:g} Gbit/s": (sites, gbps)
    for sites, gbps in ((2, 1.0), (3, 1.0), (3, 2.5), (3, 5.0))
}
CASES = [*COMPLETE, "internet2-9", "sparse-25"]


def overlay_of(case: str) -> Overlay:
    if case == "internet2-9":
        overlay = internet2_9()
        near = (replace(link, latency_s=0.0, loss=0.0) for link in overlay.links)
        return replace(overlay, links=tuple(near))
    if case == "sparse-25":
        return random_sparse(25, seed=0, latency_s=0.0, loss=0.0)
    sites, gbps = COMPLETE[case]
    links = [
        Link(source, target, gbps * 1e9)
        for source in range(sites)
        for target in range(sites)
        if source != target
    ]
    return Overlay(case, tuple(Site(f"site{index}") for index in range(sites)), tuple(links))


def take_part(options: argparse.Namespace) -> None:
    """Exchange by both systems in turn, and print the seconds and CPU seconds of each round."""
    import torch
    import torch.distributed as dist

    import anabranch

    torch.set_num_threads(1)
    with anabranch.join(options.scheduler, options.name, host=options.host, insecure=True) as group:
        os.environ["WORLD_SIZE"] = str(group.size)
        dist.init_process_group("gloo")
        systems: dict[str, Callable[[torch.Tensor], object]] = {
            "gloo": dist.all_reduce,
            "anabranch": partial(group.all_reduce, op="sum"),
        }
        tensor = torch.empty(options.elements)
        seconds: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        cpu_s: dict[str, list[float]] = {system: [] for system in SYSTEMS}
        for number in range(options.rounds + 2):
            if number == 2 and group.rank == 0:
                print("measured from here", flush=True)
            for system, all_reduce in [*systems.items()][:: -1 if number % 2 else 1]:
                tensor.fill_(float(group.rank))
                dist.barrier()
                began_s, began_cpu_s = time.perf_counter(), time.process_time()
                all_reduce(tensor)
                took_s, took_cpu_s = (
                    time.perf_counter() - began_s,
                    time.process_time() - began_cpu_s,
                )
                assert bool((tensor == group.size * (group.size - 1) / 2).all())
                dist.barrier()
                if number > 1:  # the first rounds open connections, and get a lease
                    seconds[system].append(took_s)
                    cpu_s[system].append(took_cpu_s)
        print(json.dumps([seconds, cpu_s]), flush=True)
        dist.barrier()
        dist.destroy_process_group()


def cpu_s_of(process: subprocess.Popen[str]) -> float:
    """Return the CPU seconds that a living process has used so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def elements_of(case: str, seconds: float) -> int:
    """Return the elements of a buffer that a link carries in these seconds, at any rate."""
    overlay = overlay_of(case)
    rate_bps = COMPLETE[case][1] * 1e9 if case in COMPLETE else limit_rate_bps(overlay)
    return int(seconds * rate_bps / 32)


@contextmanager
def started(
    script: str, case: str, elements: int, rounds: int
) -> Iterator[tuple[subprocess.Popen[str], list[subprocess.Popen[str]]]]:
    """Start a script's scheduler and its sites over emulated links, ranks in the best ring."""
    overlay = overlay_of(case)
    order = peers.best_ring(overlay)
    environment = {
        **os.environ,
        "ANABRANCH_TOKEN": secrets.token_hex(8),
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": "29555",
    }
    with ExitStack() as stack:
        wan = stack.enter_context(emulated(overlay, forwarding=case not in COMPLETE))
        wan.begin()
        environment |= {
            "GLOO_SOCKET_IFNAME": wan.interface,
            "MASTER_ADDR": wan.control_addresses[order[0]],
        }
        start = stack.enter_context(common.starting(wan, environment))
        scheduler = start(None, script, "--serve", wan.control_address, "--only", case)
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        running = []
        for index, site in enumerate(overlay.sites):
            environment["RANK"] = str(order.index(index))
            running.append(
                start(
                    *(index, script, "--site", "--name", site.name, "--scheduler", address),
                    *("--host", wan.addresses[index], "--elements", str(elements)),
                    *("--rounds", str(rounds)),
                )
            )
        yield scheduler, running


def compare(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of both systems; a round lasts until its last site has the result."""
    overlay, elements = overlay_of(case), elements_of(case, options.seconds)
    sites = overlay.size
    with started(__file__, case, elements, options.rounds) as (scheduler, running):
        assert running[0].stdout is not None
        assert running[0].stdout.readline().startswith("measured")
        before_s = cpu_s_of(scheduler)
        answers = [json.loads(running[0].stdout.readline())]
        scheduler_cpu_s = cpu_s_of(scheduler) - before_s
        answers += [json.loads(each.communicate()[0].splitlines()[-1]) for each in running[1:]]
        running[0].wait()
    limit_s = 32 * elements / limit_rate_bps(overlay)
    gigabytes = 2 * (sites - 1) * 4 * elements / 1e9
    row: dict[str, Any] = {"elements": elements, "limit_s": limit_s}
    for system in SYSTEMS:
        rounds_s = [max(each) for each in zip(*(own[0][system] for own in answers), strict=True)]
        used_s = [sum(each) for each in zip(*(own[1][system] for own in answers), strict=True)]
        if system == "anabranch":
            used_s = [each + scheduler_cpu_s / options.rounds for each in used_s]
        row[system] = {
            "seconds": common.spread(rounds_s),
            "share_of_limit": limit_s / median(rounds_s),
            "cpu_s_a_gigabyte": common.spread([each / gigabytes for each in used_s]),
        }
        print(
            f"{case}, {system}: {median(rounds_s):.3f} s, {limit_s / median(rounds_s):.2f} of the "
            f"limit, {median(used_s) / gigabytes:.2f} CPU s/GB",
            flush=True,
        )
    row["scheduler_cpu_s_a_gigabyte"] = scheduler_cpu_s / options.rounds / gigabytes
    print(f"{case}: the scheduler {row['scheduler_cpu_s_a_gigabyte']:.2f} CPU s/GB", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.8, help="of a link's rate in a buffer")
    parser.add_argument("--only", nargs="*", choices=CASES, default=CASES, help="of the cases")
    parser.add_argument("--result", default="wire_cost", help="name of the file")
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--site", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    parser.add_argument("--elements", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        schedule(options.serve, overlay_of(*options.only))
        return
    if options.site:
        take_part(options)
        return
    rows = {case: compare(case, options) for case in options.only}
    if not options.dry:
        common.write(options.result, seed=0, rounds=options.rounds, cases=rows)


if __name__ == "__main__":
    main()
