"""A network of unknown links: rounds over internet2-9, with 30 ms and loss.

    sudo chrt -r 10 python benchmarks/unknown.py            # four minutes
    sudo python benchmarks/unknown.py --only burst --dry

A process a site, each in a network namespace, averages ten buffers at once, again and again. Rows
differ in what the scheduler is told: the links as they are, its plan kept or compared with others;
or only which links there are, which it believes equal until they are used (``equal``), or measures
by bursts before the first exchange (``burst``). The limit is that of packed trees on these links,
without latency. The first round includes the bursts. gloo's ring has its best order of ranks, and
the same congestion control (bbr) and buffers.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import time
from contextlib import ExitStack
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

import anabranch
import common
import peers
from anabranch.group.serve import Process, serve
from anabranch.overlay import Overlay, internet2_9
from anabranch.plan import limit_rate_bps
from anabranch.scheduler.awareness import Passive
from anabranch_lab.emulate import emulated

ELEMENTS, BUFFERS = 610_000, 10
ROWS = {
    "kept": "known links, plan kept",
    "known": "known links",
    "burst": "unknown links, bursts first",
    "equal": "unknown links, measured as they are used",
    "gloo": "gloo, best ring, bbr",
}
ASSUMED_BPS = 100e6


def service_of(row: str) -> anabranch.Service:
    overlay = internet2_9()
    if row == "kept":
        return anabranch.Service(overlay, awareness=None)
    if row == "known":
        return anabranch.Service(overlay, awareness=Passive())
    links = (
        replace(link, rate_bps=ASSUMED_BPS, latency_s=0.0, loss=0.0, basis="assumed")
        for link in overlay.links
    )
    unknown: Overlay = replace(overlay, links=tuple(links))
    return anabranch.Service(unknown, awareness=Passive(start=row))  # type: ignore[arg-type]


def schedule(host: str, row: str) -> None:
    def listening(address: tuple[str, int]) -> None:
        print("{}:{}".format(*address), flush=True)

    process = Process(os.environ["ANABRANCH_TOKEN"], (host, 0), None, listening)
    serve(service_of(row).listening_at(process.listen), process)


def take_part(options: argparse.Namespace) -> None:
    """Print how long each round took, and the version of its plan."""
    buffers = [np.ones(ELEMENTS, np.float32) for _ in range(BUFFERS)]
    rounds = []
    with anabranch.join(options.scheduler, options.name, host=options.host, insecure=True) as group:
        for _ in range(options.rounds):
            group.barrier()
            began_s = time.perf_counter()
            handles = [group.all_reduce(each, async_op=True) for each in buffers]
            for each in handles:
                each.wait()
            took_s = time.perf_counter() - began_s
            rounds.append((took_s, max(each.result.version for each in handles)))
    print(json.dumps(rounds), flush=True)


def take_part_by_gloo(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    buffers = [torch.ones(ELEMENTS) for _ in range(BUFFERS)]
    rounds = []
    for _ in range(options.rounds):
        dist.barrier()
        began_s = time.perf_counter()
        for work in [dist.all_reduce(each, async_op=True) for each in buffers]:
            work.wait()
        rounds.append((time.perf_counter() - began_s, 0))
    print(json.dumps(rounds), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measure(row: str, rounds: int) -> dict[str, Any]:
    """Return the figures of a row; a round lasts until its last site has the results."""
    overlay = internet2_9()
    environment = {
        **os.environ,
        "ANABRANCH_TOKEN": secrets.token_hex(8),
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": "29555",
        "WORLD_SIZE": str(overlay.size),
    }
    order = peers.best_ring(overlay) if row == "gloo" else tuple(range(overlay.size))
    with ExitStack() as stack:
        control = "bbr" if row == "gloo" else None
        wan = stack.enter_context(
            emulated(overlay, forwarding=row == "gloo", congestion_control=control)
        )
        wan.begin()
        environment |= {
            "GLOO_SOCKET_IFNAME": wan.interface,
            "MASTER_ADDR": wan.control_addresses[order[0]],
        }
        start = stack.enter_context(common.starting(wan, environment))
        address = ""
        if row != "gloo":
            scheduler = start(None, __file__, "--serve", wan.control_address, "--only", row)
            assert scheduler.stdout is not None
            address = scheduler.stdout.readline().strip()
        running = []
        for rank, index in enumerate(order):
            environment["RANK"] = str(rank)
            running.append(
                start(
                    *(index, __file__, "--site", "--name", overlay.sites[index].name),
                    *("--scheduler", address, "--host", wan.addresses[index]),
                    *("--rounds", str(rounds), "--only", row),
                )
            )
        answers = [json.loads(each.communicate()[0].splitlines()[-1]) for each in running]
    took_s = [max(each[place][0] for each in answers) for place in range(rounds)]
    limit_s = 32 * ELEMENTS * BUFFERS / limit_rate_bps(overlay)
    figures = {
        "first_s": round(took_s[0], 3),
        "later_s": common.spread(took_s[1:]),
        "share_of_limit": limit_s / median(took_s[1:]),
        "limit_s": limit_s,
        "plans": answers[0][-1][1],
    }
    print(ROWS[row], figures, flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--only", nargs="*", choices=[*ROWS], default=[*ROWS], help="of the rows")
    parser.add_argument("--name", default="unknown", help="of the file; of a site")
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--site", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        schedule(options.serve, *options.only)
        return
    if options.site:
        (take_part_by_gloo if options.only == ["gloo"] else take_part)(options)
        return
    rows = {ROWS[row]: measure(row, 4 if row == "gloo" else options.rounds) for row in options.only}
    if not options.dry:
        common.write(options.name, seed=0, buffers=BUFFERS, elements_each=ELEMENTS, rows=rows)


if __name__ == "__main__":
    main()
