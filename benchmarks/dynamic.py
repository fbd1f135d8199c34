"""A network whose rates are drawn anew again and again: awareness off, on, and an oracle.

    python benchmarks/dynamic.py               # simulated: every 180 s and 20 s, 61 M and 6.1 M
    python benchmarks/dynamic.py --emulate     # real processes, every 20 s, 6.1 M

internet2-9, packed trees. An oracle knows every rate at every moment; it looks at plans as often as
``on``. Seconds a round over the whole run, and the errors of what was measured.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median

import common
from anabranch.log import read_events, summarise
from anabranch.overlay import dumps, internet2_9, load, redraw
from anabranch_lab.reports import measured_rates
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import load as load_scenario
from anabranch_lab.run.simulate import simulate

EMULATED = "off", "on", "oracle"
AWARENESS = {
    "off": "",
    "on": 'awareness = {kind = "passive"}',
    "on, looks every 5 s": 'awareness = {kind = "passive", update_time_s = 5}',
    "on, equal rates at first": 'awareness = {kind = "passive", start = "equal"}',
    "on, the paper's estimator": 'awareness = {kind = "passive", estimator = "chunk-mean"}',
    "oracle": 'awareness = {kind = "oracle"}',
}


@dataclass(frozen=True)
class Drawn:
    """One run to make: a network drawn with a seed, a buffer, an awareness."""

    awareness: str
    period_s: float
    elements: int
    for_s: float
    seed: int
    emulate: bool


def run(drawn: Drawn) -> tuple[float, int, list[float]]:
    """Return the mean time of a round, how many plans came, and the errors of what was measured."""
    still = internet2_9()
    if drawn.emulate:  # no delays, which would have to be relayed
        links = tuple(replace(link, latency_s=0.0, loss=0.0) for link in still.links)
        still = replace(still, links=links)
    overlay = redraw(
        still,
        period_s=drawn.period_s,
        low_bps=20e6,
        high_bps=155e6,
        duration_s=3600,
        seed=drawn.seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "scenario.toml"), Path(folder, "run.db")
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        path.write_text(
            'overlay = "overlay.toml"\nroute = {kind = "packed"}\n'
            f"stop = {{rounds = 100000, after_s = {drawn.for_s}}}\n{AWARENESS[drawn.awareness]}\n"
            f'task = {{kind = "exchange", elements = {drawn.elements}}}\n'
        )
        scenario, network = load_scenario(path)
        if drawn.emulate:
            run_locally(path, 0, load(str(Path(folder, "overlay.toml"))), log, emulate=True)
        else:
            simulate(scenario, network, log)
        done = summarise(event for _, event in read_events(log))
    assert done.checksums_agree is not False  # None where chunks have only sizes
    errors = [abs(each.error) for each in measured_rates(done, overlay) if not each.straddles]
    return mean(done.interval_s), len(done.plans), errors


def measure(
    period_s: float, elements: int, for_s: float, options: argparse.Namespace
) -> list[dict[str, object]]:
    rows: dict[str, dict[str, object]] = {}
    emulate = options.emulate
    drawn = [
        Drawn(name, period_s, elements, for_s, seed, emulate)
        for name in (EMULATED if emulate else AWARENESS)
        for seed in range(options.seeds)
    ]
    if emulate or options.jobs == 1:
        answers = list(map(run, drawn))
    else:
        with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
            answers = list(pool.map(run, drawn))
    for name in dict.fromkeys(each.awareness for each in drawn):
        of = [answer for each, answer in zip(drawn, answers, strict=True) if each.awareness == name]
        seconds = [answer[0] for answer in of]
        errors = [error for answer in of for error in answer[2]]
        rows[name] = {
            "awareness": name,
            "period_s": period_s,
            "elements": elements,
            "interval_s": common.spread(seconds),
            "mean_interval_s": mean(seconds),
            "plans_issued": [answer[1] for answer in of],
            "measurements": len(errors),
            "median_error": median(errors) if errors else None,
            "beyond_15_percent": mean(error > 0.15 for error in errors) if errors else None,
            "worst_error": max(errors, default=None),
        }
    best_s = float(rows["oracle"]["mean_interval_s"])  # type: ignore[arg-type]
    for name, row in rows.items():
        row["of_the_oracle"] = best_s / float(row["mean_interval_s"])  # type: ignore[arg-type]
        error = row["median_error"]
        told = "" if error is None else f", measured to {error:.1%} (median)"
        print(
            f"every {period_s:g} s, {elements / 1e6:g} M, {name}: {row['mean_interval_s']:.2f} s a "
            f"round, {row['of_the_oracle']:.3f} of the oracle, {row['plans_issued']} plans{told}",
            flush=True,
        )
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--seeds", type=int, help="networks drawn; 3 in simulation, 1 emulated")
    parser.add_argument("--for-s", type=float, help="how long each run is")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="simulations at once")
    options = parser.parse_args()
    options.seeds = options.seeds or (1 if options.emulate else 3)
    settings = (
        [(20.0, 6_100_000, options.for_s or 120.0)]
        if options.emulate
        else [
            (period_s, elements, options.for_s or for_s)
            for period_s, for_s in ((180.0, 540.0), (20.0, 300.0))
            for elements in (61_000_000, 6_100_000)
        ]
    )
    results = [row for each in settings for row in measure(*each, options)]
    name = "dynamic_emulated" if options.emulate else "dynamic"
    common.write(name, seed=0, seeds=options.seeds, results=results)


if __name__ == "__main__":
    main()
