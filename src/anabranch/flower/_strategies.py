"""Strategies for Flower apps: FL-R²SP and FedBuff, with the paces of all runs.

``pip install 'anabranch[flower]'``, and change one line of a server app::

    strategy = FlR2sp(groups=8, fraction=0.75)        # instead of FedAvg(...)
    result = strategy.start(grid=grid, initial_arrays=..., num_rounds=20, evaluate_fn=...)

A node has one message at a time. It gets the model when the pace permits its next update, not in
rounds that all nodes wait for. The app's keys and metrics are as with Flower's ``FedAvg``. This
module moves messages. The pure modules ``_federation`` and ``_conversation`` make all decisions.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal, NoReturn

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from anabranch import pace as paces
from anabranch._typed_toml import nearest
from anabranch.flower._conversation import Conversation, NoNodesLeft, Output
from anabranch.flower._federation import Federation
from anabranch.merge import AnyMerge, Mean, OutlierFilter, Staleness
from anabranch.pace import AnyPace

__all__ = ["FedBuff", "FlR2sp", "NoNodesLeft", "Paced"]

_POLL_S = 0.2  # between two polls for replies
_NODES_S = 2.0  # between two polls for nodes
# The message or its reply was lost, or the node is offline: the app did not fail.
_LOST = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
_log = logging.getLogger("flwr")

_NO_EVALUATION = (
    "client apps train all the time, and their @app.evaluate() is never called; give "
    "start(evaluate_fn=...)"
)
_OF_EVALUATION = ("configure_evaluate", "aggregate_evaluate")
_INSTEAD = {
    "configure_train": "give train_config_fn=, which returns a round's config by its number",
    "aggregate_train": "give train_metrics_aggr_fn= for metrics, and a pace and merge to Paced for "
    "the weights of models",
    **dict.fromkeys(_OF_EVALUATION, _NO_EVALUATION),
}
_PACE_SAYS = "the pace says which nodes go on and how many updates a step has"
# Parameters of Flower's FedAvg that have no effect here, with the reason.
_OF_ROUNDS = {
    "fraction_train": f"{_PACE_SAYS} (FlR2sp: fraction=, of a group; FedBuff: size=)",
    "min_train_nodes": f"{_PACE_SAYS}; min_available_nodes= says when it begins",
    "fraction_evaluate": _NO_EVALUATION,
    "min_evaluate_nodes": _NO_EVALUATION,
    "evaluate_metrics_aggr_fn": _NO_EVALUATION,
}

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class _Clock:
    """The clock of the run; tests replace it."""

    def now_s(self) -> float:
        """Return seconds since some moment."""
        return time.monotonic()

    def sleep(self, for_s: float) -> None:
        """Wait."""
        time.sleep(for_s)


class Paced(Strategy):  # type: ignore[misc]  # flwr is not typed here
    """A Flower strategy in which a pace says when each node gets its next model.

    A round is ``steps_a_round`` steps of the model; after each round ``evaluate_fn`` is called.
    Nodes evaluate nothing, since they train all the time. Flower's wrappers of strategies, such as
    its differential privacy, cannot wrap this one, since they change rounds.

    Args:
        pace: when nodes may compute: ``anabranch.pace.FlR2sp``, ``FedBuff``, ``Asp`` and others.
        merge: the weights of models beside their examples, and the outlier filter.
        mixes: whether a step moves the model towards nodes' ``models``, or adds their ``updates``.
        steps_a_round: see above.
        min_available_nodes: how many nodes have to be there before the training begins.
        max_failures: after so many failures in a row, such as exceptions in its client app, a node
            gets no more messages.
        weighted_by_key: the key of the metric in replies that weighs models.
        arrayrecord_key, configrecord_key: the keys of the records in messages and replies.
        buffers: names of the arrays that are no parameters, such as running statistics; see
            :class:`anabranch.flower._federation.Federation`. None for those of PyTorch's
            normalisation layers, and for all integers.
        train_metrics_aggr_fn: computes a round's metrics in the result from its replies, as in
            Flower's ``FedAvg``; it gets the replies' metrics without their arrays.
        train_config_fn: takes a round's number, and returns the config of its messages beside
            ``train_config``, such as a decaying learning rate.
        of_rounds: parameters of Flower's ``FedAvg`` without effect here, such as
            ``fraction_train``; ``start`` warns of each.

    Raises:
        ValueError: a number is out of range, or the pace or merge rule is not for a federation.
        TypeError: a parameter is unknown, or a subclass overrides a method that is never called;
            names the class.
    """

    _clock = _Clock()

    def __init__(
        self,
        pace: AnyPace,
        merge: AnyMerge,
        mixes: Literal["models", "updates"],
        steps_a_round: int,
        min_available_nodes: int = 2,
        max_failures: int = 3,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None,
        buffers: Collection[str] | None = None,
        train_config_fn: Callable[[int], ConfigRecord] | None = None,
        **of_rounds: Any,
    ) -> None:
        self._refuse_overrides()
        for name in of_rounds:
            if name not in _OF_ROUNDS:
                near = nearest(name, _parameters_of(type(self))) or "see docs/flower.md"
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}; {near}")
        if mixes not in ("models", "updates"):
            raise ValueError(f"mixes is {mixes!r}; take 'models' or 'updates'")
        if min(steps_a_round, min_available_nodes, max_failures) < 1:
            raise ValueError(
                "steps_a_round, min_available_nodes and max_failures must be 1 or more"
            )
        Federation(pace, merge, {})  # checks the pace and the merge rule before the run begins
        self.pace = pace
        self.merge = merge
        self.mixes = mixes
        self.steps_a_round = steps_a_round
        self.min_available_nodes = min_available_nodes
        self.max_failures = max_failures
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        self.buffers = buffers
        self.train_config_fn = train_config_fn
        self._of_rounds = tuple(of_rounds)
        self.train_metrics_aggr_fn = (
            train_metrics_aggr_fn or FedAvg(weighted_by_key=weighted_by_key).train_metrics_aggr_fn
        )

    def summary(self) -> None:
        """Log the strategy's settings."""
        _log.info("\t├──> Pace: %s", self.pace)
        _log.info("\t├──> Merge: %s; steps mix %s", self.merge, self.mixes)
        _log.info("\t└──> Steps of the model in a round: %d", self.steps_a_round)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Train; see Flower's ``Strategy.start``.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: the initial model.
            num_rounds: how many rounds, of ``steps_a_round`` steps.
            timeout: the longest time for a node's reply, seconds; then the others continue without
                it. The node joins again once its reply has come, which does not count.
            train_config: sent with each model, with ``server-round``.
            evaluate_config: has no effect, as nodes evaluate nothing; ``start`` warns of it.
            evaluate_fn: evaluates the model on the server, before the first round and after each.

        Raises:
            NoNodesLeft: all nodes that have joined are barred, or have failed too often.
        """
        began_s = self._clock.now_s()
        _log.info("Starting %s strategy:", type(self).__name__)
        _log.info("\t├── Number of rounds: %d", num_rounds)
        self.summary()
        self._warn(evaluate_config is not None, evaluate_fn is not None)
        run = _Run(self, grid, initial_arrays, timeout, train_config or ConfigRecord(), self._clock)
        result = Result(arrays=initial_arrays)
        self._evaluate(0, result, evaluate_fn)
        for number in range(1, num_rounds + 1):
            _log.info("[ROUND %d/%d]", number, num_rounds)
            replies = run.round(number)
            if replies:
                metrics = self.train_metrics_aggr_fn(replies, self.weighted_by_key)
                _log.info("\t├──> %d replies: %s", len(replies), metrics)
                result.train_metrics_clientapp[number] = metrics
            result.arrays = run.arrays()
            self._evaluate(number, result, evaluate_fn)
        _log.info("Strategy execution finished in %.2fs", self._clock.now_s() - began_s)
        run.end()
        for line in str(result).splitlines():
            _log.info("\t%s", line)
        return result

    def config_of(self, number: int, train_config: ConfigRecord) -> ConfigRecord:
        """Return the config of a round's messages, without ``server-round``."""
        more = {} if self.train_config_fn is None else self.train_config_fn(number)
        return ConfigRecord({**train_config, **more})

    def _warn(self, has_evaluate_config: bool, has_evaluate_fn: bool) -> None:
        """Warn of arguments that have no effect."""
        name = type(self).__name__
        for each in self._of_rounds:
            _log.warning("%s: %s changes nothing: %s", name, each, _OF_ROUNDS[each])
        if has_evaluate_config:
            _log.warning("%s: evaluate_config changes nothing: %s", name, _NO_EVALUATION)
        if not has_evaluate_fn:
            _log.warning(
                "%s: no evaluate_fn is given, so nothing evaluates the model: %s",
                name,
                _NO_EVALUATION,
            )

    def _refuse_overrides(self) -> None:
        for name in ("configure_train", "aggregate_train", *_OF_EVALUATION):
            if getattr(type(self), name) is not getattr(Paced, name):
                raise TypeError(
                    f"{type(self).__name__} overrides {name}(), which is never called, as there "
                    f"are no rounds that all nodes wait for; {_INSTEAD[name]}"
                )

    @staticmethod
    def _evaluate(number: int, result: Result, evaluate_fn: EvaluateFn | None) -> None:
        if evaluate_fn is None:
            return
        found = evaluate_fn(number, result.arrays)
        _log.info("\t└──> Evaluated after %d rounds: %s", number, found)
        if found is not None:
            result.evaluate_metrics_serverapp[number] = found

    def configure_train(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: there are no rounds that all nodes wait for."""
        raise NotImplementedError(
            f"{type(self).__name__} has no rounds that all nodes wait for, so a wrapper cannot "
            "change these; call its start()"
        )

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train


def _parameters_of(strategy: type) -> set[str]:
    """Return the parameters of the constructors of a strategy and of its base classes."""
    return {
        name
        for each in strategy.__mro__
        if "__init__" in vars(each)
        for name in inspect.signature(each).parameters
    }


class FlR2sp(Paced):
    """FL-R²SP (Zhang et al., 2025): groups of nodes take turns, and outliers are barred.

    Args:
        groups, fraction, relaxation, smoothing, grouping, regroup_every, order, collects,
            deadline_s, late_after: see :class:`anabranch.pace.FlR2sp`.
        beta, patience, ends_after, most: of the outlier filter, see
            :class:`anabranch.merge.OutlierFilter`; a ``beta`` of None disables it.
        mixes: ``models`` as the paper's Algorithm 2 does, or ``updates``.
        steps_a_round: see :class:`Paced`; None for one turn of each group.
        more: see :class:`Paced`.
    """

    def __init__(
        self,
        groups: int = 8,
        fraction: float = 0.75,
        beta: float | None = 0.5,
        patience: int = 3,
        *,
        ends_after: int | None = None,
        most: float = 1.0,
        relaxation: float = 1.0,
        smoothing: float = 0.1,
        grouping: Literal["index", "delay", "load"] = "index",
        regroup_every: int = 4,
        order: Literal["fixed", "ready"] = "fixed",
        collects: Literal["fraction", "turn"] = "fraction",
        deadline_s: float | None = None,
        late_after: float | Literal["never"] = 3.0,
        mixes: Literal["models", "updates"] = "models",
        steps_a_round: int | None = None,
        **more: Any,
    ) -> None:
        pace = paces.FlR2sp(
            groups=groups,
            fraction=fraction,
            relaxation=relaxation,
            smoothing=smoothing,
            grouping=grouping,
            regroup_every=regroup_every,
            order=order,
            collects=collects,
            deadline_s=deadline_s,
            late_after=late_after,
        )
        merge: AnyMerge = Mean()
        if beta is not None:
            merge = OutlierFilter(beta=beta, patience=patience, ends_after=ends_after, most=most)
        super().__init__(
            pace, merge, mixes, groups if steps_a_round is None else steps_a_round, **more
        )


class FedBuff(Paced):
    """FedBuff (Nguyen et al., 2022): every ``size`` returned models make a step; no node waits.

    Args:
        size: models of a step, the paper's K.
        share: the length of a step, the paper's server learning rate.
        staleness: the exponent of a late model's weight: ``(s + 1) ** -staleness``.
        steps_a_round: see :class:`Paced`.
        more: see :class:`Paced`.
    """

    def __init__(
        self,
        size: int = 10,
        share: float = 1.0,
        staleness: float = 0.5,
        *,
        steps_a_round: int = 1,
        **more: Any,
    ) -> None:
        pace = paces.FedBuff(size=size, share=share)
        super().__init__(pace, Staleness(a=staleness), "updates", steps_a_round, **more)


class _Run:
    """One call of ``start``: moves messages between a grid and a ``Conversation``."""

    def __init__(
        self,
        strategy: Paced,
        grid: Grid,
        initial_arrays: ArrayRecord,
        timeout_s: float,
        train_config: ConfigRecord,
        clock: _Clock,
    ) -> None:
        self._strategy = strategy
        self._grid = grid
        self._train_config = self._config = train_config
        self._clock = clock
        self._began_s = clock.now_s()
        self._looked_s = -_NODES_S
        self._number = 0
        self._until = 0  # the version that the round ends with
        self._came: deque[Message] = deque()  # replies not taken yet
        self._replies: list[RecordDict] = []
        arrays = {name: each.numpy() for name, each in initial_arrays.items()}
        self._federation = Federation(
            strategy.pace, strategy.merge, arrays, strategy.mixes == "models", strategy.buffers
        )
        if strategy.buffers is None and all(name.isdecimal() for name in arrays):
            _log.warning(
                "initial_arrays has numbers for names, so running statistics look like parameters; "
                "build it from model.state_dict(), or name them: %s(buffers=[...])",
                type(strategy).__name__,
            )
        self._conversation = Conversation(
            self._federation, timeout_s, strategy.max_failures, strategy.min_available_nodes
        )

    def arrays(self) -> ArrayRecord:
        """Return the current model."""
        return ArrayRecord({name: Array(each) for name, each in self._federation.arrays.items()})

    def round(self, number: int) -> list[RecordDict]:
        """Run until all steps of a round are made; return the metrics of the nodes' replies.

        Replies that come after the round's last step wait for the next round.
        """
        self._number, self._replies = number, []
        self._until = number * self._strategy.steps_a_round
        self._config = self._strategy.config_of(number, self._train_config)
        self._do(self._conversation.go_on(self._until, self._now_s()))
        while self._federation.version < self._until:
            # First, so that no node counts as silent whose reply has come.
            self._take_all()
            now_s = self._now_s()
            if now_s - self._looked_s >= _NODES_S:
                self._looked_s = now_s
                self._do(self._conversation.there([*self._grid.get_node_ids()], now_s))
            came = self._pull()
            self._do(self._conversation.look(self._now_s()))
            if not came:
                self._clock.sleep(_POLL_S)
        return self._replies

    def end(self) -> None:
        """Log how many nodes still compute; after the run, the SuperLink takes no more replies."""
        if self._conversation.out:
            _log.info(
                "%d nodes still compute, or replied after the last step; that does not count",
                len(self._conversation.out),
            )

    def _now_s(self) -> float:
        return self._clock.now_s() - self._began_s

    def _pull(self) -> bool:
        """Pull replies and take them; return whether there were any."""
        if not self._came and (out := self._conversation.out):
            self._came += self._grid.pull_messages([*out])
        has_come = bool(self._came)
        self._take_all()
        return has_come

    def _take_all(self) -> None:
        """Take pulled replies, one by one, until the round's last step."""
        while self._came and self._federation.version < self._until:
            self._do(self._take(self._came.popleft()))

    def _take(self, reply: Message) -> Output:
        message, now_s = reply.metadata.reply_to_message_id, self._now_s()
        if reply.has_error():
            lost = reply.error.code in _LOST
            return self._conversation.failed(message, reply.error.reason, now_s, counts=not lost)
        strategy, content = self._strategy, reply.content
        try:
            arrays = {
                name: each.numpy() for name, each in content[strategy.arrayrecord_key].items()
            }
            (metrics,) = content.metric_records.values()
            examples = float(metrics[strategy.weighted_by_key])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = f"its reply does not have this app's records: {error!r}"
            return self._conversation.failed(message, why, now_s)
        output = self._conversation.returned(message, arrays, examples, now_s)
        if output.took:
            self._replies.append(RecordDict(dict(content.metric_records)))
        return output

    def _do(self, output: Output) -> None:
        """Log and send; a failed send drops its node, which may release others."""
        to_do = [output]
        while to_do:
            output = to_do.pop(0)
            for line in output.lines:
                _log.log(logging.WARNING if line.warns else logging.INFO, "%s", line.text)
            if output.send:
                to_do += self._send(output.send)

    def _send(self, nodes: Iterable[int]) -> list[Output]:
        strategy, config = self._strategy, ConfigRecord({**self._config})
        config["server-round"] = self._number
        record = RecordDict(
            {strategy.arrayrecord_key: self.arrays(), strategy.configrecord_key: config}
        )
        unsent = []
        for node in nodes:
            message = Message(content=record, message_type=MessageType.TRAIN, dst_node_id=node)
            # One by one: from several, grids drop or blank those that they do not take.
            message_id = next(iter(self._grid.push_messages([message])), None)
            if message_id:
                self._conversation.sent(node, message_id, self._now_s())
            else:
                unsent.append(self._conversation.unsent(node, self._now_s()))
        return unsent
