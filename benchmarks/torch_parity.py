"""DDP and HSDP over the backend beside one process that has all samples, again and again.

    python benchmarks/torch_parity.py

Each repetition starts three ranks that train in turn by each way of DDP in tests/torch/parity.py,
by code that inductor has made among them, then twice four ranks of two sites under HSDP; each
beside a thread that computes in pure Python. Written is how far models are from the one process's
at most. It raises where ranks differ by a bit, a model is 1e-6 away, or a process group has not
ended after half an hour: a hang.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import common

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # what ranks do is the tests'
from tests.torch import parity
from tests.torch.ranks import run_ranks

FAR = 1e-6
LIMIT_S = 1800.0
HSDP = {"HSDP of two meshes": False, "HSDP by a hook": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    steps = options.steps
    wanted = {way: parity.alone(way, 3, steps) for way in parity.WAYS}
    of_four = parity.alone("default", 4, steps)
    farthest = {f"DDP, {way}": 0.0 for way in parity.WAYS} | dict.fromkeys(HSDP, 0.0)
    seconds = []
    for repeat in range(options.repeats):
        begun_s = time.perf_counter()
        found = run_ranks(parity.ddp_ways, 3, [*parity.WAYS], steps, limit_s=LIMIT_S)
        far = {
            f"DDP, {way}": parity.compare([each[way] for each in found], wanted[way])
            for way in parity.WAYS
        }
        for name, hooked in HSDP.items():
            whole = run_ranks(parity.hsdp, 4, steps, hooked, backend="gloo", limit_s=LIMIT_S)
            far[name] = parity.compare(whole, of_four)
        seconds.append(time.perf_counter() - begun_s)
        print(f"{repeat}: {max(far.values()):.1e} at most, {seconds[-1]:.0f} s", flush=True)
        for name, value in far.items():
            if value >= FAR:
                raise SystemExit(f"{name}: {value:.1e} from one process's model")
            farthest[name] = max(farthest[name], value)
    common.write(
        "torch_parity",
        seed=1,
        steps=steps,
        repeats=options.repeats,
        farthest=farthest,
        seconds=common.spread(seconds),
    )


if __name__ == "__main__":
    main()
