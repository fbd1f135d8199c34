"""A group's exchanges over an emulated overlay: one buffer, ten at once, and bfloat16 on the wire.

    sudo python benchmarks/group.py                 # 61 M float32, three overlays: ten minutes
    sudo python benchmarks/group.py --overlay complete --elements 6100000

One process a site, each in a network namespace, calls the public API; the three take turns, so all
feel the same machine, and begin when all sites are there, as a barrier says. Then, in one process:
how long it takes from a call to its turn in the loop's thread, which sends at once, and to the end
of a small exchange; beside an idle interpreter, and beside a thread that computes in Python without
a pause.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import threading
import time
from contextlib import ExitStack
from statistics import median
from typing import Any

import numpy as np

import anabranch
import common
import versions
from anabranch.group._thread import LoopThread
from anabranch.group.serve import Process, serve
from anabranch.overlay import Overlay, internet2_9
from anabranch.plan import limit_rate_bps
from anabranch_lab.emulate import emulated

BUCKETS = 10
WAYS = ("one buffer", "ten buckets", "bfloat16")


def overlays() -> dict[str, Overlay]:
    return {
        "internet2-9": internet2_9(),  # 30 ms, .02 % loss
        "internet2-9, near": versions.near(internet2_9()),
        "complete, near": versions.cases()["complete, packed, 244 MB"].overlay,
    }


def take_part(options: argparse.Namespace) -> None:
    """Exchange in every way in turn, and print the seconds of each, and errors against float64."""
    per_bucket = options.elements // BUCKETS
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    errors: dict[str, list[float]] = {way: [] for way in WAYS}
    with anabranch.join(options.scheduler, options.name, host=options.host, insecure=True) as group:
        sites = group.size
        mine = np.random.default_rng(group.rank)
        values = mine.standard_normal(options.elements, dtype=np.float32)
        sample = slice(0, 100_000)
        everyone = [np.random.default_rng(rank) for rank in range(sites)]
        first = [each.standard_normal(sample.stop, dtype=np.float32) for each in everyone]
        mean = np.mean(np.array(first, np.float64), axis=0)
        buffer = np.empty_like(values)
        for number in range(options.rounds + 1):
            for way in WAYS:
                buffer[:] = values
                group.barrier()
                began_s = time.perf_counter()
                if way == "ten buckets":
                    parts = [
                        buffer[start : start + per_bucket]
                        for start in range(0, per_bucket * BUCKETS, per_bucket)
                    ]
                    handles = [group.all_reduce(part, async_op=True) for part in parts]
                    for handle in handles:
                        handle.wait()
                else:
                    wire: Any = "bfloat16" if way == "bfloat16" else None
                    group.all_reduce(buffer, wire=wire)
                if number:  # the first round opens connections
                    seconds[way].append(time.perf_counter() - began_s)
                    error = np.abs(buffer[sample].astype(np.float64) - mean)
                    errors[way].append(float(np.sqrt(np.mean(error**2) / np.mean(mean**2))))
    print(json.dumps({"seconds": seconds, "errors": errors}), flush=True)


def schedule(host: str, overlay: Overlay) -> None:
    """Serve a group whose plan stays: rates are known, and a busy machine measures others."""
    service = anabranch.Service(overlay, awareness=None)
    token = os.environ["ANABRANCH_TOKEN"]

    def listening(address: tuple[str, int]) -> None:
        print("{}:{}".format(*address), flush=True)

    process = Process(token, (host, 0), None, listening)
    serve(service.listening_at(process.listen), process)


def over_links(options: argparse.Namespace, name: str) -> dict[str, object]:
    overlay = overlays()[name]
    environment = {**os.environ, "ANABRANCH_TOKEN": secrets.token_hex(8), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        wan = stack.enter_context(emulated(overlay, seed=0))
        start = stack.enter_context(common.starting(wan, environment))
        serves = "--serve", wan.control_address, "--overlay", name
        scheduler = start(None, __file__, *serves)
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        sites = [
            start(
                *(index, __file__, "--site", "--name", site.name, "--scheduler", address),
                *("--host", wan.addresses[index], "--elements", str(options.elements)),
                *("--rounds", str(options.rounds)),
            )
            for index, site in enumerate(overlay.sites)
        ]
        answers = [json.loads(site.communicate()[0].splitlines()[-1]) for site in sites]
    limit_s = 32 * options.elements / limit_rate_bps(overlay)
    rows: dict[str, object] = {"limit_s": limit_s}
    for way in WAYS:
        rounds = [max(each) for each in zip(*(a["seconds"][way] for a in answers), strict=True)]
        error = max(max(a["errors"][way]) for a in answers)
        rows[way] = {"seconds": common.spread(rounds), "relative_rms_error": error}
        print(
            f"{name}, {way}: {median(rounds):.2f} s, limit {limit_s:.2f} s, error {error:.2g}",
            flush=True,
        )
    return rows


async def turn_s() -> float:
    return time.perf_counter()


def submit_s(switch_interval_s: float | None, busy: bool) -> tuple[list[float], list[float]]:
    """Return how long calls wait for their turn, and how long small exchanges of two sites take."""
    before_s = sys.getswitchinterval()
    if switch_interval_s is not None:
        sys.setswitchinterval(switch_interval_s)
    over = threading.Event()

    def compute() -> None:
        total = 0
        while not over.is_set():
            total += 1

    thread = threading.Thread(target=compute)
    try:
        with anabranch.local(2) as groups:
            if busy:
                thread.start()
            buffers = [np.zeros(4, np.float32) for _ in groups]
            turns, found = [], []
            loop = LoopThread("a turn")
            for _ in range(200):
                began_s = time.perf_counter()
                turns.append(loop.run(turn_s()) - began_s)
            loop.close()
            for _ in range(200):
                began_s = time.perf_counter()
                handles = [
                    group.all_reduce(buffer, async_op=True)
                    for group, buffer in zip(groups, buffers, strict=True)
                ]
                for handle in handles:
                    handle.wait()
                found.append(time.perf_counter() - began_s)
    finally:
        over.set()
        if busy:
            thread.join()
        sys.setswitchinterval(before_s)
    return turns, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=61_100_840)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overlay", choices=[*overlays()], help="one of them; else all")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--site", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--name", help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    parser.add_argument("--host", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        schedule(options.serve, overlays()[options.overlay])
        return
    if options.site:
        take_part(options)
        return
    names = [options.overlay] if options.overlay else overlays()
    links = {name: over_links(options, name) for name in names}
    calls = {}
    for name, interval_s, busy in (
        ("idle", None, False),
        ("busy thread", None, True),
        ("busy thread, switch interval 0.5 ms", 0.0005, True),
    ):
        for what, found in zip(("turn", "exchange"), submit_s(interval_s, busy), strict=True):
            calls[f"{what}, {name}"] = {
                "median_s": median(found),
                "p95_s": float(np.quantile(found, 0.95)),
            }
            print(f"{what}, {name}: {median(found) * 1e3:.3f} ms", flush=True)
    name = "group" if options.elements > 10_000_000 else "group_small"
    common.write(name, seed=0, elements=options.elements, exchanges=links, small_exchange=calls)


if __name__ == "__main__":
    main()
