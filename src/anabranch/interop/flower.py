"""Strategies for Flower apps: FL-R²SP and FedBuff, by the paces that all runs have.

``pip install 'anabranch[flower]'``, and in a server app one line is another::

    strategy = FlR2sp(groups=8, fraction=0.75)        # instead of FedAvg(...)
    result = strategy.start(grid=grid, initial_arrays=..., num_rounds=20, evaluate_fn=...)

A node has one message at a time. It is sent the model when its pace lets it go on, and not in
rounds that all wait for. The app's own keys and metrics are as with Flower's ``FedAvg``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from anabranch import pace as paces
from anabranch.interop._federation import Federation, Heard
from anabranch.merge import AnyMerge, Mean, OutlierFilter, Staleness
from anabranch.pace import AnyPace

_POLL_S = 0.1
_NODES_S = 2.0  # between two looks at which nodes there are


@dataclass(slots=True)
class _Out:
    """A message that is out."""

    node: int
    since_s: float
    counts: bool = True  # whether its reply does, or its node was given up


class Paced(FedAvg):  # type: ignore[misc]  # flwr is not typed here
    """A Flower strategy in which a pace says when each node goes on.

    A round is as many steps of the model as there are ``steps_a_round``; after each round
    ``evaluate_fn`` is called. Nodes evaluate nothing, since they compute all the time.

    Args:
        pace: when nodes go on.
        merge: what their models weigh beside their ``num-examples``, and who is an outlier.
        mixes: whether a step goes towards nodes' ``models``, or adds ``updates``.
        steps_a_round: see above.
        min_available_nodes: how many have to be there before it begins.
        weighted_by_key, arrayrecord_key, configrecord_key, train_metrics_aggr_fn: see Flower's
            ``FedAvg``.
    """

    def __init__(
        self,
        pace: AnyPace,
        merge: AnyMerge,
        mixes: Literal["models", "updates"],
        steps_a_round: int,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
    ) -> None:
        super().__init__(
            min_available_nodes=min_available_nodes,
            weighted_by_key=weighted_by_key,
            arrayrecord_key=arrayrecord_key,
            configrecord_key=configrecord_key,
            train_metrics_aggr_fn=train_metrics_aggr_fn,
        )
        self.fraction_evaluate, self.min_evaluate_nodes = 0.0, 0  # after it, which warns of it
        self.pace = pace
        self.merge = merge
        self.mixes = mixes
        self.steps_a_round = steps_a_round

    def summary(self) -> None:
        """Log what the strategy is."""
        log(INFO, "\t├──> Pace: %s", self.pace)
        log(INFO, "\t├──> Merge: %s", self.merge)
        log(INFO, "\t└──> Steps of the model in a round: %d", self.steps_a_round)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train; see Flower's ``Strategy.start``.

        Args:
            grid: where nodes are.
            initial_arrays: the model at first.
            num_rounds: how many rounds, of ``steps_a_round`` steps.
            timeout: how long a node may be silent, seconds; then the others go on without it. It
                takes part again once its reply has come, which does not count.
            train_config: sent with each model, with ``server-round``.
            evaluate_config: unused.
            evaluate_fn: evaluates the model on the server, before the first round and after each.
        """
        run = _Run(self, grid, initial_arrays, timeout, train_config or ConfigRecord())
        result = Result()
        self._evaluate(0, run, evaluate_fn, result)
        for number in range(1, num_rounds + 1):
            log(INFO, "[ROUND %s/%s]", number, num_rounds)
            metrics = run.round(number)
            if metrics:
                result.train_metrics_clientapp[number] = self.train_metrics_aggr_fn(
                    metrics, self.weighted_by_key
                )
            result.arrays = run.arrays()
            self._evaluate(number, run, evaluate_fn, result)
        run.end()
        return result

    @staticmethod
    def _evaluate(
        number: int,
        run: _Run,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        result: Result,
    ) -> None:
        if evaluate_fn is None:
            return
        found = evaluate_fn(number, run.arrays())
        log(INFO, "after %d rounds: %s", number, found)
        if found is not None:
            result.evaluate_metrics_serverapp[number] = found


class FlR2sp(Paced):
    """FL-R²SP (Zhang et al., 2025): groups of nodes take turns, and outliers are barred.

    Args:
        groups, fraction, relaxation, grouping, collects: see :class:`anabranch.pace.FlR2sp`.
        beta, patience: of the outlier filter, see :class:`anabranch.merge.OutlierFilter`; a beta of
            None filters nobody.
        ends_after, most: likewise.
        mixes: ``models`` as the paper's Algorithm 2 does, or ``updates``.
        more: see :class:`Paced`. A round is one turn of each group.
    """

    def __init__(
        self,
        groups: int = 8,
        fraction: float = 0.75,
        beta: float | None = 0.5,
        patience: int = 3,
        ends_after: int | None = None,
        most: float = 1.0,
        relaxation: float = 1.0,
        grouping: Literal["index", "delay"] = "index",
        collects: Literal["fraction", "turn"] = "fraction",
        mixes: Literal["models", "updates"] = "models",
        **more: Any,
    ) -> None:
        pace = paces.FlR2sp(
            groups=groups,
            fraction=fraction,
            relaxation=relaxation,
            grouping=grouping,
            collects=collects,
        )
        merge: AnyMerge = Mean()
        if beta is not None:
            merge = OutlierFilter(beta=beta, patience=patience, ends_after=ends_after, most=most)
        super().__init__(pace, merge, mixes, steps_a_round=groups, **more)


class FedBuff(Paced):
    """FedBuff (Nguyen et al., 2022): a step of each so many models that come; nobody waits.

    Args:
        size: models of a step, the paper's K.
        share: how far a step goes, the paper's server learning rate.
        staleness: how fast the weight of a late model falls: ``(s + 1) ** -staleness``.
        more: see :class:`Paced`. A round is one step.
    """

    def __init__(
        self, size: int = 10, share: float = 1.0, staleness: float = 0.5, **more: Any
    ) -> None:
        pace = paces.FedBuff(size=size, share=share)
        super().__init__(pace, Staleness(a=staleness), "updates", steps_a_round=1, **more)


class _Run:
    """One call of ``start``: what is out, and what came."""

    def __init__(
        self,
        strategy: Paced,
        grid: Grid,
        initial_arrays: ArrayRecord,
        timeout_s: float,
        config: ConfigRecord,
    ) -> None:
        self._strategy = strategy
        self._grid = grid
        self._timeout_s = timeout_s
        self._config = config
        arrays = {name: each.numpy() for name, each in initial_arrays.items()}
        mixes_models = strategy.mixes == "models"
        self._federation = Federation(strategy.pace, strategy.merge, arrays, mixes_models)
        self._began_s = time.monotonic()
        self._out: dict[str, _Out] = {}
        self._there: set[int] = set()
        self._barred: set[int] = set()
        self._looked_s = -_NODES_S
        self._number = 0
        self._metrics: list[RecordDict] = []

    def arrays(self) -> ArrayRecord:
        """Return the model as it is now."""
        from flwr.app import Array

        found = ArrayRecord()
        for name, each in self._federation.arrays.items():
            found[name] = Array(each)
        return found

    def round(self, number: int) -> list[RecordDict]:
        """Go on for as many steps as a round has; return what nodes said of the training."""
        self._number, self._metrics = number, []
        until = self._federation.version + self._strategy.steps_a_round
        while self._federation.version < until:
            self._nodes()
            self._replies()
            now_s = self._now_s()
            if now_s >= self._federation.due_s:
                self._follow(self._federation.look(now_s))
            self._give_up_the_silent(now_s)
            if self._federation.version < until:
                time.sleep(_POLL_S)
        return self._metrics

    def end(self) -> None:
        """Take what is still out, so that no reply is left at the server; for a little while."""
        self._replies()
        if self._out:
            log(INFO, "%d nodes still compute; their replies do not count", len(self._out))

    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    def _nodes(self) -> None:
        """See which nodes there are, from time to time."""
        now_s = self._now_s()
        if now_s - self._looked_s < _NODES_S:
            return
        self._looked_s = now_s
        self._there = {*self._grid.get_node_ids()}
        busy = {out.node for out in self._out.values()}
        if not len(self._federation) and len(self._there) < self._strategy.min_available_nodes:
            log(
                INFO,
                "waiting for nodes: %d of %d are there",
                len(self._there),
                self._strategy.min_available_nodes,
            )
            return
        for node in sorted(self._there):
            if node not in self._federation and node not in busy and node not in self._barred:
                log(INFO, "node %d takes part", node)
                self._follow(self._federation.joined(node, now_s))
        for node in [out.node for out in self._out.values() if out.counts]:
            if node not in self._there:
                self._lose(node, "is gone")

    def _lose(self, node: int, why: str) -> None:
        for out in self._out.values():
            if out.node == node:
                out.counts = False
        log(WARNING, "node %d %s; the others go on without it", node, why)
        if node in self._federation:
            self._follow(self._federation.left(node, self._now_s()))

    def _give_up_the_silent(self, now_s: float) -> None:
        late = [
            out.node
            for out in self._out.values()
            if out.counts and now_s - out.since_s > self._timeout_s
        ]
        for node in late:
            self._lose(node, f"has been silent for {self._timeout_s:g} s")

    def _replies(self) -> None:
        """Take what has come, each reply once."""
        if not self._out:
            return
        for reply in self._grid.pull_messages([*self._out]):
            out = self._out.pop(reply.metadata.reply_to_message_id, None)
            if out is None:
                continue
            if not out.counts:
                log(INFO, "what node %d returns comes too late, and does not count", out.node)
            elif reply.has_error():
                self._lose(out.node, f"failed: {reply.error.reason}")
            else:
                self._take(out.node, reply.content)

    def _take(self, node: int, content: RecordDict) -> None:
        strategy = self._strategy
        try:
            arrays = {
                name: each.numpy() for name, each in content[strategy.arrayrecord_key].items()
            }
            (metrics,) = content.metric_records.values()
            examples = float(metrics[strategy.weighted_by_key])
            heard = self._federation.returned(node, arrays, examples, self._now_s())
        except (KeyError, TypeError, ValueError) as error:
            self._lose(node, f"returned what is no model of this app: {error!r}")
            return
        self._metrics.append(content)
        self._follow(heard)

    def _follow(self, heard: Heard) -> None:
        for node in heard.discarded:
            log(INFO, "what node %d returned comes too late, and does not count", node)
        for node in heard.barred:
            log(INFO, "node %d is an outlier: its updates point elsewhere", node)
            self._barred.add(node)
            for out in self._out.values():
                if out.node == node:
                    out.counts = False
        for node in heard.readmitted:
            log(INFO, "node %d may take part again", node)
            self._barred.discard(node)
        if heard.goes_on:
            self._send(heard.goes_on)

    def _send(self, nodes: Iterable[int]) -> None:
        strategy = self._strategy
        config = ConfigRecord({**self._config, "server-round": self._number})
        record = RecordDict(
            {strategy.arrayrecord_key: self.arrays(), strategy.configrecord_key: config}
        )
        nodes, now_s = list(nodes), self._now_s()
        messages = [
            Message(content=record, message_type=MessageType.TRAIN, dst_node_id=node)
            for node in nodes
        ]
        for node, message_id in zip(nodes, self._grid.push_messages(messages), strict=True):
            if message_id:
                self._out[message_id] = _Out(node, now_s)
            else:
                self._lose(node, "takes no message")


__all__ = ["FedBuff", "FlR2sp", "Paced"]
