"""A federated server without a network: who goes on with which model, and what counts. Pure.

The same objects as everywhere decide: a pace's rule, a merge rule, its outlier filter. What a
framework has to do is to send models and to say what came; times are handed in.
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
    """What follows from something that was told.

    Args:
        receivers: nodes to which the model, as it is now, is to be sent.
        applied: nodes whose models became part of it.
        discarded: nodes whose models never will.
        barred, readmitted: nodes that take no part from now on, or take part again.
    """

    receivers: tuple[int, ...] = ()
    applied: tuple[int, ...] = ()
    discarded: tuple[int, ...] = ()
    barred: tuple[int, ...] = ()
    readmitted: tuple[int, ...] = ()


@dataclass(slots=True)
class _Node:
    """A node that takes part.

    Args:
        worker: how the pace knows it.
        pulled: the model that it computes on, or its next update was computed on.
        version: of that.
    """

    worker: int
    pulled: Arrays
    version: int = 0


@dataclass(slots=True)
class _Came:
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
    """One run's model, and who takes part.

    Args:
        pace: when nodes go on.
        merge: what their models weigh beside their examples, and who is an outlier.
        arrays: the model at first, by name; never changed in place.
        mixes_models: whether a step goes towards the models that nodes came to (R²SP's Algorithm
            2), or as far as they went from where they began.
        buffers: names of the arrays that are no parameters, whatever ``mixes_models`` says: a step
            goes towards their mean, and takes the largest of integers. No cosine counts them. None
            for the names of PyTorch's normalisation layers, and for all integers and booleans.

    Attributes:
        arrays: the model as it is now.
        version: how many steps have changed it.
        until: no step makes a later version; what is due beyond it waits for ``go_on``.
        barred: nodes that take no part, since their updates point elsewhere.

    Raises:
        ValueError: a pace or merge rule that needs what is not here: a sum on the way (``bsp``), a
            cache of models (``safa``), a loss, a norm, or all updates of a step at once. A buffer
            that the model does not have, an array of complex numbers, or integers that are said to
            be parameters; names it.
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
        self._due: deque[Step] = deque()  # that are not taken yet, in order
        self.barred: set[int] = set()
        self._rule = pace.rule()
        self._merge = merge
        rule = filter_of(merge)
        self._judge = None if rule is None else rule.start()
        self._mixes_models = mixes_models
        self._nodes: dict[int, _Node] = {}
        self._node_of: dict[int, int] = {}  # by worker
        self._workers: dict[int, int] = {}  # by node, for good: who is back has its number
        self._came: dict[tuple[int, int], _Came] = {}
        self._updates: dict[int, int] = {}  # by worker, that it has pushed

    @property
    def due_s(self) -> float:
        """When to call ``look`` next; infinite where nothing depends on time alone."""
        return self._rule.due_s

    @property
    def known(self) -> frozenset[int]:
        """All nodes that have taken part."""
        return frozenset(self._workers)

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def joined(self, node: int, now_s: float) -> Outcome:
        """Let a node take part, which is there and computes nothing; not one that is barred."""
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
        """Go on without a node that is gone or silent; ignore what it sends later."""
        outcome = _OutcomeBuilder()
        self._take(self._leave(node, now_s), now_s, outcome)
        return outcome.build()

    def _leave(self, node: int, now_s: float) -> tuple[Step, ...]:
        """Forget a node, and return what its pace makes of it."""
        worker = self._nodes.pop(node).worker
        del self._node_of[worker]
        return self._rule.leave(worker, now_s)

    def returned(self, node: int, arrays: Arrays, examples: float, now_s: float) -> Outcome:
        """Take the model that a node came to.

        Args:
            node: a participant that has its permission.
            arrays: its model, by name, shapes as the model's.
            examples: how many it was trained on; what it weighs.
            now_s: the time.

        Raises:
            ValueError: it is another model, has elements that are not finite, or weighs nothing;
                the node then computes still, as far as this object knows.
        """
        self._check(node, arrays, examples)
        outcome, here = _OutcomeBuilder(), self._nodes[node]
        number = self._updates[here.worker] = self._updates.get(here.worker, 0) + 1
        self._came[here.worker, number] = _Came(node, arrays, here.pulled, examples, here.version)
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
        """Decide what has become due; harmless at any time."""
        outcome = _OutcomeBuilder()
        self._take(self._rule.look(now_s), now_s, outcome)
        return outcome.build()

    def go_on(self, until: float, now_s: float) -> Outcome:
        """Let steps make versions up to a later one, and take those that are due; first of all."""
        self.until = until
        outcome = _OutcomeBuilder()
        self._take((), now_s, outcome)
        return outcome.build()

    def _take(self, steps: tuple[Step, ...], now_s: float, outcome: _OutcomeBuilder) -> None:
        """Follow steps in the order in which they were decided; to bar a node may lead to more."""
        self._due += steps
        while self._due and not (self._due[0].apply and self.version >= self.until):
            step = self._due.popleft()
            outliers = self._step(step, outcome) if step.apply else ()
            for update in step.discard:
                outcome.discarded.append(self._came.pop(update).node)
            for worker in step.proceed:
                node = self._node_of.get(worker)
                if node is not None:  # not barred since this was decided
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
        """Let those take part again whose time is over; they join as new nodes do."""
        if self._judge is None:
            return
        over = {*self._judge.over(self.version)}
        if not self._nodes:  # a blacklist ends with steps of the model, and none would come
            over.update(self._judge.eldest())
        for worker in over:
            self._judge.readmit(worker)
        back = [node for node in self.barred if self._workers[node] in over]
        self.barred.difference_update(back)
        outcome.readmitted += back

    def _step(self, step: Step, outcome: _OutcomeBuilder) -> tuple[int, ...]:
        """Change the model; return the nodes that are found to be outliers."""
        came = [self._came.pop(update) for update in step.apply]
        outcome.applied += [each.node for each in came]
        factors = [self._merge.weight(self._facts(each)) for each in came]
        weights = [each.weight * factor for each, factor in zip(came, factors, strict=True)]
        share = step.share
        if share is None:
            share = min(1.0, len(came) / max(1, len(self._nodes)))
        # What the merge rule takes from an update shortens the step, to nothing if it takes all.
        total = math.fsum(weights)
        share *= total / math.fsum(each.weight for each in came)
        parts = [weight / total if total else 1 / len(came) for weight in weights]
        self.version += 1
        changes: dict[str, Doubles] = {}
        if self._judge is not None or not self._mixes_models:
            changes = {
                name: _mean([_went(each, name) for each in came], parts)
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
        came: list[_Came],
        parts: list[float],
        changes: dict[str, Doubles],
    ) -> npt.NDArray[np.generic]:
        """Return what a step makes of an array of the model."""
        models = [each.arrays[name] for each in came]
        if name in self._buffers:
            return mixed(before, models, parts, share)
        now = before.astype(np.float64)
        if self._mixes_models:
            return (1.0 - share) * now + share * _mean(models, parts)
        return now + share * changes[name]

    def _judged(self, came: list[_Came], changes: dict[str, Doubles]) -> tuple[int, ...]:
        """Compare each update with its step; return the nodes that are found to be outliers."""
        if self._judge is None:
            return ()
        square = sum(float(np.vdot(each, each)) for each in changes.values())
        outliers = []
        for each in came:
            dot = own = 0.0
            for name, change in changes.items():
                went = _went(each, name)
                dot += float(np.vdot(went, change))
                own += float(np.vdot(went, went))
            worker = self._workers[each.node]
            angle = cosine(dot, own, square)
            if self._judge.saw(worker, angle, self.version, len(self._workers)):
                outliers.append(each.node)
        return tuple(outliers)

    def _facts(self, came: _Came) -> UpdateFacts:
        return UpdateFacts(staleness=self.version - came.version, samples=1, all_samples=1)


def _went(came: _Came, name: str) -> Doubles:
    """Return how far a node went from where it began."""
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
    """Return an array in the type that it had."""
    with np.errstate(over="ignore"):
        found = np.asarray(moved, dtype=before.dtype)
    if not np.isfinite(found).all():
        raise FloatingPointError(
            f"a step leads to elements that {before.dtype} does not have; lower the clients' "
            "learning rate, or send wider elements"
        )
    return found


def _checked_buffers(arrays: Arrays, buffers: Collection[str] | None) -> frozenset[str]:
    """Return which arrays are buffers."""
    for name, each in arrays.items():
        if np.issubdtype(each.dtype, np.complexfloating):
            raise ValueError(
                f"array {name!r} is {each.dtype}, of which no mean is taken; send its real "
                "and imaginary parts"
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
                f"array {name!r} is {each.dtype}, which no step can change as a parameter; name it "
                "among buffers, too"
            )
    return frozenset(buffers)
