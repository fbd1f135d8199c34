"""Processes of a group train as one would alone."""

from __future__ import annotations

import pytest
import torch

import anabranch
from anabranch import Group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each process imports PyTorch
SITES, BATCH, STEPS = 3, 8, 5


def make_model() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))


def make_batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the whole batch of a step; each site takes a part of it."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(SITES * BATCH, 6, generator=generator)
    labels = torch.randint(3, (SITES * BATCH,), generator=generator)
    return inputs, labels


def compute_gradients(model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    model.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()


def parameters_of(model: torch.nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def train(group: Group, momentum: float) -> list[float]:
    model = make_model()
    if group.rank:
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)  # rank 0's values are to be everyone's
    group.broadcast(model.parameters())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
    for step in range(STEPS):
        inputs, labels = make_batch(step)
        compute_gradients(model, inputs[group.rank :: group.size], labels[group.rank :: group.size])
        group.all_reduce(p.grad for p in model.parameters())
        optimiser.step()
    return parameters_of(model)


def test_sites_train_as_one_process_with_the_whole_batch_does() -> None:
    found = anabranch.spawn(train, SITES, [0.9])
    assert found[0] == found[1] == found[2]
    model = make_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(STEPS):
        compute_gradients(model, *make_batch(step))
        optimiser.step()
    assert found[0] == pytest.approx(parameters_of(model), rel=1e-4, abs=1e-5)
