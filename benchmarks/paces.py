"""Sixteen workers and a server, real processes: how evenly a pace spaces their updates.

    python benchmarks/paces.py

Every link carries 200 Mbit/s, held in the sender; workers compute 3 s with a little jitter, and
push 100,000 elements. Gaps between updates are compared with the one that the pace asks for,
r * T / N, after four iterations of learning it and until the first worker is done.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import common
from anabranch.log import UpdateApplied, read_events, summarise
from anabranch.log.pacing import PaceSummary
from anabranch.overlay import Link, Overlay, Site, dumps
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import load

PACES = {
    "bsp": 'kind = "bsp"',
    "asp": 'kind = "asp"',
    "r2sp, relaxation 0.8": 'kind = "r2sp"',
    "r2sp, relaxation 1": 'kind = "r2sp", relaxation = 1',
}
LEARNT = 4


def cluster(workers: int) -> Overlay:
    """Return a server with a link to and from each worker."""
    sites = (Site("server"), *(Site(f"worker-{k}") for k in range(1, workers + 1)))
    ways = [(0, k) for k in range(1, workers + 1)] + [(k, 0) for k in range(1, workers + 1)]
    return Overlay("cluster", sites, tuple(Link(a, b, 200e6, latency_s=0.0005) for a, b in ways))


def run(pace: str, workers: int, updates: int) -> tuple[PaceSummary, list[float]]:
    """Return what a run came to, and the gaps between its updates once the pace has settled."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "scenario.toml"), Path(folder, "run.db")
        Path(folder, "overlay.toml").write_text(dumps(cluster(workers)))
        path.write_text(
            f'overlay = "overlay.toml"\nroute = {{kind = "star", hub = "server"}}\n'
            f'serve = {{only = ["server"]}}\npace = {{{pace}}}\nstop = {{rounds = {updates}}}\n'
            'task = {kind = "exchange", elements = 100_000, batch_size = 300}\n'
            'compute = {samples_per_s = 100, jitter = {kind = "lognormal", cv = 0.02}}\n'
        )
        _, overlay = load(path)
        run_locally(path, 0, overlay, log)
        happened = [event for _, event in read_events(log)]
    applied = [event for event in happened if isinstance(event, UpdateApplied)]
    first_done = next(k for k, event in enumerate(applied) if event.update == updates)
    settled = applied[LEARNT * workers : first_done]
    gaps_s = [after.at_s - before.at_s for before, after in pairwise(settled)]
    summary = summarise(happened).pace
    assert summary is not None
    return summary, gaps_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--updates", type=int, default=12)
    options = parser.parse_args()
    results = []
    for name, pace in PACES.items():
        summary, gaps_s = run(pace, options.workers, options.updates)
        series = [each for one in summary.iterations.values() for each in one[LEARNT:]]
        busy_s = max(
            fmean(each.came_s - each.went_s for each in one[LEARNT:])
            for one in summary.iterations.values()
        )
        relaxation = 0.8 if "0.8" in name else 1.0
        wanted_s = relaxation * busy_s / options.workers
        row = {
            "pace": name,
            "iteration_s": summary.iteration_s,
            "blocked_s": fmean(each.blocked_s for each in series if each.next_s is not None),
            "push_s": fmean(each.push_s for each in series),
            "at_once": summary.at_once,
            "mean_missed": summary.mean_missed,
            "most_missed": max(summary.missed),
            "gap_wanted_s": wanted_s,
            "gap_median_s": median(gaps_s),
            "gaps_within_15_percent": fmean(abs(gap / wanted_s - 1) <= 0.15 for gap in gaps_s),
        }
        results.append(row)
        print(
            f"{name}: {row['iteration_s']:.2f} s an iteration, pushes {row['push_s']:.3f} s; gaps "
            f"{row['gap_median_s']:.3f} s (median) where {wanted_s:.3f} s is T / N (times r), "
            f"{row['gaps_within_15_percent']:.0%} within 15 %; missed {row['mean_missed']:.1f}, "
            f"{row['most_missed']} at most",
            flush=True,
        )
    common.write("paces", seed=0, workers=options.workers, updates=options.updates, results=results)


if __name__ == "__main__":
    main()
