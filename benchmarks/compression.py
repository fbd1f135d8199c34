"""Time to accuracy of DDP over the backend, by how its gradients travel, on two emulated overlays.

    sudo python benchmarks/compression.py                  # eight seeds of all: half an hour
    sudo python benchmarks/compression.py --overlay slow-3 --seeds 2    # the file keeps the other

Every rank is a site in a network namespace. They train a network of one hidden layer on digits, and
the time of their steps until it is right about so many of the test samples is counted; evaluating
is not. The learning rate of each way is the one of the same few that needs the fewest steps, by
two other seeds, over this machine's own network: how many steps a way takes depends on no link.
Seeds are the outer loop, so all ways feel the same machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import anabranch
import common
from anabranch.group.serve import Process, serve
from anabranch.overlay import Link, Overlay, Site, internet2_9
from anabranch.torch.backend import group_of
from anabranch.torch.ddp_hooks import InOrder, Int8, Mean, TopK, hook
from anabranch_lab.emulate import Emulation, emulated

HIDDEN = 1024
BATCH = 32  # of each rank
TEST = 360
TARGET = 0.93
MOST_STEPS = 200
RATES = 0.2, 0.4, 0.8, 1.6
TUNING_SEEDS = 1000, 1001
LEAST_SEEDS = 8  # for a verdict
WAYS = "float32", "bfloat16", "int8", "top-k 1 %", "PowerSGD rank 2"
_T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def overlays() -> dict[str, Overlay]:
    three = tuple(Site(name) for name in ("a", "b", "c"))
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j]
    links = tuple(Link(i, j, 8e6, latency_s=0.02) for i, j in pairs)
    nine = internet2_9()
    slow = tuple(replace(link, rate_bps=link.rate_bps / 20) for link in nine.links)
    return {
        "slow-3": Overlay("slow-3", three, links),  # 8 Mbit/s, 20 ms
        "internet2-9, a twentieth": replace(nine, links=slow),  # 1 to 7.4 Mbit/s, 30 ms, .02 % loss
    }


def state(way: str) -> Any:
    if way == "int8":
        return Int8()
    if way == "top-k 1 %":
        return TopK(share=0.01)
    if way == "PowerSGD rank 2":
        theirs = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1
        )
        return InOrder(powerSGD_hook.powerSGD_hook, theirs)
    return Mean(wire="bfloat16" if way == "bfloat16" else None)


class Digits:
    """Handwritten digits, shuffled by a seed."""

    def __init__(self, seed: int) -> None:
        found = load_digits()
        order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(seed))
        x = torch.tensor(found.data, dtype=torch.float32)[order] / 16.0
        y = torch.tensor(found.target)[order]
        self.test = x[:TEST], y[:TEST]
        self.train = x[TEST:], y[TEST:]
        self._drawn = torch.Generator().manual_seed(seed + 1)

    def batch(self, rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a rank's part of the next batch; all ranks draw the same."""
        x, y = self.train
        mine = torch.randperm(len(x), generator=self._drawn)[: ranks * BATCH][rank::ranks]
        return x[mine], y[mine]


def train(way: str, learning_rate: float, seed: int) -> dict[str, float | None]:
    """Return the steps and seconds to the target, None where it is not reached."""
    torch.manual_seed(seed)
    digits = Digits(seed)
    net = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))
    model = DistributedDataParallel(net)
    model.register_comm_hook(state(way), hook)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    dist.barrier()
    sent_bytes = sum(group_of().stats.sent_bytes.values())
    seconds = 0.0
    for step in range(1, MOST_STEPS + 1):
        x, y = digits.batch(rank, ranks)
        began_s = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        seconds += time.perf_counter() - began_s
        with torch.no_grad():  # all ranks have the same model, to the bit, and decide alike
            right = (net(digits.test[0]).argmax(1) == digits.test[1]).float().mean()
        if float(right) >= TARGET:
            sent_bytes = sum(group_of().stats.sent_bytes.values()) - sent_bytes
            return {"steps": step, "seconds": seconds, "sent_bytes_a_step": sent_bytes / step}
    return {"steps": None, "seconds": None, "sent_bytes_a_step": None}


def take_part(job: dict[str, Any]) -> None:
    """Do a job at one rank; rank 0 prints each result as a line."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "anabranch",
        init_method=f"file://{job['store']}",
        rank=job["rank"],
        world_size=job["ranks"],
    )
    began_s = time.monotonic()
    for seed in job["seeds"]:
        for way in WAYS:
            for learning_rate in job["rates"][way]:
                found = train(way, learning_rate, seed)
                if job["rank"] == 0:
                    row = {"seed": seed, "way": way, "rate": learning_rate, **found}
                    print(json.dumps(row), flush=True)
        over = torch.tensor([time.monotonic() - began_s > job["limit_s"]], dtype=torch.float32)
        dist.broadcast(over, 0)
        if over.item():
            break
    dist.destroy_process_group()


def schedule(listen: str, overlay: Overlay) -> None:
    """Serve a group whose plan stays: rates are known, and a busy machine measures others."""
    service = anabranch.Service(overlay, awareness=None)

    def listening(address: tuple[str, int]) -> None:
        print("{}:{}".format(*address), flush=True)

    process = Process(os.environ["ANABRANCH_TOKEN"], (listen, 0), None, listening)
    serve(service.listening_at(process.listen), process)


def run(
    name: str,
    wan: Emulation | None,
    seeds: list[int],
    rates: dict[str, list[float]],
    limit_s: float,
) -> list[dict[str, Any]]:
    """Return the rows of a job, of all sites of an overlay, over it or over this machine's own."""
    overlay = overlays()[name]
    environment = {
        **os.environ,
        "ANABRANCH_TOKEN": secrets.token_hex(8),
        "ANABRANCH_INSECURE": "1",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo" if wan is None else "control",
    }
    processes: list[subprocess.Popen[str]] = []

    def start(site: int | None, *arguments: str, **more: str) -> subprocess.Popen[str]:
        inside = [] if wan is None else wan.inside(site)
        process = subprocess.Popen(
            [*inside, sys.executable, __file__, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, **more},
        )
        processes.append(process)
        return process

    with tempfile.TemporaryDirectory() as folder:
        try:
            listen = "127.0.0.1" if wan is None else wan.control_address
            scheduler = start(None, "--serve", listen, "--overlay", name)
            assert scheduler.stdout is not None
            environment["ANABRANCH_SCHEDULER"] = scheduler.stdout.readline().strip()
            for rank, site in enumerate(overlay.sites):
                job = {
                    "rank": rank,
                    "ranks": overlay.size,
                    "store": str(Path(folder) / "store"),
                    "seeds": seeds,
                    "rates": rates,
                    "limit_s": limit_s,
                }
                host = "127.0.0.1" if wan is None else wan.addresses[rank]
                start(rank, "--job", json.dumps(job), ANABRANCH_HOST=host, ANABRANCH_SITE=site.name)
            first = processes[1]
            assert first.stdout is not None
            rows = []
            for line in first.stdout:
                if line.startswith("{"):
                    rows.append(json.loads(line))
                    print(f"{name}: {line.strip()}", flush=True)
            if first.wait():
                raise RuntimeError(f"rank 0 ended with status {first.returncode}")
            for process in processes[2:]:
                process.wait()
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return rows


def tuned(name: str) -> dict[str, list[float]]:
    """Return for each way the rate of the fewest steps."""
    rows = run(name, None, [*TUNING_SEEDS], {way: [*RATES] for way in WAYS}, math.inf)

    def steps(way: str, rate: float) -> float:
        found = [row["steps"] for row in rows if (row["way"], row["rate"]) == (way, rate)]
        return fmean(MOST_STEPS + 1 if each is None else each for each in found)

    return {way: [min(RATES, key=lambda rate: steps(way, rate))] for way in WAYS}


def compared(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Return the ratio of times, seed by seed: its geometric mean, and where that lies in 95 %."""
    logs = [math.log(one / other) for one, other in zip(ours, theirs, strict=True)]
    if len(logs) < 2:
        return {"ratio": math.exp(fmean(logs)), "verdict": "no verdict"}
    t = _T_95.get(len(logs) - 1, 2.0)
    half = t * stdev(logs) / math.sqrt(len(logs))
    low, high = math.exp(fmean(logs) - half), math.exp(fmean(logs) + half)
    verdict = "no verdict"
    if len(logs) >= LEAST_SEEDS:
        verdict = "faster" if high < 1.0 else "slower" if low > 1.0 else "none"
    return {"ratio": math.exp(fmean(logs)), "low": low, "high": high, "verdict": verdict}


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    whole = list(dict.fromkeys(row["seed"] for row in rows))
    whole = [seed for seed in whole if sum(row["seed"] == seed for row in rows) == len(WAYS)]
    for way in WAYS:
        own = [row for row in rows if row["way"] == way and row["seed"] in whole]
        missed = [row["seed"] for row in own if row["steps"] is None]
        found[way] = {"learning_rate": own[0]["rate"], "seeds": len(own), "not_reached": missed}
        if missed:
            continue
        for what in ("seconds", "steps", "sent_bytes_a_step"):
            found[way][what] = common.spread([row[what] for row in own])
        each = [1e3 * row["seconds"] / row["steps"] for row in own]
        found[way]["ms_a_step"] = common.spread(each)
    base = found[WAYS[0]]
    for way in WAYS[1:]:
        if "seconds" in base and "seconds" in found[way]:
            theirs = base["seconds"]["all"]
            found[way]["time_over_float32"] = compared(found[way]["seconds"]["all"], theirs)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=LEAST_SEEDS)
    parser.add_argument("--limit-s", type=float, default=math.inf, help="begin no seed after that")
    parser.add_argument("--overlay", choices=[*overlays()], help="one of them; else all")
    parser.add_argument("--rates", type=json.loads, help="by overlay and way, without tuning")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        schedule(options.serve, overlays()[options.overlay])
        return
    if options.job:
        take_part(json.loads(options.job))
        return
    kept = common.RESULTS / "compression.json"
    results = json.loads(kept.read_text())["overlays"] if kept.exists() else {}
    for name in [options.overlay] if options.overlay else overlays():
        rates = options.rates[name] if options.rates else tuned(name)
        print(f"{name}: learning rates {json.dumps(rates)}", flush=True)
        with ExitStack() as stack:
            wan = stack.enter_context(emulated(overlays()[name], seed=0))
            rows = run(name, wan, [*range(options.seeds)], rates, options.limit_s)
        results[name] = {"commit": common.commit(), **figures(rows)}
        for way in WAYS:
            found = results[name][way]
            if "seconds" in found:
                over = found.get("time_over_float32", {})
                print(
                    f"{name}, {way}: {median(found['seconds']['all']):.1f} s, "
                    f"{median(found['steps']['all']):g} steps of "
                    f"{found['ms_a_step']['median']:.0f} ms, {json.dumps(over)}",
                    flush=True,
                )
        common.write(
            "compression",
            seed=0,
            target_accuracy=TARGET,
            hidden=HIDDEN,
            parameters=64 * HIDDEN + HIDDEN + 10 * HIDDEN + 10,
            batch_of_each_rank=BATCH,
            learning_rates=[*RATES],
            tuning_seeds=[*TUNING_SEEDS],
            overlays=results,
        )


if __name__ == "__main__":
    main()
