"""The common setting of R²SP's figures: its clusters, its models, its paces.

Servers and workers are on one switch, every port 10 Gbit/s. A worker's time for a batch is Table
I's iteration less its communication, with jitter of 5 % by default. The paper's framework moved
data at a fraction of its ports' rate (Table I: 9 s where 2.2 GB pass each port each way). Ours
fills the ports, so communication is a smaller part here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from statistics import fmean, geometric_mean

from msgspec.structs import replace

from anabranch.fleet import Compute, Lognormal
from anabranch.overlay import Link, Overlay, Site
from anabranch.pace import AnyLoad, AnyPace, Asp, Bsp, EqualBatches, R2sp, Ssp
from anabranch.plan import Fapt, Packed
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Exchange
from anabranch_lab.tasks import profiles
from papers import _compare
from papers._trial import Label, Outcome, Trial, chosen

WORKERS, SERVERS = 16, 4  # the paper's cluster A
WORKERS_1, SERVERS_1 = 8, 2  # of its Table I
PORT_BPS = 10e9
CHUNK_ELEMENTS = 1 << 20
JITTER = Lognormal(cv=0.05)
NOTE = (
    "16 workers, 4 servers, ports of 10 Gbit/s; a batch (128 samples, Inception-v3's 32) is "
    "computed in as long as the paper's Table I leaves beside communication, with jitter of 5 %."
)
EQUAL = EqualBatches()
PACES: Mapping[str, AnyPace] = {"BSP": Bsp(), "ASP": Asp(), "SSP": Ssp(lead=5), "R²SP": R2sp()}


@dataclass(frozen=True, slots=True)
class Model:
    """A model, and its values in the paper's Table I.

    Args:
        name: the paper's.
        elements: its parameters.
        iteration_s: of a batch, under BSP, seconds.
        blocked_s: the part of it that communication blocked, seconds.
        batch: samples.
    """

    name: str
    elements: int
    iteration_s: float
    blocked_s: float
    batch: int = 128

    @property
    def compute_s(self) -> float:
        """How long a batch takes to compute, seconds."""
        return round(self.iteration_s - self.blocked_s, 9)

    @property
    def port_bytes(self) -> float:
        """Bytes that pass a server's port in an iteration of Table I, each way."""
        return 4 * self.elements * WORKERS_1 / SERVERS_1

    @property
    def goodput_bps(self) -> float:
        """The rate of these bytes in the paper, one direction after the other, bit/s."""
        return 2 * 8 * self.port_bytes / self.blocked_s


RESNET32 = Model("ResNet32", profiles.RESNET_32.elements, 0.23, 0.11)
ALEXNET = Model("AlexNet", profiles.ALEXNET.elements, 3.39, 2.89)
VGG16 = Model("VGG16", profiles.VGG_16.elements, 9.74, 9.04)
INCEPTION = Model("Inception-v3", profiles.INCEPTION_V3.elements, 1.97, 1.27, batch=32)
MODELS = (RESNET32, ALEXNET, VGG16, INCEPTION)
LARGE = (ALEXNET, VGG16, INCEPTION)  # their sizes explain their communication
FITTED_BPS = geometric_mean(model.goodput_bps for model in LARGE)
"""One goodput for the paper's framework, bit/s: the geometric mean over its three large models."""


SEEDS = 3
"""Of jitter."""


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return the mean of numbers and, of several, the least to the most in parentheses."""
    return _compare.spread(values, form, fmean)


def steady_s(outcomes: Iterable[Outcome], **labels: Label) -> float:
    """Return the steady time of an iteration in the run with these labels, seconds.

    It is the mean over all workers and the later half of their iterations. A worker's first
    iteration differs: the worker has its model already, and pulls none.
    """
    (found,) = chosen(outcomes, **labels)
    return fmean(worker.iteration_s for worker in found.workers.values())


@cache
def cluster(
    port_bps: float = PORT_BPS,
    workers: int = WORKERS,
    servers: int = SERVERS,
    worker_bps: float | None = None,
) -> Overlay:
    """Return a cluster, by default the paper's A: servers first, with links to every worker.

    Args:
        port_bps: of a port, each way, bit/s.
        workers, servers: how many; without servers workers have links to one another.
        worker_bps: of a worker's port; None: `port_bps`.
    """
    worker_bps = port_bps if worker_bps is None else worker_bps
    ports = [(f"server-{k}", port_bps) for k in range(1, servers + 1)]
    ports += [(f"worker-{k}", worker_bps) for k in range(1, workers + 1)]
    sites = tuple(Site(name, uplink_bps=rate, downlink_bps=rate) for name, rate in ports)
    pairs = [(a, b) for a in range(servers) for b in range(servers, servers + workers)]
    if not servers:
        pairs = list(combinations(range(workers), 2))
    link_bps = max(port_bps, worker_bps)  # the ports limit traffic further
    links = tuple(
        Link(*way, link_bps, latency_s=1e-4) for pair in pairs for way in (pair, pair[::-1])
    )
    rates = f"{port_bps / 1e9:.3g}" + ("" if worker_bps == port_bps else f"-{worker_bps / 1e9:.3g}")
    return Overlay(f"{workers}-workers-{servers}-servers-{rates}", sites, links)


def trial(
    model: Model,
    under: AnyPace,
    updates: int,
    overlay: Overlay,
    jitter: Lognormal | None = JITTER,
    without: tuple[str, ...] = (),
    **labels: Label,
) -> Trial:
    """Return a run of a model under a pace; a label ``seed`` is that of its jitter."""
    compute = Compute(samples_per_s=model.batch / model.compute_s, jitter=jitter)
    made = served(model.elements, under, updates, overlay, compute, model.batch)
    made = replace(made, seed=int(labels.get("seed", 0)))
    return Trial({"model": model.name, **labels}, made, overlay, without=without)


def all_reduced(model: Model, rounds: int, **labels: Label) -> Trial:
    """Return a run of a model on cluster A's workers alone, which all-reduce its gradients."""
    overlay = cluster(servers=0)
    scenario = Scenario(
        overlay=overlay.name,
        route=Packed(),
        stop=Stop(rounds=rounds),
        compute=Compute(samples_per_s=model.batch / model.compute_s, jitter=JITTER),
        task=Exchange(elements=model.elements, batch_size=model.batch),
        chunk_elements=CHUNK_ELEMENTS,
        sample_every_s=60.0,
        seed=int(labels.get("seed", 0)),
    )
    return Trial({"model": model.name, **labels}, scenario, overlay)


def served(
    elements: int,
    under: AnyPace,
    updates: int,
    overlay: Overlay,
    compute: Compute | None,
    batch_size: int,
    load: AnyLoad = EQUAL,
) -> Scenario:
    """Return a scenario on a cluster whose servers hold equal parts of a model."""
    servers = tuple(site.name for site in overlay.sites if site.name.startswith("server-"))
    each = -(-elements // len(servers))
    chunks = -(-each // CHUNK_ELEMENTS)
    return Scenario(
        overlay=overlay.name,
        route=Fapt(roots=servers),
        pace=under,
        serve=Serve(only=servers),
        stop=Stop(rounds=updates),
        load=load,
        compute=compute,
        task=Exchange(elements=elements, batch_size=batch_size),
        chunk_elements=-(-each // chunks),
        sample_every_s=60.0,
    )
