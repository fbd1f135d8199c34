"""How far estimators of a link's rate are off, on simulated links whose rate is known.

    PYTHONPATH=. python benchmarks/estimators.py    # half a minute

Links of 10 to 600 Mbit/s, 0 to 200 ms away, 120 chunks of up to 0.25 to 4 MB on each, of one size
on half of the links; tests/net/links.py says what disturbs them. Relative errors of ours where
heads go ahead, of ours where they do not, and of the paper's.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np

import common
from anabranch.net.throughput import BusyPeriodEstimator, ChunkMeanEstimator, Estimator
from tests.net.links import DISTURBANCES, PATTERNS, Disturbance, Pattern, errors, passages

BEYOND = 0.15
MAKERS: dict[str, tuple[Callable[[], Estimator], bool]] = {
    "ours": (BusyPeriodEstimator, True),
    "ours without heads": (BusyPeriodEstimator, False),
    "the paper's": (lambda: ChunkMeanEstimator(0, 8), False),
}


def measure(disturbance: Disturbance, pattern: Pattern, name: str, links: int) -> dict[str, float]:
    """Return what an estimator's relative errors come to over so many links."""
    make, heads = MAKERS[name]
    found: list[float] = []
    for seed in range(links):  # half of them with chunks of one size
        path, passed = passages(pattern, disturbance, bool(seed % 2), seed, heads)
        found += errors(path, passed, make())
    median, nearly_all, worst = np.quantile(found, [0.5, 0.99, 1.0]).tolist()
    return {
        "median": median,
        "of_100_the_99th": nearly_all,
        "worst": worst,
        "estimates": len(found),
        "beyond_15_percent": sum(each > BEYOND for each in found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--links", type=int, default=400, help="for each line")
    options = parser.parse_args()
    results = []
    for disturbance in DISTURBANCES:
        for pattern in PATTERNS:
            row: dict[str, object] = {
                "disturbance": disturbance.__name__,
                "chunks_come": pattern.__name__,
                **{name: measure(disturbance, pattern, name, options.links) for name in MAKERS},
            }
            print(*row.values(), flush=True)
            results.append(row)
    ours = [row[name] for row in results for name in ("ours", "ours without heads")]
    total = {
        key: sum(each[key] for each in ours)  # type: ignore[index]
        for key in ("estimates", "beyond_15_percent")
    }
    common.write("estimators", seed=0, links=options.links, ours_in_all=total, results=results)


if __name__ == "__main__":
    main()
