"""R²SP, Figure 15: accuracy with outliers among clients, with and without the filter; Table IV.

A quarter of the clients have two thirds of their samples of one class, on average (Dirichlet 0.1;
the others 10).
There is an experiment for each of the paper's three models, as long as two cores can train it. It
has fewer local steps at a larger rate. Two models have fewer clients, and ResNet20 has small
pictures. Another experiment of each model has the paper's local steps and rate, for the first of
its hundreds of rounds.

Each client draws its samples independently of the others, as in the paper ("independently"). With
disjoint parts, each of 128 clients would get few samples of CIFAR-10. Then after some rounds all
updates point in different directions, those of outliers and of others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from anabranch.fleet import Compute
from anabranch.log import Evaluated, UpdateJudged, read_events
from anabranch.log.events import ClientBarred
from anabranch.merge import AnyMerge, Mean, OutlierFilter
from anabranch.pace import AnyPace, Asp
from anabranch.period import Every
from anabranch.plan import Star
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.run.simulate import simulate
from anabranch_lab.tasks.partition import MixedDirichlet
from papers._experiment import Experiment
from papers._lab import Lab
from papers._result import Result, Row
from papers.r2sp import _federated as federated
from papers.r2sp import _setting as setting

_SEEDS = 5
_PAPER_FILTER = OutlierFilter(beta=0.5, patience=3)
_LAST = 3  # evaluations; their mean is the final accuracy
_LOOKED_AT = 1000  # samples
_OF_GROUP = 16  # clients, in the paper
_NEARLY = 0.95  # of the accuracy of BSP with the filter: the target of times


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an experiment.

    Args:
        data, model: what is trained.
        like: the paper's model, whose round times the clients take.
        clients: how many.
        samples: that each client draws independently; None: disjoint parts of the data.
        steps, batch, rate: of a client's local steps.
        rounds: of each client.
    """

    data: str
    model: str
    like: federated.Model
    clients: int
    samples: int | None
    steps: int
    batch: int
    rate: float
    rounds: int

    @property
    def groups(self) -> int:
        """How many groups there are under FL-R²SP."""
        return max(2, self.clients // _OF_GROUP)

    @property
    def partition(self) -> MixedDirichlet:
        """The paper's: a quarter of the clients have two thirds of their samples of one label."""
        return MixedDirichlet(
            alpha=10.0, outlier_alpha=0.1, outliers=0.25, samples_per_site=self.samples
        )


CNN = Size("cifar-10-part", "lenet-5", federated.CNN, 128, 5000, 16, 32, 0.05, 8)
LSTM = Size("spoken-digits", "lstm", federated.LSTM, 32, 1000, 20, 16, 0.2, 10)
RESNET20 = Size("digits", "resnet-20", federated.RESNET20, 32, 500, 40, 8, 0.1, 8)
# The paper's steps, without its hundreds of rounds. It states no batch; a small one is quick.
_LITERALLY = partial(replace, steps=100, batch=8, rate=0.01)
LITERAL = _LITERALLY(CNN, rounds=6)
LSTM_LITERAL = _LITERALLY(LSTM, rounds=4)
RESNET20_LITERAL = _LITERALLY(RESNET20, rounds=4)
_QUICK = Size("digits", "softmax", federated.CNN, 24, None, 10, 8, 0.1, 6)


@dataclass(frozen=True, slots=True)
class Scheme:
    """A row of the figure.

    Args:
        under: the pace.
        merge: the merge rule, with or without the filter.
        mixes: see :class:`anabranch_lab.run.scenario.Serve`.
        paper: the paper's claim, beside BSP with the filter.
    """

    under: AnyPace
    merge: AnyMerge
    mixes: str
    paper: str


def schemes(groups: int) -> Mapping[str, Scheme]:
    """Return the figure's schemes by name, for a number of groups."""
    bsp, turns = federated.pace(1), federated.pace(groups)
    return {
        "BSP": Scheme(bsp, Mean(), "models", "about 10 points less"),
        "BSP, filter": Scheme(bsp, _PAPER_FILTER, "models", ""),
        "FL-R²SP, no filter": Scheme(turns, Mean(), "models", "about 10 points less"),
        "FL-R²SP": Scheme(turns, _PAPER_FILTER, "models", "about the same"),
        "ASP": Scheme(Asp(), Mean(), "updates", "far below"),
    }


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of a run.

    Args:
        curve: (seconds, accuracy) of each evaluation of the server's model.
        barred: clients that were barred, in order.
        right: how many of these are outliers.
        cosines: means over the judged updates of outliers, and of others; None: none was judged.
    """

    curve: tuple[tuple[float, float], ...]
    barred: tuple[int, ...]
    right: int
    cosines: tuple[float | None, float | None]

    @property
    def accuracy(self) -> float:
        """The mean accuracy of the last evaluations."""
        return fmean(accuracy for _, accuracy in self.curve[-_LAST:])

    def reached_s(self, target: float) -> float | None:
        """Return when an evaluation first reached an accuracy; None: never."""
        return next((at_s for at_s, accuracy in self.curve if accuracy >= target), None)


def train(job: tuple[str, int], size: Size, data_dir: Path | None = None) -> Trained:
    """Train under one scheme with one seed."""
    import torch

    torch.set_num_threads(1)
    name, seed = job
    scheme = schemes(size.groups)[name]
    overlay = federated.fleet(server_of(size.clients), size.clients)
    scenario = Scenario(
        overlay=overlay.name,
        route=Star(hub=federated.SERVER),
        pace=scheme.under,
        merge=scheme.merge,
        period=Every(steps=size.steps),
        serve=Serve(only=(federated.SERVER,), mixes=scheme.mixes),  # type: ignore[arg-type]
        stop=Stop(rounds=size.rounds),
        compute=Compute(
            samples_per_s=size.steps * size.batch / size.like.compute_s,
            jitter=setting.JITTER,
            added_delay=federated.DELAY,
        ),
        task=Train(
            data=size.data,  # type: ignore[arg-type]
            model=size.model,  # type: ignore[arg-type]
            learning_rate=size.rate,
            batch_size=size.batch,
            evaluate_every=1,
            evaluate_samples=_LOOKED_AT,
            partition=size.partition,
        ),
        sample_every_s=1e6,
        seed=seed,
    )
    with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
        log = Path(folder, "run.db")
        simulate(scenario.beside_its_scheduler(), overlay, log, data_dir)
        events = [event for _, event in read_events(log)]
    clients = scenario.workers(overlay)
    outliers = {clients[each] for each in size.partition.outlier_sites(size.clients, seed)}
    barred = tuple(event.client for event in events if isinstance(event, ClientBarred))
    judged = [event for event in events if isinstance(event, UpdateJudged)]
    return Trained(
        tuple({e.at_s: (e.at_s, e.accuracy) for e in events if isinstance(e, Evaluated)}.values()),
        barred,
        sum(client in outliers for client in barred),
        (
            _mean([event.cosine for event in judged if event.site in outliers]),
            _mean([event.cosine for event in judged if event.site not in outliers]),
        ),
    )


def server_of(clients: int) -> federated.Server:
    """Return Table V's server, scaled from the paper's 128 clients to this number."""
    part = clients / federated.CLIENTS
    paper = federated.PROGRAM_5
    return replace(paper, up_bps=paper.up_bps * part, down_bps=paper.down_bps * part)


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 4) if values else None


def _make(lab: Lab, whole: Size) -> Result:
    size = _QUICK if lab.quick else whole
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else _SEEDS))
    jobs = [(name, seed) for name in schemes(size.groups) for seed in seeds]
    found = dict(zip(jobs, lab.map(partial(train, size=size), jobs, Trained), strict=True))
    rows = []
    for name, scheme in schemes(size.groups).items():
        runs = [found[name, seed] for seed in seeds]
        beside = [found["BSP, filter", seed] for seed in seeds]
        points = [100 * (a.accuracy - b.accuracy) for a, b in zip(runs, beside, strict=True)]
        rows.append(
            Row(
                f"{size.model}, {name}: accuracy, %, and points beside BSP with the filter",
                scheme.paper,
                f"{_spread([100 * run.accuracy for run in runs])}, {_spread(points, '+')}",
            )
        )
        rows.append(_sooner(f"{size.model}, {name}", runs, beside, size.like))
        if isinstance(scheme.merge, OutlierFilter):
            outlier, other = ([run.cosines[k] or 0.0 for run in runs] for k in (0, 1))
            rows.append(
                Row(
                    f"{size.model}, {name}: barred, of whom outliers; cosines of outliers, others",
                    "",
                    f"{fmean(len(run.barred) for run in runs):.0f}, "
                    f"{fmean(run.right for run in runs):.0f}; {fmean(outlier):.2f}, "
                    f"{fmean(other):.2f}",
                )
            )
    data = {
        "size": {key: value for key, value in asdict(size).items() if key != "like"},
        "trained": [
            {"scheme": name, "seed": seed, **asdict(run)} for (name, seed), run in found.items()
        ],
    }
    return Result(tuple(rows), (_note(size, len(seeds)),), data)


def _sooner(
    name: str, runs: Sequence[Trained], beside: Sequence[Trained], like: federated.Model
) -> Row:
    """Return the times to nearly the final accuracy of BSP with the filter, as a row."""
    targets = [_NEARLY * run.accuracy for run in beside]
    pairs = [
        (run.reached_s(target), bsp.reached_s(target))
        for run, bsp, target in zip(runs, beside, targets, strict=True)
    ]
    reached = [(ours_s, bsp_s) for ours_s, bsp_s in pairs if ours_s and bsp_s]
    told = f"reached in {len(reached)} of {len(runs)}"
    if reached:
        times, ratios = [a for a, _ in reached], [a / b for a, b in reached]
        told += f": {_spread(times)} s, {_spread(ratios, digits=2)} of BSP's with the filter"
    is_papers = name.endswith("FL-R²SP")
    return Row(
        f"{name}: seconds to {_NEARLY:.0%} of that accuracy",
        f"converges in {like.converged_s[1] / like.converged_s[0]:.2f} of BSP's time"
        if is_papers
        else "",
        told,
    )


def _spread(values: Sequence[float], sign: str = "", digits: int = 1) -> str:
    """Return the mean of numbers, and the least to the most."""
    mean, least, most = (f"{x:{sign}.{digits}f}" for x in (fmean(values), min(values), max(values)))
    return f"{mean} ({least} to {most})"


def _note(size: Size, seeds: int) -> str:
    return (
        f"{size.model} on {size.data}, {size.clients} clients in {size.groups} groups, of whom a "
        f"quarter are outliers, {size.steps} local steps of {size.batch} samples at a rate of "
        f"{size.rate:g} (the paper: 128 clients in 8, 100 steps at 0.01, a batch that it does not "
        f"state), {size.rounds} rounds of each client, {seeds} seeds. Times as with a program as "
        f"in Table V, as fast for so many clients as it is there for 128. Accuracy of "
        f"{_LOOKED_AT} held-out samples, or all that there are, the mean of the last {_LAST} "
        "looks, of which there is one a round; means of the seeds, the least to the most in "
        "parentheses."
    )


EXPERIMENTS = tuple(
    Experiment(
        name,
        f"accuracy with outliers among clients, {size.model}, {size.steps} local steps",
        partial(_make, whole=size),
    )
    for name, size in (
        ("r2sp/fig15", CNN),
        ("r2sp/fig15-literal", LITERAL),
        ("r2sp/fig15-lstm", LSTM),
        ("r2sp/fig15-lstm-literal", LSTM_LITERAL),
        ("r2sp/fig15-resnet20", RESNET20),
        ("r2sp/fig15-resnet20-literal", RESNET20_LITERAL),
    )
)
