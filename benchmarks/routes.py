"""A round of 61 M float32 on internet2-9 over every route of a scenario: measured and simulated.

    python benchmarks/routes.py

Real processes, links held to their rates: seconds, speed-up over the best star, measured over
predicted and over simulated, share of the physical limit, and the most memory any site held.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import common
from anabranch.log import read_events, summarise
from anabranch.overlay import Overlay
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import Scenario, load
from anabranch_lab.run.simulate import simulate

SCENARIO = Path(__file__).parent.parent / "examples" / "scenarios" / "routes.toml"


def measure(index: int, scenario: Scenario, overlay: Overlay) -> dict[str, object]:
    peaks: dict[str, int] = {}
    pids: dict[str, int] = {}

    def sample() -> None:
        for name, pid in pids.items():
            peaks[name] = max(peaks.get(name, 0), common.peak_memory_bytes(pid))

    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "simulated.db"), Path(folder, "measured.db")
        simulate(scenario, overlay, logs[0])
        run_locally(SCENARIO, index, overlay, logs[1], on_tick=sample, on_started=pids.update)
        simulated, run = (summarise(event for _, event in read_events(log)) for log in logs)
    assert run.checksums_agree
    assert len(run.rounds) == scenario.stop.rounds
    median_s, simulated_s = run.median_round_s, simulated.median_round_s
    assert median_s is not None
    assert simulated_s is not None
    most = max(peak for name, peak in peaks.items() if name != "the scheduler")
    return {
        "route": run.label,
        "round_s": common.spread(run.round_s),
        "predicted_s": run.started.predicted_s,
        "paper_s": run.started.paper_s,
        "measured_over_predicted": run.measured_over_predicted,
        "simulated_s": simulated_s,
        "measured_over_simulated": median_s / simulated_s,
        "limit_s": run.started.limit_s,
        "share_of_limit": run.share_of_limit,
        "peak_site_memory_bytes": most,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", type=int, help="the route of this number, from 0")
    options = parser.parse_args()
    scenario, overlay = load(SCENARIO)
    results: list[dict[str, object]] = []
    for index, each in enumerate(scenario.runs()):
        if options.only not in (None, index):
            continue
        result = measure(index, each, overlay)
        results.append(result)
        first_s, round_s = results[0]["round_s"]["median"], result["round_s"]["median"]  # type: ignore[index]
        result["speed_up_over_best_star"] = first_s / round_s
        print(
            f"{result['route']}: {round_s:.1f} s, {first_s / round_s:.2f}x the first, "
            f"measured/simulated {result['measured_over_simulated']:.3f}, "
            f"measured/predicted {result['measured_over_predicted']:.3f}, "
            f"{result['share_of_limit']:.1%} of the limit ({result['limit_s']:.1f} s)",
            flush=True,
        )
    if options.only is None:
        common.write(
            "routes",
            seed=scenario.seed,
            overlay=overlay.name,
            chunk_elements=scenario.chunk_elements,
            rounds=scenario.stop.rounds,
            results=results,
        )


if __name__ == "__main__":
    main()
