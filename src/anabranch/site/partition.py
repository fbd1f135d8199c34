"""A server's part of the model: whose updates have come, and what they make of it. No I/O.

Updates are received whole before they count: each in memory of its own, or all of a step added up
on their way. Which become part of the model, and in which order, is not decided here but by the
run's pace, for all servers alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from anabranch.net.errors import DuplicateMessage, MalformedMessage, OutOfPlaceMessage
from anabranch.net.frames import Sink
from anabranch.net.messages import Push
from anabranch.plan import Chunk
from anabranch.site.accumulator import Floats
from anabranch.site.aggregation import LEAST_WEIGHT, MOST_WEIGHT

Update = tuple[int, int]  # (worker, which of its updates, from 1)
Rule = Callable[[Floats, Floats, float], None]
"""Changes parameters in place, given gradients and what multiplies the learning rate."""


@dataclass(slots=True)
class _Incoming:
    """An update that comes."""

    gradients: Floats
    weight: float
    begun: set[int] = field(default_factory=set)  # chunks
    whole: int = 0


@dataclass(slots=True)
class _Sum:
    """Updates that come added up, and whose step has all of them."""

    updates: tuple[Update, ...]
    mean: Floats
    weights: dict[int, float] = field(default_factory=dict)  # of the chunks that are here


class ServerPartition:
    """The chunks of the model that one server holds.

    Args:
        chunks: which, of the deal.
        parameters: the whole model as it is at first, shape (elements,); not changed.
        rule: changes parameters by gradients; None leaves the numbers out.
        workers: how many push updates.
        came: called with each update that is all here.

    Attributes:
        version: how many steps have changed the model.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        parameters: Floats,
        rule: Rule | None,
        workers: int,
        came: Callable[[Update], None],
    ) -> None:
        self._rule = rule
        self._workers = workers
        self._came = came
        self._places: dict[int, slice] = {}  # of each chunk in what follows
        held = 0
        for chunk in chunks:
            self._places[chunk.index] = slice(held, held + chunk.elements)
            held += chunk.elements
        self._parameters = np.empty(held, np.float32)  # without numbers never touched
        if rule is not None:
            for chunk in chunks:
                self._parameters[self._places[chunk.index]] = parameters[chunk.start : chunk.stop]
        self._incoming: dict[Update, _Incoming] = {}
        self._sum: _Sum | None = None
        self._settled: dict[int, int] = {}  # the latest update of each worker that was settled
        self._forgotten: set[Update] = set()  # before they were all here: their workers died
        self.version = 0

    def on_push(self, message: Push, payload_bytes: int) -> Sink:
        """Return where a chunk of an update goes.

        Raises:
            MalformedMessage: a weight that cannot be.
            OutOfPlaceMessage: a chunk that is not held here, or of another size.
            DuplicateMessage: it has come before.
        """
        update = worker, number = message.path[0], message.round
        if not LEAST_WEIGHT <= message.weight <= MOST_WEIGHT:
            raise MalformedMessage(f"an update has weight {message.weight:g}, out of range")
        if message.chunk not in self._places:
            raise OutOfPlaceMessage(f"chunk {message.chunk} of an update, which is not held here")
        place = self._places[message.chunk]
        elements = place.stop - place.start
        if payload_bytes != 4 * elements:
            raise OutOfPlaceMessage(
                f"chunk {message.chunk} of an update has {payload_bytes} bytes, not {4 * elements}"
            )
        if update in self._forgotten:
            return Sink()  # it was on its way
        incoming = self._incoming.get(update)
        settled = number <= self._settled.get(worker, 0)
        if settled or (incoming is not None and message.chunk in incoming.begun):
            raise DuplicateMessage(f"chunk {message.chunk} of update {number} of site {worker}")
        if incoming is None:
            room = np.empty(len(self._parameters) if self._rule else 0, np.float32)
            incoming = self._incoming[update] = _Incoming(room, message.weight)
        if message.weight != incoming.weight:
            raise MalformedMessage(f"update {number} of site {worker} has more than one weight")
        incoming.begun.add(message.chunk)
        target = None if self._rule is None else incoming.gradients[place].data.cast("B")
        return Sink(target=target, done=partial(self._count, update, incoming))

    def _count(self, update: Update, incoming: _Incoming) -> None:
        incoming.whole += 1
        if incoming.whole == len(self._places) and update in self._incoming:
            self._came(update)

    def on_sum(self, updates: tuple[Update, ...], chunk: int, total: Floats, weight: float) -> None:
        """Take a chunk of a weighted sum; with the last chunk, all its updates have come.

        A sum of other updates that has not become part of the model is forgotten.

        Args:
            updates: whose sum it is.
            chunk: one that is held here, and that has not come of this sum.
            total: shape (elements,).
            weight: of all the updates.
        """
        growing = self._sum
        if growing is None or growing.updates != updates:
            room = len(self._parameters) if self._rule else 0
            mean = np.empty(room, np.float32) if growing is None else growing.mean
            growing = self._sum = _Sum(updates, mean)
        assert chunk in self._places
        assert chunk not in growing.weights
        growing.weights[chunk] = weight
        if self._rule is not None:
            np.divide(total, np.float32(weight), out=growing.mean[self._places[chunk]])
        if len(growing.weights) == len(self._places):
            for update in updates:
                self._came(update)

    def apply(self, updates: Sequence[Update]) -> None:
        """Take one step with these updates, which are all here.

        The gradients are averaged by weight, and the step is as long as the weights' part of the
        workers: all with weight 1 take a full step together, and one alone the N-th part of one.

        Raises:
            OutOfPlaceMessage: one is not here, or they are a part of a sum.
        """
        if updates and self._sum is not None:
            self._apply_sum(self._sum, updates)
            return
        for worker, number in updates:
            if self._whole((worker, number)) is None:
                raise OutOfPlaceMessage(f"update {number} of site {worker} is not here")
        if not updates:
            return
        self.version += 1
        weights = [self._incoming[update].weight for update in updates]
        total = sum(weights)
        if self._rule is not None:
            gradients = self._incoming[updates[0]].gradients
            if len(updates) > 1:
                gradients *= np.float32(weights[0])
                for update, weight in zip(updates[1:], weights[1:], strict=True):
                    gradients += np.float32(weight) * self._incoming[update].gradients
                gradients /= np.float32(total)
            self._rule(self._parameters, gradients, total / self._workers)
        self.discard(updates)

    def _apply_sum(self, whole: _Sum, updates: Sequence[Update]) -> None:
        if set(updates) != set(whole.updates) or len(whole.weights) < len(self._places):
            raise OutOfPlaceMessage(
                f"a step with updates {updates}, where {len(whole.weights)} of {len(self._places)} "
                f"chunks of the sum of {whole.updates} are here"
            )
        self.version += 1
        if self._rule is not None:
            # Chunks may differ in the last bits, having been added up in different orders.
            weight = whole.weights[min(whole.weights)]
            self._rule(self._parameters, whole.mean, weight / self._workers)
        self._sum = None

    def _whole(self, update: Update) -> _Incoming | None:
        incoming = self._incoming.get(update)
        return incoming if incoming is not None and incoming.whole == len(self._places) else None

    def discard(self, updates: Sequence[Update]) -> None:
        """Forget these updates, whole or not."""
        for worker, number in updates:
            if self._whole((worker, number)) is None:
                self._forgotten.add((worker, number))
            self._incoming.pop((worker, number), None)
            self._settled[worker] = max(number, self._settled.get(worker, 0))

    def snapshot(self) -> dict[int, Floats]:
        """Return the parameters of each chunk as they are now; later steps do not change them."""
        parameters = self._parameters if self._rule is None else self._parameters.copy()
        return {index: parameters[place] for index, place in self._places.items()}
