"""Workers killed at random moments of a simulated run, under every pace; the rest train on.

Half of them have other workers on their way, which forward, or add up under a barrier.

python -m tests.run.kills 1000          # how many, simulated; a minute
python -m tests.run.kills --real 20     # real processes; two minutes
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
from tests.run.test_served import (
    PACES,
    kill_a_real_worker,
    test_the_rest_trains_on_when_a_leaf_of_a_tree_that_adds_up_dies,
    test_the_rest_trains_on_when_a_worker_dies_at_any_moment,
)


def main() -> None:
    """Kill so many."""
    kills = int(sys.argv[-1])
    if "--real" in sys.argv:
        rng = np.random.default_rng(0)
        for k in range(kills):
            with tempfile.TemporaryDirectory() as folder:
                after, then_s = int(rng.integers(1, 26)), float(rng.uniform(0, 0.3))
                pace, below = PACES[k % len(PACES)], ("server", "a")[k // len(PACES) % 2]
                kill_a_real_worker(pace, after, then_s, Path(folder), below)
        print(f"{kills} real workers killed, one a run: every other made all its updates")
        return
    for seed in range(1000, 1000 + kills):
        with tempfile.TemporaryDirectory() as folder:
            if seed % 2:
                test_the_rest_trains_on_when_a_worker_dies_at_any_moment(seed, Path(folder))
            else:
                test_the_rest_trains_on_when_a_leaf_of_a_tree_that_adds_up_dies(seed, Path(folder))
    print(f"{kills} workers killed, one a run: every other made all its updates")


if __name__ == "__main__":
    main()
