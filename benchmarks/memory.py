"""The most memory a site holds beyond the buffer it synchronises, in buffers.

    python benchmarks/memory.py

Each route runs twice, with the buffer of 61 M float32 and with one of a single chunk; what the
first holds more than the second, less the buffer itself, is what synchronising costs.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import common
from anabranch.overlay import internet2_9
from anabranch_lab.run.launch import run_locally

ELEMENTS = 61_100_840
ROUTES = {
    "star": 'kind = "star"',
    "balanced": 'kind = "balanced"',
    "mst": 'kind = "mst"',
    "fapt, 9 roots": 'kind = "fapt"',
    "packed": 'kind = "packed"',
}


def peaks_bytes(route: str, elements: int, options: argparse.Namespace) -> dict[str, int]:
    """Return each site's peak memory over a few rounds."""
    peaks: dict[str, int] = {}
    pids: dict[str, int] = {}

    def sample() -> None:
        for name, pid in pids.items():
            peaks[name] = max(peaks.get(name, 0), common.peak_memory_bytes(pid))

    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder, "scenario.toml")
        scenario.write_text(
            f'overlay = "internet2-9"\nstop.rounds = {options.rounds}\n'
            f"chunk_elements = {options.chunk_elements}\n"
            f"shaped = {str(options.shaped).lower()}\n[route]\n{route}\n"
            f'[task]\nkind = "exchange"\nelements = {elements}\n'
        )
        run_locally(
            scenario,
            0,
            internet2_9(),
            Path(folder, "run.db"),
            on_tick=sample,
            on_started=pids.update,
        )
    del peaks["the scheduler"]
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk-elements", type=int, default=1 << 18)
    parser.add_argument("--shaped", action="store_true", help="hold links to their rates: slow")
    options = parser.parse_args()
    results = {}
    for name, route in ROUTES.items():
        idle = peaks_bytes(route, options.chunk_elements, options)
        busy = peaks_bytes(route, ELEMENTS, options)
        extra = {site: (busy[site] - idle[site] - 4 * ELEMENTS) / (4 * ELEMENTS) for site in busy}
        worst = max(extra, key=lambda site: extra[site])
        results[name] = {"extra_buffers": extra, "worst": extra[worst]}
        print(f"{name}: at most {extra[worst]:.2f} buffers beside the buffer ({worst})", flush=True)
    common.write(
        "memory_shaped" if options.shaped else "memory",
        seed=0,
        overlay="internet2-9",
        elements=ELEMENTS,
        chunk_elements=options.chunk_elements,
        shaped=options.shaped,
        results=results,
    )


if __name__ == "__main__":
    main()
