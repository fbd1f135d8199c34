"""R²SP, Fig. 15 and Table IV: accuracy and convergence with outliers among clients.

A quarter of the clients have two thirds of their samples of one class, on average (Dirichlet 0.1;
the others 10). There is an experiment for each of the paper's three models. One seed trains for
hundreds of rounds, as in the paper, some for a hundred. Each row says what is smaller than in the
paper: there are fewer clients, and one model has small pictures.

Each client draws its samples independently of the others, as in the paper ("independently"). With
disjoint parts, each of 128 clients would get few samples of CIFAR-10. Then after some rounds all
updates point in different directions, those of outliers and of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

from anabranch.fleet import Compute
from anabranch.log import Evaluated, Event, UnknownEvent, UpdateCame, UpdateJudged
from anabranch.log.events import ClientBarred
from anabranch.merge import AnyMerge, Mean, OutlierFilter
from anabranch.pace import AnyPace, Asp
from anabranch.period import Every
from anabranch.plan import Star
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Train
from anabranch_lab.tasks.partition import MixedDirichlet
from papers._compare import known
from papers._experiment import Experiment
from papers._lab import Lab, events_of
from papers._picture import middle, picture
from papers._result import Result, Row
from papers.r2sp import _federated as federated
from papers.r2sp import _setting as setting

_PAPER_FILTER = OutlierFilter(beta=0.5, patience=3)
_LAST = 10  # rounds; the mean of their evaluations is the final accuracy
_STAGNANT = 10  # rounds without a new best: the paper's rule of convergence
_LOOKED_AT = 1000  # samples
_BESIDE = "BSP, filter"
_SHORT = 100  # rounds, of schemes that are not long


@dataclass(frozen=True, slots=True)
class Size:
    """What is trained.

    Args:
        data, model: the task and its network.
        like: the paper's model, whose round times the clients take.
        clients, groups: how many.
        samples: that each client draws independently; None: disjoint parts of the data.
        steps, batch, rate: of a client's local steps; the paper has 100 at 0.01, and no batch.
    """

    data: str
    model: str
    like: federated.Model
    clients: int
    groups: int
    samples: int | None
    steps: int = 100
    batch: int = 8
    rate: float = 0.01

    @property
    def partition(self) -> MixedDirichlet:
        """The paper's: a quarter of the clients have two thirds of their samples of one label."""
        return MixedDirichlet(
            alpha=10.0, outlier_alpha=0.1, outliers=0.25, samples_per_site=self.samples
        )


CNN = Size("cifar-10-part", "lenet-5", federated.CNN, 32, 4, 5000, steps=50, rate=0.02)
LSTM = Size("spoken-digits", "lstm", federated.LSTM, 32, 4, 1000, steps=50, rate=0.02)
RESNET20 = Size("digits", "resnet-20", federated.RESNET20, 32, 4, 500, steps=20, rate=0.05)
_QUICK = Size("digits", "softmax", federated.CNN, 24, 2, None, 10, 8, 0.1)
_QUICK_ROUNDS = (6,)
_FEW = "32 clients in 4 groups, and fewer local steps at a higher rate, for time"
_SMALLER: Mapping[str, str] = {
    "lenet-5": f"LeNet-5 for a CNN whose size is not stated; four of CIFAR-10's six files; {_FEW}",
    "lstm": f"spoken digits for Speech Commands; {_FEW}",
    "resnet-20": f"8 x 8 digits for CIFAR-10, where a round takes five times as long; {_FEW}",
    "softmax": "all",
}
"""What is smaller than in the paper, by model, and why."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A row of the figure.

    Args:
        under: the pace.
        merge: the merge rule, with or without the filter.
        mixes: see :class:`anabranch_lab.run.scenario.Serve`.
        paper: the paper's claim, beside BSP with the filter.
        is_long: whether its first seed trains for all rounds, not only for the least.
    """

    under: AnyPace
    merge: AnyMerge
    mixes: str
    paper: str = ""
    is_long: bool = False


def schemes(groups: int, fraction: float = federated.FRACTION) -> Mapping[str, Scheme]:
    """Return the figure's schemes by name, and ours, for a number of groups."""
    bsp, turns = federated.pace(1, fraction), federated.pace(groups, fraction)
    return {
        "BSP": Scheme(bsp, Mean(), "models", "about 10 points less"),
        _BESIDE: Scheme(bsp, _PAPER_FILTER, "models", is_long=True),
        "FL-R²SP, no filter": Scheme(turns, Mean(), "models", "about 10 points less"),
        "FL-R²SP": Scheme(turns, _PAPER_FILTER, "models", "about the same", is_long=True),
        "ASP": Scheme(Asp(), Mean(), "updates", "far below"),
        "FL-R²SP, ours": Scheme(federated.ours(groups), _PAPER_FILTER, "updates"),
    }


@dataclass(frozen=True, slots=True)
class Look:
    """An evaluation of the server's model.

    Args:
        at_s: when, seconds.
        rounds: that the clients had made by then, the median of those that are never barred, or of
            all where each is barred.
        accuracy: of the model.
    """

    at_s: float
    rounds: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Trained:
    """The outcome of a run.

    Args:
        looks: the evaluations, one a round or more.
        barred: how many clients were barred.
        right: how many of these are outliers.
        cosines: means over the judged updates of outliers, and of others; None: none was judged.
    """

    looks: tuple[Look, ...]
    barred: int
    right: int
    cosines: tuple[float | None, float | None]

    def after(self, rounds: int) -> float:
        """Return the accuracy after so many rounds: the mean of the last rounds' evaluations."""
        seen = [each for each in self.looks if each.rounds <= rounds]
        return fmean(each.accuracy for each in seen if each.rounds > seen[-1].rounds - _LAST)

    def converged(self) -> Look | None:
        """Return the first evaluation that ends ten rounds without a new best, or None."""
        best = self.looks[0]
        for each in self.looks:
            if each.accuracy > best.accuracy:
                best = each
            elif each.rounds - best.rounds >= _STAGNANT:
                return each
        return None

    def curve(self, rounds: float) -> list[tuple[float, float]]:
        """Return (seconds, accuracy) of the evaluations until so many rounds."""
        return [(each.at_s, each.accuracy) for each in self.looks if each.rounds <= rounds]


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Args:
        under, merge, mixes: of its scheme.
        server: its rates.
        seed: of data, model, jitter and delays.
        rounds: of each client.
    """

    under: AnyPace
    merge: AnyMerge
    mixes: str
    server: federated.Server
    seed: int
    rounds: int

    @classmethod
    def of(cls, scheme: Scheme, size: Size, seed: int, rounds: int) -> Run:
        """Return the run of a scheme."""
        server = server_of(size.clients)
        return cls(scheme.under, scheme.merge, scheme.mixes, server, seed, rounds)


def train(job: Run, size: Size, data_dir: Path | None = None) -> Trained:
    """Train clients under a scheme."""
    overlay = federated.fleet(job.server, size.clients)
    scenario = Scenario(
        overlay=overlay.name,
        route=Star(hub=federated.SERVER),
        pace=job.under,
        merge=job.merge,
        period=Every(steps=size.steps),
        serve=Serve(only=(federated.SERVER,), mixes=job.mixes),  # type: ignore[arg-type]
        stop=Stop(rounds=job.rounds),
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
            evaluate_every_s=size.like.round_s[1],
            evaluate_samples=_LOOKED_AT,
            partition=size.partition,
        ),
        sample_every_s=1e6,
        seed=job.seed,
    )
    events = [*events_of(scenario, overlay, data_dir)]
    clients = scenario.workers(overlay)
    outliers = {clients[each] for each in size.partition.outlier_sites(size.clients, job.seed)}
    barred = [event.client for event in events if isinstance(event, ClientBarred)]
    judged = [event for event in events if isinstance(event, UpdateJudged)]
    return Trained(
        _looks(events, {*clients} - {*barred} or {*clients}),
        len(barred),
        sum(client in outliers for client in barred),
        (
            _mean([event.cosine for event in judged if event.site in outliers]),
            _mean([event.cosine for event in judged if event.site not in outliers]),
        ),
    )


def _looks(events: Sequence[Event | UnknownEvent], clients: set[int]) -> tuple[Look, ...]:
    """Return the evaluations in a log, with the median of these clients' rounds."""
    made = dict.fromkeys(clients, 0)
    looks: dict[float, Look] = {}
    for event in events:
        if isinstance(event, UpdateCame) and event.site in made:
            made[event.site] = event.update
        elif isinstance(event, Evaluated):
            accuracy = round(event.accuracy, 4)
            looks[event.at_s] = Look(round(event.at_s, 2), median(made.values()), accuracy)
    return tuple(looks.values())


def server_of(clients: int) -> federated.Server:
    """Return Table V's server, scaled from the paper's 128 clients to this number."""
    part = clients / federated.CLIENTS
    paper = federated.PROGRAM_5
    return replace(paper, up_bps=paper.up_bps * part, down_bps=paper.down_bps * part)


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 4) if values else None


def _make(lab: Lab, whole: Size, rounds: tuple[int, ...]) -> Result:
    """Train all schemes.

    Args:
        lab: runs them.
        whole: the size, unless the lab is quick.
        rounds: of each seed in order, under schemes that are long.
    """
    size = _QUICK if lab.quick else whole
    rounds = _QUICK_ROUNDS if lab.quick else rounds
    least, most = min(*rounds, _SHORT), max(rounds)
    jobs = {
        (name, seed): Run.of(scheme, size, seed, most_rounds if scheme.is_long else least)
        for name, scheme in schemes(size.groups).items()
        for seed, most_rounds in enumerate(rounds, lab.seed)
    }
    made = lab.map(partial(train, size=size), [*jobs.values()], Trained)
    found: dict[str, list[Trained]] = {}
    for (name, _), trained in zip(jobs, made, strict=True):
        found.setdefault(name, []).append(trained)
    rows = []
    for name, scheme in schemes(size.groups).items():
        runs, beside = found[name], found[_BESIDE]
        told = _accuracies(runs, beside, least)
        goes_on = most > least and scheme.is_long
        if goes_on:
            told += f"; {_accuracies(runs[:1], beside[:1], most)}"
        if isinstance(scheme.merge, OutlierFilter):
            told += f"; {_barred(runs)}"
        rows.append(
            Row(
                f"{size.model}, {name}: accuracy, and points beside BSP with the filter",
                scheme.paper,
                told,
                _SMALLER[size.model],
                seeds=f"{len(runs)}" + (", 1 to the end" if goes_on else ""),
            )
        )
    rows.append(_convergence(size, found["BSP, filter"][0], found["FL-R²SP"][0]))
    panels = {
        f"{size.model}, the median of {len(rounds)}" if most > least else size.model: {
            name: middle([run.curve(least) for run in runs]) for name, runs in found.items()
        }
    }
    if most > least:
        panels[f"{size.model}, one seed"] = {
            name: middle([runs[0].curve(most)], 80)
            for name, runs in found.items()
            if schemes(size.groups)[name].is_long
        }
    return Result(tuple(rows), (_note(size),), picture("seconds", "accuracy", panels))


def _accuracies(runs: Sequence[Trained], beside: Sequence[Trained], rounds: int) -> str:
    ours = [100 * run.after(rounds) for run in runs]
    points = [a - 100 * b.after(rounds) for a, b in zip(ours, beside, strict=True)]
    told = setting.spread(ours, ".1f"), setting.spread(points, "+.1f")
    return f"after {rounds} rounds {told[0]} %, {told[1]}"


def _barred(runs: Sequence[Trained]) -> str:
    outlier, other = ([known(run.cosines[k], "cosines") for run in runs] for k in (0, 1))
    return (
        f"the filter bars {fmean(run.barred for run in runs):.0f} clients, "
        f"{fmean(run.right for run in runs):.0f} of them outliers; "
        f"mean cosines {fmean(outlier):.2f} of outliers, {fmean(other):.2f} of others"
    )


def _convergence(size: Size, bsp: Trained, turns: Trained) -> Row:
    """Return when both have converged by the paper's rule, with the longest run of each."""
    told = []
    times_s = []
    for name, run in (("BSP", bsp), ("FL-R²SP", turns)):
        end = run.converged()
        if end is None:
            told.append(f"{name} not in {run.looks[-1].rounds:.0f} rounds")
            continue
        best = max(accuracy for _, accuracy in run.curve(end.rounds))
        times_s.append(end.at_s)
        told.append(f"{name} {end.at_s:.0f} s, {end.rounds:.0f} rounds, at {best:.1%}")
    if len(times_s) > 1:
        told.append(f"{times_s[1] / times_s[0]:.2f} of BSP's time")
    bsp_s, turns_s = size.like.converged_s
    return Row(
        f"{size.model}: converged by the paper's rule, both with the filter (Table IV)",
        f"BSP {bsp_s:.0f} s, FL-R²SP {turns_s:.0f} s, {turns_s / bsp_s:.2f} of it",
        "; ".join(told),
        f"no new best in {_STAGNANT} rounds; with noise of evaluations this may come early",
        seeds="1",
    )


def _note(size: Size) -> str:
    return (
        f"{size.model} on {size.data}, {size.clients} clients in {size.groups} groups, a "
        f"quarter of them outliers, {size.steps} local steps of {size.batch} samples at a rate of "
        f"{size.rate:g} (the paper: 128 clients in 8, 100 steps at 0.01, a batch that it does not "
        "state). Groups are literal: they wait for their fraction. Ours: updates mixed, groups "
        "that bring as many updates a second, whichever is ready. Times as with a program as in "
        f"Table V, as fast for so many clients as it is there for 128. Accuracy of {_LOOKED_AT} "
        f"held-out samples, or all that there are, looked at each {size.like.round_s[1]:g} s: the "
        f"mean of the looks in the last {_LAST} rounds. A round is the median one of the clients "
        "that are never barred. Several seeds: means, the least to the most; no verdict, as there "
        "are fewer than eight. Barred: in all rounds."
    )


_FRACTIONS = (0.5, 0.75, 1.0)
_OF_FRACTIONS = 20  # rounds


def _make_fractions(lab: Lab) -> Result:
    size, rounds = (_QUICK, _QUICK_ROUNDS[0]) if lab.quick else (CNN, _OF_FRACTIONS)
    jobs = {
        (name, fraction): Run.of(schemes(size.groups, fraction)[name], size, lab.seed, rounds)
        for name in (_BESIDE, "FL-R²SP")
        for fraction in _FRACTIONS
    }
    made = lab.map(partial(train, size=size), [*jobs.values()], Trained)
    found = dict(zip(jobs, made, strict=True))
    rows = [
        Row(
            f"{size.model}, {name}: accuracy by the fraction C",
            "in the appendix, which we do not have",
            "; ".join(
                f"C = {fraction:g}: {found[name, fraction].after(rounds):.1%}, "
                f"{found[name, fraction].looks[-1].at_s:.0f} s"
                for fraction in _FRACTIONS
            ),
            f"{rounds} rounds; {_SMALLER[size.model]}",
            seeds="1",
        )
        for name in (_BESIDE, "FL-R²SP")
    ]
    return Result(tuple(rows), (_note(size),))


EXPERIMENTS = (
    *(
        Experiment(
            name,
            f"accuracy with outliers among clients, and convergence, {size.model}",
            partial(_make, whole=size, rounds=rounds),
        )
        for name, size, rounds in (
            ("r2sp/fig15", CNN, (300, 100, 100)),
            ("r2sp/fig15-lstm", LSTM, (300,)),
            ("r2sp/fig15-resnet20", RESNET20, (300,)),
        )
    ),
    Experiment("r2sp/fig15-fractions", "accuracy by the fraction C, lenet-5", _make_fractions),
)
