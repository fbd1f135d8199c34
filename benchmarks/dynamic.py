"""A network whose rates are drawn anew again and again: awareness off, on, and an oracle.

    python benchmarks/dynamic.py               # simulated: every 180 s and 20 s, 61 M and 6.1 M
    python benchmarks/dynamic.py --emulate     # real processes, every 20 s, 6.1 M

internet2-9, packed trees. An oracle knows every rate at every moment; it looks at plans as often as
the others. Rounds a second over the whole run, the median and worst error of what was measured.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import common
from anabranch.overlay import Overlay, dumps, internet2_9, load, redraw
from anabranch.record import RunSummary, measured_rates, read_events, summarise
from anabranch.run.launch import run_locally
from anabranch.run.scenario import load as load_scenario
from anabranch.run.simulate import simulate

AWARENESS = {
    "off": "",
    "on": 'awareness = {kind = "passive"}',
    "on, equal rates at first": 'awareness = {kind = "passive", start = "equal"}',
    "on, the paper's estimator": 'awareness = {kind = "passive", estimator = "chunk-mean"}',
    "oracle": 'awareness = {kind = "oracle"}',
}


def run(overlay: Overlay, elements: int, lines: str, for_s: float, emulate: bool) -> RunSummary:
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder, "scenario.toml"), Path(folder, "run.db")
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        path.write_text(
            'overlay = "overlay.toml"\nroute = {kind = "packed"}\n'
            f"stop = {{rounds = 100000, after_s = {for_s}}}\n{lines}\n"
            f'task = {{kind = "exchange", elements = {elements}}}\n'
        )
        scenario, network = load_scenario(path)
        if emulate:
            run_locally(path, 0, load(str(Path(folder, "overlay.toml"))), log, emulate=True)
        else:
            simulate(scenario, network, log)
        return summarise(event for _, event in read_events(log))


def measure(
    period_s: float, elements: int, for_s: float, seeds: int, emulate: bool
) -> list[dict[str, object]]:
    rows: dict[str, dict[str, object]] = {}
    still = internet2_9()
    if emulate:  # no delays, which would have to be relayed
        links = tuple(replace(link, latency_s=0.0, loss=0.0) for link in still.links)
        still = replace(still, links=links)
    for name, lines in AWARENESS.items():
        seconds, plans, errors = [], [], []
        for seed in range(seeds):
            overlay = redraw(
                still, period_s=period_s, low_bps=20e6, high_bps=155e6, duration_s=3600, seed=seed
            )
            done = run(overlay, elements, lines, for_s, emulate)
            assert done.checksums_agree is not False  # None where chunks have only sizes
            seconds.append(mean(done.interval_s))
            plans.append(len(done.plans))
            errors += [
                abs(each.error) for each in measured_rates(done, overlay) if not each.straddles
            ]
        rows[name] = {
            "awareness": name,
            "period_s": period_s,
            "elements": elements,
            "interval_s": common.spread(seconds),
            "mean_interval_s": mean(seconds),
            "plans_issued": plans,
            "measurements": len(errors),
            "median_error": median(errors) if errors else None,
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
    options = parser.parse_args()
    settings = (
        [(20.0, 6_100_000, options.for_s or 100.0)]
        if options.emulate
        else [
            (period_s, elements, options.for_s or 720.0)
            for period_s in (180.0, 20.0)
            for elements in (61_000_000, 6_100_000)
        ]
    )
    seeds = options.seeds or (1 if options.emulate else 3)
    results = [
        row for each in settings for row in measure(*each, seeds=seeds, emulate=options.emulate)
    ]
    name = "dynamic_emulated" if options.emulate else "dynamic"
    common.write(name, seed=0, seeds=seeds, results=results)


if __name__ == "__main__":
    main()
