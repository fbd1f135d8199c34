"""How near the bound of the limit is, and what planning a large graph takes.

    python benchmarks/limit.py    # two minutes

On drawn networks whose limit is quick, the bound over the limit: three kinds, 5 to 30 sites, twenty
seeds each. On a drawn geographic graph of 300 sites, how long `anabranch plan` takes as a command,
with its page (five runs).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import common
from anabranch.overlay import dumps, random_complete, random_geographic, random_sparse
from anabranch.plan import bound_rate_bps, limit_rate_bps

KINDS = random_sparse, random_geographic, random_complete
SIZES = 5, 9, 20, 30
SEEDS = range(20)
LARGE, RUNS = 300, 5


def main() -> None:
    common.no_options(__doc__)
    over = [
        bound_rate_bps(overlay) / limit_rate_bps(overlay)
        for kind in KINDS
        for sites in SIZES
        for overlay in (kind(sites, seed) for seed in SEEDS)
    ]
    print(f"bound over limit, {len(over)} networks: {min(over):.6f} to {max(over):.6f}")
    seconds = [planned_s() for _ in range(RUNS)]
    print(f"{LARGE} sites planned, bounded and drawn in {median(seconds):.1f} s: {seconds}")
    common.write(
        "limit",
        seed=SEEDS[0],
        networks=len(over),
        sizes=SIZES,
        bound_over_limit={"least": min(over), "median": median(over), "most": max(over)},
        large={"kind": "random_geographic", "sites": LARGE, "seconds": seconds},
    )


def planned_s() -> float:
    with tempfile.TemporaryDirectory() as folder:
        file, page = Path(folder, "large.toml"), Path(folder, "large.html")
        file.write_text(dumps(random_geographic(LARGE, 0)))
        began_s = time.perf_counter()
        command = [sys.executable, "-m", "anabranch", "plan", str(file), "--html", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        assert page.stat().st_size
        return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
