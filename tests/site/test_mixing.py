"""What a server makes of updates, models and last models, against the formulas by hand."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.exchange.actions import Total
from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.partition import Agreement, Mixing, ServerPartition, _dot
from anabranch.merge import Median, cosine
from anabranch.plan import Chunk
from anabranch.train.optimisers import Sgd

ELEMENTS = 40
CHUNKS = [Chunk(index, 0, index * 10, (index + 1) * 10) for index in range(4)]
HALVES = CHUNKS[:2], CHUNKS[2:]


def model(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=ELEMENTS).astype(np.float32)


def make(
    mixing: Mixing, workers: int = 3, rate: float = 1.0, held: list[Chunk] = CHUNKS
) -> ServerPartition:
    elements = sum(chunk.elements for chunk in held)
    return ServerPartition(held, model(), Sgd(rate).start(elements), workers, mixing)


def push(
    partition: ServerPartition, worker: int, number: int, update: Floats, weight: float = 1.0
) -> None:
    """Hand over what a worker pushes of what this server holds."""
    for chunk in partition._chunks:
        values = update[chunk.start : chunk.stop].copy()
        partition.take(((worker, number),), Total(chunk, values, weight, 1.0, None))


def parameters(partition: ServerPartition) -> Floats:
    held = partition.snapshot()
    return np.concatenate([held[index] for index in sorted(held)])


def close(partition: ServerPartition, expected: Floats) -> None:
    np.testing.assert_allclose(parameters(partition), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.6, 0.125])
def test_models_take_the_place_of_a_share_of_the_present_one(share: float) -> None:
    """ω becomes (1 - s) ω + s mean of the ω_i, whichever versions these were computed on."""
    partition = make(Mixing("models"))
    push(partition, 0, 1, model(1))  # computed on the first model, and pushed early
    push(partition, 1, 1, model(2))
    partition.apply([(1, 1)], share=share)
    now = (1 - share) * model() + share * (model() - model(2))
    close(partition, now)
    partition.pulls([1])
    push(partition, 1, 2, model(3))
    partition.apply([(0, 1), (1, 2)], share=share)
    mean = ((model() - model(1)) + (now - model(3))) / 2
    close(partition, (1 - share) * now + share * mean)


def test_models_are_averaged_by_the_weights_of_their_updates_times_factors() -> None:
    partition = make(Mixing("models"))
    push(partition, 0, 1, model(1), weight=0.5)
    partition.apply([(0, 1)], share=1.0)
    base = model() - model(1)
    partition.pulls([0])
    push(partition, 0, 2, model(2), weight=0.5)
    push(partition, 1, 1, model(3), weight=2.0)
    partition.apply([(0, 2), (1, 1)], factors=[1.0, 0.25], share=0.5)
    mean = (0.5 * (base - model(2)) + 0.5 * (model() - model(3))) / 1.0
    share = 0.5 * (0.5 + 0.5) / 2.5  # what their mean weight loses shortens the step
    close(partition, (1 - share) * base + share * mean)


def test_a_server_keeps_the_model_that_each_worker_pulled_and_no_later_one() -> None:
    partition = make(Mixing("models"))
    partition.pulls([0, 1, 2])
    for number in (1, 2, 3):
        push(partition, 1, number, model(number))
        partition.apply([(1, number)], share=0.5)
        partition.pulls([1])
    now = parameters(partition)
    push(partition, 2, 1, model(9))
    partition.apply([(2, 1)], share=0.5)
    close(partition, 0.5 * now + 0.5 * (model() - model(9)))


def test_the_share_of_updates_is_as_far_as_their_mean_whatever_they_weigh() -> None:
    for weights in ((1.0, 1.0), (0.2, 1.8), (5.0, 5.0)):
        partition = make(Mixing())
        push(partition, 0, 1, model(1), weights[0])
        push(partition, 1, 1, model(2), weights[1])
        partition.apply([(0, 1), (1, 1)], share=0.25)
        mean = (weights[0] * model(1) + weights[1] * model(2)) / sum(weights)
        close(partition, model() - np.float32(0.25) * mean)


def test_the_outer_optimiser_takes_the_way_to_models_for_a_gradient() -> None:
    partition = make(Mixing("models"), rate=0.5)
    push(partition, 0, 1, model(1))
    partition.apply([(0, 1)], share=0.4)
    close(partition, model() - np.float32(0.2) * model(1))


class Cache:
    """SAFA's server by hand: what each worker pulled, and its last model with what it weighs."""

    def __init__(self, weights: list[float]) -> None:
        self.server = make(Mixing("cache"), len(weights))
        self.weights = weights
        self.last = [model() for _ in weights]
        self.pulled = [model() for _ in weights]
        self.numbers = [0 for _ in weights]
        self.seed = 0

    def step(self, *picked: int) -> None:
        """Let some workers push what they have, and pull."""
        for worker in picked:
            self.seed += 1
            self.numbers[worker] += 1
            update = model(self.seed)
            push(self.server, worker, self.numbers[worker], update, self.weights[worker])
            self.last[worker] = self.pulled[worker] - update
        self.server.apply([(worker, self.numbers[worker]) for worker in picked])
        self.server.pulls(picked)
        for worker in picked:
            self.pulled[worker] = parameters(self.server)

    def mean(self) -> Floats:
        return np.asarray(np.average(self.last, axis=0, weights=self.weights), np.float32)


def test_a_cache_is_the_mean_of_all_last_models_by_data_size() -> None:
    """SAFA, eq. 6 to 8, over rounds that not all take part in; at first all have the first."""
    cache = Cache([0.5, 0.7, 1.8])  # samples over the mean of all workers'
    for picked in ([0], [0, 1], [2], [1, 2], [0, 1, 2], [1]):
        cache.step(*picked)
        close(cache.server, cache.mean())


def test_in_a_cache_a_deprecated_worker_has_the_present_model() -> None:
    cache = Cache([0.5, 0.7, 1.8])
    cache.step(0, 1)
    cache.step(0, 2)
    cache.server.deprecate([1])
    cache.last[1] = parameters(cache.server)
    cache.server.discard([(1, 2)])
    cache.numbers[1] += 1
    cache.step(0)
    close(cache.server, cache.mean())


def test_a_worker_that_is_deprecated_before_it_has_pushed_has_the_present_model_too() -> None:
    cache = Cache([1.0, 1.0, 1.0])
    cache.step(0)
    cache.server.deprecate([2])
    cache.last[2] = parameters(cache.server)
    cache.step(1)
    close(cache.server, cache.mean())


def test_a_barred_worker_leaves_the_cache_until_it_is_back() -> None:
    for weights in ([1.0, 1.0, 1.0], [0.5, 0.7, 1.8]):
        cache = Cache(weights)
        cache.step(0, 1, 2)
        cache.server.uncount([1])
        cache.step(0, 2)
        mean = np.average([cache.last[0], cache.last[2]], axis=0, weights=weights[::2])
        close(cache.server, mean.astype(np.float32))
        cache.step(1)
        close(cache.server, cache.mean())


def test_a_worker_that_is_barred_before_its_model_has_come_does_not_count_for_the_first() -> None:
    cache = Cache([1.0, 1.0, 1.0])
    cache.step(0)
    cache.server.uncount([1])
    cache.step(0)
    close(cache.server, np.mean([cache.last[0], model()], axis=0))


def test_of_a_last_model_nothing_is_left_once_another_has_come_whatever_both_weigh() -> None:
    """Weights change where batches are tuned, or workers stand for clients with other samples."""
    cache = Cache([1.0, 1.0, 1.0])
    cache.step(0, 1, 2)
    for weights in ([0.5, 1.0, 1.5], [2.0, 2.0, 2.0], [0.1, 0.2, 0.3]):
        cache.weights = weights
        cache.step(0, 1, 2)
        close(cache.server, cache.mean())


def test_a_cache_of_models_that_weigh_nothing_leaves_the_model() -> None:
    partition = make(Mixing("cache"), workers=1)
    push(partition, 0, 1, model(1))
    partition.apply([(0, 1)], factors=[0.0])
    close(partition, model())


def test_what_is_dropped_changes_no_mixture() -> None:
    for of in ("models", "cache"):
        partition = make(Mixing(of))  # type: ignore[arg-type]
        push(partition, 0, 1, model(1))
        partition.discard([(0, 1)])
        push(partition, 1, 1, model(2))
        partition.apply([(1, 1)], share=1.0)
        expected = model() - model(2) / (3 if of == "cache" else 1)
        close(partition, expected)


def agreement(of: str, held: list[Chunk], weights: tuple[float, ...], robust: bool) -> Agreement:
    partition = make(Mixing(of, Median().combine if robust else None, True), held=held)  # type: ignore[arg-type]
    updates = [(worker, 1) for worker in range(len(weights))]
    for (worker, _), weight in zip(updates, weights, strict=True):
        push(partition, worker, 1, model(worker + 1), weight)
    told = partition.apply(updates, share=0.5)
    assert told is not None
    return told


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("of", ["updates", "models", "cache"])
def test_agreement_is_with_what_the_step_makes_of_its_updates(of: str, robust: bool) -> None:
    weights = (0.5, 1.0, 1.5)
    told = agreement(of, CHUNKS, weights, robust)
    updates = [model(worker + 1) for worker in range(3)]
    mean = np.average(updates, axis=0, weights=weights)
    if robust:
        mean = np.median(updates, axis=0)
    assert told.dots == pytest.approx([float(each @ mean) for each in updates], abs=1e-4)
    assert told.squared_norms == pytest.approx([float(each @ each) for each in updates])
    assert told.squared_norm == pytest.approx(float(mean @ mean))


def test_what_two_servers_tell_adds_up_to_the_whole_vectors_cosine() -> None:
    weights = (0.5, 1.0, 1.5)
    whole = agreement("updates", CHUNKS, weights, False)
    parts = [agreement("updates", half, weights, False) for half in HALVES]
    for worker in range(3):
        found = cosine(
            sum(part.dots[worker] for part in parts),
            sum(part.squared_norms[worker] for part in parts),
            sum(part.squared_norm for part in parts),
        )
        alone = cosine(whole.dots[worker], whole.squared_norms[worker], whole.squared_norm)
        assert found == pytest.approx(alone)
        mean = np.average([model(k + 1) for k in range(3)], axis=0, weights=weights)
        update = model(worker + 1)
        assert found == pytest.approx(
            float(update @ mean / np.linalg.norm(update) / np.linalg.norm(mean)), abs=1e-5
        )


def test_asking_for_agreement_changes_no_step() -> None:
    models = []
    for asks in (False, True):
        partition = make(Mixing(asks_agreement=asks))
        push(partition, 0, 1, model(1))
        push(partition, 1, 1, model(2), 3.0)
        told = partition.apply([(0, 1), (1, 1)], share=0.5)
        assert (told is not None) == asks
        models.append(parameters(partition))
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize("of", ["updates", "models"])
def test_a_median_of_updates_leaves_one_that_is_wild_out(of: str) -> None:
    partition = make(Mixing(of, Median().combine))  # type: ignore[arg-type]
    updates = [model(1), model(2), np.full(ELEMENTS, 1e9, np.float32)]
    for worker, update in enumerate(updates):
        push(partition, worker, 1, update)
    partition.apply([(worker, 1) for worker in range(3)], share=1.0)
    close(partition, model() - np.median(updates, axis=0).astype(np.float32))


def test_without_numbers_mixtures_are_books_alone() -> None:
    for of in ("models", "cache"):
        partition = ServerPartition(CHUNKS, model(), None, 2, Mixing(of))  # type: ignore[arg-type]
        push(partition, 0, 1, model(1))
        partition.pulls([0])
        partition.deprecate([1])
        assert partition.apply([(0, 1)], share=0.5) is None
        assert partition.version == 1


@pytest.mark.parametrize("size", [1e20, 1e-30])
def test_huge_and_tiny_updates_have_angles_too(size: float) -> None:
    one, other = (np.full(100, each, np.float32) for each in (size, -size))
    assert _dot(one, one) == pytest.approx(100 * size**2, rel=1e-6)
    assert cosine(_dot(one, other), _dot(one, one), _dot(other, other)) == pytest.approx(-1.0)


@pytest.mark.parametrize("held", HALVES)
@pytest.mark.parametrize("of", ["updates", "models", "cache"])
@pytest.mark.parametrize("share", [None, 1.0, 0.6, 2.0])
def test_buffers_go_towards_the_mean_of_what_came_and_no_further(
    of: str, share: float | None, held: list[Chunk]
) -> None:
    """Variances that three workers all saw fall from 1 to .1, on the first model."""
    first = np.ones(ELEMENTS, np.float32)
    mixing = Mixing(of, averaged_elements=15, largest_elements=5)  # type: ignore[arg-type]
    elements = sum(chunk.elements for chunk in held)
    rule = Sgd(0.7, momentum=0.9).start(elements)
    partition = ServerPartition(held, first, rule, 3, mixing)
    came = np.full(ELEMENTS, 0.1, np.float32)
    for worker in range(3):
        came[35:] = 7 + worker
        push(partition, worker, 1, came)
    for worker in range(3):
        partition.apply([(worker, 1)], share=share)
        now = partition.snapshot()
        for chunk in held:
            values = now[chunk.index]
            for at in range(chunk.start, chunk.stop):
                if 20 <= at < 35:
                    assert 0.0999 <= values[at - chunk.start] < 1.0
                elif at >= 35:
                    assert values[at - chunk.start] == 7 + worker


def test_buffers_of_a_sum_go_to_their_mean_at_once() -> None:
    first = np.ones(ELEMENTS, np.float32)
    mixing = Mixing(averaged_elements=20)
    partition = ServerPartition(CHUNKS, first, Sgd(0.1).start(ELEMENTS), 2, mixing)
    updates = ((0, 1), (1, 1))
    came = np.r_[np.full(20, 4.0), np.full(20, 0.6)].astype(np.float32)  # the sum of both
    for chunk in CHUNKS:
        values = came[chunk.start : chunk.stop].copy()
        partition.take(updates, Total(chunk, values, 2.0, 2.0, None))
    partition.apply(updates)
    close(partition, np.r_[np.full(20, 0.8), np.full(20, 0.3)].astype(np.float32))


def test_buffers_are_in_no_norm_and_no_cosine_and_robust_rules_choose_them() -> None:
    first = np.zeros(ELEMENTS, np.float32)
    mixing = Mixing(combine=Median().combine, asks_agreement=True, averaged_elements=20)
    partition = ServerPartition(CHUNKS, first, Sgd(1.0).start(ELEMENTS), 3, mixing)
    for worker, value in enumerate((1.0, 2.0, 1000.0)):
        update = np.r_[np.ones(20), np.full(20, value)].astype(np.float32)
        push(partition, worker, 1, update)
    assert partition.squared_norm((2, 1)) == 20.0
    agreement = partition.apply([(0, 1), (1, 1), (2, 1)])
    assert agreement == Agreement((20.0,) * 3, (20.0,) * 3, 20.0)
    close(partition, np.r_[np.full(20, -1.0), np.full(20, 2.0)].astype(np.float32))
