"""What a chunk costs a site whatever its size, and what its bytes cost: chunks are sized by it.

    sudo python benchmarks/message_cost.py

The same exchange is cut into chunks of several sizes, on links that the kernel holds. Processor
time for each message that crosses a link grows with its bytes in a straight line; where the line
begins is the cost of the message as such, at both of its ends together, and so what it costs a site
to receive a chunk and send it on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import common
import versions

SIZES = tuple(1 << power for power in (12, 13, 14, 15, 16, 17))  # elements
NAMES = "9 sites, packed, 16 MB", "25 sites, packed, 16 MB"
RUNS = 3


def main() -> None:
    common.no_options(__doc__)
    results: dict[str, object] = {}
    for name in NAMES:
        cpu_s: dict[int, list[float]] = {elements: [] for elements in SIZES}
        for _ in range(RUNS):  # in turns, so that all sizes feel the same machine
            for elements in SIZES:
                case = replace(versions.cases()[name], chunk_elements=elements)
                per_byte_s = versions.run_once(case)["cpu_s_per_gb"] / 1e9
                cpu_s[elements].append(4 * elements * per_byte_s)
        fits = []
        for run in range(RUNS):
            spent_s = np.array([cpu_s[elements][run] for elements in SIZES])
            size_bytes = 4.0 * np.array(SIZES)
            # Errors are relative, so the cheap messages count as much as the dear ones.
            byte_s, message_s = np.polyfit(size_bytes, spent_s, 1, w=1 / spent_s)
            fits.append((1e6 * float(message_s), 1e9 * float(byte_s)))
        row: dict[str, object] = {
            "message_us": common.spread([each[0] for each in fits]),
            "cpu_s_per_gb_of_bytes": common.spread([each[1] for each in fits]),
            "cpu_us_a_message": {
                elements: common.spread([1e6 * each for each in cpu_s[elements]])
                for elements in SIZES
            },
        }
        results[name] = row
        print(f"{name}: {row}", flush=True)
    common.write("message_cost", seed=0, results=results)


if __name__ == "__main__":
    main()
