"""Does the simulation tell the truth? The same scenarios in virtual time and with real processes.

    python benchmarks/twin.py

Overlays times routes times model sizes; for each, measured over simulated time per round (median
over the rounds). Prints a table in Markdown and writes JSON.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import common
from anabranch.log import read_events, summarise
from anabranch.overlay import (
    Link,
    Overlay,
    Site,
    dumps,
    internet2_9,
    random_complete,
    random_geographic,
    redraw,
)
from anabranch_lab.reports import TwinRow, compare
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import load
from anabranch_lab.run.simulate import simulate

ROUTES = {
    "star": 'kind = "star"',
    "star at a, behind a relay": 'kind = "star", hub = "a"',
    "balanced": 'kind = "balanced"',
    "mst": 'kind = "mst"',
    "fapt, 1 root": 'kind = "fapt", roots = 1',
    "fapt, every root": 'kind = "fapt"',
}
UNEVEN = """
[compute]
samples_per_s = 100.0
gini = 0.3
jitter = {kind = "lognormal", cv = 0.5}
"""


@dataclass(frozen=True)
class Setting:
    """One scenario: where, over which route, how much, and what else it says."""

    name: str
    overlay: Overlay
    route: str
    elements: int
    chunk_elements: int = 1 << 16
    rounds: int = 4
    more: str = ""
    batch_size: int = 0


def settings() -> Iterator[Setting]:
    reference = internet2_9()
    fast = random_complete(4, 3, low_bps=400e6, high_bps=1e9, latency_s=0.001, loss=0.0)
    overlays = {
        "internet2-9": reference,
        "6 sites, geographic": random_geographic(6, 2),
        "5 sites, complete": random_complete(5, 1),
    }
    for name, overlay in overlays.items():
        for route in ("star", "balanced", "mst", "fapt, 1 root", "fapt, every root"):
            for elements in (1_000_000, 4_000_000):
                yield Setting(name, overlay, route, elements)
    yield Setting("line, slow way back", line(), "star at a, behind a relay", 1_000_000)
    for route in ("mst", "fapt, every root"):
        large = Setting("internet2-9", reference, route, 61_100_840, 1 << 18, rounds=1)
        yield large
        yield replace(large, name="4 sites, up to 1 Gbit/s", overlay=fast, rounds=4)
    for route in ("star", "fapt, every root"):
        changing = redraw(
            reference, low_bps=20e6, high_bps=155e6, period_s=5, duration_s=600, seed=1
        )
        yield Setting("internet2-9, redrawn every 5 s", changing, route, 4_000_000)
        drifting = random_complete(5, 2, latency_s=(0.1, 0.5), latency_drift_s=0.05)
        yield Setting("5 sites, latency drifts from 0.1-0.5 s", drifting, route, 1_000_000)
        yield Setting(
            "internet2-9, uneven computing", reference, route, 1_000_000, more=UNEVEN, batch_size=32
        )


def line() -> Overlay:
    """Return three sites in a line; what goes back from the middle to the end takes a second."""
    links = tuple(
        Link(a, b, 80e6, 1.0 if (a, b) == (1, 2) else 0.01)
        for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))
    )
    return Overlay("line", tuple(Site(name) for name in "abc"), links)


def measure(setting: Setting) -> TwinRow:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.toml")
        Path(folder, "overlay.toml").write_text(dumps(setting.overlay))
        path.write_text(
            f'overlay = "overlay.toml"\nchunk_elements = {setting.chunk_elements}\n'
            f"stop.rounds = {setting.rounds}\nroute = {{{ROUTES[setting.route]}}}\n"
            f'task = {{kind = "exchange", elements = {setting.elements}, '
            f"batch_size = {setting.batch_size}}}\n{setting.more}"
        )
        scenario, overlay = load(path)
        simulated, measured = Path(folder, "simulated.db"), Path(folder, "measured.db")
        simulate(scenario.beside_its_scheduler(), overlay, simulated)
        run_locally(path, 0, overlay, measured)
        return compare(
            *(summarise(e for _, e in read_events(log)) for log in (simulated, measured))
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="settings whose name or route contains this")
    options = parser.parse_args()
    results = []
    print("| overlay | route | elements | simulated, s | measured, s | measured / simulated |")
    print("| --- | --- | --- | --- | --- | --- |")
    for setting in settings():
        if options.only and options.only not in f"{setting.name} {setting.route}":
            continue
        row = measure(setting)
        assert row.error is not None
        print(
            f"| {setting.name} | {setting.route} | {setting.elements:,} | {row.simulated_s:.3f} "
            f"| {row.measured_s:.3f} | {row.measured_over_simulated:.3f} |",
            flush=True,
        )
        results.append(
            {
                "overlay": setting.name,
                "route": setting.route,
                "elements": setting.elements,
                "chunk_elements": setting.chunk_elements,
                "rounds": setting.rounds,
                "simulated_s": row.simulated_s,
                "measured_s": row.measured_s,
                "measured_over_simulated": row.measured_over_simulated,
                "error": row.error,
                "bytes_agree": row.bytes_agree,
            }
        )
    errors = [float(result["error"]) for result in results]  # type: ignore[arg-type]
    print(f"{len(errors)} settings: error {median(errors):.1%} median, {max(errors):.1%} worst")
    if not options.only:
        common.write(
            "twin", seed=0, median_error=median(errors), worst_error=max(errors), results=results
        )


if __name__ == "__main__":
    main()
