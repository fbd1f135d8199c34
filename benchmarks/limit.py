"""How near the bound of the limit is, and what planning a large graph takes.

    python benchmarks/limit.py    # six minutes

On drawn networks whose limit is quick, the bound over the limit: three kinds, 5 to 30 sites, twenty
seeds each. On drawn geographic graphs, how long `anabranch plan` takes as a command, with its page
(five runs): 300 sites, and 754 with as few links as the largest graph of the Topology Zoo.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import common
from anabranch.overlay import Overlay, dumps, random_complete, random_geographic, random_sparse
from anabranch.plan import bound_rate_bps, limit_rate_bps

KINDS = random_sparse, random_geographic, random_complete
SIZES = 5, 9, 20, 30
SEEDS = range(20)
LARGE = {300: 3, 754: 1}  # sites: the nearest neighbours of each
RUNS = 5


def main() -> None:
    common.no_options(__doc__)
    over = [
        bound_rate_bps(overlay) / limit_rate_bps(overlay)
        for kind in KINDS
        for sites in SIZES
        for overlay in (kind(sites, seed) for seed in SEEDS)
    ]
    print(f"bound over limit, {len(over)} networks: {min(over):.6f} to {max(over):.6f}")
    large = []
    for sites, neighbours in LARGE.items():
        overlay = random_geographic(sites, 0, neighbours=neighbours)
        seconds = [planned_s(overlay) for _ in range(RUNS)]
        print(f"{sites} sites planned, bounded and drawn in {median(seconds):.1f} s: {seconds}")
        large.append(
            {
                "kind": "random_geographic",
                "sites": sites,
                "neighbours": neighbours,
                "seconds": common.spread(seconds),
            }
        )
    common.write(
        "limit",
        seed=SEEDS[0],
        networks=len(over),
        sizes=SIZES,
        bound_over_limit={"least": min(over), "median": median(over), "most": max(over)},
        large=large,
    )


def planned_s(overlay: Overlay) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file, page = Path(folder, "large.toml"), Path(folder, "large.html")
        file.write_text(dumps(overlay))
        began_s = time.perf_counter()
        command = [sys.executable, "-m", "anabranch", "plan", str(file), "--html", str(page)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        assert page.stat().st_size
        return time.perf_counter() - began_s


if __name__ == "__main__":
    main()
