"""Workers killed at random moments of a simulated run, under every pace; the rest train on.

python -m tests.run.kills 1000        # how many; a minute
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.run.test_served import test_the_rest_trains_on_when_a_worker_dies_at_any_moment


def main() -> None:
    """Kill so many."""
    kills = int(sys.argv[1])
    for seed in range(1000, 1000 + kills):
        with tempfile.TemporaryDirectory() as folder:
            test_the_rest_trains_on_when_a_worker_dies_at_any_moment(seed, Path(folder))
    print(f"{kills} workers killed, one a run: every other made all its updates")


if __name__ == "__main__":
    main()
