"""A site joins a group that trains: how fast the state comes, and what the others feel of it.

    sudo python benchmarks/join.py                 # 61 M float32, 5 runs
    sudo python benchmarks/join.py --rate-mbps 100 # slower links: the processor limits nothing
    sudo python benchmarks/join.py --compute-s 10  # and a step computes for so long, elsewhere
    sudo python benchmarks/join.py --compute-s 10 --backed  # and free memory stays the machine's
    sudo python benchmarks/join.py --elements 4000000 --runs 1 --dry

Four sites are processes in network namespaces, joined by links that the kernel holds to a rate each
way. Three of them all-reduce a gradient in a loop, and call `admit` before each round; the
fourth joins, gets the state (as many float32 as the gradient has) from all three, and all-reduces
with them. With `--compute-s` a site waits for so long in each step, as it would for a GPU.
Compared are the others' steps before it was let in with those until it contributes (the median, and
the longest), and with those after; and the seconds in which the state came with those that the
links to the newcomer need for it at least. Results of the others' exchanges come over these links
meanwhile, and go first.

A virtual machine may give memory that is free for some seconds back to its host, and wait for each
page that it needs again. The machine of our figures does: an array of 244 MB is copied in 0.02 s
where memory was in use a second ago, in 0.5 s where it was not, and here three sites copy one and a
fourth receives it. With `--backed` sites keep what they free, by settings of their allocator, and
have touched as much as they will need before they begin; the figure then is of the join alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import common
from anabranch.overlay import Link, Overlay, Site, dumps
from anabranch_lab.emulate import emulated

SITES = 4
RATE_MBPS = 400.0
ELEMENTS = 61_000_000
ROUNDS, ROUNDS_AFTER = 4, 9  # before the newcomer is started, and after it was let in
START_S = 300.0
COPIES = 5  # of the state, that a site has room for where memory is to be backed
# glibc: one arena, which grows and never shrinks, for all sizes.
KEEPS_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}
TOKEN = "join"


def overlay(rate_bps: float) -> Overlay:
    sites = tuple(Site(f"site-{i}") for i in range(SITES))
    links = tuple(Link(i, j, rate_bps) for i in range(SITES) for j in range(SITES) if i != j)
    return Overlay("four sites", sites, links)


def take_part(
    name: str, scheduler: str, address: str, elements: int, compute_s: float, is_backed: bool
) -> None:
    """Be one site; print a line for each round."""
    import anabranch

    if is_backed:
        np.ones(COPIES * elements, np.float32)
    weights = np.zeros(elements, np.float32)
    gradient = np.ones(elements, np.float32)
    with anabranch.join(scheduler, name, host=address, insecure=True) as group:
        after = 0
        while after < ROUNDS_AFTER:
            began = time.monotonic()
            state = group.admit({"weights": weights})
            admitted = time.monotonic()
            if state is not None:
                weights = state["weights"]
            time.sleep(compute_s)
            handle = group.all_reduce(gradient)
            ended = time.monotonic()
            after += group.size == SITES
            line = {"began": began, "admitted": admitted, "ended": ended, "sites": group.size}
            line["whole"] = handle.contributors is None  # all sites have contributed
            print(json.dumps(line | {"got": state is not None}), flush=True)


def measure_copy_s(elements: int) -> float:
    """Return what a copy takes into memory that nothing touched for some seconds."""
    array = np.ones(elements, np.float32)
    time.sleep(5.0)
    began = time.perf_counter()
    array.copy()
    return round(time.perf_counter() - began, 3)


def run_once(elements: int, rate_bps: float, compute_s: float, is_backed: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        copy_s = measure_copy_s(elements)
        network = overlay(rate_bps)
        wan = stack.enter_context(emulated(network))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        wan.begin()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ANABRANCH_TOKEN": TOKEN}
        path = folder / "overlay.toml"
        path.write_text(dumps(network))
        command = [sys.executable, "-m", "anabranch", "scheduler", "--overlay", str(path)]
        command += ["--listen", f"{wan.control_address}:0", "--insecure", "--begin-with", "3"]
        stderr = stack.enter_context((folder / "scheduler").open("w"))
        scheduler = wan.popen(
            None, command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        lines: list[list[dict[str, Any]]] = [[] for _ in range(SITES)]

        def start(site: int) -> tuple[subprocess.Popen[str], threading.Thread]:
            told = [f"site-{site}", address, wan.addresses[site], str(elements), str(compute_s)]
            process = wan.popen(
                site,
                [sys.executable, __file__, "--site", *told, *(["--backed"] if is_backed else [])],
                stdout=subprocess.PIPE,
                text=True,
                env=environment | (KEEPS_MEMORY if is_backed else {}),
            )

            def follow() -> None:
                assert process.stdout is not None
                for text in process.stdout:
                    lines[site].append(json.loads(text))

            thread = threading.Thread(target=follow, daemon=True)
            thread.start()
            return process, thread

        started = [start(site) for site in range(SITES - 1)]
        until = time.monotonic() + START_S
        while min(map(len, lines[:-1])) < 1 + ROUNDS and time.monotonic() < until:
            time.sleep(0.05)
        started.append(start(SITES - 1))
        for process, thread in started:
            process.wait(START_S)
            thread.join()
    return account(lines, elements, rate_bps) | {"copy_s": copy_s}


def account(lines: list[list[dict[str, Any]]], elements: int, rate_bps: float) -> dict[str, Any]:
    (first, *_) = lines[-1]  # the newcomer's
    members = lines[0]
    let_in = next(i for i, line in enumerate(members) if line["sites"] == SITES)
    takes_part = next(i for i in range(let_in, len(members)) if members[i]["whole"])
    called = max(own[let_in]["began"] for own in lines[:-1])
    transfer_s = first["admitted"] - called
    steps = [line["ended"] - line["began"] for line in members]
    before, joining, after = (
        steps[1:let_in],
        steps[let_in : takes_part + 1],
        steps[takes_part + 2 :],
    )
    limit_s = 32 * elements / ((SITES - 1) * rate_bps)
    return {
        "transfer_s": round(transfer_s, 3),
        "limit_s": round(limit_s, 3),
        "share_of_limit": round(limit_s / transfer_s, 3),
        "step_before_s": round(median(before), 3),
        "steps_until_it_contributes": len(joining),
        "step_while_it_joins_s": round(median(joining), 3),
        "longest_while_it_joins_s": round(max(joining), 3),
        "longest_over_before": round(max(joining) / median(before), 3),
        "step_after_s": round(median(after), 3),
        "admit_without_newcomers_s": round(
            median(line["admitted"] - line["began"] for line in members[1:let_in]), 4
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    parser.add_argument("--rate-mbps", type=float, default=RATE_MBPS, help="of links, each way")
    parser.add_argument("--compute-s", type=float, default=0.0, help="of a step")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="write no file")
    parser.add_argument("--backed", action="store_true", help="let sites keep what they free")
    parser.add_argument("--site", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.site:
        name, scheduler, address, elements, compute_s = options.site
        take_part(
            *(name, scheduler, address, int(elements), float(compute_s), options.backed),
        )
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what was started
    runs, rate_bps = [], 1e6 * options.rate_mbps
    for _ in range(options.runs):
        runs.append(run_once(options.elements, rate_bps, options.compute_s, options.backed))
        print(json.dumps(runs[-1]), flush=True)
    summary = {name: common.spread([run[name] for run in runs]) for name in runs[0]}
    for name, found in summary.items():
        print(f"{name}: {found['median']}")
    if not options.dry:
        name = "join" if rate_bps == 1e6 * RATE_MBPS else "join_slow"
        name = "join_computing" if options.compute_s else name
        common.write(
            name + ("_backed" if options.backed else ""),
            seed=0,
            sites=SITES,
            rate_bps=rate_bps,
            elements=options.elements,
            compute_s=options.compute_s,
            free_memory_is_backed=options.backed,
            **summary,
        )


if __name__ == "__main__":
    main()
