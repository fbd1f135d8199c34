"""What forming a forest's trees again is worth, and what it costs. Simulated, in virtual seconds.

    python benchmarks/reforming.py

12 workers and a server, each two joined by 1 to 10 Gbit/s and 10 to 50 ms (HAAF, section 6.1); 4
MB; an update takes a worker of mean speed 1 s, Gini 0.3, varying by 10 %. After 60 s a worker of
the largest tree computes four times as long as the slowest of that tree, or all its links are 200
times as slow, to the end. Workers' updates that became part of the model in the last 60 of 180 s,
with `awareness` over without; how long trees that changed stood still; and, meanwhile, the longest
time that a tree which did not change took from one step to the next, over its median.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import common
from anabranch.fleet import ComputeModel
from anabranch.log import read_events
from anabranch.overlay import dumps, random_complete
from anabranch.plan import Plan
from anabranch_lab.reports.runs import Run
from anabranch_lab.run.control import first_plan
from anabranch_lab.run.scenario import compute_model, load
from anabranch_lab.run.simulate import simulate

WORKERS = 12
ELEMENTS, BATCH = 1_000_000, 16
CHANGE_S, FROM_S, UNTIL_S = 60.0, 120.0, 180.0
AWARE = 'awareness = {kind = "passive", update_time_s = 2.0}'
JITTER = '{kind = "lognormal", cv = 0.1}'


def faults(what: str, plan: Plan, compute: ComputeModel) -> str:
    """Return what becomes slow, as lines of a scenario."""
    largest = max(plan.groups, key=lambda group: len(group.workers)).workers
    site, times_s = largest[0], [compute.mean_s(each, BATCH) for each in largest]
    pairs = [f'pair = ["site{site}", "site{k}"]' for k in range(WORKERS + 1) if k != site]
    slow = [(pair, 200.0) for pair in pairs]
    if what == "computing":
        slow = [(f'site = "site{site}"', 4 * max(times_s) / times_s[0])]
    return "\n".join(
        f'[[fault]]\nkind = "slow"\nat_s = {CHANGE_S}\nfactor = {factor}\n{which}'
        for which, factor in slow
    )


def run(seed: int, what: str, aware: bool) -> Run:
    """Simulate one forest."""
    overlay = random_complete(
        WORKERS + 1, seed, low_bps=1e9, high_bps=10e9, latency_s=(0.01, 0.05), loss=0.0
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        path, log = Path(folder, "scenario.toml"), Path(folder, "run.db")
        text = (
            f'overlay = "overlay.toml"\nseed = {seed}\npace = {{kind = "asp"}}\n'
            f"stop = {{rounds = 100000, after_s = {UNTIL_S}}}\n"
            f'serve = {{only = ["site{WORKERS}"]}}\n{AWARE if aware else ""}\n'
            f'route = {{kind = "forest", server = "site{WORKERS}"}}\n'
            f'task = {{kind = "exchange", elements = {ELEMENTS}, batch_size = {BATCH}}}\n'
            'simulation = {tensors = "sizes"}\n'
            f"compute = {{samples_per_s = 16.0, gini = 0.3, jitter = {JITTER}}}\n"
        )
        path.write_text(text)
        scenario, _ = load(path)
        compute = compute_model(scenario, overlay)
        assert compute is not None
        path.write_text(text + faults(what, first_plan(scenario, overlay), compute) + "\n")
        simulate(*load(path), log)
        return Run.of((event for _, event in read_events(log)), log)


def measure(seed: int, what: str) -> dict[str, Any]:
    """Return what a change costs with and without other trees."""
    aware, still = run(seed, what, True), run(seed, what, False)
    pace, still_pace = aware.summary.pace, still.summary.pace
    assert pace is not None
    assert still_pace is not None
    updates = [sum(each.at_s >= FROM_S for each in of.applied) for of in (pace, still_pace)]
    issued_s = [plan.at_s for plan in aware.summary.plans if plan.at_s >= CHANGE_S]
    formed_s = [formed.at_s for formed in aware.summary.formed if formed.at_s >= CHANGE_S]
    longest = 0.0
    for span in aware.trees:
        steps = pace.steps_of(span.group.workers[0], span.from_s, span.until_s)
        gaps = [(a.at_s, b.at_s) for a, b in pairwise(steps)]
        for begun_s, done_s in zip(issued_s, formed_s, strict=False):
            meanwhile = [b - a for a, b in gaps if a < done_s and b > begun_s]
            if span.from_s < begun_s and span.until_s > done_s and meanwhile:
                longest = max(longest, max(meanwhile) / median(b - a for a, b in gaps))
    return {
        "seed": seed,
        "updates": updates,
        "with_over_without": updates[0] / updates[1],
        "formed": len(formed_s),
        "after_s": formed_s[0] - CHANGE_S if formed_s else None,
        "stood_still_s": [b - a for a, b in zip(issued_s, formed_s, strict=False)],
        "kept_longest_over_median": longest or None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", type=int, default=8)
    options = parser.parse_args()
    results: dict[str, object] = {}
    for what in ("computing", "links"):
        rows = [measure(seed, what) for seed in range(options.networks)]
        ratios = [row["with_over_without"] for row in rows]
        results[what] = {"with_over_without": common.spread(ratios), "networks": rows}
        print(f"{what}: {common.spread(ratios)}", *rows, sep="\n  ", flush=True)
    common.write("reforming", seed=0, results=results)


if __name__ == "__main__":
    main()
