"""R²SP's claims about convergence, at sizes that two cores can train.

The paper trains image models on CIFAR-10 and ImageNet, and transformers, with GPUs. Here a learner
replaces its model: a perceptron on digits, networks of one or two million parameters on CIFAR-10,
or small transformers on rules of tokens. If the learner is n times smaller than the paper's model,
the network is n times slower. So computing, pushing and pulling take the times of the paper's
model, and their ratio is that of its Table I. Gradients, staleness and convergence are real, but
those of another problem.

The best learning rate depends on the pace: stale updates need a lower one. So beside the runs at
one rate for all, as the paper has, each way has the rate with which it is quickest, found on other
seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from anabranch.fleet import Compute
from anabranch.overlay import Overlay
from anabranch.pace import AnyLoad, AnyPace
from anabranch.plan import Fapt, Packed
from anabranch.train.schedules import AnySchedule, Constant
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Train
from papers._compare import compared, or_never, spread_s
from papers._lab import Lab
from papers._picture import middle, picture
from papers._result import Row
from papers._trial import Label, Outcome, Trial, chosen
from papers._tuning import Make, Tuned, best_rates
from papers.r2sp import _setting as setting
from papers.r2sp._setting import EQUAL

_HIDDEN = 256
_ENOUGH_SEEDS = 8  # for a verdict
_TUNING = (1000, 1001)  # added to the first seed: not among those that are measured
_CHUNKS = 8  # more make a simulation slower and iterations hardly longer
_CHUNKS_OF_TREES = 32  # two for each of 16 trees
_CONSTANT = Constant()


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
        batch: samples of a batch, unless a way has its own.
        iterations: the most that a worker makes.
        fallen: the part of the loss before training below which the paper's rule stops.
        seeds: how many are measured.
        tuning: how many seeds choose a rate.
    """

    what: str
    data: str
    model: str
    elements: int
    classes: int
    target: float
    rate: float
    first: float
    hidden: tuple[int, ...] = ()
    optimiser: str = "sgd"
    looked_at: int | None = None
    batch: int = 1
    iterations: int = 400
    fallen: float = 0.2
    seeds: int = 8
    tuning: int = 2

    @property
    def loss(self) -> float:
        """The bound below which the loss has fallen by as much as the paper asks."""
        return self.fallen * math.log(self.classes)

    def note(self, quick: bool, tuned: bool = True) -> str:
        """Return a note on the training, and on how to read the values.

        Args:
            quick: whether there was one seed, and no tuning.
            tuned: whether rates were tuned, unless it was quick.
        """
        looked_at = "held-out samples"
        if self.looked_at is not None:
            looked_at = f"{self.looked_at} {looked_at}"
        found = (
            "One seed, and rates were not tuned."
            if quick
            else f"Times are medians of {self.seeds} seeds, the least to the most in parentheses; "
            "ratios are geometric means, seed by seed, with 95 % intervals of Student's t on their "
            "logarithms."
        )
        if tuned and not quick:
            others = "another seed" if self.tuning == 1 else f"{self.tuning} other seeds"
            found += (
                f" Literal: the rate {self.rate:g} for all. Ours: each one's best rate, found on "
                f"{others} in factors of two."
            )
        if self.seeds < _ENOUGH_SEEDS and not quick:
            found += " No verdict, as there are fewer than eight seeds."
        return (
            f"Trained: {self.what} ({self.elements:,} parameters) with {self.optimiser.upper()}, "
            f"batches of {self.batch} where not said otherwise, to {self.target:.0%} of "
            f"{looked_at}, over a network as many times slower as it is smaller than the paper's "
            "model. By the loss: once the mean loss of all workers' batches was below "
            f"{self.loss:.2f} in 10 iterations running, the paper's rule for a fall of "
            f"{1 - self.fallen:.0%}. {found}"
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
    first=0.2,
)
ALEXNET_LIKE = Learner(
    what="CIFAR-10 (four of its files), two convolutions and two linear layers, most parameters in "
    "the latter as in AlexNet",
    data="cifar-10-part",
    model="cnn",
    elements=2_156_490,
    classes=10,
    target=0.35,
    rate=0.05,
    first=0.05,
    looked_at=500,
    batch=8,
    iterations=1000,
    fallen=0.8,
    seeds=3,
    tuning=1,
)
RESNET_LIKE = Learner(
    what="CIFAR-10 (four of its files), a residual network of 20 layers, wide and on half the "
    "pixels each way",
    data="cifar-10-part",
    model="resnet-20-wide",
    elements=1_073_962,
    classes=10,
    target=0.3,
    rate=0.2,
    first=0.2,
    looked_at=500,
    batch=4,
    iterations=1500,
    fallen=0.9,
    seeds=3,
    tuning=1,
)


WINDOW = 5
"""Iterations of BSP in which evaluations are averaged, see :attr:`Cluster.window_s`."""


def window_note(window_s: float) -> str:
    """Return a note on when the target counts."""
    return (
        f"The target counts in the mean of the evaluations in {window_s:g} s, {WINDOW} iterations "
        "of Table I."
    )


@dataclass(frozen=True, slots=True)
class Way:
    """How workers train.

    Args:
        pace: when they may proceed.
        load: equal batches or tuned ones.
        ahead: whether workers compute while their last update is on its way.
        batch: samples of a batch; None: the learner's.
        paper: the paper's claim.
        why: the row's reason.
        all_reduces: use no servers: workers all-reduce along packed trees, under BSP.
        schedule: of the learning rate.
        is_ours: whether it is no scheme of the paper, so that it runs at its best rate alone.
        first: the learning rate with which tuning begins; None: the learner's.
    """

    pace: AnyPace
    load: AnyLoad = EQUAL
    ahead: bool = False
    batch: int | None = None
    paper: str = ""
    why: str = ""
    all_reduces: bool = False
    schedule: AnySchedule = _CONSTANT
    is_ours: bool = False
    first: float | None = None


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
        window_s: the target counts in the mean of the evaluations in so many seconds. Where updates
            come one by one a noisy model is evaluated more often than under BSP, and with no window
            it would reach the target sooner by one high evaluation.
    """

    elements: int
    compute: Compute
    window_s: float
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
            rounds=learner.iterations,
            after_s=limit_s if math.isfinite(limit_s) else None,
            at_target=True,
            window_s=cluster.window_s,
        ),
        compute=cluster.compute,
        task=Train(
            data=learner.data,  # type: ignore[arg-type]
            model=learner.model,  # type: ignore[arg-type]
            hidden=learner.hidden,
            optimiser=learner.optimiser,  # type: ignore[arg-type]
            learning_rate=rate,
            schedule=way.schedule,
            batch_size=way.batch or learner.batch,
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
    unused = ("workers", "gaps", "accuracy_by_site")
    return Trial(about, scenario, overlay, learner.loss, without=unused)


@dataclass(frozen=True, slots=True)
class Compared:
    """Ways beside each other.

    Args:
        rows: one for each way.
        ours: runs at each way's best rate, by the way's name, in order of the seeds.
        literal: runs at one rate for all; without the ways that are ours.
    """

    rows: tuple[Row, ...]
    ours: Mapping[str, Sequence[Outcome]]
    literal: Mapping[str, Sequence[Outcome]]

    def iterations(
        self, what: str, beside: str, paper: Mapping[str, str], names: Sequence[str] = ()
    ) -> list[Row]:
        """Return rows of how many iterations each way takes to the target, over one way's.

        Args:
            what: the beginning of each row's text.
            beside: the way that others are compared with.
            paper: the paper's claims, by way.
            names: of the ways that have a row; empty for all.
        """

        def of(run: Outcome) -> float:
            return or_never(run.reached_updates)

        return self._over(f"{what}, iterations", beside, paper, of, names)

    def lengths(self, what: str, beside: str, paper: Mapping[str, str]) -> list[Row]:
        """Return rows of how long an iteration of each way takes, over one way's.

        Args:
            what, beside, paper: see :meth:`iterations`.
        """
        return self._over(f"{what}, length of an iteration", beside, paper, lambda run: run.round_s)

    def _over(
        self,
        what: str,
        beside: str,
        paper: Mapping[str, str],
        measure: Callable[[Outcome], float],
        names: Sequence[str] = (),
    ) -> list[Row]:
        def over(runs: Mapping[str, Sequence[Outcome]], name: str) -> str:
            if name not in runs:
                return ""
            return compared(*(list(map(measure, runs[of])) for of in (name, beside)))

        return [
            Row(
                f"{what}: {name} over {beside}",
                paper.get(name, ""),
                over(self.ours, name),
                literal=over(self.literal, name),
                seeds=f"{len(runs)}",
            )
            for name, runs in self.ours.items()
            if name != beside and name in (names or self.ours)
        ]

    def drawn(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Return the median curves of these ways, or of all, as a picture."""
        panels = {
            how: {name: middle([run.curve for run in runs[name]]) for name in names or runs}
            for how, runs in (("one rate for all", self.literal), ("each one's best", self.ours))
        }
        return picture("seconds", "accuracy", panels)


def compare(
    lab: Lab, what: str, cluster: Cluster, ways: Mapping[str, Way], beside: Sequence[str]
) -> Compared:
    """Train in each way, with one rate for all and with each way's best; one row for each way.

    Args:
        lab: runs the trials.
        what: the beginning of each row's text.
        cluster: of all runs.
        ways: by name.
        beside: names of the ways that each is compared with.
    """
    learner = cluster.learner
    seeds = lab.seeds(learner.seeds)
    tuned = rates(lab, ways, cluster)
    wanted = {name: {tuned[name].rate, learner.rate} for name in ways}
    wanted |= {name: {tuned[name].rate} for name, way in ways.items() if way.is_ours}
    measured = lab.measure(
        [
            trial(way, cluster, rate, seed, name=name, use="measured")
            for name, way in ways.items()
            for rate in sorted(wanted[name])
            for seed in seeds
        ],
        may_abort=True,
    )

    def of(name: str, rate: float) -> list[Outcome]:
        return chosen(measured, name=name, rate=rate)

    ours = {name: of(name, tuned[name].rate) for name in ways}
    literal = {name: of(name, learner.rate) for name, way in ways.items() if not way.is_ours}
    rows = []
    for name, way in ways.items():
        told = told_of(ours[name], {each: ours[each] for each in beside if each != name})
        others = {each: literal[each] for each in beside if each != name}
        said = told_of(literal[name], others) if name in literal else ""
        rows.append(
            Row(
                f"{what}: {name}",
                way.paper,
                f"rate {tuned[name].rate_told}: {told}",
                way.why,
                literal=said,
                seeds=f"{len(seeds)}",
            )
        )
    return Compared(tuple(rows), ours, literal)


def rates(lab: Lab, ways: Mapping[str, Way], cluster: Cluster) -> dict[str, Tuned[None]]:
    """Return each way's best learning rate; if the lab is quick, the first of its search."""
    learner = cluster.learner
    first = {name: way.first or learner.first for name, way in ways.items()}
    if lab.quick:
        return {name: Tuned(None, rate, ()) for name, rate in first.items()}

    def of(name: str) -> Make:
        return lambda rate, seed, limit_s: trial(
            ways[name], cluster, rate, seed, limit_s, name=name, use="tuning"
        )

    seeds = [lab.seed + k for k in _TUNING[: learner.tuning]]
    return best_rates(lab, {name: of(name) for name in ways}, first, seeds)[0]


def told_of(runs: Sequence[Outcome], beside: Mapping[str, Sequence[Outcome]]) -> str:
    """Return the times of runs, by the accuracy and by the loss, and beside others, as text.

    Args:
        runs: of all seeds.
        beside: other ways' runs with the same seeds, by name.
    """
    by_accuracy = [or_never(run.reached_s) for run in runs]
    iterations = [run.reached_updates for run in runs if run.reached_updates is not None]
    told = spread_s(by_accuracy)
    if iterations:
        told += f", {fmean(iterations):.0f} iterations"
    for name, others in beside.items():
        theirs = [or_never(run.reached_s) for run in others]
        told += f"; of {name}'s time {compared(by_accuracy, theirs)}"
    by_loss = [or_never(run.loss_fell_s) for run in runs]
    if any(map(math.isfinite, by_loss)):
        told += f"; by the loss {spread_s(by_loss)}"
        for name, others in beside.items():
            theirs = [or_never(run.loss_fell_s) for run in others]
            told += f", of {name}'s {compared(by_loss, theirs)}"
    return told
