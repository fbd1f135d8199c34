"""Malik, Qi and Dalla, Tables I and II, and figures 1 to 4: six strategies on 3 and 9 nodes.

The paper's strategies run literally (:mod:`._literal`). Beside them, ours run on the same network
with the same latencies, in the simulated world, over our data plane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median

from anabranch.fleet import Compute
from anabranch.log.events import REACHED_BY, ReachedBy
from anabranch.merge import AnyMerge, Mean, Staleness
from anabranch.overlay import Link, Overlay, Site
from anabranch.period import AnyPeriod, Every, EveryStep, Gossip, NearPeers, RandomPeers
from anabranch.plan import Star
from anabranch_lab.run.scenario import Scenario, Stop
from anabranch_lab.run.scenario.tasks import Train
from papers._experiment import Experiment
from papers._lab import Lab, Outcome, Trial
from papers._picture import middle
from papers._result import Result, Row
from papers.intermittent._literal import (
    Edges,
    Literal,
    all_reduce,
    gossip,
    strategies,
)

TARGET = 0.9
SEEDS = 10
LEARNING_RATE = 0.2
BATCHES = 90  # of a shard; the paper has 30
LOOK_SAMPLES = {3: 1000, 9: 500}
UNTIL: ReachedBy = "all"  # a run ends when all sites are at the target
# Seconds of an iteration, by nodes. They follow from the paper's All-Reduce-1 and -2 together, if
# both take equally many iterations and a cycle takes its largest latency on average.
STEP_S = {3: 1.7, 9: 4.6}
LONGEST_S = {3: 400.0, 9: 1200.0}
LOOK_EVERY = {3: 1, 9: 3}
TRAINING_SAMPLES = 60_000
PAPER_S: Mapping[int, Mapping[str, str]] = {
    3: {
        "all-reduce-1": "173.56",
        "all-reduce-2": "110.92",
        "all-reduce-4": "80.14",
        "all-reduce-8": "106.69",
        "gossip-random": "142.41",
        "gossip-latency": "146.55",
    },
    9: {
        "all-reduce-1": "642.94",
        "all-reduce-2": "461.17",
        "all-reduce-4": "554.19",
        "all-reduce-8": "531.95",
        "gossip-random": "never",
        "gossip-latency": "never",
    },
}
_NOTE = (
    "MNIST, LeNet-5, plain SGD at a rate of {rate}, shards alike, {batch} samples an iteration "
    "(the paper: a CNN that it does not describe, three times as many, a rate that it does not "
    "state); latencies of 1 to 5 s, drifting by up to half a second with each message, drawn anew "
    "with each of {seeds} seeds; an iteration takes {step_s:g} s, as fits the paper's first two "
    "rows. Seconds until the first site's model reaches {target:.0%} of {samples} held-out "
    "samples; medians, the least to the most in parentheses, and how many of the seeds reach it "
    "within {longest_s:g} s where not all do."
)
_QUICK_NOTE = "Quick: two seeds of a perceptron on 8 x 8 digits; says that it runs, no more."
_HALF = RandomPeers(share=0.5)
_LATER: tuple[ReachedBy, ...] = ("mean", "all")


def _ours() -> dict[str, tuple[AnyPeriod, Gossip | None, AnyMerge]]:
    """Return our strategies, by name."""
    return {
        "every-step": (EveryStep(), None, Mean()),
        **{f"every-{k}": (Every(steps=k), None, Mean()) for k in (2, 4, 8)},
        "plain, half": (EveryStep(), Gossip(peers=_HALF, rule="plain"), Mean()),
        "push-sum, half, by age, at most 4 ahead": (
            EveryStep(),
            Gossip(peers=_HALF, rule="push-sum", most_ahead=4),
            Staleness(a=0.5),
        ),
        "pairs, half": (EveryStep(), Gossip(peers=_HALF), Mean()),
        "pairs, by latency": (EveryStep(), Gossip(peers=NearPeers()), Mean()),
    }


def network(nodes: int, seed: int) -> Overlay:
    """Return the paper's complete graph, with the latencies of :class:`._literal.Edges`."""
    edges = Edges(nodes, seed)
    return Overlay(
        f"intermittent-{nodes}-{seed}",
        tuple(Site(f"site-{node + 1}") for node in range(nodes)),
        tuple(
            Link(source, target, 100e6, latency_s, latency_drift_s=0.5)
            for source in range(nodes)
            for target, latency_s in edges.from_node(source).items()
        ),
    )


def _task(lab: Lab, nodes: int) -> Train:
    return Train(
        data="digits" if lab.quick else "mnist",
        model="mlp" if lab.quick else "lenet-5",
        learning_rate=LEARNING_RATE,
        batch_size=_batch(lab, nodes),
        evaluate_every=LOOK_EVERY[nodes],
        evaluate_samples=LOOK_SAMPLES[nodes],
        target_accuracy=TARGET,
    )


def _batch(lab: Lab, nodes: int) -> int:
    return 16 if lab.quick else TRAINING_SAMPLES // nodes // BATCHES


def _trial(lab: Lab, nodes: int, name: str, seed: int) -> Trial:
    period, how, merge = _ours()[name]
    task = _task(lab, nodes)
    scenario = Scenario(
        overlay="intermittent",
        route=Star(hub="site-1"),
        period=period,
        gossip=how,
        merge=merge,
        task=task,
        stop=Stop(
            rounds=100_000,
            after_s=LONGEST_S[nodes],
            at_target=True,
            reached_by=UNTIL,
        ),
        compute=Compute(samples_per_s=task.batch_size / STEP_S[nodes]),
        seed=seed,
    )
    return Trial({"strategy": name, "seed": seed}, scenario, network(nodes, seed))


def _literal(job: tuple[str, int], nodes: int, task: Train, data_dir: Path | None) -> Literal:
    """Run one of the paper's strategies with one seed."""
    import torch

    from anabranch.train.optimisers import Sgd
    from anabranch_lab.tasks.kinds import load_task
    from anabranch_lab.tasks.models import build_model
    from anabranch_lab.tasks.train import Trainer

    torch.set_num_threads(1)
    name, seed = job
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
    how = dict(strategies())[name]
    looks = LOOK_EVERY[nodes], LOOK_SAMPLES[nodes], TARGET
    common = STEP_S[nodes], *looks, LONGEST_S[nodes], UNTIL
    if isinstance(how, int):
        return all_reduce(trainers, Edges(nodes, seed), how, *common)
    return gossip(trainers, Edges(nodes, seed), how, *common, seed)


def _told(found: Sequence[float | None]) -> str:
    """Return seconds to the target over the seeds, as text."""
    reached = [each for each in found if each is not None]
    if not reached:
        return f"never, {len(found)} seeds"
    told = f"{median(reached):.0f} ({min(reached):.0f} to {max(reached):.0f})"
    return told if len(reached) == len(found) else f"{told}, {len(reached)} of {len(found)}"


def _make(lab: Lab, nodes: int) -> Result:
    seeds = range(lab.seed, lab.seed + (2 if lab.quick else SEEDS))
    jobs = [(name, seed) for name, _ in strategies() for seed in seeds]
    literal = dict(
        zip(
            jobs,
            lab.map(partial(_literal, nodes=nodes, task=_task(lab, nodes)), jobs, Literal),
            strict=True,
        )
    )
    trials = [_trial(lab, nodes, name, seed) for name in _ours() for seed in seeds]
    outcomes = lab.measure(trials)
    rows, curves = [], {}
    for name, _ in strategies():
        runs = [literal[name, seed] for seed in seeds]
        firsts = [run.reached_by["first"] for run in runs]
        rows.append(Row(f"{name}, as the paper has it", PAPER_S[nodes][name], _told(firsts)))
        rows += [
            Row(f"{name}: {rule} of the sites", "", _told([run.reached_by[rule] for run in runs]))
            for rule in _LATER
        ]
        curves[f"{name}, literal"] = middle([run.curve for run in runs])
    for name in _ours():
        ours = [each for each in outcomes if each.labels["strategy"] == name]
        rows.append(Row(f"ours: {name}", "", _told([_at_s(each, "first") for each in ours])))
        rows += [
            Row(
                f"ours: {name}: {rule} of the sites",
                "",
                _told([_at_s(each, rule) for each in ours]),
            )
            for rule in _LATER
        ]
        rows.append(Row(f"ours: {name}: of all links until the first", "", _megabytes(ours)))
        curves[name] = middle([each.curve for each in ours])
    note = _NOTE.format(
        rate=LEARNING_RATE,
        batch=_batch(lab, nodes),
        seeds=len(seeds),
        step_s=STEP_S[nodes],
        target=TARGET,
        samples=LOOK_SAMPLES[nodes],
        longest_s=LONGEST_S[nodes],
    )
    data = {
        "literal": [
            {"strategy": name, "seed": seed, **asdict(run)} for (name, seed), run in literal.items()
        ],
        "median_curves": curves,
        "reached_by_rules": list(REACHED_BY),
    }
    notes = (note, _QUICK_NOTE) if lab.quick else (note, *_verdicts(nodes, literal, seeds))
    return Result(tuple(rows), notes, data)


def _at_s(outcome: Outcome, rule: str) -> float | None:
    """Return when the target was reached by a rule; if all sites share one model, rules agree."""
    return outcome.reached_by.get(rule, outcome.reached_s)


def _megabytes(outcomes: Sequence[Outcome]) -> str:
    sent = [each.sent_by.get("first", each.sent_bytes) for each in outcomes]
    known = [each / 1e6 for each in sent if each is not None]
    return f"{median(known):.0f} MB" if known else "none reaches it"


def _verdicts(
    nodes: int, literal: Mapping[tuple[str, int], Literal], seeds: Sequence[int]
) -> list[str]:
    """Return how often each of the paper's strategies is the first of a seed, as text."""
    wins: dict[str, int] = {}
    for seed in seeds:
        found = {
            name: run.reached_by["first"]
            for (name, of), run in literal.items()
            if of == seed and run.reached_by["first"] is not None
        }
        if found:
            best = min(found, key=lambda name: found[name] or 0.0)
            wins[best] = wins.get(best, 0) + 1
    told = ", ".join(f"{name} {count}" for name, count in sorted(wins.items()))
    return [f"The first of the paper's six, by seed, with {nodes} nodes: {told}."]


EXPERIMENTS = tuple(
    Experiment(
        f"intermittent/table{number}",
        f"time to accuracy with {nodes} nodes over latencies that drift",
        partial(_make, nodes=nodes),
    )
    for number, nodes in ((1, 3), (2, 9))
)
