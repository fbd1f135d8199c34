"""A server's part of the model: exact, ordered, each update once, and nothing out of place."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.learn.optimisers import Adam, Optimiser, Sgd
from anabranch.net.errors import DuplicateMessage, MalformedMessage, OutOfPlaceMessage
from anabranch.net.messages import Push
from anabranch.plan import Chunk
from anabranch.site.accumulator import Floats
from anabranch.site.partition import ServerPartition, Update

ELEMENTS, CHUNK = 40, 10
HELD = [Chunk(index, 0, index * CHUNK, (index + 1) * CHUNK) for index in (1, 3)]
OWN = np.r_[10:20, 30:40]


def model(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=ELEMENTS).astype(np.float32)


def make(optimiser: Optimiser, workers: int = 3) -> tuple[ServerPartition, list[Update]]:
    came: list[Update] = []
    return ServerPartition(HELD, model(), optimiser.start(2 * CHUNK), workers, came.append), came


def push(
    partition: ServerPartition,
    worker: int,
    number: int,
    gradients: Floats,
    weight: float = 1.0,
    chunk: int = -1,
) -> None:
    for index in (1, 3) if chunk < 0 else (chunk,):
        payload = gradients[index * CHUNK : (index + 1) * CHUNK].tobytes()
        message = Push(number, 1, index, (worker, 9), weight)
        sink = partition.on_push(message, len(payload))
        assert sink.target is not None
        sink.target[:] = payload
        sink.done()


def parameters(partition: ServerPartition) -> Floats:
    held = partition.snapshot()
    return np.concatenate([held[index] for index in (1, 3)])


def test_one_worker_is_plain_gradient_descent() -> None:
    partition, came = make(Sgd(0.1), workers=1)
    expected = model()
    for number in range(1, 6):
        gradients = model(number)
        push(partition, 0, number, gradients)
        assert came[-1] == (0, number)
        partition.apply([(0, number)])
        expected -= gradients * np.float32(0.1)
    np.testing.assert_array_equal(parameters(partition), expected[OWN])
    assert partition.version == 5


@pytest.mark.parametrize("optimiser", [Sgd(0.1), Sgd(0.1, 0.9), Adam(0.1)])
def test_all_in_one_step_is_the_weighted_mean(optimiser: Optimiser) -> None:
    partition, _ = make(optimiser)
    weights = (1.0, 2.0, 3.0)
    for worker, weight in enumerate(weights):
        push(partition, worker, 1, model(worker + 1), weight)
    partition.apply([(0, 1), (1, 1), (2, 1)])
    mean = sum(np.float32(weight) * model(k + 1) for k, weight in enumerate(weights)) / 6
    expected = model()[OWN]
    optimiser.start(len(OWN))(expected, np.asarray(mean, np.float32)[OWN], 6 / 3)
    np.testing.assert_allclose(parameters(partition), expected, rtol=1e-5, atol=1e-7)


def test_one_after_the_other_without_momentum_is_as_far_as_all_together() -> None:
    together, _ = make(Sgd(0.1))
    singly, _ = make(Sgd(0.1))
    for worker in range(3):
        push(together, worker, 1, model(worker + 1))
        push(singly, worker, 1, model(worker + 1))
        singly.apply([(worker, 1)])
    together.apply([(0, 1), (1, 1), (2, 1)])
    np.testing.assert_allclose(parameters(singly), parameters(together), rtol=1e-5)


def test_an_update_counts_once_all_its_chunks_are_here() -> None:
    partition, came = make(Sgd(0.1))
    push(partition, 0, 1, model(1), chunk=3)
    assert came == []
    with pytest.raises(OutOfPlaceMessage, match="update 1 of site 0 is not here"):
        partition.apply([(0, 1)])
    push(partition, 0, 1, model(1), chunk=1)
    assert came == [(0, 1)]


def test_what_is_discarded_leaves_the_model_as_it_is_and_never_comes_back() -> None:
    partition, came = make(Sgd(0.1))
    before = parameters(partition)
    push(partition, 0, 1, model(1))
    partition.discard([(0, 1)])
    np.testing.assert_array_equal(parameters(partition), before)
    with pytest.raises(DuplicateMessage):
        push(partition, 0, 1, model(1), chunk=1)
    push(partition, 0, 2, model(1))
    assert came == [(0, 1), (0, 2)]


def test_what_still_comes_of_a_dead_workers_update_is_thrown_away_without_a_word() -> None:
    partition, came = make(Sgd(0.1))
    push(partition, 0, 1, model(1), chunk=3)
    partition.discard([(0, 1)])
    sink = partition.on_push(Push(1, 1, 1, (0, 9), 1.0), 4 * CHUNK)
    assert (sink.target, sink.piece) == (None, None)
    sink.done()
    push(partition, 0, 2, model(1))
    assert came == [(0, 2)]


def add_up(
    partition: ServerPartition, updates: tuple[Update, ...], weights: dict[int, float]
) -> None:
    """Hand over the sum of workers' updates, chunk by chunk."""
    total = sum(np.float32(weight) * model(worker + 1) for worker, weight in weights.items())
    for index in (3, 1):
        part = np.asarray(total, np.float32)[index * CHUNK : (index + 1) * CHUNK]
        partition.on_sum(updates, index, part, sum(weights.values()))


@pytest.mark.parametrize("optimiser", [Sgd(0.1), Adam(0.1)])
def test_a_sum_is_the_same_step_as_its_updates_one_by_one(optimiser: Optimiser) -> None:
    added_up, came = make(optimiser)
    singly, _ = make(optimiser)
    weights = {0: 1.0, 1: 2.0, 2: 3.0}
    updates = tuple((worker, 1) for worker in weights)
    add_up(added_up, updates, weights)
    assert tuple(came) == updates
    for worker, weight in weights.items():
        push(singly, worker, 1, model(worker + 1), weight)
    added_up.apply(updates)
    singly.apply(updates)
    np.testing.assert_allclose(parameters(added_up), parameters(singly), rtol=1e-5, atol=1e-7)
    assert added_up.version == 1


def test_a_sum_becomes_part_of_the_model_whole_and_once() -> None:
    partition, came = make(Sgd(0.1))
    updates = ((0, 1), (1, 1))
    partition.on_sum(updates, 3, model()[30:40], 2.0)
    with pytest.raises(OutOfPlaceMessage, match="1 of 2 chunks of the sum"):
        partition.apply(updates)
    partition.on_sum(updates, 1, model()[10:20], 2.0)
    assert tuple(came) == updates
    with pytest.raises(OutOfPlaceMessage, match="2 of 2 chunks of the sum"):
        partition.apply(updates[:1])
    assert partition.version == 0
    partition.apply(updates)
    with pytest.raises(OutOfPlaceMessage, match="update 1 of site 0 is not here"):
        partition.apply(updates)
    assert partition.version == 1


def test_a_sum_of_fewer_takes_the_place_of_one_that_a_dead_worker_is_in() -> None:
    partition, came = make(Sgd(0.1))
    expected, _ = make(Sgd(0.1))
    add_up(partition, ((0, 1), (1, 1)), {0: 1.0, 1: 2.0})
    partition.discard([(1, 1)])
    came.clear()
    for each in (partition, expected):
        add_up(each, ((0, 1),), {0: 1.0})
        each.apply([(0, 1)])
    assert came == [(0, 1)]
    np.testing.assert_array_equal(parameters(partition), parameters(expected))


def test_a_snapshot_stays_as_it_was() -> None:
    partition, _ = make(Sgd(0.1))
    snapshot = partition.snapshot()
    before = {index: held.copy() for index, held in snapshot.items()}
    push(partition, 0, 1, model(1))
    partition.apply([(0, 1)])
    for index, held in snapshot.items():
        np.testing.assert_array_equal(held, before[index])


def test_what_does_not_belong_is_refused_and_harms_nothing() -> None:
    partition, came = make(Sgd(0.1))
    push(partition, 0, 1, model(1), chunk=1)
    refused = [
        (Push(1, 1, 1, (0, 9), 1.0), 40, DuplicateMessage, "chunk 1 of update 1 of site 0"),
        (Push(1, 1, 2, (0, 9), 1.0), 40, OutOfPlaceMessage, "chunk 2 .* not held here"),
        (Push(1, 1, 3, (0, 9), 1.0), 36, OutOfPlaceMessage, "36 bytes, not 40"),
        (Push(1, 1, 3, (0, 9), 2.0), 40, MalformedMessage, "more than one weight"),
        (Push(2, 1, 3, (0, 9), float("nan")), 40, MalformedMessage, "weight nan"),
    ]
    for message, size, error, named in refused:
        with pytest.raises(error, match=named):
            partition.on_push(message, size)
    push(partition, 0, 1, model(1), chunk=3)
    assert came == [(0, 1)]


def test_without_numbers_the_books_are_the_same() -> None:
    came: list[Update] = []
    partition = ServerPartition(HELD, np.empty(0, np.float32), None, 2, came.append)
    for index in (1, 3):
        sink = partition.on_push(Push(1, 1, index, (0, 9), 1.0), 40)
        assert sink.target is None
        sink.done()
    assert came == [(0, 1)]
    partition.apply(came)
    assert partition.version == 1
    assert [len(held) for held in partition.snapshot().values()] == [CHUNK, CHUNK]
