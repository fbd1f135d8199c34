"""The common setting of the map's cells: networks, fleets, the task, the schemes.

LeNet-5 stands for a model 400 times as large (24.7 million parameters, about ResNet-50's). Rates
are a 400th of the network's, so that transfers take the large model's time. Gradients, staleness
and convergence are LeNet-5's. On ``aws-8`` a model's way to the server and back then takes about
as long as a batch at a site of mean speed. So network and computing both matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from anabranch import overlay as overlays
from anabranch.fleet import Compute, Lognormal, SiteCompute, uneven_samples_per_s
from anabranch.merge import AnyMerge, DataSize, Fairness, Product, Staleness
from anabranch.overlay import Link, Overlay
from anabranch.pace import AnyPace, Asp, Bsp, EqualBatches, R2sp, TunedBatches
from anabranch.plan import AnyPlanner, EdaForest, Fapt, ForestRoute, LocalForest, Packed
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.partition import Dirichlet
from anabranch_lab.tasks.sampling import Resampled
from papers._lab import Lab, Label, Trial

NETWORKS: Mapping[str, str] = {"aws-8": "us-west-1", "internet2-9": "dc4"}
"""The networks, and the site of each that serves and computes nothing: it has the fastest paths."""

GINIS = (0.3, 0.6)
SMALLER = 400
COMPUTE_S = 30.0
BATCH = 40  # where the slowest has 1/20 of the mean speed, its tuned batch is a whole number
TARGET = 0.75
HORIZON_S = 30_000.0
_QUICK_S = 1500.0
LOOK = 1000
_LARGEST = 8 * BATCH
_CHUNKS = 32
_ELEMENTS = 61_706  # of LeNet-5
_MANY = 100_000  # updates, more than there is time for
_JITTER = Lognormal(cv=0.05)

_BY_DATA = DataSize()

Route = Callable[[str, tuple[str, ...]], AnyPlanner]
"""Makes a route from the server's name and all sites' names."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How sites synchronise.

    Args:
        route: see `Route`.
        pace, merge: see :class:`anabranch_lab.run.scenario.Scenario`.
        tuned: whether faster workers use larger batches.
        paper: its paper's claim; empty for schemes without a paper.
    """

    route: Route
    pace: AnyPace
    merge: AnyMerge = _BY_DATA
    tuned: bool = False
    paper: str = ""


def _forest(alike: bool, within: Packed | None) -> Route:
    """Return a forest; ``alike`` where tuned batches make all workers compute equally long."""

    def route(server: str, sites: tuple[str, ...]) -> AnyPlanner:
        times = {site: COMPUTE_S for site in sites if site != server}
        return ForestRoute(
            server=server,
            search=LocalForest(),
            compute_s=times if alike else None,
            within=within,
        )

    return route


def _papers_forest(server: str, sites: tuple[str, ...]) -> AnyPlanner:
    return ForestRoute(server=server, search=EdaForest())


def _one_tree(server: str, sites: tuple[str, ...]) -> AnyPlanner:
    return Fapt(roots=(server,))


def _tree_a_site(server: str, sites: tuple[str, ...]) -> AnyPlanner:
    return Fapt(roots=sites)


def _packed(server: str, sites: tuple[str, ...]) -> AnyPlanner:
    return Packed()


SCHEMES: Mapping[str, Scheme] = {
    "HAAF": Scheme(
        _papers_forest,
        Asp(),
        Product(of=(DataSize(), Fairness(q=1.0), Staleness(a=0.8))),
        paper="at Gini 0.6 about 40 % less than synchronous trees",
    ),
    "R²SP, tuned": Scheme(
        _one_tree, R2sp(), tuned=True, paper="with tuned batches about 40 % faster than without"
    ),
    "MR-FAPT, BSP": Scheme(
        _tree_a_site, Bsp(), paper="rounds 6.5 to 9.2 times as fast as a star's"
    ),
    "packed, BSP, tuned": Scheme(_packed, Bsp(), tuned=True),
    "asynchronous PS": Scheme(_one_tree, Asp()),
}
"""Schemes beside our best forest. A paper's scheme is literal; all weigh by data size."""

FORESTS: Mapping[str, Scheme] = {
    "asp": Scheme(_forest(False, None), Asp()),
    "asp, tuned": Scheme(_forest(True, None), Asp(), tuned=True),
    "asp, packed": Scheme(_forest(False, Packed()), Asp()),
    "asp, tuned, packed": Scheme(_forest(True, Packed()), Asp(), tuned=True),
}
"""Candidates; our forest is the best of them. All use the local search, without weights for
staleness and fairness, and one tree in each group or packed trees."""


@cache
def place(name: str, gini: float, seed: int) -> tuple[Overlay, Compute]:
    """Return a network, slowed down, and its fleet.

    The fastest worker comes first. The first worker evaluates a served model, after each of its own
    updates. So evaluations are close together under any pace.

    Args:
        name: of the network.
        gini: of the workers' speeds, exactly.
        seed: of the assignment of speeds to workers.
    """
    whole, server, mean = overlays.load(name), NETWORKS[name], BATCH / COMPUTE_S
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
    return slowed, Compute(samples_per_s=mean, jitter=_JITTER, sites=fleet)


def trial(
    lab: Lab,
    how: Scheme,
    name: str,
    gini: float,
    rate: float,
    seed: int,
    most_s: float = HORIZON_S,
    **labels: Label,
) -> Trial:
    """Return a run to the target.

    Args:
        lab: runs it; quick runs train a perceptron on digits that come with scikit-learn.
        how: the scheme.
        name, gini: see :func:`place`.
        rate: the learning rate of a usual batch. With tuned batches, the slowest worker's batch is
            smaller in proportion to its speed, so that all workers together use as many samples.
            The rate is smaller in the same proportion.
        seed: of the fleet, the data's split, the model and the jitter.
        most_s: when it ends without the target.
        labels: further labels of the run.
    """
    overlay, compute = place(name, gini, seed)
    server = NETWORKS[name]
    mean = compute.samples_per_s
    assert mean is not None  # every place of `place` has one
    slowest = min(each.samples_per_s or mean for each in compute.sites.values())
    batch = max(1, round(BATCH * slowest / mean)) if how.tuned else BATCH
    scenario = Scenario(
        overlay=overlay.name,
        route=how.route(server, tuple(site.name for site in overlay.sites)),
        pace=how.pace,
        merge=how.merge,
        load=TunedBatches(most=_LARGEST) if how.tuned else EqualBatches(),
        serve=Serve(only=(server,)),
        sampling=Resampled(beta=0.999),
        task=Train(
            data="digits" if lab.quick else "fashion-mnist",
            model="mlp" if lab.quick else "lenet-5",
            learning_rate=rate * batch / BATCH,
            batch_size=batch,
            partition=Dirichlet(alpha=1.0),
            evaluate_every=1,
            evaluate_samples=LOOK,
            target_accuracy=TARGET,
        ),
        stop=Stop(
            rounds=_MANY, after_s=min(most_s, _QUICK_S) if lab.quick else most_s, at_target=True
        ),
        compute=compute,
        chunk_elements=-(-_ELEMENTS // _CHUNKS),
        sample_every_s=1e6,
        seed=seed,
    )
    about: dict[str, Label] = {"network": name, "gini": gini, "rate": rate, "seed": seed}
    return Trial({**labels, **about}, scenario, overlay)
