"""Beyond the paper: edge aggregators, and other schemes, beside FL-R²SP.

In FL-R²SP, groups of a server's clients take turns. Groups can be chosen so that they keep the
server's port evenly full (:class:`anabranch.pace.FlR2sp`, by load). Edge aggregators reduce the
server's traffic instead. An edge adds up its clients' updates, so the server gets one update from
each edge, and sends each edge one model. The edges are a forest of given groups within one tree of
all sites. A group's updates are added up where their paths meet, which is at their edge.

Clients train for real. The server's and the edges' programs, and the links, are as slow as the
server of Table V for 128 clients. Rates are scaled so that our small model takes as long as
ResNet20 does there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from anabranch.fleet import Compute, SiteCompute, uneven_samples_per_s
from anabranch.log import Evaluated
from anabranch.merge import AnyMerge, Mean, Staleness
from anabranch.overlay import Link, Overlay, Site
from anabranch.pace import AnyPace, Asp, Bsp, FedAvg, FedBuff, FlR2sp, R2sp, Safa
from anabranch.period import Every
from anabranch.plan import AnyPlanner, Fapt, ForestRoute, GivenForest, Star
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.partition import MixedDirichlet
from papers._compare import compared, or_never, spread_s
from papers._experiment import Experiment
from papers._lab import Lab, events_of
from papers._outcome import thinned
from papers._result import Result, Row
from papers.r2sp import _federated as federated
from papers.r2sp import _setting as setting

_MEAN = Mean()
_SEEDS: Mapping[int, int] = {128: 5, 1024: 2}  # by the number of clients
_ELEMENTS = 7850  # of softmax on Fashion-MNIST
_STEPS, _BATCH, _RATE, _ROUNDS = 10, 16, 0.05, 40
_TARGET = 0.75
_LOOKED_AT = 1000  # samples
_SAMPLES = 200  # of a client
_LOOK_S = 5.0  # simulated time between evaluations, whatever the rates of updates
_GROUP = 16  # of FL-R²SP, as in the paper
_SPEEDS = 4  # groups of an edge's clients by speed
EDGES: Mapping[int, int] = {16: 4, 128: 8, 1024: 32}  # edges by the number of clients
_MOST_OF_OTHERS = 128  # clients
_FEW = 16  # clients, in quick runs
FLEETS: Mapping[str, float] = {"clients alike": 0.0, "uneven clients": 0.3}  # Gini of their speeds


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme: its pace, and the edges between clients and the server.

    Args:
        under: the pace.
        mixes: see :class:`anabranch_lab.run.scenario.Serve`.
        merge: what an update weighs.
        groups_an_edge: how many groups an edge's clients form, each of which adds up its updates;
            0: no edges.
    """

    under: AnyPace
    mixes: str = "updates"
    merge: AnyMerge = _MEAN
    groups_an_edge: int = 0


_OTHERS: Mapping[str, Scheme] = {
    "FedAvg": Scheme(FedAvg(sample=0.1, late_after="never")),
    "FedAsync": Scheme(Asp(share=0.6), "models", Staleness(a=0.5)),
    "FedBuff": Scheme(FedBuff(size=10), merge=Staleness(a=0.5)),  # its share is tuned
    "SAFA": Scheme(Safa(late_after="never"), "cache"),
}
"""Each has its own paper's parameters, but for one that its paper tunes."""
_SHARES = (1.0, 0.5, 0.25, 0.125)  # of FedBuff, its paper's server learning rate
_TUNING = 1000  # added to the first seed: not among those that are measured


def schemes(clients: int) -> Mapping[str, Scheme]:
    """Return the schemes that are compared with this number of clients, by name."""
    groups = max(2, clients // _GROUP)
    until_turn = FlR2sp(
        groups=groups, fraction=federated.FRACTION, collects="turn", late_after="never"
    )
    return {
        "BSP": Scheme(federated.pace(1), "models"),
        "FL-R²SP": Scheme(federated.pace(groups), "models"),
        "FL-R²SP, updates mixed": Scheme(until_turn),
        "FL-R²SP, updates mixed, groups by load": Scheme(federated.ours(groups)),
        **(_OTHERS if clients <= _MOST_OF_OTHERS else {}),
        "edges, all at once": Scheme(Bsp(), groups_an_edge=1),
        "edges, in turns": Scheme(R2sp(relaxation=1.0), groups_an_edge=1),
        "edges, groups by speed": Scheme(Asp(), groups_an_edge=_SPEEDS),
    }


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of a run.

    Args:
        reached_s: when an evaluation first reached the target, seconds; None: never.
        curve: (seconds, accuracy) of evaluations, evenly spaced.
    """

    reached_s: float | None
    curve: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Args:
        clients: how many.
        gini: of their speeds.
        scheme: how they train.
        data: the task.
        rounds: of each client, at most.
        seed: of data, speeds, jitter and delays.
    """

    clients: int
    gini: float
    scheme: Scheme
    data: str
    rounds: int
    seed: int


def train(job: Run, data_dir: Path | None) -> Trained:
    """Train the clients of a fleet under one scheme, with one seed."""
    clients, scheme, seed = job.clients, job.scheme, job.seed
    near = _near(clients) if scheme.groups_an_edge else {}
    overlay = _overlay(clients, near)
    usual = _STEPS * _BATCH / federated.RESNET20.compute_s
    speeds = uneven_samples_per_s(clients, usual, job.gini, seed)
    route: AnyPlanner = Star(hub=federated.SERVER)
    if near:
        groups = [
            tuple(map(_client, group))
            for numbers in near.values()
            for group in _split(numbers, speeds, scheme.groups_an_edge)
        ]
        search = GivenForest(groups=tuple(groups))
        within = Fapt(roots=(federated.SERVER,))
        route = ForestRoute(server=federated.SERVER, search=search, within=within)
    scenario = Scenario(
        overlay=overlay.name,
        route=route,
        pace=scheme.under,
        merge=scheme.merge,
        period=Every(steps=_STEPS),
        serve=Serve(
            only=(federated.SERVER, *near),
            mixes=scheme.mixes,  # type: ignore[arg-type]
        ),
        stop=Stop(rounds=job.rounds, at_target=True),
        compute=Compute(
            samples_per_s=usual,
            jitter=setting.JITTER,
            added_delay=federated.DELAY,
            sites={_client(k): SiteCompute(samples_per_s=speed) for k, speed in enumerate(speeds)},
        ),
        task=Train(
            data=job.data,  # type: ignore[arg-type]
            model="softmax",
            learning_rate=_RATE,
            batch_size=_BATCH,
            evaluate_every_s=_LOOK_S,
            evaluate_samples=_LOOKED_AT,
            target_accuracy=_TARGET,
            partition=MixedDirichlet(alpha=1.0, outliers=0.0, samples_per_site=_SAMPLES),
        ),
        chunk_elements=_ELEMENTS,
        sample_every_s=1e6,
        seed=seed,
    )
    events = events_of(scenario, overlay, data_dir)
    curve = {each.at_s: each.accuracy for each in events if isinstance(each, Evaluated)}
    reached_s = next((at_s for at_s, accuracy in curve.items() if accuracy >= _TARGET), None)
    return Trained(reached_s, thinned([*curve.items()]))


def _near(clients: int) -> Mapping[str, range]:
    """Return the clients that are near each edge."""
    edges = EDGES[clients]
    of_each = clients // edges
    return {
        f"edge-{edge + 1:02}": range(edge * of_each, (edge + 1) * of_each) for edge in range(edges)
    }


def _split(numbers: Sequence[int], speeds: Sequence[float], parts: int) -> list[list[int]]:
    """Return an edge's clients in `parts` groups, sorted by speed."""
    of_each = -(-len(numbers) // parts)
    ordered = sorted(numbers, key=lambda number: speeds[number])
    return [ordered[first : first + of_each] for first in range(0, len(ordered), of_each)]


def _client(number: int) -> str:
    return f"client-{number + 1:04}"


def _overlay(clients: int, near: Mapping[str, Sequence[int]]) -> Overlay:
    """Return a server with its clients, or with edges between them as slow as the server."""
    paper = federated.PROGRAM_5
    part = _ELEMENTS / federated.RESNET20.elements
    rates = {"uplink_bps": part * paper.up_bps, "downlink_bps": part * paper.down_bps}
    heads = [Site(name, **rates) for name in (federated.SERVER, *near)]
    names = [head.name for head in heads] + [_client(number) for number in range(clients)]
    sites = (*heads, *(Site(name) for name in names[len(heads) :]))
    pairs = [(federated.SERVER, name) for name in near or names[1:]]
    pairs += [(edge, _client(number)) for edge, numbers in near.items() for number in numbers]
    index = {name: place for place, name in enumerate(names)}
    links = tuple(
        Link(index[a], index[b], part * paper.client_bps, latency_s=1e-3)
        for pair in pairs
        for a, b in (pair, pair[::-1])
    )
    return Overlay(f"{clients}-clients-{len(near)}-edges", sites, links)


def _make(lab: Lab, clients: int) -> Result:
    seeds = lab.seeds(_SEEDS[clients])
    if lab.quick:
        clients = _FEW
    data, rounds = ("digits", 2) if lab.quick else ("fashion-mnist", _ROUNDS)
    of_fleet = {
        fleet: {
            **schemes(clients),
            **_with_share(lab, Run(clients, gini, _OTHERS["FedBuff"], data, rounds, lab.seed)),
        }
        for fleet, gini in FLEETS.items()
    }
    jobs = {
        (fleet, name, seed): Run(clients, FLEETS[fleet], scheme, data, rounds, seed)
        for fleet, of in of_fleet.items()
        for name, scheme in of.items()
        for seed in seeds
    }
    found = dict(zip(jobs, lab.map(train, [*jobs.values()], Trained), strict=True))
    rows = []
    for fleet, of in of_fleet.items():
        beside = [or_never(found[fleet, "FL-R²SP", seed].reached_s) for seed in seeds]
        for name, scheme in of.items():
            runs = [or_never(found[fleet, name, seed].reached_s) for seed in seeds]
            told = spread_s(runs) + ("" if name == "FL-R²SP" else f"; {compared(runs, beside)}")
            why = f"share {scheme.under.share:g}" if isinstance(scheme.under, FedBuff) else ""
            rows.append(Row(f"{clients} {fleet}, {name}", "", told, why, seeds=f"{len(seeds)}"))
    return Result(tuple(rows), (_note(data, rounds, len(seeds), clients),))


def _with_share(lab: Lab, job: Run) -> dict[str, Scheme]:
    """Return FedBuff with the share with which it is quickest on another seed."""
    if lab.quick or job.clients > _MOST_OF_OTHERS:
        return {}
    pace, seed = FedBuff(size=10), job.seed + _TUNING
    tried = [replace(job.scheme, under=structs.replace(pace, share=share)) for share in _SHARES]
    jobs = [replace(job, scheme=scheme, seed=seed) for scheme in tried]
    times_s = [or_never(run.reached_s) for run in lab.map(train, jobs, Trained)]
    assert math.isfinite(min(times_s)), f"FedBuff has no share of {_SHARES}"
    best, _ = min(zip(tried, times_s, strict=True), key=lambda each: each[1])
    return {"FedBuff": best}


def _note(data: str, rounds: int, seeds: int, clients: int) -> str:
    others = (
        "FedAvg draws a tenth of the clients for a round, FedAsync goes 0.6 of the way to each "
        "model, FedBuff's buffer has 10 updates, and both weigh by staleness with a of 0.5; SAFA "
        "picks a half and bears a lag of 5, with no deadline: their papers' settings. How far "
        "FedBuff's server goes is tuned on another seed, as its paper does. "
    )
    return (
        f"Seconds until {_TARGET:.0%} of {_LOOKED_AT} held-out samples of {data} (or all that "
        f"there are) are right, by softmax regression: {_STEPS} local steps of {_BATCH} at "
        f"{_RATE:g}, {_SAMPLES} samples of each client with Dirichlet 1, at most {rounds} updates "
        f"of each client, {seeds} seeds; looked at each {_LOOK_S:g} s; medians, the least to the "
        "most in parentheses, then the geometric mean of the times over FL-R²SP's, seed by seed, "
        f"with a 95 % interval of Student's t. {EDGES[clients]} edges for {clients:,} clients, "
        f"each as slow as the server; by speed, the clients of each are in {_SPEEDS} groups, those "
        "together that are "
        "about as fast, and no group waits for another. Uneven clients compute at speeds whose "
        f"Gini index is {FLEETS['uneven clients']:g}. BSP and FL-R²SP are Algorithm 2, with one "
        f"group and with groups of {_GROUP}: rounds end with 75 % of a group's clients, and models "
        "are mixed. Updates mixed: not models, and those count that come before a group's turn; by "
        "load: each group brings as many updates a second, and whichever is ready has its turn. "
        f"{others if clients <= _MOST_OF_OTHERS else ''}Edges wait for all clients of a group."
    )


def _experiment(clients: int) -> Experiment:
    says = f"{clients:,} clients: edge aggregators and other schemes beside FL-R²SP"
    return Experiment(f"r2sp/edges-{clients}", says, partial(_make, clients=clients))


EXPERIMENTS = tuple(map(_experiment, (128, 1024)))
