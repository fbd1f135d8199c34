"""The paper's strategies as it describes them (II), without our data plane: models and latencies.

Nodes train in turn. A directed edge has a latency, drawn uniformly from 1 to 5 s. After each use
it moves by up to half a second, either way. A node's iteration is one mini-batch, of constant time.
The text leaves some points open. This module decides:

- "the overall latency of an all-reduce cycle is the maximum latency of that cycle": every node
  sends its model to every other, so a cycle takes the largest of all edges' latencies, once.
- A node that gossips waits until all models that it sent have arrived. The paper has "additional
  latency", which this waiting explains. Then it replaces its model by the mean of its own model and
  all models that have arrived since its last mean. It sends to half of its neighbours, rounded up,
  or to one of them with probability 1 / (l_i T).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from anabranch.log.events import REACHED_BY, Evaluated, ReachedBy
from anabranch.log.target import Target
from anabranch.period import NearPeers, RandomPeers
from anabranch.period.peers import AnyPeers
from anabranch_lab.tasks.train import Trainer

Floats = npt.NDArray[np.float32]


@dataclass(slots=True)
class Literal:
    """The outcome of a run of the paper's strategy.

    Args:
        reached_by: when the target was reached, seconds, by rule; None: never.
        curve: (seconds, mean accuracy over the nodes) of each evaluated iteration.
        iterations: the most of any node.
    """

    reached_by: dict[str, float | None]
    curve: list[tuple[float, float]] = field(default_factory=list)
    iterations: int = 0


class Edges:
    """Latencies of directed edges, seconds, which drift with each use."""

    def __init__(self, nodes: int, seed: int) -> None:
        self._draw = np.random.default_rng((seed, nodes))
        self._latencies_s = self._draw.uniform(1.0, 5.0, (nodes, nodes))

    def use_s(self, source: int, target: int) -> float:
        """Return how long a message takes; the latency drifts after it."""
        now_s = float(self._latencies_s[source, target])
        moved_s = now_s + self._draw.uniform(-0.5, 0.5)
        self._latencies_s[source, target] = max(0.0, moved_s)
        return now_s

    def from_node(self, source: int) -> dict[int, float]:
        """Return the latencies to all others."""
        row = self._latencies_s[source].tolist()
        return {target: each for target, each in enumerate(row) if target != source}


class _Looks:
    """Records the accuracies of nodes' models."""

    def __init__(self, target: float, nodes: int, until: ReachedBy) -> None:
        self._until = until
        self._rules = {rule: Target(target, rule, nodes) for rule in REACHED_BY}
        self.found = Literal(dict.fromkeys(REACHED_BY))
        self._by_step: dict[int, list[float]] = {}
        self._nodes = nodes

    def look(self, at_s: float, node: int, step: int, accuracy: float) -> bool:
        """Record an accuracy; return whether the run is over."""
        seen = Evaluated(at_s=at_s, site=node, round=0, accuracy=accuracy, step=step)
        for name, rule in self._rules.items():
            if rule.is_reached(seen) and self.found.reached_by[name] is None:
                self.found.reached_by[name] = at_s
        of_step = self._by_step.setdefault(step, [])
        of_step.append(accuracy)
        if len(of_step) == self._nodes:
            self.found.curve.append((at_s, sum(of_step) / self._nodes))
        return self.found.reached_by[self._until] is not None


def all_reduce(
    nodes: list[Trainer],
    edges: Edges,
    every: int,
    step_s: float,
    look_every: int,
    samples: int,
    target: float,
    longest_s: float,
    until: ReachedBy,
) -> Literal:
    """Average all models after each `every` iterations, until they reach a target.

    Args:
        nodes: a trainer for each node; all begin with the same model.
        edges: between the nodes.
        every: iterations between two averages.
        step_s: how long an iteration takes.
        look_every: iterations between two evaluations.
        samples: of an evaluation.
        target: the accuracy.
        longest_s: when the run ends in any case.
        until: the rule by which the target ends the run, see :mod:`anabranch.log.target`.
    """
    looks, now_s, step = _Looks(target, len(nodes), until), 0.0, 0
    while now_s < longest_s:
        step += 1
        for node in nodes:
            node.compute_gradients()
            node.update()
        now_s += step_s
        if step % every == 0:
            pairs = [(a, b) for a in range(len(nodes)) for b in range(len(nodes)) if a != b]
            now_s += max(edges.use_s(*pair) for pair in pairs)
            mean = np.mean([node.flat.parameters for node in nodes], axis=0)
            for node in nodes:
                node.flat.parameters[:] = mean
        if step % look_every == 0:
            seen = [node.accuracy(samples) for node in nodes]
            looked = [looks.look(now_s, which, step, each) for which, each in enumerate(seen)]
            if looked[-1]:
                break
    looks.found.iterations = step
    return looks.found


def gossip(
    nodes: list[Trainer],
    edges: Edges,
    peers: AnyPeers,
    step_s: float,
    look_every: int,
    samples: int,
    target: float,
    longest_s: float,
    until: ReachedBy,
    seed: int,
) -> Literal:
    """Send models to some neighbours after each iteration, and average with models that arrived.

    Args:
        nodes, edges, step_s, look_every, samples, target, longest_s, until: as for ``all_reduce``.
        peers: the choice of receivers of a node's model.
        seed: of that choice.
    """
    looks, draw = _Looks(target, len(nodes), until), np.random.default_rng((seed, 1))
    steps = [0] * len(nodes)
    come: list[list[tuple[float, Floats]]] = [[] for _ in nodes]
    # A heap of (end of the node's iteration in seconds, node).
    waiting = [(step_s, node) for node in range(len(nodes))]
    while waiting and waiting[0][0] < longest_s:
        now_s, which = heapq.heappop(waiting)
        node = nodes[which]
        began_s = now_s - step_s
        ready = [model for at_s, model in come[which] if at_s <= began_s]
        come[which] = [each for each in come[which] if each[0] > began_s]
        if ready:
            node.flat.parameters[:] = np.mean([node.flat.parameters, *ready], axis=0)
        node.compute_gradients()
        node.update()
        steps[which] += 1
        if steps[which] % look_every == 0:
            seen = node.accuracy(samples)
            if looks.look(now_s, which, steps[which], seen):
                break
        chosen = peers.choose(edges.from_node(which), len(nodes) - 1, draw)
        took_s = [0.0]
        for other in chosen:
            took_s.append(edges.use_s(which, other))
            come[other].append((now_s + took_s[-1], node.flat.parameters.copy()))
        heapq.heappush(waiting, (now_s + max(took_s) + step_s, which))
    looks.found.iterations = max(steps)
    return looks.found


def strategies() -> Iterator[tuple[str, int | AnyPeers]]:
    """Yield the paper's strategies by name: iterations between all-reduces, or peers of gossip."""
    for every in (1, 2, 4, 8):
        yield f"all-reduce-{every}", every
    yield "gossip-random", RandomPeers(share=0.5)
    yield "gossip-latency", NearPeers(count=1)
