"""A federated server without a network: who goes on with which model, and what counts. Pure.

The same objects as everywhere decide: a pace's rule, a merge rule, its outlier filter. What a
framework has to do is to send models and to say what came; times are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from anabranch.merge import AnyMerge, UpdateFacts, cosine, filter_of
from anabranch.pace import AnyPace, Step

Arrays = Mapping[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class Heard:
    """What follows from something that was told.

    Args:
        goes_on: nodes to which the model, as it is now, is to be sent.
        applied: nodes whose models became part of it.
        discarded: nodes whose models never will.
        barred, readmitted: nodes that take no part from now on, or take part again.
    """

    goes_on: tuple[int, ...] = ()
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
class _Told:
    goes_on: list[int] = field(default_factory=list)
    applied: list[int] = field(default_factory=list)
    discarded: list[int] = field(default_factory=list)
    barred: list[int] = field(default_factory=list)
    readmitted: list[int] = field(default_factory=list)

    def heard(self) -> Heard:
        gone = {*self.barred}
        return Heard(
            tuple(node for node in self.goes_on if node not in gone),
            *map(tuple, (self.applied, self.discarded, self.barred, self.readmitted)),
        )


class Federation:
    """One run's model, and who takes part.

    Args:
        pace: when nodes go on; one that is no barrier.
        merge: what their models weigh, and who is an outlier.
        arrays: the model at first, by name; never changed in place.
        mixes_models: whether a step goes towards the models that nodes came to (Algorithm 2), or as
            far as they went from where they began.

    Attributes:
        arrays: the model as it is now.
        version: how many steps have changed it.
    """

    def __init__(
        self, pace: AnyPace, merge: AnyMerge, arrays: Arrays, mixes_models: bool = True
    ) -> None:
        self.arrays = arrays
        self.version = 0
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

    def __contains__(self, node: int) -> bool:
        return node in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)

    def joined(self, node: int, now_s: float) -> Heard:
        """Let a node take part, which is there and computes nothing; not one that is barred."""
        told = _Told()
        worker = self._workers.setdefault(node, len(self._workers))
        if self._judge is None or worker not in self._judge.barred:
            self._join(node, worker, now_s, told)
        return told.heard()

    def _join(self, node: int, worker: int, now_s: float, told: _Told) -> None:
        self._nodes[node] = _Node(worker, self.arrays)
        self._node_of[worker] = node
        self._take(self._rule.join(worker, now_s), now_s, told)

    def left(self, node: int, now_s: float) -> Heard:
        """Go on without a node that is gone or silent; what it sends later is nobody's."""
        told = _Told()
        self._leave(node, now_s, told)
        return told.heard()

    def _leave(self, node: int, now_s: float, told: _Told) -> None:
        worker = self._nodes.pop(node).worker
        self._take(self._rule.leave(worker, now_s), now_s, told)
        self._node_of.pop(worker, None)

    def returned(self, node: int, arrays: Arrays, examples: float, now_s: float) -> Heard:
        """Take the model that a node came to.

        Args:
            node: which takes part and was let go on.
            arrays: its model, by name, shapes as the model's.
            examples: it was trained on; what it weighs.
            now_s: the time.

        Raises:
            ValueError: it is another model, or weighs nothing.
        """
        self._check(node, arrays, examples)
        told, here = _Told(), self._nodes[node]
        number = self._updates[here.worker] = self._updates.get(here.worker, 0) + 1
        self._came[here.worker, number] = _Came(node, arrays, here.pulled, examples, here.version)
        self._take(self._rule.push(here.worker, now_s), now_s, told)
        return told.heard()

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
        if not 0 < examples < math.inf:
            raise ValueError(f"node {node} was trained on {examples} examples; give a number > 0")

    def look(self, now_s: float) -> Heard:
        """Decide what has become due; harmless at any time."""
        told = _Told()
        self._take(self._rule.look(now_s), now_s, told)
        return told.heard()

    def _take(self, steps: tuple[Step, ...], now_s: float, told: _Told) -> None:
        for step in steps:
            outliers = self._step(step, told) if step.apply else ()
            for update in step.discard:
                came = self._came.pop(update, None)
                if came is not None:
                    told.discarded.append(came.node)
            for worker in step.proceed:
                node = self._node_of[worker]
                here = self._nodes[node]
                here.pulled, here.version = self.arrays, self.version
                told.goes_on.append(node)
            self._bar(outliers, now_s, told)

    def _step(self, step: Step, told: _Told) -> tuple[int, ...]:
        """Change the model; return the workers that are found to be outliers."""
        came = [self._came.pop(update) for update in step.apply]
        told.applied += [each.node for each in came]
        factors = [self._merge.weight(self._facts(each)) for each in came]
        weights = [each.weight * factor for each, factor in zip(came, factors, strict=True)]
        share = 1.0 if step.share is None else step.share
        # What the merge rule takes from an update shortens the step.
        share *= sum(weights) / sum(each.weight for each in came)
        parts = [weight / sum(weights) for weight in weights] if any(weights) else weights
        before, self.version = self.arrays, self.version + 1
        changes = {name: self._mean(name, came, parts) for name in before}
        self.arrays = {
            name: _moved(each, changes[name], came, parts, share, self._mixes_models, name)
            for name, each in before.items()
        }
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
                outliers.append(worker)
        return tuple(outliers)

    def _mean(self, name: str, came: list[_Came], parts: list[float]) -> npt.NDArray[np.float64]:
        total = np.zeros(self.arrays[name].shape, np.float64)
        for each, part in zip(came, parts, strict=True):
            total += part * _went(each, name)
        return total

    def _facts(self, came: _Came) -> UpdateFacts:
        return UpdateFacts(staleness=self.version - came.version, samples=1, all_samples=1)

    def _bar(self, outliers: tuple[int, ...], now_s: float, told: _Told) -> None:
        if self._judge is None:
            return
        for worker in outliers:
            node = self._node_of.get(worker)
            if node is not None:
                told.barred.append(node)
                self._leave(node, now_s, told)
        for worker in self._judge.over(self.version):
            self._judge.readmit(worker)
            node = next(each for each, own in self._workers.items() if own == worker)
            told.readmitted.append(node)


def _went(came: _Came, name: str) -> npt.NDArray[np.float64]:
    """Return how far a node went from where it began."""
    went: npt.NDArray[np.float64] = np.subtract(
        came.arrays[name], came.pulled[name], dtype=np.float64
    )
    return went


def _moved(
    array: npt.NDArray[np.generic],
    change: npt.NDArray[np.float64],
    came: list[_Came],
    parts: list[float],
    share: float,
    mixes_models: bool,
    name: str,
) -> npt.NDArray[np.generic]:
    """Return what a step makes of an array."""
    if mixes_models:
        models = sum(
            part * each.arrays[name].astype(np.float64)
            for each, part in zip(came, parts, strict=True)
        )
        moved = (1.0 - share) * array.astype(np.float64) + share * np.asarray(models)
    else:
        moved = array.astype(np.float64) + share * change
    if not np.issubdtype(array.dtype, np.floating):
        moved = np.rint(moved)  # such as how many batches a layer has seen
    return np.asarray(moved, dtype=array.dtype)
