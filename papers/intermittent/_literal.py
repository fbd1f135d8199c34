"""The paper's strategies as it describes them (II), without our data plane: models and latencies.

Nodes train in turn. A directed edge has a latency, drawn uniformly from 1 to 5 s. After each use
it moves by up to half a second, either way. A node's iteration is one mini-batch, of constant time.
The text leaves some points open. This module decides:

- "assigning an initial latency to each node", and yet "the edge's latency is randomly shifted" and
  "is not bi-directional": each directed edge has a latency of its own, and none falls below zero.
- "the overall latency of an all-reduce cycle is the maximum latency of that cycle": every node
  sends its model to every other, so a cycle takes the largest of all edges' latencies, once.
- A node that gossips waits until all models that it sent have arrived. The paper has "additional
  latency", which this waiting explains. Then it replaces its model by the mean of its own model and
  all models that have arrived since its last mean. It sends to half of its neighbours, rounded up,
  or to one of them with probability 1 / (l_i T).

An all-reduce's models do not depend on times. So :func:`all_reduce` trains them once, and
:func:`timed` says when they were there, for any time of an iteration. Gossip also has the paper's
future work (V): a bound on a node's lead, which it knows by the vector clocks that all nodes send
to all after each iteration, and models that are sent after a move alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from anabranch.log.events import REACHED_BY, Evaluated, ReachedBy
from anabranch.log.target import Target
from anabranch.period import VectorClock
from anabranch.period.peers import AnyPeers
from anabranch_lab.tasks.train import Trainer

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Looks:
    """How nodes' models are looked at, and when a run ends.

    Args:
        every: iterations between two evaluations of a node.
        samples: of an evaluation.
        target: the accuracy that ends a run.
        until: the rule by which it does, see :mod:`anabranch.log.target`.
    """

    every: int
    samples: int
    target: float
    until: ReachedBy


@dataclass(slots=True)
class Literal:
    """The outcome of a run of the paper's strategy.

    Args:
        reached_by: when the target was reached, seconds, by rule; None: never.
        curve: (seconds, mean accuracy over the nodes) of each evaluated iteration.
        iterations: the most of any node.
        messages: how many models were sent.
    """

    reached_by: dict[str, float | None] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)
    iterations: int = 0
    messages: int = 0


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


def fitting_step_s(nodes: int, every_1_s: float, every_2_s: float, draws: int) -> float:
    """Return the time of an iteration with which two all-reduces take the paper's times, seconds.

    Both are taken to need equally many iterations. A cycle takes its largest latency, which grows
    as latencies drift, and every 1 has twice as many cycles.

    Args:
        nodes: how many.
        every_1_s, every_2_s: of the paper's table, seconds.
        draws: of the latencies, over which cycles are averaged.
    """
    most = 120
    largest_s = np.zeros((draws, most + 1))
    for draw in range(draws):
        edges = Edges(nodes, draw)
        for cycle in range(1, most + 1):
            largest_s[draw, cycle] = max(
                edges.use_s(a, b) for a in range(nodes) for b in range(nodes) if a != b
            )
    until_s = largest_s.mean(axis=0).cumsum()
    off_s = {
        n: abs(until_s[n] - until_s[n // 2] - every_1_s + every_2_s) for n in range(2, most, 2)
    }
    iterations = min(off_s, key=off_s.__getitem__)
    return float(every_1_s - until_s[iterations]) / iterations


class _Record:
    """Records the accuracies of nodes' models."""

    def __init__(self, looks: Looks, nodes: int) -> None:
        self._until = looks.until
        self._rules = {rule: Target(looks.target, rule, nodes) for rule in REACHED_BY}
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
            self.found.curve.append((round(at_s, 2), round(sum(of_step) / self._nodes, 4)))
        return self.found.reached_by[self._until] is not None


def all_reduce(
    nodes: Sequence[Trainer], every: int, looks: Looks, most_iterations: int
) -> list[list[float]]:
    """Average all models after each `every` iterations, until they reach a target.

    Args:
        nodes: a trainer for each node; all begin with the same model.
        every: iterations between two averages.
        looks: at the models.
        most_iterations: when the run ends in any case.

    Returns:
        The accuracies of each look, shape (looks, nodes).
    """
    record, seen = _Record(looks, len(nodes)), []
    for step in range(1, most_iterations + 1):
        for node in nodes:
            node.compute_gradients()
            node.update()
        if step % every == 0:
            mean = np.mean([node.flat.parameters for node in nodes], axis=0)
            for node in nodes:
                node.flat.parameters[:] = mean
        if step % looks.every == 0:
            seen.append([node.accuracy(looks.samples) for node in nodes])
            looked = [record.look(step, node, step, each) for node, each in enumerate(seen[-1])]
            if looked[-1]:
                break
    return seen


def timed(
    seen: Sequence[Sequence[float]], edges: Edges, every: int, step_s: float, looks: Looks
) -> Literal:
    """Return when models of :func:`all_reduce` were there.

    Args:
        seen: the accuracies of each look, shape (looks, nodes).
        edges: between the nodes.
        every: iterations between two averages.
        step_s: how long an iteration takes.
        looks: as the models were looked at.
    """
    nodes = len(seen[0])
    record, now_s = _Record(looks, nodes), 0.0
    pairs = [(a, b) for a in range(nodes) for b in range(nodes) if a != b]
    for step in range(1, len(seen) * looks.every + 1):
        now_s += step_s
        if step % every == 0:
            now_s += max(edges.use_s(*pair) for pair in pairs)
            record.found.messages += len(pairs)
        if step % looks.every == 0:
            for node, accuracy in enumerate(seen[step // looks.every - 1]):
                record.look(now_s, node, step, accuracy)
    record.found.iterations = len(seen) * looks.every
    return record.found


@dataclass(frozen=True, slots=True)
class Letters:
    """The models that gossiping nodes send, and their receivers.

    Args:
        peers: the choice of receivers of a node's model.
        most_ahead: how many iterations a node may be ahead of any other, as far as it knows; None
            for no bound.
        moved: the norm of the change of a node's model since it last sent it, over the norm of that
            model, from which on it sends it; 0: after each iteration.
    """

    peers: AnyPeers
    most_ahead: int | None = None
    moved: float = 0.0


def gossip(
    nodes: Sequence[Trainer],
    edges: Edges,
    letters: Letters,
    step_s: float,
    looks: Looks,
    longest_s: float,
    seed: int,
) -> Literal:
    """Send models to some neighbours after iterations, and average with models that arrived.

    Args:
        nodes: a trainer for each node; all begin with the same model.
        edges: between the nodes.
        letters: which models are sent.
        step_s: how long an iteration takes.
        looks: at the models.
        longest_s: when the run ends in any case.
        seed: of the choice of receivers.
    """
    return _Gossip(nodes, edges, letters, step_s, looks, seed).until(longest_s)


@dataclass(frozen=True, slots=True)
class _Message:
    """A model under way, if there is one, and its sender's clock."""

    values: Floats | None
    clock: tuple[int, ...]


class _Gossip:
    """Nodes that gossip: a heap of moments, at which a model arrives or a node may go on.

    A node is either in an iteration, or waits for models that it sent, or is held by its bound.
    """

    def __init__(
        self,
        nodes: Sequence[Trainer],
        edges: Edges,
        letters: Letters,
        step_s: float,
        looks: Looks,
        seed: int,
    ) -> None:
        self._nodes, self._edges, self._letters = nodes, edges, letters
        self._step_s, self._looks = step_s, looks
        self._draw = np.random.default_rng((seed, 1))
        self._record = _Record(looks, len(nodes))
        self._clocks = [VectorClock(n, len(nodes), letters.most_ahead) for n in range(len(nodes))]
        self._come: list[list[Floats]] = [[] for _ in nodes]
        self._sent = [node.flat.parameters.copy() for node in nodes]
        self._held: set[int] = set()
        # (seconds, order, node, what arrives; None: the node's iteration ends, if it is in one).
        self._moments: list[tuple[float, int, int, _Message | None]] = []
        self._order = count()
        self._trains: set[int] = set()

    def until(self, longest_s: float) -> Literal:
        """Run until the target is reached, or until this moment."""
        for node in range(len(self._nodes)):
            self._go_on(node, 0.0)
        while self._moments and self._moments[0][0] < longest_s:
            now_s, _, node, message = heapq.heappop(self._moments)
            if message is not None:
                if message.values is not None:
                    self._come[node].append(message.values)
                self._clocks[node].hear(message.clock)
                if node in self._held:
                    self._go_on(node, now_s)
            elif node not in self._trains:
                self._go_on(node, now_s)
            elif self._ended(node, now_s):
                break
        self._record.found.iterations = max(clock.steps for clock in self._clocks)
        return self._record.found

    def _at(self, at_s: float, node: int, message: _Message | None = None) -> None:
        heapq.heappush(self._moments, (at_s, next(self._order), node, message))

    def _go_on(self, which: int, now_s: float) -> None:
        """Begin an iteration with the mean of the models that have come, unless held."""
        self._held.discard(which)
        if not self._clocks[which].may_step():
            self._held.add(which)
            return
        node = self._nodes[which]
        if self._come[which]:
            node.flat.parameters[:] = np.mean([node.flat.parameters, *self._come[which]], axis=0)
            self._come[which] = []
        node.compute_gradients()
        node.update()
        self._trains.add(which)
        self._at(now_s + self._step_s, which)

    def _ended(self, which: int, now_s: float) -> bool:
        """End an iteration, and send its model; return whether the run is over."""
        self._trains.discard(which)
        clock, node = self._clocks[which], self._nodes[which]
        clock.step()
        if clock.steps % self._looks.every == 0:
            accuracy = node.accuracy(self._looks.samples)
            if self._record.look(now_s, which, clock.steps, accuracy):
                return True
        took_s, chosen = [0.0], list[int]()
        near = self._edges.from_node(which)
        if self._has_moved(which):
            self._sent[which] = node.flat.parameters.copy()
            chosen = self._letters.peers.choose(near, len(self._nodes) - 1, self._draw)
        for other in chosen:
            took_s.append(self._edges.use_s(which, other))
            self._at(now_s + took_s[-1], other, _Message(self._sent[which], clock.known))
            self._record.found.messages += 1
        if self._letters.most_ahead is not None:
            for other in sorted(near.keys() - {*chosen}):
                self._at(
                    now_s + self._edges.use_s(which, other), other, _Message(None, clock.known)
                )
        self._at(now_s + max(took_s), which)
        return False

    def _has_moved(self, which: int) -> bool:
        sent = self._sent[which]
        change = np.linalg.norm(self._nodes[which].flat.parameters - sent)
        return bool(change >= self._letters.moved * np.linalg.norm(sent))
