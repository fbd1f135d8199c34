import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from anabranch.train.checksum import checksum
from anabranch.train.optimisers import Adam, Sgd
from anabranch.train.work import DivergedError
from anabranch_lab.tasks.kinds import load_task
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.partition import partition_evenly
from anabranch_lab.tasks.sampling import Resampled, Shuffled
from anabranch_lab.tasks.train import Trainer

SHUFFLED = Shuffled()


def make(task, shard=None, *, optimiser=None, batch_size=32, seed=0, model=None, sampling=SHUFFLED):
    return Trainer(
        task,
        build_model("mlp", task.shape, task.classes, seed=1) if model is None else model,
        np.arange(len(task.train_labels)) if shard is None else shard,
        Adam(1e-3) if optimiser is None else optimiser,
        batch_size,
        seed,
        sampling,
    )


def alone(gradients):
    """The exchange of the only site there is."""


def take_step(trainer, exchange=alone):
    """Take one step, as a run does, and return the loss of its batch."""
    loss = trainer.compute_gradients()
    exchange(trainer.flat.gradients)
    trainer.update()
    return loss


def step_together(*sites):
    """Take one step at all sites, exchanging the exact mean; return the losses of their batches."""
    losses = [site.compute_gradients() for site in sites]
    mean = sum(site.flat.gradients for site in sites) / len(sites)
    for site in sites:
        site.flat.gradients[:] = mean
        site.update()
    return losses


@pytest.mark.parametrize("optimiser", [Sgd(0.05, momentum=0.9), Adam(1e-3)], ids=["sgd", "adam"])
def test_two_sites_that_exchange_the_mean_hold_the_same_model_bit_for_bit(digits, optimiser):
    shards = partition_evenly(len(digits.train_labels), 2, seed=0)
    sites = [make(digits, shard, optimiser=optimiser, seed=i) for i, shard in enumerate(shards)]
    for _ in range(10):
        first, second = step_together(*sites)
        assert first != second
        assert len({checksum(site.flat.parameters) for site in sites}) == 1
    np.testing.assert_array_equal(sites[0].flat.parameters, sites[1].flat.parameters)


@pytest.mark.parametrize("optimiser", [Sgd(0.05, momentum=0.9), Adam(1e-3)], ids=["sgd", "adam"])
def test_two_sites_learn_what_one_site_learns_from_both_batches(digits, optimiser):
    # A batch that is the whole shard is known without asking the trainer for its draws.
    left, right = np.arange(40), np.arange(40, 80)
    sites = [make(digits, shard, optimiser=optimiser, batch_size=40) for shard in (left, right)]
    union = make(digits, np.arange(80), optimiser=optimiser, batch_size=80)
    for _ in range(10):
        losses = step_together(*sites)
        assert take_step(union) == pytest.approx(sum(losses) / 2, rel=1e-4)
    np.testing.assert_allclose(
        sites[0].flat.parameters, union.flat.parameters, rtol=1e-3, atol=1e-5
    )


@pytest.mark.slow
def test_a_residual_network_is_one_model_at_two_sites_as_they_measure_it(digits):
    shards = partition_evenly(len(digits.train_labels), 2, seed=0)
    sites = [
        make(
            digits,
            shard,
            model=build_model("resnet-20", digits.shape, digits.classes, seed=1),
            optimiser=Sgd(0.05, momentum=0.9),
            seed=i,
        )
        for i, shard in enumerate(shards)
    ]
    for _ in range(100):
        step_together(*sites)
    assert checksum(sites[0].flat.parameters) == checksum(sites[1].flat.parameters)
    first, second = (site.accuracy() for site in sites)
    assert first == second > 0.7


def test_an_mlp_learns_digits_beyond_nine_in_ten_within_100_steps(digits):
    trainer = make(digits)
    assert trainer.accuracy() < 0.3
    for _ in range(100):
        take_step(trainer)
    assert trainer.accuracy() > 0.9


@pytest.mark.slow
def test_lenet_learns_fashion_mnist_beyond_seven_in_ten_within_150_steps(data_dir):
    task = load_task("fashion-mnist", data_dir)
    model = build_model("lenet-5", task.shape, task.classes, seed=0)
    trainer = make(task, model=model, optimiser=Adam(1e-3))
    for _ in range(150):
        take_step(trainer)
    assert trainer.accuracy(2000) > 0.7


def test_one_seed_gives_one_run_with_dropout_and_all(digits):
    def run(seed):
        model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 10))
        nn.init.zeros_(model[2].weight)
        nn.init.zeros_(model[2].bias)
        trainer = make(digits, model=model, seed=seed)
        taken = []
        for _ in range(5):
            loss = take_step(trainer)
            taken.append((loss, checksum(trainer.flat.parameters)))
        return taken

    first = run(3)
    torch.rand(7)  # what else draws in the process must not matter
    assert run(3) == first
    assert run(4) != first


def test_a_step_leaves_the_global_generator_of_torch_alone(digits):
    trainer = make(digits)
    before = torch.get_rng_state()
    take_step(trainer)
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
    for done in range(1, 6):
        take_step(trainer)
        assert trainer.steps == done
        assert len(model.seen) == 4 * done
    epochs = model.seen[:10], model.seen[10:]
    assert sorted(epochs[0]) == sorted(epochs[1]) == shard.tolist()
    assert epochs[0] != epochs[1]


def test_a_failed_exchange_leaves_the_model_as_it_was_and_the_run_goes_on(digits):
    def fail(gradients):
        gradients.fill(np.nan)
        raise ConnectionError("peer 3 is gone")

    trainer = make(digits)
    before = trainer.flat.parameters.copy()
    with pytest.raises(ConnectionError, match="peer 3"):
        take_step(trainer, fail)
    np.testing.assert_array_equal(trainer.flat.parameters, before)
    assert trainer.steps == 0
    take_step(trainer)
    assert trainer.steps == 1
    assert np.isfinite(trainer.flat.parameters).all()


def test_a_loss_that_is_not_finite_is_an_error_before_anything_is_exchanged(digits):
    trainer = make(digits)
    take_step(trainer)
    trainer.flat.parameters[:] = np.inf
    exchanged = []
    with pytest.raises(DivergedError, match="nan at step 1; lower the learning rate"):
        take_step(trainer, exchanged.append)
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


def test_right_answers_are_counted_by_class(digits):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    trainer = make(digits, model=model)
    trainer.flat.parameters[:] = 0.0
    model[1].bias.data[4] = 1.0  # always answers 4
    right, there = trainer.right_of_class()
    assert right.tolist() == [there[4] if label == 4 else 0 for label in range(10)]
    assert there.sum() == len(digits.held_out_labels)
    assert right.sum() / there.sum() == trainer.accuracy()


def test_accuracy_is_measured_without_dropout(digits):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.999), nn.Linear(64, 10))
    trainer = make(digits, model=model)
    for _ in range(3):
        take_step(trainer)
    assert len({trainer.accuracy() for _ in range(5)}) == 1


@pytest.mark.parametrize("batch_size", [0, 11])
def test_a_batch_that_the_shard_cannot_fill_is_refused(digits, batch_size):
    with pytest.raises(ValueError, match=rf"batch_size is {batch_size}, .* 1\.\.10"):
        make(digits, np.arange(10), batch_size=batch_size)


@pytest.mark.parametrize("shard", [[], [-1], [1438], [[0, 1]]], ids=str)
def test_a_shard_that_does_not_fit_the_task_is_refused(digits, shard):
    with pytest.raises(ValueError, match=r"does not fit task 'digits': .* 0\.\.1437"):
        make(digits, np.array(shard, np.int64), batch_size=1)


@pytest.mark.parametrize("optimiser", [Sgd(0.05, momentum=0.9), Adam(1e-3)], ids=["sgd", "adam"])
def test_a_trainer_goes_on_from_a_state_bit_for_bit(digits, optimiser):
    first, second = (make(digits, optimiser=optimiser, seed=seed) for seed in (0, 1))
    for _ in range(3):
        take_step(first)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.steps == 3
    losses = [[take_step(trainer) for _ in range(60)] for trainer in (first, second)]
    assert losses[0] == losses[1]  # over more than an epoch
    assert checksum(first.flat.parameters) == checksum(second.flat.parameters)


def test_a_trainer_that_resamples_goes_on_from_a_state_bit_for_bit(digits):
    first, second = (make(digits, seed=seed, sampling=Resampled(beta=0.9)) for seed in (0, 1))
    for _ in range(3):
        take_step(first)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    losses = [[take_step(trainer) for _ in range(10)] for trainer in (first, second)]
    assert losses[0] == losses[1]
    assert checksum(first.flat.parameters) == checksum(second.flat.parameters)


@pytest.mark.parametrize("order", [1, -1])
def test_a_state_of_another_sampling_is_refused(digits, order):
    one, other = [make(digits), make(digits, sampling=Resampled(beta=0.9))][::order]
    with pytest.raises(ValueError, match="the state is of another sampling"):
        one.load_state_dict(other.state_dict())


def test_labels_of_tokens_cannot_be_resampled_by():
    task = load_task("translation")
    with pytest.raises(ValueError, match=r"cannot resample by labels of shape \(3, \d+\)"):
        make(task, np.arange(3), model=nn.Linear(2, 2), batch_size=1, sampling=Resampled())


def test_a_state_of_another_model_or_optimiser_is_refused(digits):
    state = make(digits).state_dict()
    other = build_model("softmax", digits.shape, digits.classes, seed=1)
    with pytest.raises(ValueError, match="the state is of another model"):
        make(digits, model=other).load_state_dict(state)
    with pytest.raises(ValueError, match="velocity of the optimiser's state is missing"):
        make(digits, optimiser=Sgd(0.1)).load_state_dict(state)
    plain = make(digits, optimiser=Sgd(0.1)).state_dict()
    with pytest.raises(ValueError, match=r"velocity of the optimiser's state is of shape \(0,\)"):
        make(digits, optimiser=Sgd(0.1, momentum=0.5)).load_state_dict(plain)
