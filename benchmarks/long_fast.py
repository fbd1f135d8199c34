"""How many connections fill a link that holds more in flight than one connection's window.

    sudo chrt -r 10 python benchmarks/long_fast.py    # four minutes

Two sites in network namespaces average 50 MB again and again, over 200 Mbit/s each way with 100 ms
and a loss of 0.01 %. A round trip is 200 ms, so the link holds 5 MB in flight. The kernel's window
for a connection is 4 MB, or 1 MB in the second half of the rows. Lanes have the connections that a
site chooses (``chosen``), or one. gloo has one, by the same congestion control (bbr). The first
round is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import anabranch
import common
from anabranch.group.serve import Process, serve
from anabranch.net import tcp
from anabranch.overlay import Link, Overlay, Site
from anabranch_lab.emulate import emulated

RATE_BPS, LATENCY_S, LOSS = 200e6, 0.1, 0.0001
ELEMENTS = 12_500_000
WINDOWS_BYTES = (4_194_304, 1_048_576)
ROWS = ("chosen", "one", "gloo")


def network() -> Overlay:
    links = (Link(0, 1, RATE_BPS, LATENCY_S, LOSS), Link(1, 0, RATE_BPS, LATENCY_S, LOSS))
    return Overlay("long-fast", (Site("one"), Site("other")), links)


def bound(window_bytes: int) -> None:
    """Set the window of this namespace's connections; half of a receive buffer is overhead."""
    for name, most in (("tcp_wmem", window_bytes), ("tcp_rmem", 2 * window_bytes)):
        path = Path("/proc/sys/net/ipv4", name)
        path.write_text(" ".join([*path.read_text().split()[:2], str(most)]))


def schedule(host: str) -> None:
    def listening(address: tuple[str, int]) -> None:
        print("{}:{}".format(*address), flush=True)

    process = Process(os.environ["ANABRANCH_TOKEN"], (host, 0), None, listening)
    serve(anabranch.Service(network(), awareness=None).listening_at(process.listen), process)


def take_part(options: argparse.Namespace) -> list[float]:
    """Return how long each round took."""
    bound(options.window)
    if options.only == "one":
        tcp._MOST_STRANDS = tcp._STRANDS_OF_BBR = 1
    rounds = []
    buffer = np.ones(ELEMENTS, np.float32)
    with anabranch.join(options.scheduler, options.name, host=options.host, insecure=True) as group:
        for _ in range(options.rounds):
            group.barrier()
            began_s = time.perf_counter()
            group.all_reduce(buffer)
            rounds.append(time.perf_counter() - began_s)
    return rounds


def take_part_by_gloo(options: argparse.Namespace) -> list[float]:
    """Return what ``take_part`` does, of gloo's calls."""
    import torch
    import torch.distributed as dist

    bound(options.window)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rounds = []
    buffer = torch.ones(ELEMENTS)
    for _ in range(options.rounds):
        dist.barrier()
        began_s = time.perf_counter()
        dist.all_reduce(buffer)
        rounds.append(time.perf_counter() - began_s)
    dist.barrier()
    dist.destroy_process_group()
    return rounds


def measure(row: str, window_bytes: int, rounds: int) -> dict[str, Any]:
    """Return the figures of a row; a round lasts until its last site has the results."""
    overlay = network()
    environment = {
        **os.environ,
        "ANABRANCH_TOKEN": secrets.token_hex(8),
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": "29555",
        "WORLD_SIZE": "2",
    }
    with ExitStack() as stack:
        control = "bbr" if row == "gloo" else None
        wan = stack.enter_context(
            emulated(overlay, forwarding=row == "gloo", congestion_control=control)
        )
        wan.begin()
        environment |= {
            "GLOO_SOCKET_IFNAME": wan.interface,
            "MASTER_ADDR": wan.control_addresses[0],
        }
        start = stack.enter_context(common.starting(wan, environment))
        address = ""
        if row != "gloo":
            scheduler = start(None, __file__, "--serve", wan.control_address)
            assert scheduler.stdout is not None
            address = scheduler.stdout.readline().strip()
        running: list[subprocess.Popen[str]] = []
        for index in (0, 1):
            environment["RANK"] = str(index)
            running.append(
                start(
                    *(index, __file__, "--site", "--name", overlay.sites[index].name),
                    *("--scheduler", address, "--host", wan.addresses[index]),
                    *("--rounds", str(rounds), "--only", row, "--window", str(window_bytes)),
                )
            )
        answers = [json.loads(each.communicate()[0].splitlines()[-1]) for each in running]
    took_s = [max(pair) for pair in zip(*answers, strict=True)][1:]
    limit_s = 32 * ELEMENTS / RATE_BPS + 2 * LATENCY_S
    return {
        "seconds": common.spread(took_s),
        "limit_s": limit_s,
        "share_of_limit": limit_s / median(took_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--window", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--site", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        schedule(options.serve)
        return
    if options.site:
        play = take_part_by_gloo if options.only == "gloo" else take_part
        print(json.dumps(play(options)), flush=True)
        return
    rows = []
    for window_bytes in WINDOWS_BYTES:
        for row in ROWS:
            found = measure(row, window_bytes, options.rounds)
            rows.append({"connections": row, "window_bytes": window_bytes, **found})
            print(window_bytes, row, found, flush=True)
    if not options.dry:
        common.write(
            "long_fast",
            seed=0,
            rate_bps=RATE_BPS,
            latency_s=LATENCY_S,
            loss=LOSS,
            elements=ELEMENTS,
            rows=rows,
        )


if __name__ == "__main__":
    main()
