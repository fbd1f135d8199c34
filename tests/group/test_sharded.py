"""DTensors are named wherever tensors are given, with what to give in their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import anabranch
from anabranch import DiLoCo, Group, Outer
from anabranch.train.handed_state import Packed


@pytest.fixture(scope="module")
def model() -> Iterator[nn.Module]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        made = nn.Linear(4, 3)
        fully_shard(made, mesh=init_device_mesh("cpu", (1,)))
        yield made
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    with anabranch.local(1) as (group,):
        yield group


def enter(model: nn.Module, group: Group) -> Any:
    return DiLoCo(model, torch.optim.SGD(model.parameters(), 0.1), group, every=2).__enter__()


SAID = r"{} is a DTensor, spread by .*S.* over a mesh of 1 processes, .* give .*to_local\(\)"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda model, group: group.all_reduce(model.parameters()), "tensor 0"),
        (lambda model, group: group.broadcast(model), "tensor 0"),
        (lambda model, group: group.broadcast([*model.parameters(), torch.ones(1).int()]), "tens"),
        (lambda model, group: group.average(model.parameters(), every=2), "tensor 0"),
        (lambda model, group: group.verify(model), "weight"),
        (enter, "weight"),
        (lambda model, group: Packed({"model": model.state_dict()}), r"state\['model'\]\['weight'"),
        (lambda model, group: group.average([torch.ones(1)], buffers=[model.weight], every=2), "b"),
    ],
)
def test_a_sharded_parameter_is_named(call: Any, name: str, model: nn.Module, group: Group) -> None:
    with pytest.raises(ValueError, match=SAID.format(name + ".*")):
        call(model, group)


def test_the_local_parts_are_exchanged_and_averaged_in_place(
    model: nn.Module, group: Group
) -> None:
    average = group.average(
        [each.to_local() for each in model.parameters()], every=1, outer=Outer()
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.ones(2, 4)).square().mean().backward()
        group.all_reduce(each.grad.to_local() for each in model.parameters())
        before = model.weight.full_tensor().clone()
        optimizer.step()
        optimizer.zero_grad()
        stepped = model.weight.full_tensor().clone()
        assert average.step()
        assert not torch.equal(before, stepped)
        assert not torch.equal(
            stepped, model.weight.full_tensor()
        )  # of 0.7 of a step, with momentum
    average.finish()
