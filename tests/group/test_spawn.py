"""Processes of a group that use PyTorch train as one would alone, and return tensors."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import Any

import numpy as np
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


def stop_in_the_block_at_one(group: Group) -> tuple[tuple[str, ...], list[float]]:
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sites: tuple[str, ...] = ()
    with suppress(KeyboardInterrupt):
        with anabranch.DiLoCo(model, optimizer, group, every=3, delay=1):
            for step in range(30):
                if group.site == "site1" and step == 13:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(60.0)  # the signal ends it
                model(torch.full((1, 2), 0.1 * group.index + 0.1)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        sites = group.sites
    return sites, model.weight.flatten().tolist()


@pytest.mark.usefixtures("spawned_by_fork")
def test_ctrl_c_in_a_block_is_that_process_s_loss_and_the_others_average_on() -> None:
    one, stopped, other = anabranch.spawn(stop_in_the_block_at_one, SITES)
    assert one == other
    assert one[0] == ("site0", "site2")
    assert stopped[0] == ()


def return_tensors(group: Group, add: torch.Tensor) -> dict[str, Any]:
    add += group.rank  # a copy: neither the caller's nor the other site's
    return {
        "added": add,
        "parameter": torch.nn.Parameter(torch.ones(2) * group.rank),
        "halves": torch.ones(3, dtype=torch.bfloat16),
        "whole": torch.arange(3),
        "large": torch.full((30_000_000,), float(group.rank)),
        "array": np.full(3, group.rank),
    }


def test_tensors_come_back_by_value_and_go_there_by_value() -> None:
    add = torch.zeros(2)
    found = anabranch.spawn(return_tensors, 2, [add])
    assert add.tolist() == [0.0, 0.0]
    for rank, each in enumerate(found):
        assert each["added"].tolist() == [rank, rank]
        assert isinstance(each["parameter"], torch.nn.Parameter)
        assert each["halves"].dtype == torch.bfloat16
        assert each["whole"].tolist() == [0, 1, 2]
        assert each["large"].mean() == rank
        assert each["array"].tolist() == [rank] * 3
