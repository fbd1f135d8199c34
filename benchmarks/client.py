"""What a site's process loads to train in a group: modules, seconds, memory.

    python benchmarks/client.py                 # 5 runs, without PyTorch and with it
    python benchmarks/client.py --name client_before

Two processes join a scheduler that measures links, and all-reduce. What is measured begins once a
script has imported NumPy, or PyTorch: `import_` is of importing `anabranch` and its `join`, and
`added_` of that, of joining and of three all-reduces. `process_` is of the whole process. Seconds
are of the clock, and of the processor, which other programs of the machine change less. Files were
read before, so the disk is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

TOKEN = "client"
LIBRARIES = [
    *("click", "cloudpickle", "cryptography", "jinja2", "msgspec", "networkx", "numpy", "plotly"),
    *("pooch", "rich", "scipy", "sklearn", "sqlite3", "torch", "typer"),
]


def resident_bytes() -> float:
    """Return the memory that this process holds now."""
    return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def take_part(site: str, scheduler: str, with_torch: bool) -> None:
    """Be one site; print what that took."""
    if with_torch:
        import torch
    else:
        import numpy as np
    memory_bytes: list[float] = []
    clock_s: list[float] = []
    processor_s: list[float] = []

    def look() -> None:
        memory_bytes.append(resident_bytes())
        clock_s.append(time.perf_counter())
        processor_s.append(time.process_time())

    look()
    import anabranch

    join = anabranch.join
    look()
    values = torch.ones(100_000) if with_torch else np.ones(100_000, np.float32)
    with join(scheduler, site, token=TOKEN) as group:
        for _ in range(3):
            group.all_reduce(values)
        look()
        ours = [name for name in sys.modules if name.partition(".")[0] == "anabranch"]
    told = {
        "import_s": clock_s[1] - clock_s[0],
        "import_processor_s": processor_s[1] - processor_s[0],
        "added_processor_s": processor_s[2] - processor_s[0],
        "process_processor_s": processor_s[2],
        "import_bytes": memory_bytes[1] - memory_bytes[0],
        "added_bytes": memory_bytes[2] - memory_bytes[0],
        "process_bytes": memory_bytes[2],
        "modules": len(ours),
        "rooms": dict(sorted(Counter([*name.split("."), "-"][1] for name in ours).items())),
        "libraries": [name for name in LIBRARIES if name in sys.modules],
    }
    print(json.dumps(told))


def run_once(with_torch: bool) -> list[dict[str, Any]]:
    """Return what each of two sites says."""
    with ExitStack() as stack:

        def start(*command: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "ANABRANCH_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        scheduler = start("-m", "anabranch", "scheduler", "--sites", "a,b")
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().strip()
        options = ("--scheduler", address, *(["--torch"] if with_torch else []))
        sites = [start(__file__, "--site", name, *options) for name in ("a", "b")]
        return [json.loads(site.communicate(timeout=120)[0]) for site in sites]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--name", default="client", help="of the file in results/")
    parser.add_argument("--site", help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.site is not None:
        take_part(options.site, options.scheduler, options.torch)
        return
    import common  # which loads more than a site does

    results = {}
    for name, with_torch in (("numpy", False), ("torch", True)):
        told = [each for _ in range(options.runs) for each in run_once(with_torch)]
        measured = [key for key, value in told[0].items() if isinstance(value, float)]
        results[name] = {key: common.spread([each[key] for each in told]) for key in measured}
        results[name] |= {key: told[0][key] for key in ("modules", "rooms", "libraries")}
        medians = {key: float(f"{results[name][key]['median']:.3g}") for key in measured}
        print(f"{name}: {told[0]['modules']} modules of ours, {medians}", flush=True)
    common.write(options.name, seed=0, runs=options.runs, results=results)


if __name__ == "__main__":
    main()
