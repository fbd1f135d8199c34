"""A server's part of the model: whose updates have come, and what they make of it. Pure.

Updates come as sums: each worker's alone, or those of all workers of a step added up on their way.
Which become part of the model, and in which order, is not decided here but by the run's pace, for
all servers alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.net.errors import OutOfPlaceMessage
from anabranch.plan import Chunk
from anabranch.site.actions import Total
from anabranch.site.arithmetic import Floats

Update = tuple[int, int]  # (worker, which of its updates, from 1)
Rule = Callable[[Floats, Floats, float], None]
"""Changes parameters in place, given gradients and what multiplies the learning rate."""


@dataclass(slots=True)
class _Incoming:
    """Updates that come together, as their mean."""

    mean: Floats
    weights: dict[int, float] = field(default_factory=dict)  # of the chunks that are here


class ServerPartition:
    """The chunks of the model that one server holds.

    Args:
        chunks: which, of the deal.
        parameters: the whole model as it is at first, shape (elements,); not changed.
        rule: changes parameters by gradients; None leaves the numbers out.
        workers: how many push updates.

    Attributes:
        version: how many steps have changed the model.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        parameters: Floats,
        rule: Rule | None,
        workers: int,
    ) -> None:
        self._rule = rule
        self._workers = workers
        self._places: dict[int, slice] = {}  # of each chunk in what follows
        held = 0
        for chunk in chunks:
            self._places[chunk.index] = slice(held, held + chunk.elements)
            held += chunk.elements
        self._parameters = np.empty(held, np.float32)  # without numbers never touched
        self._chunks = tuple(chunks)
        self.load(parameters)
        self._incoming: dict[tuple[Update, ...], _Incoming] = {}
        self._settled: dict[int, int] = {}  # the latest update of each worker that was settled
        self._forgotten: set[Update] = set()  # before they were all here: their workers died
        self.version = 0

    def load(self, parameters: Floats) -> None:
        """Begin from this model, shape (elements,); no update has been applied yet."""
        if self._rule is None:
            return
        for chunk in self._chunks:
            self._parameters[self._places[chunk.index]] = parameters[chunk.start : chunk.stop]

    def has_settled(self, update: Update) -> bool:
        """Return whether an update has become part of the model, or never will."""
        worker, number = update
        return number <= self._settled.get(worker, 0)

    def has_forgotten(self, update: Update) -> bool:
        """Return whether an update was given up before it was all here."""
        return update in self._forgotten

    def is_here(self, updates: tuple[Update, ...]) -> bool:
        """Return whether all of updates that come together has come."""
        incoming = self._incoming.get(updates)
        return incoming is not None and len(incoming.weights) == len(self._places)

    def take(self, updates: tuple[Update, ...], total: Total) -> tuple[Update, ...]:
        """Take a chunk of a sum of updates.

        Another sum that has one of these updates in it is void, and is forgotten.

        Args:
            updates: whose sum it is.
            total: of a chunk that is held here, and that has not come of this sum.

        Returns:
            The updates, if all their chunks are here now.
        """
        incoming = self._incoming.get(updates)
        if incoming is None:
            mean = np.empty(len(self._parameters) if self._rule else 0, np.float32)
            for void in [other for other in self._incoming if set(other) & set(updates)]:
                mean = self._incoming.pop(void).mean
            incoming = self._incoming[updates] = _Incoming(mean)
        index = total.chunk.index
        assert index in self._places
        assert index not in incoming.weights
        incoming.weights[index] = total.weight
        if self._rule is not None:
            place = incoming.mean[self._places[index]]
            if total.divisor == 1.0:
                place[:] = total.values
            else:
                np.divide(total.values, np.float32(total.divisor), out=place)
        return updates if self.is_here(updates) else ()

    def squared_norm(self, update: Update) -> float:
        """Return the squared norm of what came of an update, or of the mean that it came in."""
        (sum_,) = (each for each in self._incoming if update in each)
        mean = self._incoming[sum_].mean
        return float(np.dot(mean, mean))

    def apply(self, updates: Sequence[Update], factors: Sequence[float] = ()) -> None:
        """Take one step with these updates, which are all here.

        The gradients are averaged by weight, and the step is as long as the weights' part of the
        workers: all with weight 1 take a full step together, and one alone the N-th part of one.

        Args:
            updates: those that came in one sum together, in one step.
            factors: what each one's weight is multiplied by; none for 1. Of a sum, the first one's
                counts.

        Raises:
            OutOfPlaceMessage: one is not here, or they are a part of a sum.
        """
        if not updates:
            return
        sums = self._sums_of(updates)
        self.version += 1
        # Chunks may differ in the last bits, having been added up in different orders.
        weights = [_weight(self._incoming[each]) for each in sums]
        if factors:
            by_update = dict(zip(updates, factors, strict=True))
            weights = [
                weight * by_update[each[0]] for each, weight in zip(sums, weights, strict=True)
            ]
        if self._rule is not None:
            gradients = self._incoming[sums[0]].mean
            if len(sums) > 1 and any(weights):
                parts = [weight / max(weights) for weight in weights]  # which float32 can hold
                gradients *= np.float32(parts[0])
                for each, part in zip(sums[1:], parts[1:], strict=True):
                    gradients += np.float32(part) * self._incoming[each].mean
                gradients /= np.float32(sum(parts))
            self._rule(self._parameters, gradients, sum(weights) / self._workers)
        for each in sums:
            del self._incoming[each]
        for update in updates:
            self._settle(update)

    def _sums_of(self, updates: Sequence[Update]) -> list[tuple[Update, ...]]:
        """Return the sums that updates have come in, in the order of their first ones."""
        left, sums = dict.fromkeys(updates), []
        for update in updates:
            if update not in left:
                continue
            found = [each for each in self._incoming if update in each]
            each = found[0] if found else (update,)
            if not self.is_here(each) or not left.keys() >= {*each}:
                raise OutOfPlaceMessage(
                    f"a step with updates {list(updates)}, of which {[update]} is not here by "
                    "itself, or not all of it"
                )
            for together in each:
                del left[together]
            sums.append(each)
        return sums

    def discard(self, updates: Sequence[Update]) -> None:
        """Forget these updates, whole or not."""
        for update in updates:
            if not self.is_here((update,)):
                self._forgotten.add(update)
            for each in [each for each in self._incoming if update in each]:
                del self._incoming[each]
            self._settle(update)

    def forget(self, workers: Collection[int]) -> None:
        """Forget what has come in part of workers' updates; what is all here may yet count."""
        of_these = [each for each in self._incoming if any(of in workers for of, _ in each)]
        for each in of_these:
            if not self.is_here(each):
                del self._incoming[each]

    def _settle(self, update: Update) -> None:
        worker, number = update
        self._settled[worker] = max(number, self._settled.get(worker, 0))

    def snapshot(self) -> dict[int, Floats]:
        """Return the parameters of each chunk as they are now; later steps do not change them."""
        parameters = self._parameters if self._rule is None else self._parameters.copy()
        return {index: parameters[place] for index, place in self._places.items()}


def _weight(incoming: _Incoming) -> float:
    return incoming.weights[min(incoming.weights)] if incoming.weights else 0.0
