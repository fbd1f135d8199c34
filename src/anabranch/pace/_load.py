"""The size of each site's batches: equal, stated, or larger for workers that would wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from anabranch._typed_toml import Positive, Table
from anabranch.pace._usual import Average

_SMOOTHING = 0.1


class Load(Protocol):
    """Sizes each worker's next batch."""

    def measured(self, worker: int, samples: int, compute_s: float, iteration_s: float) -> None:
        """Record an iteration.

        Args:
            worker: by index.
            samples: of its batch.
            compute_s: how long it computed.
            iteration_s: from its permission until all of its update had come. Where updates come
                added up, or the worker computes while it pushes, until it had computed.
        """

    def leave(self, worker: int) -> None:
        """Forget a worker."""

    def samples(self, worker: int) -> int:
        """Return the size of its next batch."""


class EqualBatches(Table, frozen=True, kw_only=True, tag_field="kind", tag="equal"):
    """Every site takes batches of the same size."""

    def load(self, batch_size: int, names: Sequence[str] = ()) -> Load:
        """Return the load of one run whose task asks for this size."""
        return Equal(batch_size)


class StatedBatches(Table, frozen=True, kw_only=True, tag_field="kind", tag="stated"):
    """Each site takes batches of a size of its own, and weighs in proportion to them.

    Suits fleets whose speeds are known and stay. Sites need no server for it: an all-reduce and an
    average of models weigh by samples too, so a mean is that of all samples, as with equal batches.
    Local steps keep their learning rate. Gossip by push-sum weighs letters so; by ``pairs`` and
    ``plain``, which keep an unweighted mean, a site scales its gradients instead.

    Args:
        samples: of a site's batch, by the site's name; other sites take the task's batch size.
    """

    samples: dict[str, Positive]

    def load(self, batch_size: int, names: Sequence[str] = ()) -> Load:
        """Return the load of one run whose task asks for this size, at sites of these names."""
        own = {site: self.of_site(name, batch_size) for site, name in enumerate(names)}
        return Stated(batch_size, own)

    def of_site(self, name: str, batch_size: int) -> int:
        """Return the samples of a site's batch."""
        return self.samples.get(name, batch_size)


class TunedBatches(Table, frozen=True, kw_only=True, tag_field="kind", tag="tuned"):
    """Faster workers take larger batches, so that iterations take equally long.

    Args:
        most: samples of the largest batch that memory allows.
    """

    most: Positive

    def load(self, batch_size: int, names: Sequence[str] = ()) -> Load:
        """Return the load of one run whose slowest worker has batches of this size.

        Raises:
            ValueError: the largest batch is smaller than this size.
        """
        return Tuned(batch_size, self.most)


AnyLoad = EqualBatches | StatedBatches | TunedBatches


class Equal:
    """The same batch for every worker.

    Args:
        batch_size: samples, >= 0; 0 where nothing is learnt.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def measured(self, worker: int, samples: int, compute_s: float, iteration_s: float) -> None:
        """See :class:`Load`."""

    def leave(self, worker: int) -> None:
        """See :class:`Load`."""

    def samples(self, worker: int) -> int:
        """See :class:`Load`."""
        return self._batch_size


class Stated:
    """Batches that stay as they were stated.

    Args:
        batch_size: samples of workers that are not named.
        own: samples of the others, by index.
    """

    def __init__(self, batch_size: int, own: Mapping[int, int]) -> None:
        self._batch_size = batch_size
        self._own = own

    def measured(self, worker: int, samples: int, compute_s: float, iteration_s: float) -> None:
        """See :class:`Load`."""

    def leave(self, worker: int) -> None:
        """See :class:`Load`."""

    def samples(self, worker: int) -> int:
        """See :class:`Load`."""
        return self._own.get(worker, self._batch_size)


@dataclass(slots=True)
class _Speed:
    sample: Average  # seconds for a sample
    rest: Average  # seconds of an iteration beside its samples


class Tuned:
    """Batches that make iterations equally long (R²SP, IV-A3).

    An iteration takes some time for each sample, and a rest for any batch: pulling, pushing,
    waiting for a link. Moving averages follow both. The slowest worker keeps ``batch_size``; every
    other worker's batch takes the same time. So a worker's batch grows by the time that it would
    wait, times its speed, and shrinks when it slows down.

    Args:
        batch_size: of the slowest worker, samples, >= 1.
        most: samples of the largest batch that memory allows.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(self, batch_size: int, most: int) -> None:
        if not 1 <= batch_size <= most:
            raise ValueError(
                f"batch_size is {batch_size} and the most {most}; give 1 <= batch_size <= most"
            )
        self._batch_size = batch_size
        self._most = most
        self._speeds: dict[int, _Speed] = {}

    def measured(self, worker: int, samples: int, compute_s: float, iteration_s: float) -> None:
        """See :class:`Load`."""
        if samples < 1 or not 0 < compute_s <= iteration_s:
            return  # no time measured: nothing to learn
        sample_s, rest_s = compute_s / samples, iteration_s - compute_s
        fresh = _Speed(Average(_SMOOTHING), Average(_SMOOTHING))
        speed = self._speeds.setdefault(worker, fresh)
        speed.sample.took(sample_s)
        speed.rest.took(rest_s)

    def leave(self, worker: int) -> None:
        """See :class:`Load`."""
        self._speeds.pop(worker, None)

    def samples(self, worker: int) -> int:
        """See :class:`Load`; ``batch_size`` for a worker that has not been measured."""
        own = self._speeds.get(worker)
        if own is None:
            return self._batch_size
        slowest_s = max(self._base_s(speed) for speed in self._speeds.values())
        more = (slowest_s - self._base_s(own)) / own.sample.usual_s
        return min(self._most, self._batch_size + round(more))

    def _base_s(self, speed: _Speed) -> float:
        return speed.rest.usual_s + self._batch_size * speed.sample.usual_s
