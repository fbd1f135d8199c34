"""What R²SP's figures have in common: its cluster A, its models, its paces.

Sixteen workers and four servers on one switch, every port 10 Gbit/s. A worker computes a batch of
128 for as long as the paper's Table I leaves beside communication, with jitter of 5 %. The paper's
framework moved data at a fraction of its ports' rate (Table I: 9 s where 2.2 GB pass each port each
way); ours does not, so communication is a smaller part here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from anabranch.experiments._lab import Label, Trial
from anabranch.overlay import Link, Overlay, Site
from anabranch.run.scenario import Asp, Bsp, Exchange, Fapt, Pace, R2sp, Scenario, Serve, Ssp, Stop
from anabranch.sim.compute import Compute, LognormalJitter

WORKERS, SERVERS = 16, 4
BATCH = 128
PORT_BPS = 10e9
CHUNK_ELEMENTS = 1 << 20
NOTE = (
    "16 workers, 4 servers, ports of 10 Gbit/s; 128 samples are computed in as long as the paper's "
    "Table I leaves beside communication, with jitter of 5 %."
)
PACES: Mapping[str, Pace] = {"BSP": Bsp(), "ASP": Asp(), "SSP": Ssp(lead=5), "R²SP": R2sp()}


@dataclass(frozen=True, slots=True)
class Model:
    """A model: its size, and how long a batch of 128 takes on the paper's worker, seconds."""

    name: str
    elements: int
    compute_s: float


ALEXNET = Model("AlexNet", 61_100_840, 0.50)
VGG16 = Model("VGG16", 138_357_544, 0.70)


@cache
def cluster(port_bps: float = PORT_BPS) -> Overlay:
    """Return the paper's cluster A: servers first, a link each way to every worker."""
    names = [f"server-{k}" for k in range(1, SERVERS + 1)]
    names += [f"worker-{k}" for k in range(1, WORKERS + 1)]
    sites = tuple(Site(name, uplink_bps=port_bps, downlink_bps=port_bps) for name in names)
    pairs = [(a, b) for a in range(SERVERS) for b in range(SERVERS, SERVERS + WORKERS)]
    links = tuple(
        Link(*way, port_bps, latency_s=1e-4) for pair in pairs for way in (pair, pair[::-1])
    )
    return Overlay(f"cluster-a-{port_bps / 1e9:g}", sites, links)


def trial(model: Model, under: Pace, updates: int, overlay: Overlay, **labels: Label) -> Trial:
    """Return a run of a model under a pace."""
    servers = tuple(site.name for site in overlay.sites[:SERVERS])
    scenario = Scenario(
        overlay=overlay.name,
        route=Fapt(roots=servers),
        pace=under,
        serve=Serve(only=servers),
        stop=Stop(rounds=updates),
        compute=Compute(samples_per_s=BATCH / model.compute_s, jitter=LognormalJitter(cv=0.05)),
        task=Exchange(elements=model.elements, batch_size=BATCH),
        chunk_elements=CHUNK_ELEMENTS,
        sample_every_s=60.0,
    )
    return Trial({"model": model.name, **labels}, scenario, overlay)
