"""What a site needs beside its tensors: memory, the time to join, and 64 sites in one process.

    python benchmarks/light.py

Without PyTorch, which a site loads where it is given tensors of it. A joined site has made calls of
float32 and float16. The time to join is that of three sites and their scheduler, in one process, in
which a first group has loaded the modules.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median

import numpy as np

import anabranch
import common
from anabranch import Group, Service, spawn
from anabranch.overlay import random_complete

RUNS = 5
LOCAL = 64


def resident_mb() -> float:
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024 / 1e6


def calls(group: Group) -> float:
    """Make two calls; return this site's memory."""
    for kind in (np.float32, np.float16):
        group.all_reduce(np.ones(1000, kind))
    assert "torch" not in sys.modules
    return resident_mb()


def one_run() -> dict[str, float]:
    overlay = random_complete(3, 0, low_bps=1e10, high_bps=1e10, latency_s=0.0, loss=0.0)
    site_mb = max(spawn(calls, Service(overlay, awareness=None), []))
    with anabranch.local(2):
        pass
    before_mb, began_s = resident_mb(), time.perf_counter()
    with anabranch.local(LOCAL):
        took_s = time.perf_counter() - began_s
        local_mb = resident_mb() - before_mb
    began_s = time.perf_counter()
    with anabranch.local(3):
        join_s = time.perf_counter() - began_s
    assert "torch" not in sys.modules
    return {"site_mb": site_mb, "local_mb": local_mb, "local_s": took_s, "join_3_s": join_s}


def main() -> None:
    if sys.argv[1:] == ["--run"]:
        print(json.dumps(one_run()))
        return
    common.no_options(__doc__)
    command = [sys.executable, __file__, "--run"]
    found = []
    for _ in range(RUNS):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    rows = {key: common.spread([each[key] for each in found]) for key in found[0]}
    for key in rows:
        print(f"{key}: {median(each[key] for each in found):.3g}")
    common.write("light", seed=0, local_sites=LOCAL, **rows)


if __name__ == "__main__":
    main()
