"""A round of 61 M float32 on internet2-9, links held to their rates, over every route.

    python benchmarks/routes.py

Seconds, speed-up over the best star, measured over predicted, share of the physical limit, and
the most memory any site held beyond the buffer, in buffers.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import common
from anabranch import plan as plans
from anabranch.overlay import Overlay, internet2_9
from anabranch.record import read_events, summarise
from anabranch.run.launch import run_locally

ELEMENTS = 61_100_840
SIZE_BYTES = 4 * ELEMENTS


def hubs_by_prediction(overlay: Overlay, chunk_bytes: int) -> list[int]:
    """Return the sites, the one whose star is predicted to be fastest first."""

    def seconds(hub: int) -> float:
        plan = plans.star(overlay, hub=hub)
        return plans.predict(plan, overlay, SIZE_BYTES, chunk_bytes=chunk_bytes).contention_s

    return sorted(range(overlay.size), key=seconds)


def measure(overlay: Overlay, route: str, options: argparse.Namespace) -> dict[str, object]:
    peaks: dict[str, int] = {}
    pids: dict[str, int] = {}

    def sample() -> None:
        for name, pid in pids.items():
            peaks[name] = max(peaks.get(name, 0), common.peak_memory_bytes(pid))

    with tempfile.TemporaryDirectory() as folder:
        scenario, log = Path(folder, "scenario.toml"), Path(folder, "run.db")
        scenario.write_text(
            f'overlay = "internet2-9"\nstop.rounds = {options.rounds}\n'
            f"chunk_elements = {options.chunk_elements}\n[route]\n{route}\n"
            f'[task]\nkind = "exchange"\nelements = {options.elements}\n'
        )
        run_locally(scenario, 0, overlay, log, on_tick=sample, on_started=pids.update)
        run = summarise(event for _, event in read_events(log))
    assert run.checksums_agree
    assert len(run.rounds) == options.rounds
    median_s = run.median_round_s
    assert median_s is not None
    most = max(peak for name, peak in peaks.items() if name != "the scheduler")
    return {
        "route": run.label,
        "round_s": common.spread(run.round_s),
        "predicted_s": run.started.predicted_s,
        "paper_s": run.started.paper_s,
        "measured_over_predicted": run.measured_over_predicted,
        "limit_s": run.started.limit_s,
        "share_of_limit": run.share_of_limit,
        "peak_site_memory_bytes": most,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--elements", type=int, default=ELEMENTS)
    parser.add_argument("--chunk-elements", type=int, default=1 << 18)
    parser.add_argument("--only", help="routes whose text contains this")
    options = parser.parse_args()
    overlay = internet2_9()
    hubs = hubs_by_prediction(overlay, 4 * options.chunk_elements)
    best, middle = (overlay.sites[hubs[i]].name for i in (0, overlay.size // 2))
    routes = [
        f'kind = "star"\nhub = "{best}"',
        f'kind = "star"\nhub = "{middle}"',
        'kind = "balanced"',
        'kind = "mst"',
        'kind = "fapt"\nroots = 1',
        'kind = "fapt"\nroots = 9',
    ]
    results: list[dict[str, object]] = []
    for route in routes:
        if options.only and options.only not in route:
            continue
        result = measure(overlay, route, options)
        results.append(result)
        first_s, round_s = results[0]["round_s"]["median"], result["round_s"]["median"]  # type: ignore[index]
        result["speed_up_over_best_star"] = first_s / round_s
        print(
            f"{result['route']}: {round_s:.1f} s, {first_s / round_s:.2f}x the first, "
            f"measured/predicted {result['measured_over_predicted']:.3f}, "
            f"{result['share_of_limit']:.1%} of the limit ({result['limit_s']:.1f} s)",
            flush=True,
        )
    if not options.only:
        common.write(
            "routes",
            seed=0,
            overlay="internet2-9",
            elements=options.elements,
            chunk_elements=options.chunk_elements,
            results=results,
        )


if __name__ == "__main__":
    main()
