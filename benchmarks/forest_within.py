"""What several trees in each group of a forest are worth, or auxiliary paths. Simulated, in
virtual seconds.

    python benchmarks/forest_within.py

Eight regions of AWS and Internet2, each 400 times as slow for a model of 61,706 parameters that
stands for one 400 times as large; one site that computes nothing, the others' speeds with a Gini
coefficient of 0.3 or 0.6 and dealt anew with each seed, 24.7 million parameters, 30 s for a batch
of a site of mean speed, asynchronous between groups. The local search finds the groups, the same
for all: with one tree of fastest ways each, as in HAAF; with auxiliary paths beside them; with what
each has of the trees of NetStorm (`within = {kind = "fapt"}`), and of packed trees. Workers'
updates that became part of the model in the last 3,000 of 4,000 s, over those with one tree. No
gradients: that more updates reach an accuracy sooner is not shown.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import common
from anabranch import overlay as overlays
from anabranch.fleet import Compute, Lognormal, SiteCompute, uneven_samples_per_s
from anabranch.log import read_events, summarise
from anabranch.overlay import Link, Overlay
from anabranch.pace import Asp
from anabranch.plan import Auxiliary, Fapt, ForestRoute, LocalForest, Packed
from anabranch_lab.run.control import first_plan
from anabranch_lab.run.scenario import Scenario, Serve, Simulation, Stop
from anabranch_lab.run.scenario.tasks import Exchange
from anabranch_lab.run.simulate import simulate

FROM_S, UNTIL_S = 1000.0, 4000.0
ELEMENTS, CHUNKS = 61_706, 32
NETWORKS = {"aws-8": "us-west-1", "internet2-9": "dc4"}  # and the site that serves
GINIS = (0.3, 0.6)
SMALLER, BATCH, BATCH_S = 400, 40, 30.0
WITHIN = {"one tree": None, "auxiliary paths": None, "fapt": Fapt(), "packed": Packed()}


def place(name: str, gini: float, seed: int) -> tuple[Overlay, Compute]:
    """Return a network, slowed down, with its fastest worker first, and its fleet."""
    whole, server, mean = overlays.load(name), NETWORKS[name], BATCH / BATCH_S
    workers = [site.name for site in whole.sites if site.name != server]
    dealt = uneven_samples_per_s(len(workers), mean, gini, seed)
    speeds = dict(zip(workers, dealt, strict=True))
    order = sorted(whole.sites, key=lambda site: site.name != max(speeds, key=lambda k: speeds[k]))
    new = {whole.index(site.name): index for index, site in enumerate(order)}
    links = tuple(
        Link(new[a.source], new[a.target], a.rate_bps / SMALLER, a.latency_s, a.loss)
        for a in whole.links
    )
    fleet = {name: SiteCompute(samples_per_s=speed) for name, speed in speeds.items()}
    slowed = Overlay(f"{name}-{gini:g}-{seed}", tuple(order), links)
    return slowed, Compute(samples_per_s=mean, jitter=Lognormal(cv=0.05), sites=fleet)


def scenario(
    overlay: Overlay,
    name: str,
    compute: Compute,
    within: Packed | Fapt | None,
    auxiliary: Auxiliary | None,
) -> Scenario:
    server = NETWORKS[name]
    return Scenario(
        overlay=overlay.name,
        route=ForestRoute(server=server, search=LocalForest(), within=within),
        pace=Asp(),
        serve=Serve(only=(server,)),
        task=Exchange(elements=ELEMENTS, batch_size=BATCH),
        stop=Stop(rounds=100_000, after_s=UNTIL_S),
        compute=compute,
        auxiliary=auxiliary,
        chunk_elements=-(-ELEMENTS // CHUNKS),
        sample_every_s=1e6,
        simulation=Simulation(tensors="sizes"),
    )


def measure(name: str, gini: float, seed: int) -> dict[str, Any]:
    """Return how many updates each kind of forest makes on one network with one fleet."""
    overlay, compute = place(name, gini, seed)
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
    for name in NETWORKS:
        for gini in GINIS:
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
