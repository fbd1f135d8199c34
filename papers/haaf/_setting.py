"""The common setting of HAAF's figures (section 6.1): network, fleet, task, and the schemes.

12 sites train and one serves. Links of 1 to 10 Gbit/s and 10 to 50 ms join each two sites. The
paper says neither how long a batch takes nor how long it trains. Here a site of mean speed takes a
second for a batch of 128. The learning rate is ten times the paper's 0.01, since LeNet-5 would need
ten times as many updates with that. The other parameters are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from anabranch.fleet import Compute, ComputeModel, SiteCompute, uneven_samples_per_s
from anabranch.merge import AnyMerge, DataSize, Fairness, Product, Staleness
from anabranch.overlay import Overlay, random_complete
from anabranch.pace import AnyPace, Asp, Bsp
from anabranch.plan import AnyPlanner, Balanced, EdaForest, Fapt, ForestRoute, Star
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.partition import Dirichlet
from anabranch_lab.tasks.sampling import Resampled
from papers._lab import Lab, Label, Outcome, Trial
from papers._result import Row

WORKERS = 12
BATCH = 128
TARGET = 0.7
HORIZON_S = 120.0
LOOK_S = 5.0  # about the time between evaluations where workers do not wait for each other
_LONGEST_S = 600.0  # how long a run may take to the target
QUICK_S = 60.0
MANY = 100_000  # updates, more than there is time for
_NOTE = (
    "a server, links of 1 to 10 Gbit/s and 10 to 50 ms, LeNet-5 on Fashion-MNIST, Dirichlet "
    f"alpha = 1, beta = 0.999, batches of {BATCH}, plain SGD with a rate of 0.1 (the paper: 0.01), "
    "L = 100; a batch takes a site of mean speed 1 s. Networks, data and models are drawn anew "
    "with each seed, and the same speeds are dealt to other sites. Medians, the least to the most "
    "in parentheses."
)
_QUICK_NOTE = (
    f"Quick: one seed, a perceptron on 8 x 8 digits, batches of 16, {QUICK_S:g} s at most; says "
    "that it runs, and nothing of the paper."
)


_BY_DATA = DataSize()


@dataclass(frozen=True, slots=True)
class Scheme:
    """How sites synchronise.

    Args:
        route, pace, merge: see :class:`anabranch_lab.run.scenario.Scenario`.
    """

    route: AnyPlanner
    pace: AnyPace
    merge: AnyMerge = _BY_DATA


def haaf(a: float = 0.8, q: float = 1.0, workers: int = WORKERS) -> Scheme:
    """Return the paper's scheme with its search, and weights of eq. 10."""
    merge = Product(of=(DataSize(), Fairness(q=q), Staleness(a=a)))
    return Scheme(ForestRoute(server=_server(workers), search=EdaForest()), Asp(), merge)


def _server(workers: int) -> str:
    return f"site{workers}"


def schemes(workers: int = WORKERS) -> dict[str, Scheme]:
    """Return the schemes that the paper compares, by name."""
    server = _server(workers)
    return {
        "PS": Scheme(Star(hub=server), Bsp()),
        "AVL": Scheme(Balanced(root=server), Bsp()),
        "FAT": Scheme(Fapt(roots=(server,)), Bsp()),
        "HAAF": haaf(workers=workers),
    }


SCHEMES: Mapping[str, Scheme] = schemes()
ASYNCHRONOUS_PS = Scheme(Star(hub=_server(WORKERS)), Asp())


def seeds(lab: Lab, count: int) -> range:
    """Return the seeds of a figure: one if it is quick."""
    return range(lab.seed, lab.seed + (1 if lab.quick else count))


def network(seed: int, workers: int = WORKERS) -> Overlay:
    """Return the network of the workers and the server, which comes last."""
    drawn = random_complete(
        workers + 1, seed, low_bps=1e9, high_bps=10e9, latency_s=(0.01, 0.05), loss=0.0
    )
    return replace(drawn, name=f"haaf-{workers}-{seed}")


def trial(
    lab: Lab,
    how: Scheme,
    gini: float,
    seed: int,
    alpha: float = 1.0,
    beta: float = 0.999,
    to_target: bool = True,
    workers: int = WORKERS,
    look_s: float = LOOK_S,
    horizon_s: float = HORIZON_S,
    server_has_speed: bool = True,
    **labels: Label,
) -> Trial:
    """Return a run of a scheme, to the target accuracy or until the time is over.

    Args:
        lab: runs it; quick runs train a perceptron on digits that come with scikit-learn.
        how: the scheme.
        gini: how uneven the workers' speeds are.
        seed: of network, fleet, data and model.
        alpha: of the Dirichlet distribution by which labels are dealt.
        beta: of resampling.
        to_target: whether it ends with the target.
        workers: how many; the scheme must be made for as many.
        look_s: see :func:`looks_every`.
        horizon_s: when a run ends that does not end with the target.
        server_has_speed: whether the server, which computes nothing, has one of the dealt speeds;
            if not, the workers' speeds alone have this Gini coefficient.
        labels: further labels of the run.
    """
    overlay = network(seed, workers)
    batch = 16 if lab.quick else BATCH
    compute = Compute(samples_per_s=float(batch), gini=gini)
    if not server_has_speed:
        compute = _of_workers(float(batch), gini, workers, seed)
    speeds = ComputeModel(compute, [site.name for site in overlay.sites], seed)
    scenario = Scenario(
        overlay="haaf",
        route=how.route,
        pace=how.pace,
        merge=how.merge,
        serve=Serve(only=(_server(workers),)),
        sampling=Resampled(beta=beta),
        task=Train(
            data="digits" if lab.quick else "fashion-mnist",
            model="mlp" if lab.quick else "lenet-5",
            learning_rate=0.1,
            batch_size=batch,
            partition=Dirichlet(alpha=alpha),
            evaluate_every=looks_every(how.pace.barrier, speeds.mean_s(0, batch), look_s),
            target_accuracy=TARGET,
        ),
        stop=Stop(
            rounds=MANY,
            after_s=QUICK_S if lab.quick else (_LONGEST_S if to_target else horizon_s),
            at_target=to_target,
        ),
        compute=compute,
        sample_every_s=1e6,
        seed=seed,
    )
    about = {"gini": gini, "alpha": alpha, "beta": beta, "seed": seed}
    return Trial({**labels, **about}, scenario, overlay)


def _of_workers(mean: float, gini: float, workers: int, seed: int) -> Compute:
    """Return the computing of workers whose speeds alone have this Gini coefficient."""
    speeds = uneven_samples_per_s(workers, mean, gini, seed)
    sites = {
        f"site{worker}": SiteCompute(samples_per_s=speed) for worker, speed in enumerate(speeds)
    }
    return Compute(samples_per_s=mean, sites=sites)


def looks_every(barrier: bool, batch_s: float, look_s: float) -> int:
    """Return how many updates of the first worker are between two evaluations of the model.

    Args:
        barrier: whether workers wait for each other; then 1, since rounds are few.
        batch_s: how long the first worker computes for an update, seconds.
        look_s: otherwise, about the seconds between two evaluations; at least one update.

    >>> [looks_every(False, batch_s, look_s=5.0) for batch_s in (0.7, 1.5, 23.0)]
    [7, 3, 1]
    """
    return 1 if barrier else max(1, round(look_s / batch_s))


def of(outcomes: Iterable[Outcome], **labels: Label) -> list[Outcome]:
    """Return the runs with these labels, in order of their seeds."""
    found = [each for each in outcomes if labels.items() <= each.labels.items()]
    return sorted(found, key=lambda each: each.labels["seed"])


def spread(numbers: Sequence[float], form: str) -> str:
    """Return the median of numbers, and the least to the most in parentheses.

    >>> spread([3.0, 1.0, 2.0], ".1f")
    '2.0 (1.0 to 3.0)'
    """
    middle, low, high = (format(each, form) for each in _three(numbers))
    return middle if len(numbers) == 1 else f"{middle} ({low} to {high})"


def _three(numbers: Sequence[float]) -> tuple[float, float, float]:
    return median(numbers), min(numbers), max(numbers)


def to_target(runs: Sequence[Outcome]) -> str:
    """Return how long runs took to the target, and how many of them reached it."""
    reached = [each.reached_s for each in runs if each.reached_s is not None]
    if len(reached) == len(runs):
        return f"{spread(reached, '.0f')} s"
    return f"{len(reached)} of {len(runs)} reach it"


def at_end(runs: Sequence[Outcome]) -> str:
    """Return the final accuracies of runs."""
    seen = [100 * each.accuracy for each in runs if each.accuracy is not None]
    if len(seen) < len(runs):
        return f"{len(runs) - len(seen)} of {len(runs)} were never looked at"
    return f"{spread(seen, '.1f')} %"


def over_others(
    where: str, by_name: Mapping[str, Sequence[Outcome]], paper: Mapping[str, str] | None = None
) -> list[Row]:
    """Return HAAF's time to the target over other schemes', seed by seed.

    Args:
        where: the setting that the runs share, as text.
        by_name: the runs of each scheme, in order of seeds.
        paper: the paper's values, by the other scheme.
    """
    rows = []
    for name, runs in by_name.items():
        if name == "HAAF":
            continue
        pairs = zip(by_name["HAAF"], runs, strict=True)
        ratios = [
            ours.reached_s / theirs.reached_s
            for ours, theirs in pairs
            if ours.reached_s is not None and theirs.reached_s is not None
        ]
        if ratios:
            fewer = "" if len(ratios) == len(runs) else f", {len(ratios)} of {len(runs)} seeds"
            what = f"{where}: HAAF's time over {name}'s, seed by seed"
            rows.append(Row(what, (paper or {}).get(name, ""), spread(ratios, ".2f") + fewer))
    return rows


def trees(runs: Sequence[Outcome]) -> str:
    """Return how many trees the forests of runs have."""
    counted = [each.trees for each in runs if each.trees is not None]
    return spread(counted, ".0f") if counted else "no forest"


def notes(
    lab: Lab,
    outcomes: Iterable[Outcome],
    *more: str,
    workers: str = str(WORKERS),
    look_s: float = LOOK_S,
    server_has_speed: bool = True,
) -> tuple[str, ...]:
    """Return the notes for all rows of a figure."""
    dealt = "One of the speeds is the server's, which computes nothing."
    more = (dealt, *more) if server_has_speed else more
    setting = _QUICK_NOTE if lab.quick else f"{workers} workers and {_NOTE}"
    return (setting, *_looks(outcomes, look_s), *more)


def _looks(outcomes: Iterable[Outcome], look_s: float) -> tuple[str, ...]:
    """Return how often models were evaluated, by the Gini coefficient of speeds."""
    found: dict[Label, list[float]] = {}
    for each in outcomes:
        if each.look_s is not None:
            found.setdefault(each.labels["gini"], []).append(each.look_s)
    every = (f"{min(s):.1f} to {max(s):.1f} s at Gini {gini:g}" for gini, s in found.items())
    if not found:
        return ()
    return (
        "The server's model is looked at by the first worker: where workers wait for each other "
        f"after every update, else after so many of its own as take about {look_s:g} s to compute; "
        f"on the mean of a run every {', '.join(every)}.",
    )
