"""A federated server without a network: which node gets which model, and what counts. Pure.

A pace's rule, a merge rule and its outlier filter decide, as in all runs. A framework only has to
send models and to report replies, with their times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from anabranch._typed_toml import nearest
from anabranch.merge import AnyMerge, Robust, UpdateFacts, cosine, filter_of
from anabranch.pace import AnyPace, Safa, Step
from anabranch.train.buffers import buffers_of, is_counted, mixed

Arrays = Mapping[str, npt.NDArray[np.generic]]
Doubles = npt.NDArray[np.float64]

_MOST_EXAMPLES = 1e15  # of a reply; sums of more would not be exact


@dataclass(frozen=True, slots=True)
class Outcome:
    """The consequences of an event.

    Args:
        receivers: nodes to send the current model to.
        applied: nodes whose returned models a step has used.
        discarded: nodes whose returned models no step will use.
        barred, readmitted: nodes that are barred from now on, or no longer.
    """

    receivers: tuple[int, ...] = ()
    applied: tuple[int, ...] = ()
    discarded: tuple[int, ...] = ()
    barred: tuple[int, ...] = ()
    readmitted: tuple[int, ...] = ()


@dataclass(slots=True)
class _Node:
    """A participating node.

    Args:
        worker: the node's number in the pace.
        pulled: the model on which the node computes its next update.
        version: the version of that model.
    """

    worker: int
    pulled: Arrays
    version: int = 0


@dataclass(slots=True)
class _Update:
    node: int
    arrays: Arrays
    pulled: Arrays
    weight: float
    version: int


@dataclass(slots=True)
class _OutcomeBuilder:
    receivers: list[int] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    barred: list[int] = field(default_factory=list)
    readmitted: list[int] = field(default_factory=list)

    def build(self) -> Outcome:
        gone = {*self.barred}
        return Outcome(
            tuple(node for node in self.receivers if node not in gone),
            *map(tuple, (self.applied, self.discarded, self.barred, self.readmitted)),
        )


class Federation:
    """One run's model, and its participating nodes.

    Args:
        pace: when nodes may compute.
        merge: the weights of models beside their examples, and the outlier filter.
        arrays: the initial model, by name; never changed in place.
        mixes_models: whether a step moves the model towards the nodes' models (R²SP's Algorithm 2),
            or adds the nodes' changes of the models that they got.
        buffers: names of the arrays that are no parameters, for either ``mixes_models``. A step
            moves these towards their mean, and takes the largest of integers. The outlier filter's
            cosine ignores them. None for the names of PyTorch's normalisation layers, and for all
            integers and booleans.

    Attributes:
        arrays: the current model.
        version: how many steps have changed the model.
        until: no step makes a later version; later steps wait for ``go_on``.
        barred: barred nodes, whose updates point in other directions than the steps.

    Raises:
        ValueError: the pace or merge rule needs what a federation does not have: a sum on the way
            (``bsp``), a cache of models (``safa``), a loss, a norm, or all updates of a step at
            once. Or ``buffers`` has a name that the model does not have, or lacks an array of
            integers; or an array has complex numbers; names it.
    """

    def __init__(
        self,
        pace: AnyPace,
        merge: AnyMerge,
        arrays: Arrays,
        mixes_models: bool = True,
        buffers: Collection[str] | None = None,
    ) -> None:
        if pace.barrier or isinstance(pace, Safa):
            raise ValueError(f"{pace} is no pace of a federation; take FlR2sp, FedBuff or Asp")
        if merge.asks_loss or merge.asks_norm or isinstance(merge, Robust):
            raise ValueError(f"{merge} asks for more than models; take OutlierFilter or Staleness")
        self.arrays = arrays
        self._buffers = _checked_buffers(arrays, buffers)
        self.version = 0
        self.until: float = math.inf
        self._due: deque[Step] = deque()  # decided steps, not taken yet, in order
        self.barred: set[int] = set()
        self._rule = pace.rule()
        self._merge = merge
        rule = filter_of(merge)
        self._judge = None if rule is None else rule.start()
        self._mixes_models = mixes_models
        self._nodes: dict[int, _Node] = {}
        self._node_of: dict[int, int] = {}  # by worker
        self._workers: dict[int, int] = {}  # by node; a node that returns keeps its number
        self._came: dict[tuple[int, int], _Update] = {}
        self._updates: dict[int, int] = {}  # by worker: the number of pushed updates

    @property
    def due_s(self) -> float:
        """When to call ``look`` next; infinite if nothing depends on time alone."""
        return self._rule.due_s

    @property
    def known(self) -> frozenset[int]:
        """All nodes that have ever joined."""
        return frozenset(self._workers)

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def joined(self, node: int, now_s: float) -> Outcome:
        """Add an idle node; only remember a barred one."""
        outcome = _OutcomeBuilder()
        worker = self._workers.setdefault(node, len(self._workers))
        if node not in self.barred:
            self._join(node, worker, now_s, outcome)
        return outcome.build()

    def _join(self, node: int, worker: int, now_s: float, outcome: _OutcomeBuilder) -> None:
        self._nodes[node] = _Node(worker, self.arrays)
        self._node_of[worker] = node
        self._take(self._rule.join(worker, now_s), now_s, outcome)

    def left(self, node: int, now_s: float) -> Outcome:
        """Remove a node that is gone or silent; its later replies must not be passed on."""
        outcome = _OutcomeBuilder()
        self._take(self._leave(node, now_s), now_s, outcome)
        return outcome.build()

    def _leave(self, node: int, now_s: float) -> tuple[Step, ...]:
        """Remove a node, and return the steps of the pace that follow."""
        worker = self._nodes.pop(node).worker
        del self._node_of[worker]
        return self._rule.leave(worker, now_s)

    def returned(self, node: int, arrays: Arrays, examples: float, now_s: float) -> Outcome:
        """Take a model that a node returns.

        Args:
            node: a participant that has its permission.
            arrays: its model, by name, with the shapes of this model.
            examples: the number of examples that it was trained on, which is its weight.
            now_s: the time.

        Raises:
            ValueError: the arrays have other names or shapes, or elements that are not finite, or
                ``examples`` is invalid. The node then still counts as computing.
        """
        self._check(node, arrays, examples)
        outcome, here = _OutcomeBuilder(), self._nodes[node]
        number = self._updates[here.worker] = self._updates.get(here.worker, 0) + 1
        self._came[here.worker, number] = _Update(node, arrays, here.pulled, examples, here.version)
        self._take(self._rule.push(here.worker, now_s), now_s, outcome)
        return outcome.build()

    def _check(self, node: int, arrays: Arrays, examples: float) -> None:
        shapes = {name: each.shape for name, each in arrays.items()}
        wanted = {name: each.shape for name, each in self.arrays.items()}
        if shapes != wanted:
            wrong = sorted(
                name
                for name in shapes.keys() | wanted.keys()
                if shapes.get(name) != wanted.get(name)
            )
            raise ValueError(f"node {node} returns another model: {wrong[0]!r} differs")
        for name, each in arrays.items():
            if not np.isfinite(each).all():
                raise ValueError(f"node {node} returns elements of {name!r} that are not finite")
        if not 0 < examples <= _MOST_EXAMPLES:
            raise ValueError(
                f"node {node} was trained on {examples} examples; give a number in (0, "
                f"{_MOST_EXAMPLES:g}]"
            )

    def look(self, now_s: float) -> Outcome:
        """Take the steps that are due by time; harmless at any time."""
        outcome = _OutcomeBuilder()
        self._take(self._rule.look(now_s), now_s, outcome)
        return outcome.build()

    def go_on(self, until: float, now_s: float) -> Outcome:
        """Permit versions up to ``until``, and take the steps that waited for that."""
        self.until = until
        outcome = _OutcomeBuilder()
        self._take((), now_s, outcome)
        return outcome.build()

    def _take(self, steps: tuple[Step, ...], now_s: float, outcome: _OutcomeBuilder) -> None:
        """Take steps in the order of their decisions; barring a node may add steps."""
        self._due += steps
        while self._due and not (self._due[0].apply and self.version >= self.until):
            step = self._due.popleft()
            outliers = self._step(step, outcome) if step.apply else ()
            for update in step.discard:
                outcome.discarded.append(self._came.pop(update).node)
            for worker in step.proceed:
                node = self._node_of.get(worker)
                if node is not None:  # None: it left or was barred after this decision
                    here = self._nodes[node]
                    here.pulled, here.version = self.arrays, self.version
                    outcome.receivers.append(node)
            for node in outliers:
                self.barred.add(node)
                outcome.barred.append(node)
                if node in self._nodes:
                    self._due += self._leave(node, now_s)
            self._readmit(outcome)

    def _readmit(self, outcome: _OutcomeBuilder) -> None:
        """Readmit nodes whose time on the blacklist is over; they join as new nodes do."""
        if self._judge is None:
            return
        over = {*self._judge.over(self.version)}
        if not self._nodes:  # steps of the model end a blacklist, and no node would make one
            over.update(self._judge.eldest())
        for worker in over:
            self._judge.readmit(worker)
        back = [node for node in self.barred if self._workers[node] in over]
        self.barred.difference_update(back)
        outcome.readmitted += back

    def _step(self, step: Step, outcome: _OutcomeBuilder) -> tuple[int, ...]:
        """Change the model; return the nodes that are outliers."""
        came = [self._came.pop(update) for update in step.apply]
        outcome.applied += [each.node for each in came]
        factors = [self._merge.weight(self._facts(each)) for each in came]
        weights = [each.weight * factor for each, factor in zip(came, factors, strict=True)]
        share = step.share
        if share is None:
            share = min(1.0, len(came) / max(1, len(self._nodes)))
        # If the merge rule lowers weights, the step is shorter; with all at 0 its length is 0.
        total = math.fsum(weights)
        share *= total / math.fsum(each.weight for each in came)
        parts = [weight / total if total else 1 / len(came) for weight in weights]
        self.version += 1
        changes: dict[str, Doubles] = {}
        if self._judge is not None or not self._mixes_models:
            changes = {
                name: _mean([_change_of(each, name) for each in came], parts)
                for name in self.arrays
                if name not in self._buffers
            }
        self.arrays = {
            name: _as_before(before, self._moved(before, name, share, came, parts, changes))
            for name, before in self.arrays.items()
        }
        return self._judged(came, changes)

    def _moved(
        self,
        before: npt.NDArray[np.generic],
        name: str,
        share: float,
        came: list[_Update],
        parts: list[float],
        changes: dict[str, Doubles],
    ) -> npt.NDArray[np.generic]:
        """Return an array of the model after a step."""
        models = [each.arrays[name] for each in came]
        if name in self._buffers:
            return mixed(before, models, parts, share)
        now = before.astype(np.float64)
        if self._mixes_models:
            return (1.0 - share) * now + share * _mean(models, parts)
        return now + share * changes[name]

    def _judged(self, came: list[_Update], changes: dict[str, Doubles]) -> tuple[int, ...]:
        """Compare each update with its step; return the nodes that are outliers."""
        if self._judge is None:
            return ()
        square = sum(float(np.vdot(each, each)) for each in changes.values())
        outliers = []
        for each in came:
            dot = own = 0.0
            for name, change in changes.items():
                went = _change_of(each, name)
                dot += float(np.vdot(went, change))
                own += float(np.vdot(went, went))
            worker = self._workers[each.node]
            angle = cosine(dot, own, square)
            if self._judge.saw(worker, angle, self.version, len(self._workers)):
                outliers.append(each.node)
        return tuple(outliers)

    def _facts(self, came: _Update) -> UpdateFacts:
        return UpdateFacts(staleness=self.version - came.version, samples=1, all_samples=1)


def _change_of(came: _Update, name: str) -> Doubles:
    """Return a node's change of an array that it pulled."""
    return np.subtract(came.arrays[name], came.pulled[name], dtype=np.float64)


def _mean(arrays: list[npt.NDArray[np.generic]] | list[Doubles], parts: list[float]) -> Doubles:
    """Return a weighted mean."""
    total = np.zeros(arrays[0].shape, np.float64)
    for each, part in zip(arrays, parts, strict=True):
        total += part * each.astype(np.float64)
    return total


def _as_before(
    before: npt.NDArray[np.generic], moved: npt.NDArray[np.generic]
) -> npt.NDArray[np.generic]:
    """Return a moved array in the type of the array before."""
    with np.errstate(over="ignore"):
        found = np.asarray(moved, dtype=before.dtype)
    if not np.isfinite(found).all():
        raise FloatingPointError(
            f"a step leads to elements that {before.dtype} cannot represent; lower the clients' "
            "learning rate, or send wider elements"
        )
    return found


def _checked_buffers(arrays: Arrays, buffers: Collection[str] | None) -> frozenset[str]:
    """Return which arrays are buffers."""
    for name, each in arrays.items():
        if np.issubdtype(each.dtype, np.complexfloating):
            raise ValueError(
                f"array {name!r} is {each.dtype}, and a step takes no mean of complex numbers; "
                "send its real and imaginary parts"
            )
    if buffers is None:
        return buffers_of(arrays)
    for name in buffers:
        if name not in arrays:
            near = nearest(name, arrays) or "give names that are in initial_arrays"
            raise ValueError(f"buffers: the model has no array {name!r}; {near}")
    for name, each in arrays.items():
        if is_counted(each) and name not in buffers:
            raise ValueError(
                f"array {name!r} is {each.dtype}, which no step can change as a parameter; add it "
                "to buffers"
            )
    return frozenset(buffers)
