from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from anabranch.learn.models import build_model
from anabranch.learn.optimisers import Adam, Sgd
from anabranch.learn.partition import partition_evenly
from anabranch.learn.tasks import load_task
from anabranch.learn.train import DivergedError, Trainer


def clock():
    return 0.0


def alone(gradients):
    """The exchange of the only site there is."""


def make(task, shard=None, *, optimiser=None, batch_size=32, seed=0, model=None, clock=clock):
    return Trainer(
        task,
        build_model("mlp", task.shape, task.classes, seed=1) if model is None else model,
        np.arange(len(task.train_labels)) if shard is None else shard,
        Adam(1e-3) if optimiser is None else optimiser,
        batch_size,
        seed,
        clock=clock,
    )


def step_together(first, second):
    """Take one step at both, exchanging the exact mean: the second within the first's exchange."""
    results = []

    def exchange(gradients):
        def meet(others):
            mean = (gradients + others) / 2
            gradients[:] = mean
            others[:] = mean

        results.append(second.step(meet))

    return first.step(exchange), *results


@pytest.mark.parametrize("optimiser", [Sgd(0.05, momentum=0.9), Adam(1e-3)], ids=["sgd", "adam"])
def test_two_sites_that_exchange_the_mean_hold_the_same_model_bit_for_bit(digits, optimiser):
    shards = partition_evenly(len(digits.train_labels), 2, seed=0)
    sites = [make(digits, shard, optimiser=optimiser, seed=i) for i, shard in enumerate(shards)]
    for _ in range(10):
        first, second = step_together(*sites)
        assert first.loss != second.loss
        assert first.checksum == second.checksum
    np.testing.assert_array_equal(sites[0].flat.parameters, sites[1].flat.parameters)


@pytest.mark.parametrize("optimiser", [Sgd(0.05, momentum=0.9), Adam(1e-3)], ids=["sgd", "adam"])
def test_two_sites_learn_what_one_site_learns_from_both_batches(digits, optimiser):
    # A batch that is the whole shard is known without asking the trainer for its draws.
    left, right = np.arange(40), np.arange(40, 80)
    sites = [make(digits, shard, optimiser=optimiser, batch_size=40) for shard in (left, right)]
    union = make(digits, np.arange(80), optimiser=optimiser, batch_size=80)
    for _ in range(10):
        first, second = step_together(*sites)
        assert union.step(alone).loss == pytest.approx((first.loss + second.loss) / 2, rel=1e-4)
    np.testing.assert_allclose(
        sites[0].flat.parameters, union.flat.parameters, rtol=1e-3, atol=1e-5
    )


def test_an_mlp_learns_digits_beyond_nine_in_ten_within_100_steps(digits):
    trainer = make(digits)
    assert trainer.accuracy() < 0.3
    for _ in range(100):
        trainer.step(alone)
    assert trainer.accuracy() > 0.9


def test_lenet_learns_fashion_mnist_beyond_seven_in_ten_within_150_steps(data_dir):
    task = load_task("fashion-mnist", data_dir)
    model = build_model("lenet-5", task.shape, task.classes, seed=0)
    trainer = make(task, model=model, optimiser=Adam(1e-3))
    for _ in range(150):
        trainer.step(alone)
    assert trainer.accuracy(2000) > 0.7


def test_one_seed_gives_one_run_with_dropout_and_all(digits):
    def run(seed):
        model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))
        nn.init.zeros_(model[2].weight)
        nn.init.zeros_(model[2].bias)
        trainer = make(digits, model=model, seed=seed)
        return [trainer.step(alone).checksum for _ in range(5)]

    first = run(3)
    torch.rand(7)  # what else draws in the process must not matter
    assert run(3) == first
    assert run(4) != first


def test_a_step_leaves_the_global_generator_of_torch_alone(digits):
    trainer = make(digits)
    before = torch.get_rng_state()
    trainer.step(alone)
    assert torch.equal(torch.get_rng_state(), before)


class Recorder(nn.Module):
    """A linear model that notes the first pixel of each sample it trains on."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 10)
        self.seen = []

    def forward(self, inputs):
        if self.training:
            self.seen += inputs[:, 0, 0, 0].tolist()
        return self.linear(inputs.flatten(1))


def test_every_epoch_visits_the_whole_shard_once_in_another_order(digits):
    task = replace(
        digits,
        train_inputs=torch.arange(1438.0).reshape(-1, 1, 1, 1),
        held_out_inputs=torch.zeros(359, 1, 1, 1),
    )
    shard, model = np.arange(100, 110), Recorder()
    trainer = make(task, shard, batch_size=4, model=model)
    results = [trainer.step(alone) for _ in range(5)]
    assert {result.samples for result in results} == {4}
    epochs = model.seen[:10], model.seen[10:]
    assert sorted(epochs[0]) == sorted(epochs[1]) == shard.tolist()
    assert epochs[0] != epochs[1]


def test_time_within_the_exchange_is_told_from_time_outside_it(digits):
    now_s = [100.0]

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 10)

        def forward(self, inputs):
            now_s[0] += 2.0
            return self.linear(inputs.flatten(1))

    def exchange(gradients):
        now_s[0] += 5.0

    trainer = make(digits, model=Slow(), clock=lambda: now_s[0])
    results = [trainer.step(exchange) for _ in range(2)]
    assert [result.step for result in results] == [0, 1]
    assert [(r.compute_s, r.exchange_s) for r in results] == [(2.0, 5.0), (2.0, 5.0)]


def test_a_failed_exchange_leaves_the_model_as_it_was_and_the_run_goes_on(digits):
    def fail(gradients):
        gradients.fill(np.nan)
        raise ConnectionError("peer 3 is gone")

    trainer = make(digits)
    before = trainer.flat.parameters.copy()
    with pytest.raises(ConnectionError, match="peer 3"):
        trainer.step(fail)
    np.testing.assert_array_equal(trainer.flat.parameters, before)
    assert trainer.steps == 0
    assert trainer.step(alone).step == 0
    assert np.isfinite(trainer.flat.parameters).all()


def test_a_loss_that_is_not_finite_is_an_error_before_anything_is_exchanged(digits):
    trainer = make(digits)
    trainer.step(alone)
    trainer.flat.parameters[:] = np.inf
    exchanged = []
    with pytest.raises(DivergedError, match="nan at step 1; lower the learning rate"):
        trainer.step(exchanged.append)
    assert not exchanged


def test_accuracy_is_the_share_of_right_answers(digits):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    trainer = make(digits, model=model)
    trainer.flat.parameters[:] = 0.0
    model[1].bias.data[4] = 1.0  # always answers 4
    fours = digits.held_out_labels == 4
    assert trainer.accuracy() == pytest.approx(fours.float().mean().item())
    assert trainer.accuracy(10) == pytest.approx(fours[:10].float().mean().item())
    with pytest.raises(ValueError, match="samples is 0"):
        trainer.accuracy(0)


def test_accuracy_is_measured_without_dropout(digits):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.999), nn.Linear(64, 10))
    trainer = make(digits, model=model)
    for _ in range(3):
        trainer.step(alone)
    assert len({trainer.accuracy() for _ in range(5)}) == 1


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_that_the_shard_cannot_fill_is_refused(digits, batch_size):
    with pytest.raises(ValueError, match=rf"batch_size is {batch_size}, .* 1\.\.10"):
        make(digits, np.arange(10), batch_size=batch_size)


@pytest.mark.parametrize("shard", [[], [-1], [1438], [[0, 1]]], ids=str)
def test_a_shard_that_does_not_fit_the_task_is_refused(digits, shard):
    with pytest.raises(ValueError, match=r"does not fit task 'digits': .* 0\.\.1437"):
        make(digits, np.array(shard, np.int64), batch_size=1)
