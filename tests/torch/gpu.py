"""What ranks run with the tensors of a device; those of a GPU share one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import anabranch
from anabranch.torch.backend import group_of
from anabranch.torch.ddp_hooks import Int8, Mean, TopK, hook
from tests.every import every

STEPS = 10
FEW, MANY = 12, 100_000  # elements: on either side of what gathers carry in a message


def model_on(device: str) -> nn.Sequential:
    """Return the same small model at all ranks, with buffers."""
    torch.manual_seed(1)
    layers = nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 1)
    return nn.Sequential(*layers).to(device)


def batch(step: int, device: str) -> torch.Tensor:
    """Return a rank's own batch of a step."""
    seed = 10 * step + dist.get_rank()
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)).to(device)


def train(model: nn.Module, device: str, after: Callable[[], Any] = lambda: None) -> None:
    """Make local steps; call ``after`` between each backward pass and its step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(STEPS):
        model(batch(step, device)).square().mean().backward()
        after()
        optimizer.step()
        optimizer.zero_grad()


def flat(model: nn.Module) -> torch.Tensor:
    """Return all parameters and buffers, in memory."""
    state = [each.detach().reshape(-1).float() for each in model.state_dict().values()]
    return torch.cat(state).cpu()


def collectives(device: str) -> torch.Tensor:
    """Check sums that overlap, and each call that moves data, with few elements and with many."""
    rank, size = dist.get_rank(), dist.get_world_size()
    works, tensors = [], [torch.full((1000,), float(rank + i), device=device) for i in range(5)]
    for tensor in tensors:
        tensor.mul_(2.0)  # the copy to memory waits for this
        works.append(dist.all_reduce(tensor, async_op=True))
    for number, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        wanted = 2.0 * (size * number + sum(range(size)))
        assert bool((tensor == wanted).all()), (number, tensor[0], wanted)
    for elements in (FEW, MANY):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.int16, torch.bool):

            def of(
                owner: int, elements: int = elements, dtype: torch.dtype = dtype
            ) -> torch.Tensor:
                return (torch.arange(elements, device=device) % 7 == owner).to(dtype)

            whole = of(rank)
            dist.broadcast(whole, 1)
            assert torch.equal(whole, of(1))
            parts = [torch.empty_like(whole) for _ in range(size)]
            dist.all_gather(parts, of(rank))
            assert every(torch.equal(part, of(owner)) for owner, part in enumerate(parts))
            if dtype in (torch.bool, torch.int16):
                continue  # gloo has no largest of these
            largest = of(rank)
            dist.all_reduce(largest, dist.ReduceOp.MAX)
            assert torch.equal(largest, torch.stack(parts).amax(0))
        shares = torch.ones(elements * size, device=device)
        share = torch.empty(elements, device=device)
        dist.reduce_scatter_tensor(share, shares)
        assert bool((share == size).all())
        sent, come = torch.full((elements * size,), float(rank), device=device), shares
        dist.all_to_all_single(come, sent)
        owners = torch.arange(size, device=device).float().repeat_interleave(elements)
        assert torch.equal(come, owners)
    return torch.zeros(1)


def ddp(device: str) -> torch.Tensor:
    """Train by DDP under each hook; check that each is near what DDP makes of its own."""
    found = []
    for state in (None, Mean(wire="bfloat16"), Int8(), TopK(share=0.5)):
        model = model_on(device)
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.001)
        if state is not None:
            parallel.register_comm_hook(state, hook)
        train(parallel, device)
        weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).cpu()
        if found:
            assert float((weights - found[0]).abs().max()) < 0.1, type(state).__name__
        found.append(weights)
    return torch.cat(found)


def hsdp(device: str) -> torch.Tensor:
    """Two sites of two ranks: shards within a site by gloo, their mean between sites by us."""
    kind = torch.device(device).type
    override = {"backend_override": {"inter": "anabranch", "intra": "gloo"}}
    mesh = init_device_mesh(kind, (2, 2), mesh_dim_names=("inter", "intra"), **override)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    train(model, device)
    mine = [each.to_local().detach().cpu() for each in model.parameters()]
    shards: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shards, mine)  # `full_tensor` crashes over gloo alone, torch 2.11
    assert every(map(torch.equal, shards[0], shards[2]))
    return torch.cat([each.reshape(-1) for site in shards[:2] for each in site])


def group_calls(device: str) -> torch.Tensor:
    """Check a group's own calls on a model of the device, and train by them."""
    group = group_of()
    group.on_nan = "raise"
    rank, size = group.rank, group.size
    model = model_on(device)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(rank)
    group.broadcast(model)
    group.verify(model)
    for wire in (None, "bfloat16"):
        value = torch.full((MANY,), float(rank), device=device)
        group.all_reduce(value, op="sum", wire=wire)
        assert bool((value == sum(range(size))).all())
    value = torch.full((FEW,), float(rank), device=device)
    handle = group.all_reduce(value, weight=rank + 1.0, async_op=True)
    handle.wait()
    mean = sum(each * (each + 1.0) for each in range(size)) / sum(range(1, size + 1))
    assert bool(((value - mean).abs() < 1e-6).all())
    bad = torch.full((FEW,), float("nan") if rank == 1 else 1.0, device=device)
    with pytest.raises(anabranch.ExchangeError, match=group.sites[1]):
        group.all_reduce(bad)

    def average_gradients() -> None:
        group.all_reduce([each.grad for each in model.parameters()])

    train(model, device, average_gradients)
    parameters = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    return parameters.cpu()


def local_steps(device: str) -> torch.Tensor:
    """Train by DiLoCo and LocalSGD, with buffers, a delay and fragments."""
    group = group_of()
    found = []
    for options in ({}, {"delay": 1}, {"fragments": 5}):
        model = model_on(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        with anabranch.DiLoCo(model, optimizer, group, every=5, **options):
            for step in range(STEPS):
                model(batch(step, device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        found.append(flat(model))
    model = model_on(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with anabranch.LocalSGD(model, optimizer, group, every=5):
        for step in range(STEPS):
            model(batch(step, device)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found.append(flat(model))
    return torch.cat(found)
