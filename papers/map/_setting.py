"""The common setting of the map: networks, fleets, the task, and each scheme's settings.

A perceptron of 2,410 parameters stands for a model 10,000 times as large (24.1 million, about
ResNet-50's). Rates are a 10,000th of the network's, so that transfers take the large model's time.
Gradients, staleness and convergence are the perceptron's. On the intermittent networks, whose
latencies matter, rates are the network's own and the model is as small as it is. All sites compute,
also those that serve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from anabranch.fleet import Compute, Lognormal, SiteCompute, uneven_samples_per_s
from anabranch.merge import DataSize, Fairness, Product, Staleness
from anabranch.overlay import (
    Overlay,
    aws_8,
    internet2_9,
    random_complete,
    random_geographic,
    skyplane_10,
)
from anabranch.pace import AnyLoad, Asp, EqualBatches, R2sp, StatedBatches, TunedBatches
from anabranch.period import Every, Gossip, NearPeers
from anabranch.plan import Auxiliary, EdaForest, Fapt, ForestRoute, Packed
from anabranch.scheduler.awareness import Passive
from anabranch.train.averaging import Average, Outer
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.partition import Dirichlet
from papers._lab import Lab
from papers._trial import Label, Trial
from papers.intermittent._setting import edge, intermittent, slowed

SMALLER = 10_000
STEP_S = 2.0
BATCH = 40  # where the slowest has 1/20 of the mean speed, its stated batch is a whole number
ALPHA = 0.3
TARGET = 0.9
GINIS = (0.0, 0.3, 0.6)
FIRST_RATE = 0.4
_CHUNK_ELEMENTS = 100  # NetStorm's million, of the model that is stood for
_LETTERS_LOOKED_EVERY = 4  # steps: each evaluation is of all sites' models
_WINDOWS = 60  # in the longest time of a run
_MANY = 100_000  # updates, more than there is time for
_JITTER = Lognormal(cv=0.05)
_UNUSED = ("curve", "workers", "gaps", "accuracy_by_site", "reached_by", "sent_by")


@dataclass(frozen=True, slots=True)
class Network:
    """A network in which sites train.

    Args:
        what: its description.
        draw: makes it, from a seed.
        most_s: when a run ends without the target.
        smaller: how many times the model is larger than the perceptron.
    """

    what: str
    draw: Callable[[int], Overlay]
    most_s: float
    smaller: int = SMALLER

    @property
    def window_s(self) -> float:
        """The time over which evaluations are averaged, seconds.

        Otherwise a noisy model that is often looked at would win by a single high evaluation.
        """
        return self.most_s / _WINDOWS


def _slow(overlay: Overlay) -> Overlay:
    return slowed(overlay, SMALLER)


NETWORKS: Mapping[str, Network] = {
    "lan": Network(
        "8 sites of a campus: 1 to 10 Gbit/s, 0.1 ms between each two",
        lambda seed: _slow(random_complete(8, seed, low_bps=1e9, high_bps=1e10, latency_s=1e-4)),
        most_s=600.0,
    ),
    "skyplane-10": Network(
        "10 regions of three clouds: 1.3 to 13.5 Gbit/s, 1 to 161 ms, as skyplane measured",
        lambda seed: _slow(skyplane_10()),
        most_s=600.0,
    ),
    "aws-8": Network(
        "8 regions of AWS: 29 to 96 Mbit/s, as measured between all at once; latency of fibre",
        lambda seed: _slow(aws_8()),
        most_s=3000.0,
    ),
    "internet2-9": Network(
        "9 sites, 13 links of 20 to 148 Mbit/s, 30 ms",
        lambda seed: _slow(internet2_9()),
        most_s=3000.0,
    ),
    "geographic-12": Network(
        "12 sites over the globe, linked to the nearest 3, 20 to 155 Mbit/s, latency of fibre",
        lambda seed: _slow(random_geographic(12, seed)),
        most_s=3000.0,
    ),
    "edge": Network(
        "8 homes: 20 Mbit/s up, 100 down, 15 ms; one of them serves where a scheme has a server",
        lambda seed: _slow(edge(8, 20e6, 100e6, 0.015)),
        most_s=20_000.0,
    ),
    "intermittent-3": Network(
        "3 sites, messages of 1 to 5 s that drift by up to 0.5 s",
        intermittent(3),
        most_s=2000.0,
        smaller=1,
    ),
    "intermittent-9": Network(
        "9 sites, messages of 1 to 5 s that drift by up to 0.5 s",
        intermittent(9),
        most_s=2000.0,
        smaller=1,
    ),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run a scheme.

    Args:
        name: what is chosen, such as its period; empty where nothing is.
        answers: what the scenario gives beside the defaults; not compared.
        batches: equal; stated, in proportion to the sites' speeds; or tuned by R²SP's rule.
    """

    name: str
    answers: Mapping[str, Any] = field(hash=False, compare=False)
    batches: Literal["equal", "stated", "tuned"] = "equal"

    @property
    def told(self) -> str:
        """The setting, as text."""
        return ", ".join(filter(None, (self.name, f"{self.batches} batches")))


# As netstorm/fig13's: Table II and Algorithm 3, with chunks and probes of the smaller model.
_PRO: Mapping[str, Any] = {
    "route": Fapt(shares="first"),
    "awareness": Passive(
        start="overlay",
        estimator="chunk-mean",
        probe_chunk_elements=50,
        probe_chunks=4,
        belief="latest",
        update_time_s=5.0,
        update_rate=0.0,
        least_gain="none",
    ),
    "auxiliary": Auxiliary(search="algorithm-3", when_full="primary"),
}


_HAAF: Mapping[str, Any] = {
    "route": ForestRoute(search=EdaForest(most_trees=16)),
    "pace": Asp(),
    "merge": Product(of=(DataSize(), Fairness(q=1.0), Staleness(a=0.8))),
}


def _every(steps: int) -> Setting:
    return Setting(f"k = {steps}", {"route": Packed(), "period": Every(steps=steps)})


def _diloco(steps: int) -> Setting:
    outer = Average(outer=Outer())
    answers = {"route": Packed(), "period": Every(steps=steps), "average": outer}
    return Setting(f"k = {steps}", answers)


def _pairs(steps: int) -> Setting:
    answers = {"period": Every(steps=steps), "gossip": Gossip(peers=NearPeers(count=1))}
    return Setting(f"a letter every {steps} steps" if steps > 1 else "a letter a step", answers)


SCHEMES: Mapping[str, tuple[Setting, ...]] = {
    "packed BSP": (Setting("", {"route": Packed()}),),
    "NetStorm pro": (Setting("", _PRO),),
    "R²SP": (Setting("", {"route": Fapt(roots=1), "pace": R2sp()}),),
    "HAAF": (Setting("", _HAAF),),
    "every k steps": (_every(4), _every(16), _every(64)),
    "DiLoCo": (_diloco(4), _diloco(16), _diloco(64)),
    "gossip in pairs": (_pairs(1), _pairs(8)),
    "asynchronous PS": (Setting("", {"route": Fapt(roots=1), "pace": Asp()}),),
}
"""Each scheme's settings, but for batches, which all have alike."""
_SERVED = ("R²SP", "HAAF", "asynchronous PS")


def settings(scheme: str, gini: float) -> tuple[Setting, ...]:
    """Return a scheme's settings.

    Where sites are unequal, batches are stated too; where the model is served, R²SP's rule may tune
    them.
    """
    found = SCHEMES[scheme]
    if gini:
        stated = [replace(each, batches="stated") for each in found]
        found = (*stated, *found)
    if scheme in _SERVED:
        found = (*(replace(each, batches="tuned") for each in SCHEMES[scheme]), *found)
    return found


@cache
def place(name: str, gini: float, seed: int) -> tuple[Overlay, Mapping[str, float]]:
    """Return a network, and the speed of each site by name, samples/s.

    The fastest site comes first: it evaluates a served model, after each of its own updates. So
    evaluations are close together under any pace.

    Args:
        name: of the network.
        gini: of the sites' speeds, exactly.
        seed: of the network where it is drawn, and of the assignment of speeds to sites.
    """
    whole = NETWORKS[name].draw(seed)
    dealt = uneven_samples_per_s(whole.size, BATCH / STEP_S, gini, seed)
    speeds = {site.name: speed for site, speed in zip(whole.sites, dealt, strict=True)}
    order = sorted(whole.sites, key=lambda site: speeds[site.name] < max(dealt))
    new = {whole.index(site.name): index for index, site in enumerate(order)}
    links = tuple(replace(a, source=new[a.source], target=new[a.target]) for a in whole.links)
    return Overlay(f"{name}-{gini:g}-{seed}", tuple(order), links), speeds


def _load(setting: Setting, speeds: Mapping[str, float]) -> AnyLoad:
    if setting.batches == "tuned":
        return TunedBatches(most=8 * BATCH)
    if setting.batches == "stated":
        mean = BATCH / STEP_S
        sizes = {name: max(1, round(BATCH * each / mean)) for name, each in speeds.items()}
        return StatedBatches(samples=sizes)
    return EqualBatches()


def _looked_every(how: Setting) -> int:
    """Return how many steps lie between evaluations: a period, at least some steps with gossip."""
    period = how.answers.get("period")
    steps = period.steps if isinstance(period, Every) else 1
    return max(steps, _LETTERS_LOOKED_EVERY) if "gossip" in how.answers else steps


def trial(
    lab: Lab,
    how: Setting,
    name: str,
    gini: float,
    rate: float,
    seed: int,
    most_s: float = math.inf,
    **labels: Label,
) -> Trial:
    """Return a run to the target.

    Args:
        lab: runs it; quick runs end early.
        how: the setting of its scheme.
        name, gini: see :func:`place`.
        rate: the learning rate of a usual batch. Where batches are tuned, the slowest site's batch
            is smaller in proportion to its speed, so that all sites together use as many samples,
            and the rate is smaller in the same proportion.
        seed: of the network, the fleet, the data's split, the model and the jitter.
        most_s: when it ends without the target; in any case after the network's longest time.
        labels: further labels of the run.
    """
    overlay, speeds = place(name, gini, seed)
    mean = BATCH / STEP_S
    is_tuned = how.batches == "tuned"
    batch = max(1, round(BATCH * min(speeds.values()) / mean)) if is_tuned else BATCH
    longest_s = NETWORKS[name].most_s / (10 if lab.quick else 1)
    local = {"period", "gossip"} & how.answers.keys()
    scenario = Scenario(
        overlay=overlay.name,
        load=_load(how, speeds),
        task=Train(
            data="digits",
            model="mlp",
            hidden=(32,),
            learning_rate=rate * batch / BATCH,
            batch_size=batch,
            partition=Dirichlet(alpha=ALPHA),
            evaluate_every=_looked_every(how),
            target_accuracy=TARGET,
        ),
        stop=Stop(
            rounds=_MANY,
            after_s=min(most_s, longest_s),
            at_target=True,
            window_s=NETWORKS[name].window_s,
            reached_by="mean" if local else "first",
        ),
        compute=Compute(
            samples_per_s=mean,
            jitter=_JITTER,
            sites={site: SiteCompute(samples_per_s=speed) for site, speed in speeds.items()},
        ),
        sample_every_s=1e6,
        seed=seed,
        chunk_elements=_CHUNK_ELEMENTS,
        **how.answers,
    )
    about: dict[str, Label] = {"network": name, "gini": gini, "rate": rate, "seed": seed}
    return Trial({**labels, **about}, scenario, overlay, without=_UNUSED)
