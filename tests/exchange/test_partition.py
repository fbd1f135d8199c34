"""A server's part of the model: exact, ordered, each update once, and nothing out of place."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.exchange.actions import Total
from anabranch.exchange.arithmetic import Floats
from anabranch.exchange.partition import ServerPartition, Update
from anabranch.net.errors import OutOfPlaceMessage
from anabranch.plan import Chunk
from anabranch.train.optimisers import Adam, Optimiser, Sgd

ELEMENTS, CHUNK = 40, 10
HELD = [Chunk(index, 0, index * CHUNK, (index + 1) * CHUNK) for index in (1, 3)]
OWN = np.r_[10:20, 30:40]


def model(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=ELEMENTS).astype(np.float32)


def make(optimiser: Optimiser, workers: int = 3) -> ServerPartition:
    return ServerPartition(HELD, model(), optimiser.start(2 * CHUNK), workers)


def take(
    partition: ServerPartition,
    updates: tuple[Update, ...],
    values: Floats,
    weight: float,
    divisor: float,
    chunk: int = -1,
) -> tuple[Update, ...]:
    """Hand over a sum, chunk by chunk; return whose updates are here with the last of them."""
    here: tuple[Update, ...] = ()
    for held in HELD:
        if chunk in (-1, held.index):
            part = values[held.start : held.stop].copy()
            here = partition.take(updates, Total(held, part, weight, divisor, None))
    return here


def push(
    partition: ServerPartition,
    worker: int,
    number: int,
    gradients: Floats,
    weight: float = 1.0,
    chunk: int = -1,
) -> tuple[Update, ...]:
    """Hand over the update of one worker, whose elements travel as they are."""
    return take(partition, ((worker, number),), gradients, weight, 1.0, chunk)


def parameters(partition: ServerPartition) -> Floats:
    held = partition.snapshot()
    return np.concatenate([held[index] for index in (1, 3)])


def test_one_worker_is_plain_gradient_descent() -> None:
    partition = make(Sgd(0.1), workers=1)
    expected = model()
    for number in range(1, 6):
        gradients = model(number)
        assert push(partition, 0, number, gradients) == ((0, number),)
        partition.apply([(0, number)])
        expected -= gradients * np.float32(0.1)
    np.testing.assert_array_equal(parameters(partition), expected[OWN])
    assert partition.version == 5


@pytest.mark.parametrize("optimiser", [Sgd(0.1), Sgd(0.1, 0.9), Adam(0.1)])
def test_all_in_one_step_is_the_weighted_mean(optimiser: Optimiser) -> None:
    partition = make(optimiser)
    weights = (1.0, 2.0, 3.0)
    for worker, weight in enumerate(weights):
        push(partition, worker, 1, model(worker + 1), weight)
    partition.apply([(0, 1), (1, 1), (2, 1)])
    mean = sum(np.float32(weight) * model(k + 1) for k, weight in enumerate(weights)) / 6
    expected = model()[OWN]
    optimiser.start(len(OWN))(expected, np.asarray(mean, np.float32)[OWN], 6 / 3)
    np.testing.assert_allclose(parameters(partition), expected, rtol=1e-5, atol=1e-7)


def test_one_after_the_other_without_momentum_is_as_far_as_all_together() -> None:
    together = make(Sgd(0.1))
    singly = make(Sgd(0.1))
    for worker in range(3):
        push(together, worker, 1, model(worker + 1))
        push(singly, worker, 1, model(worker + 1))
        singly.apply([(worker, 1)])
    together.apply([(0, 1), (1, 1), (2, 1)])
    np.testing.assert_allclose(parameters(singly), parameters(together), rtol=1e-5)


def test_an_update_counts_once_all_its_chunks_are_here() -> None:
    partition = make(Sgd(0.1))
    assert push(partition, 0, 1, model(1), chunk=3) == ()
    assert not partition.is_here(((0, 1),))
    with pytest.raises(OutOfPlaceMessage, match=r"\(0, 1\) has not arrived"):
        partition.apply([(0, 1)])
    assert push(partition, 0, 1, model(1), chunk=1) == ((0, 1),)
    assert partition.is_here(((0, 1),))
    assert not partition.has_settled((0, 1))
    partition.apply([(0, 1)])
    assert partition.has_settled((0, 1))
    assert not partition.has_settled((0, 2))
    assert not partition.has_forgotten((0, 1))


def test_what_is_discarded_leaves_the_model_as_it_is() -> None:
    partition = make(Sgd(0.1))
    before = parameters(partition)
    push(partition, 0, 1, model(1))
    push(partition, 1, 1, model(1), chunk=3)
    partition.discard([(0, 1), (1, 1), (2, 1)])
    np.testing.assert_array_equal(parameters(partition), before)
    for worker in range(3):
        assert partition.has_settled((worker, 1))
    # What still comes of those that were not all here is thrown away without a word.
    assert [partition.has_forgotten((worker, 1)) for worker in range(3)] == [False, True, True]
    assert push(partition, 0, 2, model(1)) == ((0, 2),)
    assert partition.version == 0


def add_up(
    partition: ServerPartition, updates: tuple[Update, ...], weights: dict[int, float]
) -> tuple[Update, ...]:
    """Hand over the sum of workers' updates."""
    total = sum(np.float32(weight) * model(worker + 1) for worker, weight in weights.items())
    weight = sum(weights.values())
    return take(partition, updates, np.asarray(total, np.float32), weight, weight)


@pytest.mark.parametrize("optimiser", [Sgd(0.1), Adam(0.1)])
def test_a_sum_is_the_same_step_as_its_updates_one_by_one(optimiser: Optimiser) -> None:
    added_up = make(optimiser)
    singly = make(optimiser)
    weights = {0: 1.0, 1: 2.0, 2: 3.0}
    updates = tuple((worker, 1) for worker in weights)
    assert add_up(added_up, updates, weights) == updates
    for worker, weight in weights.items():
        push(singly, worker, 1, model(worker + 1), weight)
    added_up.apply(updates)
    singly.apply(updates)
    np.testing.assert_allclose(parameters(added_up), parameters(singly), rtol=1e-5, atol=1e-7)
    assert added_up.version == 1


def test_a_sum_becomes_part_of_the_model_whole_and_once() -> None:
    partition = make(Sgd(0.1))
    updates = ((0, 1), (1, 1))
    assert take(partition, updates, model(), 2.0, 2.0, chunk=3) == ()
    with pytest.raises(OutOfPlaceMessage, match="in a sum with updates"):
        partition.apply(updates)
    assert take(partition, updates, model(), 2.0, 2.0, chunk=1) == updates
    with pytest.raises(OutOfPlaceMessage, match=r"\(0, 1\) has not arrived"):
        partition.apply(updates[:1])
    assert partition.version == 0
    partition.apply(updates)
    with pytest.raises(OutOfPlaceMessage, match="has not arrived"):
        partition.apply(updates)
    assert partition.version == 1


def test_a_sum_of_fewer_takes_the_place_of_one_that_a_dead_worker_is_in() -> None:
    partition = make(Sgd(0.1))
    expected = make(Sgd(0.1))
    add_up(partition, ((0, 1), (1, 1)), {0: 1.0, 1: 2.0})
    partition.discard([(1, 1)])
    for each in (partition, expected):
        assert add_up(each, ((0, 1),), {0: 1.0}) == ((0, 1),)
        each.apply([(0, 1)])
    np.testing.assert_array_equal(parameters(partition), parameters(expected))


def test_a_snapshot_stays_as_it_was() -> None:
    partition = make(Sgd(0.1))
    snapshot = partition.snapshot()
    before = {index: held.copy() for index, held in snapshot.items()}
    push(partition, 0, 1, model(1))
    partition.apply([(0, 1)])
    for index, held in snapshot.items():
        np.testing.assert_array_equal(held, before[index])


def test_a_step_without_updates_is_none() -> None:
    partition = make(Sgd(0.1))
    partition.apply([])
    assert partition.version == 0
    np.testing.assert_array_equal(parameters(partition), model()[OWN])


def test_without_numbers_the_books_are_the_same() -> None:
    partition = ServerPartition(HELD, np.empty(0, np.float32), None, 2)
    assert push(partition, 0, 1, np.zeros(ELEMENTS, np.float32)) == ((0, 1),)
    partition.apply([(0, 1)])
    assert partition.version == 1
    assert [len(held) for held in partition.snapshot().values()] == [CHUNK, CHUNK]


def test_sums_of_several_trees_are_one_step_by_their_weights_and_factors() -> None:
    partition = make(Sgd(1.0), workers=4)
    one, other = model(1), model(2)
    assert take(partition, ((0, 1), (3, 1)), one, 3.0, 3.0) == ((0, 1), (3, 1))
    assert take(partition, ((5, 7),), other, 1.0, 1.0) == ((5, 7),)
    assert partition.squared_norm((3, 1)) == pytest.approx(float(np.sum((one[OWN] / 3) ** 2)))
    with pytest.raises(OutOfPlaceMessage):
        partition.apply([(0, 1), (5, 7)])  # a part of a sum
    partition.apply([(0, 1), (3, 1), (5, 7)], [0.5, 0.5, 0.25])
    # Weights 3 and 1 of 4 workers, times the factors.
    expected = model()[OWN] - 1.5 / 4 * one[OWN] / 3 - 0.25 / 4 * other[OWN]
    np.testing.assert_allclose(parameters(partition), expected, rtol=1e-5, atol=1e-6)
    assert partition.version == 1


def test_an_update_that_weighs_nothing_changes_nothing() -> None:
    partition = make(Sgd(1.0))
    for worker in (0, 1):
        push(partition, worker, 1, model(worker))
    before = parameters(partition)
    partition.apply([(0, 1), (1, 1)], [0.0, 0.0])
    np.testing.assert_array_equal(parameters(partition), before)


def test_weights_that_float32_cannot_hold_leave_the_model_finite() -> None:
    partition = make(Sgd(1.0))
    for worker in (0, 1):
        push(partition, worker, 1, model(worker))
    partition.apply([(0, 1), (1, 1)], [1e-300, 3e-300])
    np.testing.assert_array_equal(parameters(partition), model()[OWN])


def test_of_workers_that_move_in_other_groups_what_is_all_here_still_counts() -> None:
    partition = make(Sgd(learning_rate=0.5))
    gradients, before = model(1), parameters(partition)
    take(partition, ((0, 3), (1, 3)), gradients, 2.0, 1.0)
    push(partition, 2, 3, gradients, chunk=1)  # not all
    partition.forget({0, 1, 2})
    assert not partition.is_here(((2, 3),))
    partition.apply([(0, 3), (1, 3)])
    np.testing.assert_allclose(parameters(partition), before - gradients[OWN] / 3, rtol=1e-4)
    with pytest.raises(OutOfPlaceMessage, match="has not arrived"):
        partition.apply([(2, 3)])
