"""A server's part of the model: whose updates have come, and what they make of it. Pure.

Updates come as sums: each worker's alone, or those of all workers of a step added up on their way.
Which become part of the model, and in which order, is not decided here but by the run's pace, for
all servers alike.
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
"""Changes parameters in place, given gradients and what multiplies the learning rate."""


Combine = Callable[[Sequence[Floats]], Floats]
"""Makes one update of a step's, each of shape (elements,)."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """What a step makes of its updates.

    An update says how far a worker went from the model that it had pulled.

    Args:
        of: ``updates``, and the model goes as far as they say, from where it is; ``models``, and it
            goes towards the models that the workers came to (FL-R²SP's Algorithm 2, FedAsync);
            ``cache``, and it becomes the mean of the last models of all workers, by the weights
            that these came with (SAFA, eq. 6 to 8); the first model has the place of those that
            have not come.
        combine: makes one update of a step's; None takes their mean by weight.
        asks_agreement: whether to tell how far updates agree with their mean.
        averaged_elements: how many elements at the model's end, but for the following, are buffers,
            such as running variances. An update has such an element as it is, not how far it went,
            and a step goes towards their mean, at most to it.
        largest_elements: how many at the very end are integers; a step takes the largest.
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
        dots: of each with the mean.
        squared_norms: of each.
        squared_norm: of the mean.
    """

    dots: tuple[float, ...]
    squared_norms: tuple[float, ...]
    squared_norm: float


@dataclass(slots=True)
class _Incoming:
    """Updates that come together, as their mean."""

    mean: Floats
    weights: dict[int, float] = field(default_factory=dict)  # of the chunks that are here
    base: Floats | None = None  # the model that they were computed on, where models are mixed


class ServerPartition:
    """The chunks of the model that one server holds.

    Args:
        chunks: which, of the deal.
        parameters: the whole model as it is at first, shape (elements,); not changed.
        rule: changes parameters by gradients; None leaves the numbers out.
        workers: how many push updates.
        mixing: what a step makes of them.

    Attributes:
        version: how many steps have changed the model.
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
        self._pulled: dict[int, Floats] = {}  # by worker, where models are mixed
        self._cache: dict[int, tuple[Floats, float]] = {}  # its last model, and what that weighs
        self._uncounted: dict[int, float] = {}  # workers whose model is not in it, and its weight
        self._places: dict[int, slice] = {}  # of each chunk in what follows
        held = 0
        for chunk in chunks:
            self._places[chunk.index] = slice(held, held + chunk.elements)
            held += chunk.elements
        self._parameters = np.empty(held, np.float32)  # without numbers never touched
        self._chunks = tuple(chunks)
        counted = len(parameters) - mixing.largest_elements
        averaged = counted - mixing.averaged_elements
        self._averaged = self._held_between(averaged, counted)
        self._largest = self._held_between(counted, len(parameters))
        self.load(parameters)
        self._incoming: dict[tuple[Update, ...], _Incoming] = {}
        self._settled: dict[int, int] = {}  # the latest update of each worker that was settled
        self._forgotten: set[Update] = set()  # before they were all here: their workers died
        self.version = 0

    def _held_between(self, start: int, stop: int) -> list[slice]:
        """Return where elements ``[start, stop)`` of the model are held here."""
        found = []
        for chunk in self._chunks:
            first, last = max(start, chunk.start), min(stop, chunk.stop)
            if first < last:
                shift = self._places[chunk.index].start - chunk.start
                found.append(slice(first + shift, last + shift))
        return found

    def load(self, parameters: Floats) -> None:
        """Begin from this model, shape (elements,); no update has been applied yet."""
        if self._rule is None:
            return
        for chunk in self._chunks:
            self._parameters[self._places[chunk.index]] = parameters[chunk.start : chunk.stop]
        if self._mixing.of != "updates":
            self._first = self._parameters.copy()
        if self._mixing.of == "cache":
            # Of the last models that have come, by weight.
            self._sum = np.zeros(len(self._parameters), np.float64)

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
        """Return the squared norm of what came of an update, or of the mean that it came in."""
        (sum_,) = (each for each in self._incoming if update in each)
        mean = self._incoming[sum_].mean
        if self._averaged or self._largest:
            mean = mean.copy()
            for place in (*self._averaged, *self._largest):
                mean[place] = 0.0
        return float(np.dot(mean, mean))

    def pulls(self, workers: Collection[int]) -> None:
        """Take note of workers that get the model as it is, and compute on it."""
        if self._mixing.of == "updates" or self._rule is None or not workers:
            return
        model = self._parameters.copy()
        for worker in workers:
            self._pulled[worker] = model

    def deprecate(self, workers: Collection[int]) -> None:
        """Let the present model be the last of workers whose update is given up (SAFA, eq. 6)."""
        if self._mixing.of == "cache" and self._rule is not None:
            for worker in workers:
                _, weight = self._cache.get(worker, (self._first, 1.0))
                self._cached(worker, self._parameters.copy(), weight)

    def uncount(self, workers: Collection[int]) -> None:
        """Take workers out of the mean of the last models until others of theirs come."""
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
        """Take one step with these updates, which are all here.

        The gradients are averaged by weight, and the step is as long as the weights' part of the
        workers: all with weight 1 take a full step together, and one alone the N-th part of one.

        Args:
            updates: those that came in one sum together, in one step.
            factors: what each one's weight is multiplied by; none for 1. Of a sum, the first one's
                counts. Where the step has a share, what their mean loses of 1 shortens it.
            share: how far the step goes, whatever the weights' part; None for that part.

        Returns:
            How far they agree with their mean, if that is asked for.

        Raises:
            OutOfPlaceMessage: one is not here, or they are a part of a sum.
        """
        if not updates:
            return None
        sums = self._sums_of(updates)
        self.version += 1
        # Chunks may differ in the last bits, having been added up in different orders.
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
            del self._incoming[each]
        for update in updates:
            self._settle(update)
        return agreement

    def _step(
        self, rule: Rule, sums: list[tuple[Update, ...]], weights: list[float], length: float
    ) -> Agreement | None:
        """Change the parameters by updates that came in these sums."""
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
        # Before the rule: to it, what comes of a buffer is no gradient.
        buffers = self._mix_buffers(means, weights, length)
        if mixing.combine is not None:
            gradients = mixing.combine(means)
        else:
            # In place, unless what came is looked at again.
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
        """Take buffers out of what came; return what a step makes of them, and where they are."""
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

    def write_whole(self, model: Floats) -> bool:
        """Write all of the model, shape (elements,), if it is here; return whether it is."""
        if len(self._parameters) != len(model):
            return False
        for chunk in self._chunks:
            model[chunk.start : chunk.stop] = self._parameters[self._places[chunk.index]]
        return True


def _dot(one: Floats, other: Floats) -> float:
    """Return a scalar product; in float32 large updates would have none, and small ones 0."""
    return float(np.einsum("i,i->", one, other, dtype=np.float64, casting="safe"))


def _mean(arrays: Sequence[Floats], weights: Sequence[float], into: Floats | None) -> Floats:
    """Return the mean of arrays by weight, in the memory of the first if there is no other."""
    total = arrays[0] if into is None else into
    if len(arrays) > 1 and any(weights):
        parts = [weight / max(weights) for weight in weights]  # which float32 can hold
        total *= np.float32(parts[0])
        for each, part in zip(arrays[1:], parts[1:], strict=True):
            total += np.float32(part) * each
        total /= np.float32(sum(parts))
    return total


def _weight(incoming: _Incoming) -> float:
    return incoming.weights[min(incoming.weights)] if incoming.weights else 0.0
