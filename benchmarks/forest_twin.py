"""A forest's trees, measured and simulated: how far their periods lie apart.

    python benchmarks/forest_twin.py                # some minutes; the machine should be idle

Each network runs twice, as processes on this machine whose links the sender holds, and simulated. A
tree's period is the mean time from one permission of its first worker to the next, the first two
left out.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import common
from anabranch import plan as plans
from anabranch.log import RunStarted, WorkerWent, read_events
from anabranch.overlay import Overlay, dumps, random_complete, random_sparse
from anabranch_lab.run.launch import run_locally
from anabranch_lab.run.scenario import load
from anabranch_lab.run.simulate import simulate

WORKERS, ELEMENTS, BATCH = 12, 500_000, 64
UPDATES, SAMPLES_PER_S = 8, 5 * BATCH


def networks(seed: int) -> dict[str, Overlay]:
    """Return two networks of a seed: the paper's kind at a 20th of its rates, and a sparse one."""
    rates = {"low_bps": 50e6, "high_bps": 500e6}
    complete = random_complete(WORKERS + 1, seed, latency_s=(0.01, 0.05), loss=0.0, **rates)
    sparse = random_sparse(WORKERS + 1, seed, latency_s=0.02, loss=0.0, **rates)
    return {"complete": complete, "sparse": sparse}


def periods_s(log: Path) -> dict[int, float]:
    """Return each tree's period, by its first worker."""
    events = [event for _, event in read_events(log)]
    started = events[0]
    assert isinstance(started, RunStarted)
    found = {}
    for group in plans.loads(started.plan_json).groups:
        lead = group.workers[0]
        went_s = [e.at_s for e in events if isinstance(e, WorkerWent) and e.site == lead][2:]
        found[lead] = fmean(after - before for before, after in pairwise(went_s))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    ratios: list[float] = []
    for seed in range(options.seeds):
        for kind, overlay in networks(seed).items():
            for gini in (0.3, 0.6):
                with tempfile.TemporaryDirectory() as folder:
                    path = Path(folder, "scenario.toml")
                    Path(folder, "overlay.toml").write_text(dumps(overlay))
                    server = overlay.sites[-1].name
                    path.write_text(
                        f'overlay = "overlay.toml"\nstop.rounds = {UPDATES}\nseed = {seed}\n'
                        f'pace.kind = "asp"\nroute = {{kind = "forest", server = "{server}"}}\n'
                        f'serve.only = ["{server}"]\n'
                        f'task = {{kind = "exchange", elements = {ELEMENTS}, '
                        f"batch_size = {BATCH}}}\n"
                        f"compute = {{samples_per_s = {SAMPLES_PER_S}, gini = {gini}}}\n"
                    )
                    real, simulated = Path(folder, "real.db"), Path(folder, "simulated.db")
                    run_locally(path, 0, overlay, real)
                    simulate(load(path)[0].beside_its_scheduler(), overlay, simulated)
                    measured_s, simulated_s = periods_s(real), periods_s(simulated)
                found = [measured_s[lead] / simulated_s[lead] for lead in simulated_s]
                ratios += found
                rows.append(
                    {
                        "network": kind,
                        "seed": seed,
                        "gini": gini,
                        "measured_s": measured_s,
                        "simulated_s": simulated_s,
                        "measured_over_simulated": common.spread(found),
                    }
                )
                print(rows[-1], flush=True)
    off = [abs(ratio - 1) for ratio in ratios]
    summary = {"trees": len(ratios), "median_off": median(off), "most_off": max(off)}
    print(summary)
    common.write("forest_twin", seed=0, **summary, results=rows)


if __name__ == "__main__":
    main()
