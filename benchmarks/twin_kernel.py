"""The twin check against links that the kernel holds, not the sender. Needs root and iproute2.

    python benchmarks/twin_kernel.py
    python benchmarks/twin_kernel.py --delays --congestion-control bbr

Each site is a process in a network namespace of its own, and each link is held to its rate by the
kernel; see ``anabranch run --emulate``. Nothing of the project's shapes anything, so this tells
whether the simulation's links are like real ones: with socket buffers, acknowledgements, and a
congestion control. Links delay and lose nothing here, nor in the simulation, unless ``--delays``
leaves them as they are.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

import common
from anabranch.log import RunSummary, read_events, summarise
from anabranch.overlay import Overlay, dumps, internet2_9, random_complete, random_geographic
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import load
from anabranch_lab.run.simulate import simulate

ROUTES = {
    "star": 'kind = "star"',
    "balanced": 'kind = "balanced"',
    "mst": 'kind = "mst"',
    "fapt, every root": 'kind = "fapt"',
}


def compare(
    overlay: Overlay, route: str, elements: int, rounds: int, congestion_control: str
) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.toml")
        Path(folder, "overlay.toml").write_text(dumps(overlay))
        path.write_text(
            f'overlay = "overlay.toml"\nchunk_elements = {1 << 16}\n'
            f'congestion_control = "{congestion_control}"\n'
            f"stop.rounds = {rounds}\nroute = {{{ROUTES[route]}}}\n"
            f'task = {{kind = "exchange", elements = {elements}}}\n'
        )
        logs = Path(folder, "simulated.db"), Path(folder, "measured.db")
        simulate(load(path)[0].beside_its_scheduler(), overlay, logs[0])
        run_locally(path, 0, overlay, logs[1], emulate=True)
        simulated, measured = (per_round_s(log) for log in logs)
    return {
        "overlay": overlay.name,
        "route": route,
        "elements": elements,
        "simulated_s": simulated,
        "measured_s": measured,
        "measured_over_simulated": measured / simulated,
    }


def per_round_s(log: Path) -> float:
    run: RunSummary = summarise(event for _, event in read_events(log))
    assert run.checksums_agree is not False
    assert run.median_interval_s is not None
    return run.median_interval_s


def at_once(overlay: Overlay) -> Overlay:
    """Return the overlay with links that delay and lose nothing, and carry as much."""
    links = tuple(
        replace(link, rate_bps=link.goodput_bps, latency_s=0.0, loss=0.0) for link in overlay
    )
    return replace(overlay, links=links)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--congestion-control", choices=("bbr", "cubic"), default="cubic")
    parser.add_argument("--delays", action="store_true", help="keep links' latency and loss")
    options = parser.parse_args()
    results = []
    print("| overlay | route | elements | simulated, s | measured, s | measured / simulated |")
    print("| --- | --- | --- | --- | --- | --- |")
    for overlay in (internet2_9(), random_geographic(6, 2), random_complete(5, 1)):
        for route in ROUTES:
            for elements in (1_000_000, 4_000_000):
                result = compare(
                    *(overlay if options.delays else at_once(overlay), route, elements),
                    *(options.rounds, options.congestion_control),
                )
                results.append(result)
                print(
                    f"| {overlay.name} | {route} | {elements:,} | {result['simulated_s']:.3f} | "
                    f"{result['measured_s']:.3f} | {result['measured_over_simulated']:.3f} |",
                    flush=True,
                )
    errors = [abs(float(result["measured_over_simulated"]) - 1) for result in results]  # type: ignore[arg-type]
    print(f"{len(errors)} settings: error {median(errors):.1%} median, {max(errors):.1%} worst")
    common.write(
        f"twin_kernel_{options.congestion_control}{'_delays' if options.delays else ''}",
        seed=0,
        rounds=options.rounds,
        median_error=median(errors),
        worst_error=max(errors),
        results=results,
    )


if __name__ == "__main__":
    main()
