"""What a site does in a step: the same in every world, and checked."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from anabranch.exchange.terms import Wire
from anabranch.net.errors import RunAborted
from anabranch.pace import Asp
from anabranch.plan import Fapt
from anabranch.train.optimisers import Sgd
from anabranch.train.schedules import Steps
from anabranch.train.work import Work
from anabranch_lab.run.scenario import Scenario, Serve, Stop
from anabranch_lab.run.scenario.tasks import Exchange, Own, Task, Train
from anabranch_lab.run.work import Assignment, buffer_elements, describe, make_work
from anabranch_lab.tasks.adversaries import Noise
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.partition import Dirichlet, Quantity
from anabranch_lab.tasks.sampling import Resampled
from anabranch_lab.tasks.train import Trainer

SOFTMAX = Train(data="digits", model="softmax", learning_rate=0.5, batch_size=16)
SITES = 4
NAMES = ("a", "b", "c", "d")


def scenario(task: Task, seed: int = 0) -> Scenario:
    return Scenario(overlay="x", route=Fapt(), task=task, stop=Stop(rounds=1), seed=seed)


def assignments(task: Task, seed: int = 0, sizes_only: bool = False) -> list[Assignment]:
    given = scenario(task, seed)
    return [make_work(given, site, NAMES, None, sizes_only) for site in range(SITES)]


def works(task: Task, seed: int = 0, sizes_only: bool = False) -> list[Work]:
    return [each.work for each in assignments(task, seed, sizes_only)]


def exchange(sites: list[Work]) -> None:
    """Put the exact mean in every buffer."""
    mean = np.mean([work.buffer.astype(np.float64) for work in sites], axis=0)
    for work in sites:
        work.buffer[:] = mean


@pytest.mark.parametrize("elements", [1, 250, 251 * 1024, 251 * 1024 + 1, 600_000])
def test_an_exchange_accepts_the_exact_mean_and_no_other(elements: int) -> None:
    sites = works(Exchange(elements=elements))
    for work in sites:
        assert work.local_step(1) is None
    assert len({work.buffer.tobytes() for work in sites}) == SITES  # all different
    exchange(sites)
    assert len({work.apply(1) for work in sites}) == 1
    for at in (0, elements // 2, elements - 1):
        right = sites[0].buffer[at]
        sites[0].buffer[at] = np.nextafter(right, np.float32(1e9))
        with pytest.raises(RunAborted, match=r"round 7 gave a wrong mean, first in \d+\.\.\d+"):
            sites[0].apply(7)
        sites[0].buffer[at] = right
    assert sites[0].apply(8) is not None


def test_an_exchange_says_the_same_in_every_round() -> None:
    [work, *_] = works(Exchange(elements=1000))
    work.local_step(16)
    first = work.buffer.copy()
    work.buffer[:] = 0.0
    work.local_step(16)
    assert np.array_equal(work.buffer, first)


def test_training_keeps_one_model_at_all_sites_and_learns() -> None:
    sites = works(SOFTMAX)
    losses = []
    for round in range(1, 16):
        losses.append([work.local_step(16) for work in sites])
        assert len({work.buffer.tobytes() for work in sites}) == SITES  # each its own samples
        exchange(sites)
        assert len({work.apply(round) for work in sites}) == 1
    assert np.mean(losses[-1]) < np.mean(losses[0]) / 2
    assert len({work.evaluate() for work in sites}) == 1
    assert sites[0].evaluate() > 0.7


def test_a_site_s_steps_follow_the_schedule_of_its_task() -> None:
    at_once = structs.replace(SOFTMAX, learning_rate=0.25)
    later = structs.replace(SOFTMAX, schedule=Steps(every=1, factor_each=0.5))
    half, falling = works(at_once)[0], works(later)[0]
    moved = []
    for work in (half, falling):
        before = work.model.copy()
        work.buffer[:] = 1.0
        work.apply(0)
        first = before - work.model
        work.apply(1)
        moved.append((float(first.mean()), float((before - work.model - first).mean())))
    assert moved[0] == pytest.approx((0.25, 0.25), rel=1e-5)
    assert moved[1] == pytest.approx((0.5, 0.25), rel=1e-5)


def test_the_seed_decides_what_is_drawn() -> None:
    def first_gradients(seed: int) -> bytes:
        [work, *_] = works(SOFTMAX, seed)
        work.local_step(16)
        return work.buffer.tobytes()

    assert first_gradients(1) == first_gradients(1) != first_gradients(2)


def test_uneven_data_is_dealt_and_drawn_as_the_scenario_says() -> None:
    task = structs.replace(SOFTMAX, partition=Dirichlet(alpha=0.5))
    given = structs.replace(scenario(task, seed=3), sampling=Resampled(beta=0.99))
    sites = [make_work(given, site, NAMES, None, False).work for site in range(SITES)]
    labels = load_task("digits").train_labels.numpy()
    shards = Dirichlet(alpha=0.5).deal(labels, SITES, seed=3, least=16)
    data = load_task("digits")
    for site, (work, shard) in enumerate(zip(sites, shards, strict=True)):
        model = build_model("softmax", data.shape, data.classes, seed=3)
        trainer = Trainer(
            *(data, model, shard, Sgd(0.5), 16),
            seed=3 * SITES + site,
            sampling=Resampled(beta=0.99),
        )
        for _ in range(3):
            assert work.local_step(16) == trainer.compute_gradients()
            assert work.buffer.tobytes() == trainer.flat.gradients.tobytes()


def test_a_partition_that_leaves_a_site_no_batch_names_the_key() -> None:
    task = structs.replace(SOFTMAX, partition=Quantity(alpha=1e-3))
    with pytest.raises(ValueError, match=r"^task\.partition: alpha is 0\.001.* fewer than 16 sam"):
        works(task)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_site_that_only_serves_is_dealt_nothing_and_spoils_nothing(share: float) -> None:
    task = structs.replace(SOFTMAX, adversaries=Noise(share=share))
    served = structs.replace(scenario(task), serve=Serve(only=("b",)), pace=Asp())
    own = structs.replace(scenario(task), overlay="y")
    made = [make_work(served, site, NAMES, None, False) for site in range(SITES)]
    alone = [make_work(own, site, ("a", "c", "d"), None, False) for site in range(3)]
    assert made[0].held == (alone[0].held[0], 0, *alone[0].held[1:])
    assert sum(made[0].held) == len(load_task("digits", None).train_labels)
    assert sum(made[1].labels) == 0  # and it looks by class all the same
    assert len(made[1].evaluate()[1] or ()) == 10
    assert [made[site].labels for site in (0, 2, 3)] == [each.labels for each in alone]
    dirty = []
    for site, each in enumerate(made):
        update = np.ones(8, np.float32)
        assert each.training is not None
        each.training.spoil(update)
        if (update != 1).any():
            dirty.append(site)
    assert len(dirty) == round(share * 3)
    assert 1 not in dirty


@pytest.mark.parametrize(
    ("task", "elements"),
    [
        (SOFTMAX, (64 + 1) * 10),
        (Train(data="digits", model="mlp", hidden=(7, 5), learning_rate=0.1), 65 * 7 + 40 + 60),
        (Exchange(elements=12_345), 12_345),
    ],
)
def test_the_buffer_has_the_same_length_with_and_without_numbers(task: Task, elements: int) -> None:
    assert buffer_elements(scenario(task), NAMES, None) == elements
    for sizes_only in (False, True):
        [assigned, *_] = assignments(task, sizes_only=sizes_only)
        assert len(assigned.work.buffer) == elements
        assert assigned.work.buffer.dtype == np.float32
        assert assigned.samples == task.batch_size


def test_a_profile_has_its_model_s_size() -> None:
    assert 50e6 < buffer_elements(scenario(Exchange(profile="alexnet")), NAMES, None) < 70e6


def test_sites_without_numbers_share_one_buffer_of_nothing() -> None:
    first, second, *_ = assignments(SOFTMAX, sizes_only=True)
    assert first.work.buffer is second.work.buffer
    assert first.wire == Wire.SIZES
    assert first.work.local_step(16) is None
    assert first.work.apply(1) is None
    assert not first.learns


def test_only_training_is_evaluated() -> None:
    [training, *_] = assignments(SOFTMAX)
    [exchanging, *_] = assignments(Exchange(elements=5))
    assert training.evaluate_every == SOFTMAX.evaluate_every
    assert not exchanging.learns
    assert training.wire == Wire.FLOAT32
    assert exchanging.wire == Wire.FLOAT32


def test_a_look_takes_as_many_held_out_samples_as_the_scenario_says() -> None:
    [few, *_] = assignments(structs.replace(SOFTMAX, evaluate_samples=3))
    assert few.work.evaluate() in (0, 1 / 3, 2 / 3, 1)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (SOFTMAX, ("digits", "softmax")),
        (Exchange(profile="alexnet"), ("exchange", "alexnet")),
        (Exchange(elements=7), ("exchange", "7 elements")),
        (Own(factory="train:make_work"), ("own", "train:make_work")),
    ],
)
def test_tasks_are_described(task: Task, words: tuple[str, str]) -> None:
    assert describe(task) == words
