"""What a group's checks cost an exchange, on one machine whose links nothing limits.

    chrt -r 10 python benchmarks/checks.py      # two and three sites, five sizes: three minutes

One process a site, through shared memory, so that the machine alone takes time: over any network an
exchange takes longer, and the checks as long as here. Exchanges with a check and without it take
turns. A time is that of the slowest site, after a barrier; a ratio is that of two neighbours in
time.

*nan*: each contribution is looked through (``on_nan="raise"``, the default), of one buffer.
*models*: parameters are compared (``on_unlike="raise"``, the default). A step averages the
gradients of a model of 160 tensors, and takes a step of SGD. Steps at which a checksum is due
are few and count little in the median, so what one takes is measured apart.
"""

from __future__ import annotations

import argparse
import time
from statistics import quantiles
from typing import Any

import numpy as np
import torch

import anabranch
import common
from anabranch import Group
from anabranch.group._watch import sample_checksum

SIZES = {"1 KB": 256, "100 KB": 25_600, "1 MB": 256_000, "16 MB": 4_000_000, "256 MB": 64_000_000}
TENSORS = 160
WAYS = ("raise", "allow")
Seconds = dict[str, list[float]]


def exchange(group: Group, elements: int, pairs: int) -> Seconds:
    """Return the seconds of each exchange, by whether NaN is looked for."""
    buffer = np.ones(elements, np.float32)
    seconds: Seconds = {way: [] for way in WAYS}
    for number in range(pairs + 1):
        for way in WAYS if number % 2 else WAYS[::-1]:
            group.on_nan = way  # type: ignore[assignment]
            group.barrier()
            began_s = time.perf_counter()
            group.all_reduce(buffer)
            if number:  # the first opens connections and touches memory
                seconds[way].append(time.perf_counter() - began_s)
    return seconds


def step(group: Group, elements: int, pairs: int) -> Seconds:
    """Return the seconds of each step, by whether models are compared."""
    torch.set_num_threads(1)  # sites share the cores
    parameters = [torch.zeros(max(1, elements // TENSORS)) for _ in range(TENSORS)]
    for each in parameters:
        each.grad = torch.ones_like(each)
    optimizer = torch.optim.SGD(parameters, 1e-3)
    group.on_nan = "allow"
    seconds: Seconds = {way: [] for way in WAYS}
    for number in range(pairs + 1):
        for way in WAYS if number % 2 else WAYS[::-1]:
            group.on_unlike = way  # type: ignore[assignment]
            group.barrier()
            began_s = time.perf_counter()
            group.all_reduce(each.grad for each in parameters)
            optimizer.step()
            if number:
                seconds[way].append(time.perf_counter() - began_s)
    return seconds


def checksum_s(elements: int) -> float:
    """Return how long the checksum of a model's sample takes, the median of 20."""
    parameters = [torch.zeros(max(1, elements // TENSORS)) for _ in range(TENSORS)]
    found = []
    for _ in range(20):
        began_s = time.perf_counter()
        sample_checksum(parameters)
        found.append(time.perf_counter() - began_s)
    return float(np.median(found))


def measured(what: Any, sites: int, elements: int, pairs: int) -> dict[str, Any]:
    found: list[Seconds] = anabranch.spawn(what, sites, [elements, pairs])
    slowest = {
        way: [max(each) for each in zip(*(site[way] for site in found), strict=True)]
        for way in WAYS
    }
    ratios = [on / off for on, off in zip(*slowest.values(), strict=True)]
    low, median, high = quantiles(ratios, n=4)
    with_s, without_s = (float(np.median(each)) for each in slowest.values())
    return {
        "pairs": pairs,
        "with_s": with_s,
        "without_s": without_s,
        "ratio": {"median": median, "quartiles": [low, high]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=101, help="of the largest buffer: a quarter")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {"nan": {}, "models": {}}
    for name, what in (("nan", exchange), ("models", step)):
        for sites in (2, 3):
            for size, elements in SIZES.items():
                pairs = options.pairs if elements < 10_000_000 else options.pairs // 4
                row = rows[name][f"{sites} sites, {size}"] = measured(what, sites, elements, pairs)
                low, high = row["ratio"]["quartiles"]
                print(
                    f"{name}, {sites} sites, {size}: {1e3 * row['with_s']:.3g} ms, without "
                    f"{1e3 * row['without_s']:.3g} ms; ratio {row['ratio']['median']:.3f} "
                    f"({low:.3f} to {high:.3f})",
                    flush=True,
                )
    checksums = {size: checksum_s(elements) for size, elements in SIZES.items()}
    print("a checksum:", {size: f"{1e3 * each:.3g} ms" for size, each in checksums.items()})
    common.write("checks", seed=0, **rows, checksum_s=checksums)


if __name__ == "__main__":
    main()
