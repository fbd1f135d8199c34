"""What several trees in each group of a forest are worth, or auxiliary paths. Simulated, in
virtual seconds.

    python benchmarks/forest_within.py

The networks and fleets of the map (`python -m papers map`): eight regions of AWS and Internet2,
one site that computes nothing, the others' speeds with a Gini coefficient of 0.3 or 0.6 and dealt
anew with each seed, 24.7 million parameters, 30 s for a batch of a site of mean speed, asynchronous
between groups. The local search finds the groups, the same for all: with one tree of fastest ways
each, as in HAAF; with auxiliary paths beside them; with what each has of the trees of NetStorm
(`within = {kind = "fapt"}`), and of packed trees. Workers' updates that became part of the model in
the last 3,000 of 4,000 s, over those with one tree. No gradients: that more updates reach an
accuracy sooner is not shown.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import common
from anabranch.fleet import Compute
from anabranch.log import read_events, summarise
from anabranch.overlay import Overlay
from anabranch.pace import Asp
from anabranch.plan import Auxiliary, Fapt, ForestRoute, LocalForest, Packed
from anabranch_lab.run.control import first_plan
from anabranch_lab.run.scenario import Scenario, Serve, Simulation, Stop
from anabranch_lab.run.scenario.tasks import Exchange
from anabranch_lab.run.simulate import simulate
from papers.map import _setting as setting

FROM_S, UNTIL_S = 1000.0, 4000.0
ELEMENTS, CHUNKS = 61_706, 32  # at a 400th of the networks' rates, as the map has it
WITHIN = {"one tree": None, "auxiliary paths": None, "fapt": Fapt(), "packed": Packed()}


def scenario(
    overlay: Overlay,
    name: str,
    compute: Compute,
    within: Packed | Fapt | None,
    auxiliary: Auxiliary | None,
) -> Scenario:
    server = setting.NETWORKS[name]
    return Scenario(
        overlay=overlay.name,
        route=ForestRoute(server=server, search=LocalForest(), within=within),
        pace=Asp(),
        serve=Serve(only=(server,)),
        task=Exchange(elements=ELEMENTS, batch_size=setting.BATCH),
        stop=Stop(rounds=100_000, after_s=UNTIL_S),
        compute=compute,
        auxiliary=auxiliary,
        chunk_elements=-(-ELEMENTS // CHUNKS),
        sample_every_s=1e6,
        simulation=Simulation(tensors="sizes"),
    )


def measure(name: str, gini: float, seed: int) -> dict[str, Any]:
    """Return how many updates each kind of forest makes on one network with one fleet."""
    overlay, compute = setting.place(name, gini, seed)
    updates: dict[str, int] = {}
    trees: dict[str, int] = {}
    for kind, within in WITHIN.items():
        auxiliary = Auxiliary() if kind == "auxiliary paths" else None
        asked = scenario(overlay, name, compute, within, auxiliary)
        plan = first_plan(asked, overlay)
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "run.db")
            simulate(asked, overlay, log)
            summary = summarise(event for _, event in read_events(log))
        assert summary.pace is not None
        updates[kind] = sum(each.at_s >= FROM_S for each in summary.pace.applied)
        trees[kind] = len(plan.trees)
    groups = [len(group.workers) for group in plan.groups]
    return {"seed": seed, "groups": groups, "trees": trees, "updates": updates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args()
    results: dict[str, object] = {}
    for name in setting.NETWORKS:
        for gini in setting.GINIS:
            rows = [measure(name, gini, seed) for seed in range(options.seeds)]
            ratios = {
                kind: common.spread(
                    [row["updates"][kind] / row["updates"]["one tree"] for row in rows]
                )
                for kind in WITHIN
                if kind != "one tree"
            }
            results[f"{name}, Gini {gini:g}"] = {"over_one_tree": ratios, "fleets": rows}
            print(f"{name}, Gini {gini:g}: {ratios}", *rows, sep="\n  ", flush=True)
            common.write("forest_within", seed=0, results=results)


if __name__ == "__main__":
    main()
