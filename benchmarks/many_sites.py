"""Many sites on few cores: share of the limit, and what a GB over a link costs in processor time.

    sudo python benchmarks/many_sites.py                     # this code
    sudo python benchmarks/many_sites.py --before SRC        # and another checkout's src, in turns

Each case runs in network namespaces whose links the kernel holds. The processor time of all
processes, from the end of the first round to the end of the last one, is divided by what crossed
links in between: so much a GB of it costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

import common
from anabranch.overlay import Overlay, dumps, internet2_9, random_sparse

CASES = {
    "9 sites, 16 MB": (9, 4_000_000),
    "9 sites, 80 MB": (9, 20_000_000),
    "25 sites, 16 MB": (25, 4_000_000),
    "25 sites, 80 MB": (25, 20_000_000),
    "40 sites, 16 MB": (40, 4_000_000),
}
ROUNDS = 5


def overlay_of(sites: int) -> Overlay:
    return internet2_9() if sites == 9 else random_sparse(sites, 0)


def run_once(sites: int, elements: int) -> dict[str, float]:
    """Run one scenario in this process's checkout; return seconds of rounds, CPU and bytes."""
    from anabranch.record import read_events, summarise
    from anabranch.record.events import LinkBytes, RoundDone
    from anabranch.run.launch import run_locally

    overlay = overlay_of(sites)
    ticks = os.sysconf("SC_CLK_TCK")
    pids: dict[str, int] = {}
    samples: list[tuple[float, dict[str, float]]] = []  # when, and CPU of each process until then

    def sample() -> None:
        cpu_s = {}
        for name, pid in pids.items():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                return
            cpu_s[name] = (int(fields[11]) + int(fields[12])) / ticks
        samples.append((time.monotonic(), cpu_s))

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "run.db")
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        scenario = Path(folder, "scenario.toml")
        scenario.write_text(
            f'overlay = "overlay.toml"\nstop.rounds = {ROUNDS}\nroute = {{kind = "packed"}}\n'
            f'[task]\nkind = "exchange"\nelements = {elements}\n'
        )
        run_locally(scenario, 0, overlay, log, on_tick=sample, on_started=pids.update, emulate=True)
        events = [event for _, event in read_events(log)]
    summary = summarise(iter(events))
    sent = sum(event.payload_bytes for event in events if isinstance(event, LinkBytes))
    rounds = [each.seconds for each in summary.rounds][1:]
    done_s = sorted(event.at_s for event in events if isinstance(event, RoundDone))
    began_s = samples[-1][0] - events[-1].at_s  # when the run did, as this process counts
    times_s = [at_s for at_s, _ in samples]

    def spent_s(name: str) -> float:
        spent = [cpu_s.get(name, 0.0) for _, cpu_s in samples]
        first, last = np.interp([began_s + done_s[sites - 1], began_s + done_s[-1]], times_s, spent)
        return float(last - first)

    gigabytes = sent * (ROUNDS - 1) / ROUNDS / 1e9
    return {
        "share_of_limit": (summary.started.limit_s or 0.0) / median(rounds),
        "cpu_s_per_gb": sum(map(spent_s, pids)) / gigabytes,
        "scheduler_cpu_s_per_gb": spent_s("the scheduler") / gigabytes,
        "round_s": median(rounds),
    }


def measure(src: Path, sites: int, elements: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(src)}
    command = [sys.executable, __file__, "--once", str(sites), str(elements)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout's src to compare with")
    parser.add_argument("--only", help="cases whose names contain this")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--once", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(run_once(*options.once)))
        return
    here = Path(__file__).resolve().parent.parent / "src"
    sources = {"now": here} if options.before is None else {"before": options.before, "now": here}
    results: dict[str, dict[str, dict[str, object]]] = {}
    for case, (sites, elements) in CASES.items():
        if options.only and options.only not in case:
            continue
        for name, src in sources.items():
            rows = [measure(src, sites, elements) for _ in range(options.runs)]
            row: dict[str, object] = {
                key: common.spread([each[key] for each in rows]) for key in rows[0]
            }
            results.setdefault(case, {})[name] = row
            print(f"{case}, {name}: {json.dumps(row)}", flush=True)
    common.write("many_sites", seed=0, rounds=ROUNDS, results=results)


if __name__ == "__main__":
    main()
