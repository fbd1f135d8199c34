"""Runs of the intermittent paper's tables: literal ones by a lab's map, ours in simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from anabranch.fleet import Compute
from anabranch.log.events import ReachedBy
from anabranch.train.work import DivergedError
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Train
from papers._lab import Lab
from papers._trial import Label, Outcome, Trial
from papers._tuning import Tuned, Wanted, search, times_s, together
from papers.intermittent._literal import Edges, Literal, Looks, all_reduce, gossip, timed
from papers.intermittent._strategies import (
    BATCHES,
    EVERY,
    FIRST_RATE,
    FITTED_S,
    LATENCY_S,
    LETTERS,
    LOOK_EVERY,
    LOOK_SAMPLES,
    MOST_ITERATIONS,
    SEEDS,
    TARGET,
    TRAINING_SAMPLES,
    TUNING,
    UNTIL,
    network,
    ours,
)

_NOTE = (
    "MNIST, LeNet-5 (the paper: a CNN that it does not describe), plain SGD (the paper does not "
    "state its rate), shards alike, {batch} samples an iteration: {batches} batches of a shard, as "
    "in the paper. Latencies of 1 to 5 s drift by up to half a second with each message, drawn "
    "anew with each of {seeds} seeds. The paper does not state the time of an iteration: here "
    "{step_s:g} s. Seconds until "
    "the first node's model reaches {target:.0%} of the first {samples} held-out samples, unless a "
    "row says otherwise; medians, the least to the most in parentheses, and how many of the seeds "
    "reach it where not all do. An all-reduce ends after {iterations} iterations, other runs after "
    "{longest_s:g} s. Each strategy has the rate, of rates a factor of two apart, with which its "
    "first node is at the target soonest on {others}; plain gossip, and all-reduces of ours, have "
    "the literal one's. Ratios are geometric means, seed by seed, with 95 % intervals "
    "of Student's t on their logarithms; where the interval has 1 in it, there is no difference."
)
QUICK_NOTE = "Quick: two seeds of a perceptron on 8 x 8 digits; says that it runs, no more."
OURS = "ours: "
"""Begins the names of our strategies' rates."""

LiteralRuns = Mapping[str, Sequence[Literal]]
OwnRuns = Mapping[str, Sequence[Outcome]]
"""Runs by strategy, in order of their seeds."""

Run = TypeVar("Run")


@dataclass(frozen=True, slots=True)
class Job:
    """A run of the paper's strategy.

    Args:
        strategy: its name.
        nodes: how many.
        task: what they train; its learning rate is the strategy's.
        seed: of latencies, data and models.
        looks: at the models.
        most_iterations: when the run ends in any case.
        step_s: of an iteration, where models depend on it; 0: where they do not.
        longest_s: when a run with such a time ends in any case.
    """

    strategy: str
    nodes: int
    task: Train
    seed: int
    looks: Looks
    most_iterations: int
    step_s: float = 0.0
    longest_s: float = 0.0


@dataclass(slots=True)
class Made:
    """What a job came to.

    Args:
        seen: of an all-reduce, the accuracies of each look, shape (looks, nodes).
        run: of gossip.
    """

    seen: list[list[float]]
    run: Literal


def _made(job: Job, data_dir: Path | None) -> Made:
    """Run one of the paper's strategies with one seed."""
    import torch

    from anabranch.train.optimisers import Sgd
    from anabranch_lab.tasks.kinds import load_task
    from anabranch_lab.tasks.models import build_model
    from anabranch_lab.tasks.train import Trainer

    torch.set_num_threads(1)
    task, nodes, seed = job.task, job.nodes, job.seed
    data = load_task(task.data, data_dir)
    shards = task.partition.deal(data.train_labels.numpy(), nodes, seed, least=task.batch_size)
    trainers = [
        Trainer(
            data,
            build_model(task.model, data.shape, data.classes, seed, hidden=None, vocabulary=None),
            shard,
            Sgd(task.learning_rate),
            task.batch_size,
            seed=seed * nodes + node,
        )
        for node, shard in enumerate(shards)
    ]
    try:
        if job.strategy in EVERY:
            every = EVERY[job.strategy]
            seen = all_reduce(trainers, every, job.looks, job.most_iterations)
            return Made([[round(each, 4) for each in look] for look in seen], Literal())
        letters = LETTERS[job.strategy]
        of = Edges(nodes, seed), letters, job.step_s, job.looks, job.longest_s, seed
        return Made([], gossip(trainers, *of))
    except DivergedError:
        return Made([], Literal())


class Runs:
    """The runs of one table.

    Args:
        lab: makes the runs.
        nodes: how many.
        literal, own: the names of the strategies.
        step_s: the time of an iteration, seconds; None: that which fits the paper's.
        tuning: seeds that choose rates, counted from the first.

    Attributes:
        nodes, step_s: see above.
        batch: samples of an iteration.
        seeds: of the measured runs.
        tuned: each strategy's learning rate; the names of ours begin with `OURS`.
        note: what was run.
    """

    def __init__(
        self,
        lab: Lab,
        nodes: int,
        literal: Sequence[str],
        own: Sequence[str],
        step_s: float | None = None,
        tuning: Sequence[int] = TUNING,
    ) -> None:
        self._lab, self.nodes, self._tuning = lab, nodes, tuning
        self.step_s = FITTED_S[nodes] if step_s is None else step_s
        self.batch = 16 if lab.quick else round(TRAINING_SAMPLES / nodes / BATCHES)
        self.seeds = range(lab.seed, lab.seed + (2 if lab.quick else SEEDS))
        self._ours = ours(nodes)
        self._literal, self._own = literal, own
        self.tuned = self._tuned()
        self.note = _NOTE.format(
            batch=self.batch,
            batches=BATCHES,
            seeds=len(self.seeds),
            step_s=self.step_s,
            target=TARGET,
            samples=LOOK_SAMPLES[nodes],
            iterations=MOST_ITERATIONS[nodes],
            longest_s=self.longest_s,
            others="another seed" if len(tuning) == 1 else f"{len(tuning)} other seeds",
        )

    # --- runs

    def _task(self, rate: float) -> Train:
        quick = self._lab.quick
        return Train(
            data="digits" if quick else "mnist",
            model="mlp" if quick else "lenet-5",
            learning_rate=rate,
            batch_size=self.batch,
            evaluate_every=LOOK_EVERY[self.nodes],
            evaluate_samples=LOOK_SAMPLES[self.nodes],
            target_accuracy=TARGET,
        )

    @property
    def longest_s(self) -> float:
        """When a run ends in any case, seconds."""
        return MOST_ITERATIONS[self.nodes] * (self.step_s + LATENCY_S)

    def _job(self, name: str, rate: float, seed: int, until: ReachedBy) -> Job:
        nodes = self.nodes
        looks = Looks(LOOK_EVERY[nodes], LOOK_SAMPLES[nodes], TARGET, until)
        job = Job(name, nodes, self._task(rate), seed, looks, MOST_ITERATIONS[nodes])
        if name in EVERY:
            return job
        return replace(job, step_s=self.step_s, longest_s=self.longest_s)

    def _timed(self, job: Job, made: Made) -> Literal:
        if made.run.reached_by or not made.seen:
            return made.run
        edges = Edges(job.nodes, job.seed)
        return timed(made.seen, edges, EVERY[job.strategy], self.step_s, job.looks)

    def literal(self) -> LiteralRuns:
        """Return runs of the paper's strategies."""
        names = self._literal
        jobs = [
            self._job(name, self.tuned[name].rate, seed, UNTIL)
            for name in names
            for seed in self.seeds
        ]
        made = self._lab.map(_made, jobs, Made)
        runs = [self._timed(job, each) for job, each in zip(jobs, made, strict=True)]
        return self._by_name(names, runs)

    def own(self) -> OwnRuns:
        """Return runs of our strategies."""
        names = self._own
        trials = [
            self._trial(name, self.tuned[f"{OURS}{name}"].rate, seed, UNTIL, self.longest_s)
            for name in names
            for seed in self.seeds
        ]
        return self._by_name(names, self._lab.measure(trials))

    def _by_name(self, names: Sequence[str], runs: Sequence[Run]) -> dict[str, list[Run]]:
        many = len(self.seeds)
        return {name: [*runs[at * many : (at + 1) * many]] for at, name in enumerate(names)}

    def _trial(self, name: str, rate: float, seed: int, until: ReachedBy, most_s: float) -> Trial:
        of, task, nodes, step_s = self._ours[name], self._task(rate), self.nodes, self.step_s
        scenario = Scenario(
            overlay="intermittent",
            route=of.route,
            period=of.period,
            gossip=of.how,
            merge=of.merge,
            task=task,
            stop=Stop(rounds=100_000, after_s=most_s, at_target=True, reached_by=until),
            compute=Compute(samples_per_s=task.batch_size / step_s),
            sample_every_s=1e6,
            seed=seed,
        )
        without = ("curve",) if until == "first" else ()
        labels: dict[str, Label] = {"strategy": name, "step_s": step_s, "rate": rate, "seed": seed}
        return Trial(labels, scenario, network(nodes, seed, of.near), without=without)

    def _tuned(self) -> dict[str, Tuned[str]]:
        """Return each strategy's best rate on seeds that are not measured."""
        twins = {name: rate_of for name in self._own if (rate_of := self._ours[name].rate_of)}
        own = [f"{OURS}{name}" for name in self._own if name not in twins]
        names = list(dict.fromkeys([*self._literal, *twins.values(), *own]))
        found = {name: Tuned(name, FIRST_RATE, ()) for name in names}
        if not self._lab.quick:
            seeds = [self._lab.seed + each for each in self._tuning]
            longest_s = self.longest_s
            searches = {name: search([name], FIRST_RATE, seeds, longest_s) for name in names}
            found = together(searches, self._times_s)
        return found | {f"{OURS}{name}": found[rate_of] for name, rate_of in twins.items()}

    def _times_s(self, wanted: Sequence[tuple[str, Wanted[str]]]) -> list[float | None]:
        """Return when tuning runs first reached the target."""
        trials: dict[int, Trial] = {}  # by their place among the wanted
        jobs: dict[int, Job] = {}
        for place, (name, each) in enumerate(wanted):
            if name.startswith(OURS):
                of = name.removeprefix(OURS), each.rate, each.seed
                trials[place] = self._trial(*of, "first", each.most_s)
                continue
            job = self._job(name, each.rate, each.seed, "first")
            least_s = self.step_s + (LATENCY_S / EVERY[name] if name in EVERY else 0.0)
            fits = min(job.most_iterations, math.ceil(each.most_s / least_s))
            longest_s = min(job.longest_s, each.most_s)
            jobs[place] = replace(job, most_iterations=fits, longest_s=longest_s)
        made = self._lab.map(_made, [*jobs.values()], Made)
        found = dict(zip(trials, times_s(self._lab, [*trials.values()]), strict=True))
        for (place, job), done in zip(jobs.items(), made, strict=True):
            found[place] = self._timed(job, done).reached_by.get("first")
        return [found[place] for place in range(len(wanted))]
