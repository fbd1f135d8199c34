"""One figure of a benchmark, in turns with another checkout's, each by its own benchmark.

    python benchmarks/turns.py --before CHECKOUT                    # all cases
    python benchmarks/turns.py --before CHECKOUT --only "3 sites"   # these; the file keeps others

Each checkout has an environment, `.venv`, and its benchmark prints the figure. Both
run in each turn, on the same machine; `now_over_before` is the ratio of their figures.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import common

HERE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Case:
    """What is run.

    Args:
        command: the benchmark, and its options.
        figure: matches what it prints; its group is a number, and several count by their median.
        now: options that only this checkout's benchmark has.
    """

    command: tuple[str, ...]
    figure: str
    now: tuple[str, ...] = ()


LOOPBACK = "against_gloo.py", "--sites", "3", "--rounds", "15", "--dry"
JOIN = "join.py", "--runs", "1", "--elements", "10000000", "--rate-mbps", "100", "--dry"
CASES = {
    "3 sites of one machine, all-reduce of 244 MB, gloo's time over ours": Case(
        LOOPBACK, r"gloo/anabranch ([\d.]+)"
    ),
    "the same, without the search for NaN, which is new": Case(
        LOOPBACK, r"gloo/anabranch ([\d.]+)", ("--on-nan", "allow")
    ),
    "a joiner at 100 Mbit/s: the hand-over of 40 MB, s": Case(JOIN, r"transfer_s: ([\d.]+)"),
    "a joiner at 100 Mbit/s: the longest step of the others while it joins, s": Case(
        JOIN, r"longest_while_it_joins_s: ([\d.]+)"
    ),
} | {
    f"{fault}: to an exact result of a round begun after, s": Case(
        ("faults.py", "--only", "anabranch", "--fault", fault, "--runs", "3", "--dry"),
        r"begun after ([\d.]+) s",
    )
    for fault in ("kill", "stop", "silent links", "pair cut", "scheduler", "both", "way cut")
}


def measure(checkout: Path, case: Case) -> float:
    """Run a checkout's benchmark once; return the figure."""
    script, *options = *case.command, *(case.now if checkout == HERE else ())
    command = [str(checkout / ".venv/bin/python"), f"benchmarks/{script}", *options]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    return median(map(float, re.findall(case.figure, done.stdout)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="another checkout")
    parser.add_argument("--only", action="append", help="cases whose names contain this")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    path = common.RESULTS / "turns.json"
    results = json.loads(path.read_text())["results"] if path.exists() else {}
    for name, case in CASES.items():
        if options.only and not any(part in name for part in options.only):
            continue
        pairs = []
        for _ in range(options.turns):
            pairs.append((measure(options.before, case), measure(HERE, case)))
            print(f"{name}: before {pairs[-1][0]:.3f}, now {pairs[-1][1]:.3f}", flush=True)
        git = ("git", "-C", str(options.before), "rev-parse", "HEAD")
        results[name] = {
            "commit": common.commit(),
            "commit_before": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
            "before": common.spread([before for before, _ in pairs]),
            "now": common.spread([now for _, now in pairs]),
            "now_over_before": common.spread([now / before for before, now in pairs]),
        }
        common.write("turns", seed=0, results=results)  # each, in case it is not let end


if __name__ == "__main__":
    main()
