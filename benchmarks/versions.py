"""This version beside another one, on links that the kernel holds: speed, and what a GB costs.

    sudo python benchmarks/versions.py                        # this version alone
    sudo python benchmarks/versions.py --before SRC           # and another checkout's src, in turns
    sudo python benchmarks/versions.py --only "25 sites"      # some; the file keeps the others

Each site is a process in a network namespace. The processor time of all processes, from the end of
the first round to the end of the last one, is divided by what crossed links in between: so much a
GB of it costs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

import common
from anabranch.overlay import Overlay, dumps, internet2_9, random_complete, random_sparse

PACKED, STAR, FAPT = '{kind = "packed"}', '{kind = "star"}', '{kind = "fapt"}'


@dataclass(frozen=True)
class Case:
    """What runs.

    Args:
        overlay: the network.
        elements: of the buffer, float32.
        route: of the plan, as scenarios say it.
        rounds: how many, of which the first does not count.
        chunk_elements: of a chunk; None leaves it to the scheduler.
    """

    overlay: Overlay
    elements: int
    route: str = PACKED
    rounds: int = 5
    chunk_elements: int | None = None


def cases() -> dict[str, Case]:
    nine = internet2_9()
    complete, half = (
        random_complete(9, 0, low_bps=low, high_bps=high, latency_s=0.0, loss=0.0)
        for low, high in ((20e6, 155e6), (10e6, 77.5e6))
    )
    return {
        "internet2-9, packed, 244 MB": Case(near(nine), 61_000_000, rounds=4),
        "internet2-9, 30 ms, .02 % loss, packed, 244 MB": Case(nine, 61_000_000, rounds=4),
        "complete, packed, 244 MB": Case(complete, 61_000_000),
        "complete, half the rates, packed, 122 MB": Case(half, 30_500_000),
        "internet2-9, star, 24 MB": Case(near(nine), 6_100_000, STAR),
        "internet2-9, fapt, 24 MB": Case(near(nine), 6_100_000, FAPT),
        "9 sites, packed, 16 MB": Case(near(nine), 4_000_000),
        "9 sites, packed, 80 MB": Case(near(nine), 20_000_000),
        "25 sites, packed, 16 MB": Case(near(random_sparse(25, 0)), 4_000_000),
        "25 sites, packed, 80 MB": Case(near(random_sparse(25, 0)), 20_000_000),
        "40 sites, packed, 16 MB": Case(near(random_sparse(40, 0)), 4_000_000),
    }


def near(overlay: Overlay) -> Overlay:
    """Return an overlay without delay and loss."""
    links = tuple(replace(link, latency_s=0.0, loss=0.0) for link in overlay.links)
    return replace(overlay, links=links)


def run_once(case: Case) -> dict[str, float]:
    """Run one case in this process's checkout."""
    from anabranch.log import read_events, summarise
    from anabranch.log.events import LinkBytes, RoundDone
    from anabranch_lab.run.launch import run_locally

    overlay = case.overlay
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
        chunks = "" if case.chunk_elements is None else f"chunk_elements = {case.chunk_elements}\n"
        scenario.write_text(
            f'overlay = "overlay.toml"\nstop.rounds = {case.rounds}\nroute = {case.route}\n'
            f'{chunks}[task]\nkind = "exchange"\nelements = {case.elements}\n'
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
        first, last = np.interp(
            [began_s + done_s[overlay.size - 1], began_s + done_s[-1]], times_s, spent
        )
        return float(last - first)

    gigabytes = sent * (case.rounds - 1) / case.rounds / 1e9
    assert summary.started.limit_s is not None
    return {
        "share_of_limit": summary.started.limit_s / median(rounds),
        "cpu_s_per_gb": sum(map(spent_s, pids)) / gigabytes,
        "scheduler_cpu_s_per_gb": spent_s("the scheduler") / gigabytes,
        "round_s": median(rounds),
    }


def measure(src: Path, name: str) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": str(src)}
    command = [sys.executable, __file__, "--once", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout's src to compare with")
    parser.add_argument("--only", action="append", help="cases whose names contain this")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--once", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(run_once(cases()[options.once])))
        return
    here = Path(__file__).resolve().parent.parent / "src"
    sources = {"now": here} if options.before is None else {"before": options.before, "now": here}
    results: dict[str, dict[str, object]] = {}
    written = common.RESULTS / "versions.json"
    if options.only and written.exists():
        results = json.loads(written.read_text())["results"]
    for name in cases():
        if options.only and not any(part in name for part in options.only):
            continue
        runs: dict[str, list[dict[str, float]]] = {version: [] for version in sources}
        for _ in range(options.runs):  # in turns, so that all feel the same machine
            for version, src in sources.items():
                runs[version].append(measure(src, name))
        row: dict[str, object] = {"commit": common.commit()} | {
            version: {key: common.spread([each[key] for each in rows]) for key in rows[0]}
            for version, rows in runs.items()
        }
        if options.before is not None:
            pairs = zip(runs["before"], runs["now"], strict=True)
            ratios = [before["round_s"] / now["round_s"] for before, now in pairs]
            row["before_over_now"] = common.spread(ratios)
        results[name] = row
        print(f"{name}: {json.dumps(row)}", flush=True)
        common.write("versions", seed=0, results=results)  # each, in case it is not let end


if __name__ == "__main__":
    main()
