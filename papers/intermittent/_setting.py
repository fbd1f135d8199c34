"""The networks, the task, and a run of it with one period.

A perceptron of 2,410 parameters stands for a model 10,000 times as large. Where rates matter, they
are a 10,000th of the network's, so that transfers take the large model's time. Gradients, drift and
convergence are the perceptron's. Where latencies of seconds matter, rates are the network's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from anabranch.fleet import Compute, Lognormal
from anabranch.overlay import (
    Link,
    Overlay,
    Site,
    Trace,
    aws_8,
    internet2_9,
    random_complete,
    random_geographic,
)
from anabranch.period import Adaptive, AnyPeriod, Every
from anabranch.plan import AnyPlanner, Fapt, Star
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.partition import Dirichlet
from papers._lab import Lab
from papers._trial import Label, Trial

SMALLER = 10_000
TARGET = 0.9
BATCH = 8
ALPHA = 0.1
FIXED = (1, 4, 16, 64)
_JITTER = Lognormal(cv=0.05)
_MANY = 100_000  # averages, more than there is time for


def periods() -> dict[str, AnyPeriod]:
    """Return the periods that are compared, by name."""
    return {**{f"k = {k}": Every(steps=k) for k in FIXED}, "adaptive": Adaptive()}


def slowed(overlay: Overlay, factor: float) -> Overlay:
    """Return the overlay with links and ports `factor` times slower."""
    sites = tuple(
        replace(
            site,
            uplink_bps=site.uplink_bps and site.uplink_bps / factor,
            downlink_bps=site.downlink_bps and site.downlink_bps / factor,
        )
        for site in overlay.sites
    )
    links = tuple(replace(link, rate_bps=link.rate_bps / factor) for link in overlay.links)
    return Overlay(overlay.name, sites, links)


def changing(overlay: Overlay, at_s: float, factor: float) -> Overlay:
    """Return the overlay with links that become `factor` times faster at a moment."""
    links = tuple(
        replace(link, trace=Trace((0.0, at_s), (link.rate_bps, factor * link.rate_bps)))
        for link in overlay.links
    )
    return Overlay(overlay.name, overlay.sites, links)


def edge(sites: int, up_bps: float, down_bps: float, latency_s: float) -> Overlay:
    """Return sites with asymmetric access links, all of which reach each other."""
    names = tuple(Site(f"home{k}", uplink_bps=up_bps, downlink_bps=down_bps) for k in range(sites))
    links = tuple(
        Link(a, b, down_bps, latency_s) for a in range(sites) for b in range(sites) if a != b
    )
    return Overlay("edge", names, links)


def intermittent(sites: int) -> Callable[[int], Overlay]:
    """Return a function that draws the paper's complete network from a seed."""

    def draw(seed: int) -> Overlay:
        return random_complete(
            sites, seed, low_bps=1e8, high_bps=1e8, latency_s=(1.0, 5.0), latency_drift_s=0.5
        )

    return draw


@dataclass(frozen=True, slots=True)
class Network:
    """A network in which sites train.

    Args:
        what: its description.
        draw: makes it, from a seed.
        step_s: mean time of a local step.
        route: how sites average.
        most_s: when a run ends without the target.
    """

    what: str
    draw: Callable[[int], Overlay]
    step_s: float
    route: AnyPlanner
    most_s: float


_TREE = Fapt(roots=1)

NETWORKS: Mapping[str, Network] = {
    "lan": Network(
        "8 sites of a campus: 1 to 10 Gbit/s, 0.1 ms between each two",
        lambda seed: slowed(
            random_complete(8, seed, low_bps=1e9, high_bps=1e10, latency_s=1e-4), SMALLER
        ),
        step_s=1.0,
        route=_TREE,
        most_s=250.0,
    ),
    "internet2-9": Network(
        "9 sites, 13 links of 20 to 148 Mbit/s, 30 ms",
        lambda seed: slowed(internet2_9(), SMALLER),
        step_s=1.0,
        route=_TREE,
        most_s=7000.0,
    ),
    "intermittent-3": Network(
        "3 sites, messages of 1 to 5 s that drift by up to 0.5 s",
        intermittent(3),
        step_s=0.25,
        route=Star(),
        most_s=1000.0,
    ),
    "intermittent-9": Network(
        "9 sites, messages of 1 to 5 s that drift by up to 0.5 s",
        intermittent(9),
        step_s=0.25,
        route=Star(),
        most_s=2000.0,
    ),
    "edge": Network(
        "8 homes: 20 Mbit/s up, 100 down, 15 ms",
        lambda seed: slowed(edge(8, 20e6, 100e6, 0.015), SMALLER),
        step_s=60.0,
        route=_TREE,
        most_s=60_000.0,
    ),
    "geographic-12": Network(
        "12 sites over the globe, linked to the nearest 3, 20 to 155 Mbit/s, latency of the way",
        lambda seed: slowed(random_geographic(12, seed), SMALLER),
        step_s=4.0,
        route=_TREE,
        most_s=12_000.0,
    ),
}
"""Networks that do not change."""

CHANGING: Mapping[str, Network] = {
    "aws-8, faster": Network(
        "8 regions of AWS, whose links become 50 times as fast",
        lambda seed: changing(slowed(aws_8(), SMALLER), 200.0, 50.0),
        step_s=1.0,
        route=_TREE,
        most_s=1000.0,
    ),
    "aws-8, slower": Network(
        "8 regions of AWS, 50 times as fast, whose links become 50 times as slow",
        lambda seed: changing(slowed(aws_8(), SMALLER / 50), 40.0, 1 / 50),
        step_s=1.0,
        route=_TREE,
        most_s=4000.0,
    ),
}
"""Networks that change in the middle of a run."""


def trial(
    lab: Lab, name: str, period: str, rate: float, seed: int, most_s: float, **labels: Label
) -> Trial:
    """Return a run to the target.

    Args:
        lab: runs it; quick runs end early.
        name: of the network.
        period: its name in :func:`periods`.
        rate: learning rate.
        seed: of the network, the data's split, the model, the batches and the jitter.
        most_s: when it ends without the target.
        labels: further labels of the run.
    """
    network = {**NETWORKS, **CHANGING}[name]
    overlay = network.draw(seed)
    scenario = Scenario(
        overlay=overlay.name,
        route=network.route,
        period=periods()[period],
        task=Train(
            data="digits",
            model="mlp",
            hidden=(32,),
            learning_rate=rate,
            batch_size=BATCH,
            partition=Dirichlet(alpha=ALPHA),
            evaluate_every=1,
            target_accuracy=TARGET,
        ),
        stop=Stop(
            rounds=_MANY,
            after_s=min(most_s, network.most_s / (20 if lab.quick else 1)),
            at_target=True,
            reached_by="mean",
        ),
        compute=Compute(samples_per_s=BATCH / network.step_s, jitter=_JITTER),
        sample_every_s=1e6,
        seed=seed,
    )
    about: dict[str, Label] = {"network": name, "period": period, "rate": rate, "seed": seed}
    return Trial({**labels, **about}, scenario, overlay, without=("curve",))
