"""Many sites on few cores: share of the limit, and what a GB over a link costs in processor time.

    sudo python benchmarks/many_sites.py                     # this code
    sudo python benchmarks/many_sites.py --before SRC        # and another checkout's src, in turns

Each case runs in network namespaces whose links the kernel holds, once with its buffer and once
with one of a single chunk; the difference of the processor time of all processes, over the
difference of what crossed links, is what a GB costs, start-up left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import common
from anabranch.overlay import Overlay, dumps, internet2_9, random_sparse

CASES = {
    "9 sites, 16 MB": (9, 4_000_000),
    "9 sites, 80 MB": (9, 20_000_000),
    "25 sites, 16 MB": (25, 4_000_000),
    "25 sites, 80 MB": (25, 20_000_000),
    "40 sites, 16 MB": (40, 4_000_000),
}
IDLE_ELEMENTS = 1000
ROUNDS = 4


def overlay_of(sites: int) -> Overlay:
    return internet2_9() if sites == 9 else random_sparse(sites, 0)


def run_once(sites: int, elements: int) -> dict[str, float]:
    """Run one scenario in this process's checkout; return seconds of rounds, CPU and bytes."""
    from anabranch.record import read_events, summarise
    from anabranch.record.events import LinkBytes
    from anabranch.run.launch import run_locally

    overlay = overlay_of(sites)
    ticks = os.sysconf("SC_CLK_TCK")
    pids: dict[str, int] = {}
    cpu_s: dict[str, float] = {}

    def sample() -> None:
        for name, pid in pids.items():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            cpu_s[name] = (int(fields[11]) + int(fields[12])) / ticks

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        scenario = Path(folder, "scenario.toml")
        scenario.write_text(
            f'overlay = "overlay.toml"\nstop.rounds = {ROUNDS}\nroute = {{kind = "packed"}}\n'
            f'[task]\nkind = "exchange"\nelements = {elements}\n'
        )
        log = Path(folder, "run.db")
        run_locally(scenario, 0, overlay, log, on_tick=sample, on_started=pids.update, emulate=True)
        events = [event for _, event in read_events(log)]
    summary = summarise(iter(events))
    sent = sum(event.payload_bytes for event in events if isinstance(event, LinkBytes))
    rounds = [each.seconds for each in summary.rounds][1:]
    scheduler_s = cpu_s.pop("the scheduler")
    return {
        "round_s": median(rounds),
        "limit_s": summary.started.limit_s or 0.0,
        "sites_cpu_s": sum(cpu_s.values()),
        "scheduler_cpu_s": scheduler_s,
        "sent_bytes": float(sent),
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
            rows = []
            for _ in range(options.runs):
                idle = measure(src, sites, IDLE_ELEMENTS)
                busy = measure(src, sites, elements)
                gigabytes = (busy["sent_bytes"] - idle["sent_bytes"]) / 1e9
                cpu_s = busy["sites_cpu_s"] - idle["sites_cpu_s"]
                scheduler_s = busy["scheduler_cpu_s"] - idle["scheduler_cpu_s"]
                rows.append(
                    {
                        "share_of_limit": busy["limit_s"] / busy["round_s"],
                        "cpu_s_per_gb": (cpu_s + scheduler_s) / gigabytes,
                        "sites_cpu_s_per_gb": cpu_s / gigabytes,
                        "round_s": busy["round_s"],
                    }
                )
            row: dict[str, object] = {
                key: common.spread([each[key] for each in rows]) for key in rows[0]
            }
            results.setdefault(case, {})[name] = row
            print(f"{case}, {name}: {json.dumps(row)}", flush=True)
    common.write("many_sites", seed=0, rounds=ROUNDS, results=results)


if __name__ == "__main__":
    main()
