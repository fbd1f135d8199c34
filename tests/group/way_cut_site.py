"""A site of `test_way_cut.py`, run as a file: makes rounds, and prints a line for each."""

from __future__ import annotations

import json
import select
import sys

import numpy as np

from anabranch import join


def main(scheduler: str, name: str, host: str, tls: str) -> None:
    """Contribute 2**index in every element until each site's standard input has ended."""
    with join(scheduler, name, host=host, insecure=not tls, tls=tls or None) as group:
        is_over = False
        while not is_over:
            buffer = np.full(500_000, 2.0**group.index, np.float32)
            group.all_reduce(buffer, op="sum")
            sums = np.unique(buffer).tolist()
            print(json.dumps({"sums": sums, "sites": [*group.sites]}), flush=True)
            is_over = all(group.all_gather(bool(select.select([sys.stdin], [], [], 0.05)[0])))


if __name__ == "__main__":
    main(*sys.argv[1:])
