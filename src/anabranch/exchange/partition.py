"""A server's part of the model: takes updates, and applies them when told. Pure.

An update arrives as a sum: of one worker alone, or of all workers of a step, added up on the way.
The run's pace decides which sums become part of the model, and in which order, for all servers
alike. A sum's life::

    take, chunk by chunk --> incoming --all chunks--> here --apply--> part of the model, settled
                                `---- discard, or forget (its workers died) ----> dropped
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from anabranch.exchange.actions import Total
from anabranch.exchange.arithmetic import Floats
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.plan import Chunk

Update = tuple[int, int]  # (worker, which of its updates, from 1)
Rule = Callable[[Floats, Floats, float], None]
"""Changes parameters in place, given gradients and a factor of the learning rate."""


Combine = Callable[[Sequence[Floats]], Floats]
"""Combines the updates of a step into one; each has shape (elements,)."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """How a step changes the model by its updates.

    An update is the move of a worker, away from the model that it had pulled.

    Args:
        of: what a step mixes. ``updates``: the workers' moves are added to the present model.
            ``models``: it moves towards the workers' models (FL-R²SP's Algorithm 2, FedAsync).
            ``cache``: it becomes the weighted mean of the last models of all workers (SAFA, eq. 6
            to 8); the first model stands for workers that have sent none yet.
        combine: combines a step's updates into one; None takes their weighted mean.
        asks_agreement: whether to report how far updates agree with their mean.
        averaged_elements: the number of buffer elements, such as running variances, at the model's
            end, before those of ``largest_elements``. An update has their value, not their move; a
            step moves towards the values' mean, and never beyond it.
        largest_elements: the number of integer elements at the very end; a step keeps the largest
            value of each.
    """

    of: Literal["updates", "models", "cache"] = "updates"
    combine: Combine | None = None
    asks_agreement: bool = False
    averaged_elements: int = 0
    largest_elements: int = 0


AS_UPDATES = Mixing()


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a step's updates agree with their mean, in one part of the model.

    Args:
        dots: the scalar product of each update with the mean.
        squared_norms: the squared norm of each update.
        squared_norm: the squared norm of the mean.
    """

    dots: tuple[float, ...]
    squared_norms: tuple[float, ...]
    squared_norm: float


@dataclass(slots=True)
class _Incoming:
    """A sum that is arriving, stored as the mean of its updates."""

    mean: Floats
    weights: dict[int, float] = field(default_factory=dict)  # of the chunks that have arrived
    base: Floats | None = None  # the model that its worker had pulled, where models are mixed


class ServerPartition:
    """The chunks of the model that one server holds.

    Args:
        chunks: the chunks of the deal that this server holds.
        parameters: the whole initial model, shape (elements,); not changed.
        rule: changes parameters by gradients; None leaves the numbers out.
        workers: the number of workers that push updates.
        mixing: how a step changes the model by its updates.

    Attributes:
        version: the number of steps made.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        parameters: Floats,
        rule: Rule | None,
        workers: int,
        mixing: Mixing = AS_UPDATES,
    ) -> None:
        self._rule = rule
        self._workers = workers
        self._mixing = mixing
        self._pulled: dict[int, Floats] = {}  # each worker's last pull, where models are mixed
        self._cache: dict[int, tuple[Floats, float]] = {}  # each worker's last model, its weight
        self._uncounted: dict[int, float] = {}  # weights of workers removed from the cache
        self._places: dict[int, slice] = {}  # of each chunk in `_parameters`
        held = 0
        for chunk in chunks:
            self._places[chunk.index] = slice(held, held + chunk.elements)
            held += chunk.elements
        self._parameters = np.empty(held, np.float32)  # never touched in a size-only run
        self._chunks = tuple(chunks)
        counted = len(parameters) - mixing.largest_elements
        averaged = counted - mixing.averaged_elements
        self._averaged = self._held_between(averaged, counted)
        self._largest = self._held_between(counted, len(parameters))
        self.load(parameters)
        self._incoming: dict[tuple[Update, ...], _Incoming] = {}
        self._sum_with: dict[Update, tuple[Update, ...]] = {}  # each update is in one sum
        self._settled: dict[int, int] = {}  # each worker's latest settled update
        self._forgotten: set[Update] = set()  # discarded before they had arrived completely
        self.version = 0

    def _held_between(self, start: int, stop: int) -> list[slice]:
        """Return the slices of ``_parameters`` with elements ``[start, stop)`` of the model."""
        found = []
        for chunk in self._chunks:
            first, last = max(start, chunk.start), min(stop, chunk.stop)
            if first < last:
                shift = self._places[chunk.index].start - chunk.start
                found.append(slice(first + shift, last + shift))
        return found

    def load(self, parameters: Floats) -> None:
        """Set the initial model, shape (elements,), before the first step."""
        if self._rule is None:
            return
        for chunk in self._chunks:
            self._parameters[self._places[chunk.index]] = parameters[chunk.start : chunk.stop]
        if self._mixing.of != "updates":
            self._first = self._parameters.copy()
        if self._mixing.of == "cache":
            # The weighted sum of the cached models, in float64: it is updated, never recomputed.
            self._sum = np.zeros(len(self._parameters), np.float64)

    def has_settled(self, update: Update) -> bool:
        """Return whether an update has become part of the model, or never will."""
        worker, number = update
        return number <= self._settled.get(worker, 0)

    def has_forgotten(self, update: Update) -> bool:
        """Return whether an update was discarded before it had arrived completely."""
        return update in self._forgotten

    def is_here(self, updates: tuple[Update, ...]) -> bool:
        """Return whether a sum of these updates has arrived completely."""
        incoming = self._incoming.get(updates)
        return incoming is not None and len(incoming.weights) == len(self._places)

    def take(self, updates: tuple[Update, ...], total: Total) -> tuple[Update, ...]:
        """Take a chunk of a sum of updates.

        Any other sum with one of these updates is of an earlier epoch, hence void, and is dropped.

        Args:
            updates: the updates in the sum.
            total: the sum of a chunk that this server holds, for the first time.

        Returns:
            The updates, if all their chunks have arrived now; else none.
        """
        incoming = self._incoming.get(updates)
        if incoming is None:
            mean = np.empty(len(self._parameters) if self._rule else 0, np.float32)
            for void in {self._sum_with[each] for each in updates if each in self._sum_with}:
                mean = self._drop(void).mean
            incoming = self._incoming[updates] = _Incoming(mean)
            self._sum_with |= dict.fromkeys(updates, updates)
            if self._mixing.of != "updates" and self._rule is not None:
                incoming.base = self._pulled.get(updates[0][0], self._first)
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
        """Return the squared norm of an update, or of the mean in which it arrived."""
        mean = self._incoming[self._sum_with[update]].mean
        if self._averaged or self._largest:
            mean = mean.copy()
            for place in (*self._averaged, *self._largest):
                mean[place] = 0.0
        return float(np.dot(mean, mean))

    def pulls(self, workers: Collection[int]) -> None:
        """Note that these workers pull the model as it is now."""
        if self._mixing.of == "updates" or self._rule is None or not workers:
            return
        model = self._parameters.copy()
        for worker in workers:
            self._pulled[worker] = model

    def deprecate(self, workers: Collection[int]) -> None:
        """Cache the present model for workers whose update is abandoned (SAFA, eq. 6)."""
        if self._mixing.of == "cache" and self._rule is not None:
            for worker in workers:
                _, weight = self._cache.get(worker, (self._first, 1.0))
                self._cached(worker, self._parameters.copy(), weight)

    def uncount(self, workers: Collection[int]) -> None:
        """Remove workers from the mean of the cached models, until their next update arrives."""
        if self._mixing.of == "cache" and self._rule is not None:
            for worker in workers:
                model, weight = self._cache.pop(worker, (self._first, 0.0))
                self._sum -= weight * model.astype(np.float64)
                self._uncounted[worker] = weight or 1.0

    def _cached(self, worker: int, model: Floats, weight: float) -> None:
        self._uncounted.pop(worker, None)
        before, weighed = self._cache.get(worker, (self._first, 0.0))
        self._sum += weight * model.astype(np.float64) - weighed * before.astype(np.float64)
        self._cache[worker] = model, weight

    def _mean_of_cache(self) -> Floats:
        weight = math.fsum(each for _, each in self._cache.values())
        missing = 0.0
        if len(self._cache) + len(self._uncounted) < self._workers:
            missing = max(0.0, self._workers - weight - math.fsum(self._uncounted.values()))
        if not weight + missing:
            return self._parameters.copy()
        mean = (self._sum + missing * self._first.astype(np.float64)) / (weight + missing)
        return mean.astype(np.float32)

    def apply(
        self,
        updates: Sequence[Update],
        factors: Sequence[float] = (),
        share: float | None = None,
    ) -> Agreement | None:
        """Make one step with these updates, which have arrived.

        The gradients are averaged by weight. The step's length is the sum of weights divided by the
        number of workers: N updates of weight 1 make a full step, and one alone the N-th part.

        Args:
            updates: the updates of the step; all updates of one sum must be in the same step.
            factors: a factor of each update's weight; empty for 1. For a sum, the factor of its
                first update counts.
            share: the step's length instead, times the weighted mean of the factors; None for the
                length above.

        Returns:
            How far the updates agree with their mean, if the mixing asks for that.

        Raises:
            OutOfPlaceMessage: an update has not arrived, or only a part of a sum is named.
        """
        if not updates:
            return None
        sums = self._sums_of(updates)
        self.version += 1
        # The first chunk's weight: weights of chunks may differ in the last bits, because they were
        # added up in different orders.
        weights = unscaled = [_weight(self._incoming[each]) for each in sums]
        if factors:
            by_update = dict(zip(updates, factors, strict=True))
            weights = [
                weight * by_update[each[0]] for each, weight in zip(sums, weights, strict=True)
            ]
        length = sum(weights) / self._workers
        if share is not None:
            length = share * sum(weights) / sum(unscaled)
        agreement = None
        if self._rule is not None:
            agreement = self._step(self._rule, sums, weights, length)
        for each in sums:
            self._drop(each)
        for update in updates:
            self._settle(update)
        return agreement

    def _step(
        self, rule: Rule, sums: list[tuple[Update, ...]], weights: list[float], length: float
    ) -> Agreement | None:
        """Change the parameters by the updates in these sums."""
        incoming = [self._incoming[each] for each in sums]
        mixing, agreement = self._mixing, None
        means = [each.mean for each in incoming]
        if mixing.of == "cache":
            for each, here, weight in zip(sums, incoming, weights, strict=True):
                assert here.base is not None
                last = here.base - here.mean
                for place in (*self._averaged, *self._largest):
                    last[place] = here.mean[place]
                self._cached(each[0][0], last, weight)
        # Before the rule, which would take the values of buffers for gradients.
        buffers = self._mix_buffers(means, weights, length)
        if mixing.combine is not None:
            gradients = mixing.combine(means)
        else:
            # In the memory of the first, unless the agreement needs the updates again.
            gradients = _mean(means, weights, means[0].copy() if mixing.asks_agreement else None)
        if mixing.asks_agreement:
            agreement = Agreement(
                tuple(_dot(each, gradients) for each in means),
                tuple(_dot(each, each) for each in means),
                _dot(gradients, gradients),
            )
        if mixing.of == "models":
            bases = [each.base for each in incoming if each.base is not None]
            gradients = gradients + (self._parameters - _mean(bases, weights, bases[0].copy()))
        elif mixing.of == "cache":
            gradients, length = self._parameters - self._mean_of_cache(), 1.0
        rule(self._parameters, gradients, length)
        for place, values in buffers:
            self._parameters[place] = values
        return agreement

    def _mix_buffers(
        self, means: list[Floats], weights: list[float], length: float
    ) -> list[tuple[slice, Floats]]:
        """Return the new values of buffers with their slices; set them to 0 in the updates."""
        found: list[tuple[slice, Floats]] = []
        of_cache = self._mean_of_cache() if self._averaged and self._mixing.of == "cache" else None
        combine = self._mixing.combine
        for place in self._averaged:
            now = self._parameters[place]
            if of_cache is not None:
                found.append((place, of_cache[place]))
                continue
            came = [mean[place].copy() for mean in means]
            to = _mean(came, weights, None) if combine is None else combine(came)
            found.append((place, now + np.float32(min(1.0, length)) * (to - now)))
        for place in self._largest:
            came = [mean[place] for mean in means]
            found.append((place, np.maximum.reduce([self._parameters[place], *came])))
        for place, _ in found:
            for mean in means:
                mean[place] = 0.0
        return found

    def _sums_of(self, updates: Sequence[Update]) -> list[tuple[Update, ...]]:
        """Return the sums that contain updates, in the order of their first ones."""
        left, sums = dict.fromkeys(updates), []
        for update in updates:
            if update not in left:
                continue
            each = self._sum_with.get(update, (update,))
            if not self.is_here(each) or not left.keys() >= {*each}:
                raise OutOfPlaceMessage(
                    f"a step with updates {list(updates)}, but {update} has not arrived, or is in "
                    "a sum with updates that the step does not name"
                )
            for together in each:
                del left[together]
            sums.append(each)
        return sums

    def discard(self, updates: Sequence[Update]) -> None:
        """Drop these updates, arrived completely or not; they are settled."""
        for update in updates:
            if not self.is_here((update,)):
                self._forgotten.add(update)
            if update in self._sum_with:
                self._drop(self._sum_with[update])
            self._settle(update)

    def forget(self, workers: Collection[int]) -> None:
        """Drop these workers' incomplete updates; complete ones may still be applied."""
        of_these = [each for each in self._incoming if any(of in workers for of, _ in each)]
        for each in of_these:
            if not self.is_here(each):
                self._drop(each)

    def _drop(self, sum_: tuple[Update, ...]) -> _Incoming:
        for update in sum_:
            del self._sum_with[update]
        return self._incoming.pop(sum_)

    def _settle(self, update: Update) -> None:
        worker, number = update
        self._settled[worker] = max(number, self._settled.get(worker, 0))

    def snapshot(self) -> dict[int, Floats]:
        """Return the parameters of each chunk, by index; a copy that later steps do not change."""
        parameters = self._parameters if self._rule is None else self._parameters.copy()
        return {index: parameters[place] for index, place in self._places.items()}

    def write_whole(self, model: Floats) -> bool:
        """Write the model, shape (elements,), if this server holds all of it; return whether."""
        if len(self._parameters) != len(model):
            return False
        for chunk in self._chunks:
            model[chunk.start : chunk.stop] = self._parameters[self._places[chunk.index]]
        return True


def _dot(one: Floats, other: Floats) -> float:
    """Return a scalar product in float64: large updates overflow float32, small ones vanish."""
    return float(np.einsum("i,i->", one, other, dtype=np.float64, casting="safe"))


def _mean(arrays: Sequence[Floats], weights: Sequence[float], into: Floats | None) -> Floats:
    """Return the weighted mean of arrays.

    It is computed in ``into``, a copy of the first array; None overwrites the first array itself.
    """
    total = arrays[0] if into is None else into
    if len(arrays) > 1 and any(weights):
        parts = [weight / max(weights) for weight in weights]  # within float32's range
        total *= np.float32(parts[0])
        for each, part in zip(arrays[1:], parts[1:], strict=True):
            total += np.float32(part) * each
        total /= np.float32(sum(parts))
    return total


def _weight(incoming: _Incoming) -> float:
    return incoming.weights[min(incoming.weights)] if incoming.weights else 0.0
