"""What averages do to models, against arithmetic by hand and PyTorch's SGD."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from anabranch.train.averaging import Average, Averaging, Floats, Outer, bounds

from ..every import every

ELEMENTS = 1000


def models(sites: int, seed: int = 0) -> list[Floats]:
    draw = np.random.default_rng(seed)
    return [draw.normal(size=ELEMENTS).astype(np.float32) for _ in range(sites)]


def exchange(parts: list[Averaging], step_s: float = 0.0, exchange_s: float = 0.0) -> None:
    """Average what sites contribute, as an exchange does: the same bits at each."""
    given = [piece for part in parts for piece in part.contribute(step_s, exchange_s)]
    mean = np.mean([each.astype(np.float64) for each in given], axis=0).astype(np.float32)
    for each in given:
        each[:] = mean


def test_a_plain_average_is_the_mean_in_the_models_own_memory() -> None:
    held = models(3)
    mean = np.mean(held, axis=0, dtype=np.float64).astype(np.float32)
    parts = [Averaging([each], Average()) for each in held]
    assert every(part.contribute()[0] is each for part, each in zip(parts, held, strict=True))
    exchange(parts)
    for part, each in zip(parts, held, strict=True):
        part.take()
        assert np.array_equal(each, mean)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.8, True)])
def test_an_outer_optimiser_is_pytorchs_sgd_on_the_mean_change(
    momentum: float, nesterov: bool
) -> None:
    (start,) = models(1)
    outer = Outer(learning_rate=0.7, momentum=momentum, nesterov=nesterov)
    held = [start.copy() for _ in range(4)]
    parts = [Averaging([each], Average(outer=outer)) for each in held]
    expected = torch.nn.Parameter(torch.from_numpy(start.copy()).double())
    sgd = torch.optim.SGD([expected], lr=0.7, momentum=momentum, nesterov=nesterov)
    draw = np.random.default_rng(1)
    for _ in range(5):
        for each in held:
            each += draw.normal(size=ELEMENTS).astype(np.float32)
        change = expected.detach().numpy() - np.mean(held, axis=0, dtype=np.float64)
        expected.grad = torch.from_numpy(change)
        sgd.step()
        exchange(parts)
        for part in parts:
            part.take()
        assert np.allclose(held[0], expected.detach().numpy(), atol=1e-4)
        assert every(np.array_equal(held[0], each) for each in held)


@pytest.mark.parametrize("outer", [None, Outer(learning_rate=1.0, momentum=0.0)])
def test_what_a_model_changes_by_while_an_average_is_on_its_way_is_kept(
    outer: Outer | None,
) -> None:
    held = [np.zeros(ELEMENTS, np.float32) for _ in range(2)]
    parts = [Averaging([each], Average(outer=outer, delay=1)) for each in held]
    held[0] += 2.0
    held[1] += 4.0
    exchange(parts)
    held[0] += 10.0  # a step that is made meanwhile
    for part in parts:
        part.take()
    assert (held[0] == 13.0).all()
    assert (held[1] == 3.0).all()
    assert every((part.agreed[0] == 3.0).all() for part in parts)
    for part, each in zip(parts, held, strict=True):
        part.settle()
        assert (each == 3.0).all()


@pytest.mark.parametrize("outer", [None, Outer(learning_rate=1.0, momentum=0.0)])
def test_how_far_a_model_has_moved_and_how_far_models_are_apart(outer: Outer | None) -> None:
    start = np.full(ELEMENTS, 2.0, np.float32)
    held = [start.copy(), start.copy()]
    average = Average(outer=outer)
    parts = [Averaging([each], average, remembers=True, shares=True) for each in held]
    assert parts[0].moved() == 0.0
    held[0] += 3.0
    held[1] += 1.0
    assert parts[0].moved() == pytest.approx(1.5)
    exchange(parts, step_s=2.0, exchange_s=3.0)
    # The moves are 3 and 1, and the mean's is 2, so each model is 1 from the mean.
    for part in parts:
        shared = part.take()
        assert shared is not None
        assert shared.spread == pytest.approx(0.5)
        assert (shared.step_s, shared.exchange_s) == (2.0, 3.0)
    assert [part.moved() for part in parts] == [0.0, 0.0]


def test_a_state_goes_on_bit_for_bit() -> None:
    average = Average(outer=Outer())
    one, other = models(1)[0], models(1)[0]
    part = Averaging([one], average)
    for step in range(4):
        if step == 2:
            other = one.copy()
            resumed = Averaging([other], average)
            resumed.load_state_dict(part.state_dict())
        for model in (one, other) if step >= 2 else (one,):
            model += np.float32(step)
        for each in (part, resumed) if step >= 2 else (part,):
            exchange([each])
            each.take()
    assert np.array_equal(one, other)


@pytest.mark.parametrize(("elements", "fragments"), [(10, 1), (10, 3), (7, 7), (1000, 16)])
def test_fragments_are_all_of_a_model(elements: int, fragments: int) -> None:
    found = bounds(elements, fragments)
    assert [begin for begin, _ in found[1:]] == [end for _, end in found[:-1]]
    assert (found[0][0], found[-1][1]) == (0, elements)
    sizes = [end - begin for begin, end in found]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "average",
    [Average(), Average(outer=Outer()), Average(delay=2), Average(outer=Outer(), delay=2)],
)
def test_a_site_that_joins_begins_where_the_last_average_left_the_others(average: Average) -> None:
    held = models(3)
    held[1][:] = held[0]
    parts = [Averaging([each], average) for each in held]

    def average_two(numbers: tuple[int, int]) -> None:
        for number in numbers:
            held[number] += np.float32(number + 1)
        exchange([parts[number] for number in numbers])
        for number in numbers:
            parts[number].take()

    average_two((0, 1))
    if average.delay:
        held[0] += np.float32(7)  # its own, of steps that were made meanwhile
    parts[2].load_shared_state(parts[0].shared_state())
    if average.delay:
        held[0] -= np.float32(7)
        held[0][:] = held[1]
    assert np.array_equal(held[2], held[1])
    average_two((1, 2))
    for mine, theirs in zip(parts[1].agreed, parts[2].agreed, strict=True):
        assert np.array_equal(mine, theirs)
