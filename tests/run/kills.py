"""Workers, and connections to the scheduler, killed at random moments; the rest train on.

python -m tests.run.kills 1000                        # workers, simulated, one a run
python -m tests.run.kills --real 20                   # workers, real processes
python -m tests.run.kills --rejoin 200                # workers that are started again, simulated
python -m tests.run.kills --rejoin --real 5           # and real processes
python -m tests.run.kills --connections 1000          # connections, simulated, five a run
python -m tests.run.kills --connections --real 20     # all connections, real processes

Half of the workers have others on their way, which forward, or add up under a barrier.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.run.test_served import (
    PACES,
    break_real_connections,
    kill_a_real_worker,
    kill_and_restart,
    lose_the_scheduler,
    test_the_rest_trains_on_when_a_leaf_of_a_tree_that_adds_up_dies,
    test_the_rest_trains_on_when_a_worker_dies_at_any_moment,
)


def main() -> None:
    """Kill so many."""
    kills = int(sys.argv[-1])
    if "--connections" in sys.argv:
        break_connections(kills)
        return
    if "--rejoin" in sys.argv:
        restart_workers(kills)
        return
    if "--real" in sys.argv:
        rng = np.random.default_rng(0)
        for k in range(kills):
            with tempfile.TemporaryDirectory() as folder:
                after, then_s = int(rng.integers(1, 26)), float(rng.uniform(0, 0.3))
                pace, below = PACES[k % len(PACES)], ("server", "a")[k // len(PACES) % 2]
                kill_a_real_worker(pace, Path(folder), after, then_s, below)
        print(f"{kills} real workers killed, one a run: every other made all its updates")
        return
    for seed in range(1000, 1000 + kills):
        with tempfile.TemporaryDirectory() as folder:
            if seed % 2:
                test_the_rest_trains_on_when_a_worker_dies_at_any_moment(seed, Path(folder))
            else:
                test_the_rest_trains_on_when_a_leaf_of_a_tree_that_adds_up_dies(seed, Path(folder))
    print(f"{kills} workers killed, one a run: every other made all its updates")


def restart_workers(kills: int) -> None:
    """Kill workers and start them again at random moments."""
    back = 0
    rng = np.random.default_rng(0)
    for k in range(kills):
        with tempfile.TemporaryDirectory() as folder:
            if "--real" in sys.argv:
                after, then_s = int(rng.integers(1, 60)), float(rng.uniform(0, 0.3))
                pace, below = PACES[k % len(PACES)], ("server", "a")[k % 2]
                kill_a_real_worker(pace, Path(folder), after, then_s, below, back=True)
                back += 1
            else:
                back += kill_and_restart(1000 + k, Path(folder))
    kind = "real " * ("--real" in sys.argv)
    print(f"{kills} {kind}workers killed and started again, one a run: {back} before the end")


def break_connections(breaks: int) -> None:
    """Break connections at so many moments; every site makes all its updates."""
    rng = np.random.default_rng(0)
    if "--real" in sys.argv:
        for k in range(breaks):
            with tempfile.TemporaryDirectory() as folder:
                after, then_s = int(rng.integers(1, 34)), float(rng.uniform(0, 0.3))
                break_real_connections(PACES[k % len(PACES)], [after], then_s, Path(folder))
        print(f"{breaks} times all real connections broken: nobody was lost")
        return
    for seed in range(1000, 1000 + -(-breaks // 5)):
        with tempfile.TemporaryDirectory() as folder:
            lose_the_scheduler(seed, Path(folder))
    print(f"{breaks} connections broken, five a run: every site made all its updates")


if __name__ == "__main__":
    main()
