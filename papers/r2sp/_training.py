"""R²SP's claims about convergence, at a size that two cores can train.

The paper trains image models on CIFAR-10 and ImageNet, and transformers, with GPUs. Here a
perceptron with one hidden layer learns 8 x 8 digits, which come with scikit-learn, or a small
transformer learns a rule of tokens. If the model is n times smaller than the paper's, the network
is n times slower. So computing, pushing and pulling take the times of the paper's model. Gradients,
staleness and convergence are real, but those of another problem.

The best learning rate depends on the pace: stale updates need a lower one. So beside the comparison
at one rate for all, each pace has the rate with which it is quickest, found on other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from anabranch.fleet import Compute
from anabranch.overlay import Overlay
from anabranch.pace import AnyLoad, AnyPace
from anabranch.plan import Fapt, Packed
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Train
from papers._choice import FIRST, Choice, best_rate
from papers._compare import compared
from papers._lab import Lab, Label, Outcome, Trial
from papers._result import Row
from papers.r2sp import _setting as setting
from papers.r2sp._setting import EQUAL

BATCH = 1
_HIDDEN = 256
SEEDS = 8
_TUNING = (1000, 1001)  # added to the first seed: not among those that are measured
_MOST_ITERATIONS = 400
_CHUNKS = 8  # more make a simulation slower and iterations hardly longer
_CHUNKS_OF_TREES = 32  # two for each of 16 trees
_FALLEN = 0.2  # the paper's rule for AlexNet: the loss has fallen by 80 %


@dataclass(frozen=True, slots=True)
class Learner:
    """A model and task that replace the paper's.

    Args:
        what: their description.
        data, model, hidden, optimiser: see :class:`anabranch_lab.run.scenario.tasks.Train`.
        elements: the model's parameters.
        classes: of an answer, equally likely before training.
        target: the share of held-out answers that must be right.
        rate: the learning rate for all.
        first: the learning rate with which tuning begins.
        looked_at: held-out samples of an evaluation; None: all.
    """

    what: str
    data: Literal["digits", "pairs", "translation"]
    model: Literal["mlp", "bert-tiny", "t5-tiny"]
    elements: int
    classes: int
    target: float
    rate: float
    first: float
    hidden: tuple[int, ...] = ()
    optimiser: Literal["sgd", "adam"] = "sgd"
    looked_at: int | None = None

    @property
    def loss(self) -> float:
        """The bound below which the loss has fallen by as much as the paper asks."""
        return _FALLEN * math.log(self.classes)

    def note(self, quick: bool, batch: int = BATCH, tuned: bool = True) -> str:
        """Return a note on the training, and on how to read the values.

        Args:
            quick: whether there was one seed, and no tuning.
            batch: samples of a batch where no row says otherwise.
            tuned: whether rates were tuned, unless it was quick.
        """
        looked_at = "held-out samples"
        if self.looked_at is not None:
            looked_at = f"{self.looked_at} {looked_at}"
        found = (
            "One seed, and rates were not tuned."
            if quick
            else f"Times are medians of {SEEDS} seeds, the least to the most in parentheses; "
            "ratios are geometric means, seed by seed, with 95 % intervals of Student's t on their "
            "logarithms."
        )
        if tuned and not quick:
            found += (
                " Each one's best learning rate was found on two other seeds, by powers of two."
            )
        return (
            f"Trained: {self.what} ({self.elements:,} parameters) with {self.optimiser.upper()}, "
            f"batches of {batch} where not said otherwise, to {self.target:.0%} of {looked_at}, "
            "over a network as many times slower as it is smaller than the paper's model. By the "
            f"loss: once the mean loss of all workers' batches was below {self.loss:.2f} in 10 "
            f"iterations running, the paper's rule. {found}"
        )


DIGITS = Learner(
    what=f"8 x 8 digits, a perceptron with {_HIDDEN} hidden units",
    data="digits",
    model="mlp",
    hidden=(_HIDDEN,),
    elements=64 * _HIDDEN + _HIDDEN + 10 * _HIDDEN + 10,
    classes=10,
    target=0.97,
    rate=0.1,
    first=FIRST,
)


@dataclass(frozen=True, slots=True)
class Way:
    """How workers train.

    Args:
        pace: when they may proceed.
        load: equal batches or tuned ones.
        ahead: whether workers compute while their last update is on its way.
        batch: samples of a batch.
        paper: the paper's claim.
        all_reduces: use no servers: workers all-reduce along packed trees, under BSP.
    """

    pace: AnyPace
    load: AnyLoad = EQUAL
    ahead: bool = False
    batch: int = BATCH
    paper: str = ""
    all_reduces: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster in which workers train.

    Args:
        elements: of the paper's model, whose times the small model takes.
        compute: how long batches take.
        port_bps: of servers and workers.
        workers, servers: how many.
        learner: the model and task.
        looked_every: samples that a worker computes between two evaluations of the model.
    """

    elements: int
    compute: Compute
    port_bps: float = setting.PORT_BPS
    workers: int = setting.WORKERS
    servers: int = setting.SERVERS
    learner: Learner = DIGITS
    looked_every: float = 0.5

    def overlay(self, all_reduces: bool = False) -> Overlay:
        """Return the network, over which the small model takes the paper's transfer times.

        Args:
            all_reduces: leave out the servers.
        """
        rate_bps = self.port_bps * self.learner.elements / self.elements
        return setting.cluster(rate_bps, self.workers, 0 if all_reduces else self.servers)


def trial(
    way: Way,
    cluster: Cluster,
    rate: float,
    seed: int,
    limit_s: float = math.inf,
    **labels: Label,
) -> Trial:
    """Return a run that trains to the target.

    Args:
        way: how workers train.
        cluster: where they train.
        rate: the learning rate.
        seed: of data, model and jitter.
        limit_s: when it ends without the target, seconds.
        labels: further labels of the run.
    """
    overlay, learner = cluster.overlay(way.all_reduces), cluster.learner
    servers = tuple(site.name for site in overlay.sites if site.name.startswith("server-"))
    assert cluster.compute.samples_per_s is not None
    looks_s = cluster.looked_every / cluster.compute.samples_per_s
    scenario = Scenario(
        overlay=overlay.name,
        route=Packed() if way.all_reduces else Fapt(roots=servers),
        pace=way.pace,
        serve=None if way.all_reduces else Serve(only=servers, ahead=way.ahead),
        load=way.load,
        stop=Stop(
            rounds=_MOST_ITERATIONS,
            after_s=limit_s if math.isfinite(limit_s) else None,
            at_target=True,
        ),
        compute=cluster.compute,
        task=Train(
            data=learner.data,
            model=learner.model,
            hidden=learner.hidden,
            optimiser=learner.optimiser,
            learning_rate=rate,
            batch_size=way.batch,
            evaluate_every=1 if way.all_reduces else 10,
            evaluate_every_s=None if way.all_reduces else looks_s,
            evaluate_samples=learner.looked_at,
            target_accuracy=learner.target,
        ),
        chunk_elements=-(-learner.elements // (_CHUNKS_OF_TREES if way.all_reduces else _CHUNKS)),
        sample_every_s=1e6,
        seed=seed,
    )
    about = {**labels, "rate": rate, "seed": seed}
    return Trial(about, scenario, overlay, learner.loss, without=("workers", "gaps"))


def compare(
    lab: Lab, what: str, cluster: Cluster, ways: Mapping[str, Way], beside: Sequence[str]
) -> tuple[Row, ...]:
    """Train in each way, with one rate for all and with each way's best; return the rows.

    Args:
        lab: runs the trials.
        what: the beginning of each row's text.
        cluster: of all runs.
        ways: by name.
        beside: names of the ways that each is compared with.
    """
    seeds = range(lab.seed, lab.seed + (1 if lab.quick else SEEDS))
    tuning: list[Outcome] = []
    rates = {name: _rate(lab, name, way, cluster, tuning) for name, way in ways.items()}
    for_all = cluster.learner.rate
    wanted = {(name, rate) for name in ways for rate in (for_all, rates[name])}
    trials = [
        trial(way, cluster, rate, seed, name=name, use="measured")
        for name, way in ways.items()
        for rate in sorted({for_all, rates[name]})
        for seed in seeds
    ]
    measured = lab.measure(trials)
    runs = {
        pair: [o for o in measured if (o.labels["name"], o.labels["rate"]) == pair]
        for pair in wanted
    }
    rows = []
    for how, of in (("one rate", dict.fromkeys(ways, for_all)), ("best rate", rates)):
        for name, way in ways.items():
            others = {each: runs[each, of[each]] for each in beside if each != name}
            paper = way.paper if of is not rates else ""
            label = f"{what}, {how}: {name}"
            target = cluster.learner.target
            rows += rows_of(label, paper, of[name], runs[name, of[name]], others, target)
    return tuple(rows)


def _rate(lab: Lab, name: str, way: Way, cluster: Cluster, log: list[Outcome]) -> float:
    first = cluster.learner.first
    if lab.quick:
        return first

    def make(rate: float, seed: int, limit_s: float) -> Trial:
        return trial(way, cluster, rate, seed, limit_s, name=name, use="tuning")

    seeds = [lab.seed + k for k in _TUNING]
    found: Choice | None = best_rate(lab, make, seeds, math.inf, log, first)
    return first if found is None else found.rate


def rows_of(
    what: str,
    paper: str,
    rate: float,
    runs: Sequence[Outcome],
    beside: Mapping[str, Sequence[Outcome]],
    target: float,
) -> list[Row]:
    """Return the times of runs, by the accuracy and by the loss, and beside others.

    Args:
        what: the beginning of each row's text.
        paper: the paper's claim.
        rate: the learning rate.
        runs: of all seeds.
        beside: other ways' runs with the same seeds, by name.
        target: of the accuracy.
    """
    by_accuracy = _reached(runs)
    by_loss = _seconds([run.loss_fell_s for run in runs])
    iterations = [run.reached_updates for run in runs if run.reached_updates is not None]
    told = _spread(by_accuracy)
    if iterations:
        told += f", {fmean(iterations):.0f} iterations"
    rows = [
        Row(f"{what}: learning rate", "", f"{rate:g}"),
        Row(f"{what}: to {target:.0%}", paper, told),
        *(
            Row(f"{what}: of {name}'s time", "", compared(by_accuracy, _reached(others)))
            for name, others in beside.items()
        ),
        Row(f"{what}: by the loss", "", _spread(by_loss)),
    ]
    for name, others in beside.items():
        theirs = _seconds([run.loss_fell_s for run in others])
        rows.append(Row(f"{what}: by the loss, of {name}'s time", "", compared(by_loss, theirs)))
    return rows


def _reached(runs: Sequence[Outcome]) -> list[float]:
    return _seconds([run.reached_s for run in runs])


def _seconds(times_s: Sequence[float | None]) -> list[float]:
    return [math.inf if each is None else each for each in times_s]


def _spread(times_s: Sequence[float]) -> str:
    reached = [each for each in times_s if math.isfinite(each)]
    if not reached:
        return "not reached"
    told = f"{median(reached):.3g} ({min(reached):.3g} to {max(reached):.3g}) s"
    return told if len(reached) == len(times_s) else f"{told}, in {len(reached)} of {len(times_s)}"
