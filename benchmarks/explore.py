"""Many faulty exchanges in virtual time, each checked: what `anabranch explore` does, with a file.

    python benchmarks/explore.py --exchanges 1000000 --seed 0      # an hour or two on two cores

The file has how many exchanges were called for, how many of them were completed after a loss, how
often sites were lost and let in and the scheduler was started again, and every violation by seed.
"""

from __future__ import annotations

import argparse
import os
import time

import common
from anabranch_lab.cli._explore import search


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exchanges", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--name", default="explore", help="of the file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began_s = time.monotonic()
    told: set[int] = set()
    for found in search(options.seed, options.jobs):
        for seed in found.violations.keys() - told:
            told.add(seed)
            print(f"seed {seed}: {found.violations[seed]}", flush=True)
        took_s = time.monotonic() - began_s
        if found.exchanges >= options.exchanges or took_s >= 60 * options.minutes:
            break
    figures = {
        "cases": found.cases,
        "exchanges": found.exchanges,
        "completed_after_a_loss": found.repaired,
        "sites_lost": found.lost,
        "sites_let_in_later": found.joined,
        "scheduler_started_again": found.restarted,
        "violations": {str(seed): each for seed, each in sorted(found.violations.items())},
        "seconds": round(took_s),
    }
    print(figures)
    common.write(options.name, seed=options.seed, **figures)


if __name__ == "__main__":
    main()
