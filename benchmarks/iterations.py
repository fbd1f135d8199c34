"""Seconds an iteration under paces, over routes and with workers that compute ahead; simulated.

    python benchmarks/iterations.py    # two minutes

The scenarios `paces` and `barrier` of examples/scenarios, with what their tables compare; and the
models of R²SP's paper on its cluster, as in `python -m papers r2sp/fig08`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import common
from anabranch.log import read_events, summarise
from anabranch.overlay import Overlay
from anabranch.pace import Asp, Bsp, Safa, Ssp
from anabranch_lab.run.scenario import Scenario, load
from anabranch_lab.run.simulate import simulate
from papers.r2sp import _setting as setting

SCENARIOS = Path(__file__).parent.parent / "examples" / "scenarios"
UPDATES = 30  # of each worker on the paper's cluster


def iterations(scenario: Scenario, overlay: Overlay) -> list[dict[str, Any]]:
    """Return, route by route, how long an iteration takes and how much an update misses."""
    found = []
    for route in scenario.routes:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "run.db")
            simulate(replace(scenario, route=route), overlay, log)
            run = summarise(event for _, event in read_events(log))
        assert run.pace is not None
        found.append(
            {
                "route": run.label,
                "iteration_s": run.pace.iteration_s,
                "mean_missed": run.pace.mean_missed,
                "most_missed": max(run.pace.missed),
            }
        )
        print(*found[-1].values(), flush=True)
    return found


def main() -> None:
    common.no_options(__doc__)
    paces, overlay = load(SCENARIOS / "paces.toml")
    assert paces.serve is not None
    ahead = replace(paces.serve, ahead=True)
    under = {
        "r2sp": paces,
        "bsp": replace(paces, pace=Bsp()),
        "asp": replace(paces, pace=Asp()),
        "ssp": replace(paces, pace=Ssp(lead=5)),
        "safa": replace(paces, pace=Safa()),
        "r2sp, ahead": replace(paces, serve=ahead),
        "bsp, ahead": replace(paces, pace=Bsp(), serve=ahead),
        "asp, ahead": replace(paces, pace=Asp(), serve=ahead),
    }
    of_paces = {name: iterations(each, overlay)[0] for name, each in under.items()}
    barrier, internet2 = load(SCENARIOS / "barrier.toml")
    of_routes = {
        "bsp": iterations(barrier, internet2),
        "asp": iterations(replace(barrier, pace=Asp()), internet2),
    }
    of_models: dict[str, dict[str, Any]] = {}
    for model in setting.MODELS:
        of_models[model.name] = {}
        for name, pace in setting.PACES.items():
            made = setting.trial(model, pace, UPDATES, setting.cluster())
            serve = made.scenario.serve
            assert serve is not None
            for said, served in ((name, serve), (f"{name}, ahead", replace(serve, ahead=True))):
                scenario = replace(made.scenario, serve=served)
                (of_models[model.name][said],) = iterations(scenario, made.overlay)
    common.write(
        "iterations",
        seed=0,
        updates=UPDATES,
        paces_toml=of_paces,
        barrier_toml=of_routes,
        cluster_of_the_paper=of_models,
    )


if __name__ == "__main__":
    main()
