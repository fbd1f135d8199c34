"""Training loops that users write, each as one function for a rank and for one process.

A rank's model is DDP's, or ``Averaged``: then the loop itself averages gradients over the group.
A loop is given the shares of the ranks that it plays: a rank its own, the reference all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from anabranch.torch.backend import group_of
from tests.torch.parity import busy

RANKS = 3
STEPS = 6
SAMPLES = 4  # of a rank in a batch
RATE = 0.05
HELD_OUT = 100
OVERFLOWS = {(1, 2), (2, 4)}  # (rank, step) whose loss is infinite
BATCHES = (3, 5, 4)  # of each rank, where they are unequal
Found = dict[str, Any]


class Net(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


class Averaged(nn.Module):
    """A model whose gradients the loop averages by ``group.all_reduce``."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.module(x)
        return found


WRAPPERS = {"DDP": DistributedDataParallel, "group": Averaged}


def is_shared(model: nn.Module) -> bool:
    """Return whether other ranks train it, too."""
    return isinstance(model, Averaged | DistributedDataParallel)


def average(model: nn.Module) -> None:
    """Make gradients the mean of all ranks', as DDP has done already."""
    if isinstance(model, Averaged):
        for each in model.parameters():
            if each.grad is None:  # this rank had no batch
                each.grad = torch.zeros_like(each)
        group_of().all_reduce([each.grad for each in model.parameters()])


def net() -> Net:
    """Return the model that all begin with."""
    torch.manual_seed(1)
    return Net()


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a rank's samples of a step, and what is to be found."""
    drawn = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(SAMPLES, 8, generator=drawn)
    return x, 3 * x.sum(1, keepdim=True).sin()


def batches(ranks: range, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the samples of several ranks."""
    found = [batch(rank, step) for rank in ranks]
    return torch.cat([x for x, _ in found]), torch.cat([y for _, y in found])


def flat(model: nn.Module) -> torch.Tensor:
    """Return a copy of a model's parameters, one after the other."""
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def accumulate(model: nn.Module, ranks: range) -> Found:
    """Add up the gradients of three batches, exchanged with the last."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(STEPS):
        is_last = step % 3 == 2
        held = isinstance(model, DistributedDataParallel) and not is_last
        with model.no_sync() if held else nullcontext():
            x, y = batches(ranks, step)
            (nn.functional.mse_loss(model(x), y) / 3).backward()
        if is_last:
            average(model)
            optimizer.step()
            optimizer.zero_grad()
    return {"model": flat(model)}


def clip(model: nn.Module, ranks: range) -> Found:
    """Clip the mean gradient by its norm."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batches(ranks, step)
        nn.functional.mse_loss(model(x), y).backward()
        average(model)
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
    return {"model": flat(model), "norms": torch.stack(norms)}


def schedule(model: nn.Module, ranks: range) -> Found:
    """Warm up, and then lower the rate as the mean loss of all ranks stands still."""
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
    rates = []
    for step in range(2 * STEPS):
        optimizer.zero_grad()
        x, y = batches(ranks, step)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        average(model)
        optimizer.step()
        mean = loss.detach().clone()
        if is_shared(model):
            dist.all_reduce(mean, dist.ReduceOp.AVG)
        if step < 3:
            warm.step()
        else:
            plateau.step(mean)
        rates.append(optimizer.param_groups[0]["lr"])
    return {"model": flat(model), "rates": torch.tensor(rates)}


def scale(model: nn.Module, ranks: range) -> Found:
    """Compute in bfloat16 with scaled gradients, some of which are infinite at one rank."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    scales, moved = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batches(ranks, step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        if any((rank, step) in OVERFLOWS for rank in ranks):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        average(model)
        before = flat(model)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(not torch.equal(before, flat(model)))
    return {"model": flat(model), "scales": torch.tensor(scales), "moved": torch.tensor(moved)}


def compiled(model: nn.Module, ranks: range) -> Found:
    """Train a model that torch.compile has been given.

    It is traced, cut where DDP's buckets end, and differentiated; C++ code for what is left,
    which takes a minute where three ranks share two cores, changes nothing for the backend.
    """
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    fast = torch.compile(model, backend="aot_eager") if is_shared(model) else model
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batches(ranks, step)
        nn.functional.mse_loss(fast(x), y).backward()
        average(model)
        optimizer.step()
    return {"model": flat(model)}


def uneven(model: nn.Module, ranks: range) -> Found:
    """Train on unequal numbers of batches; the mean is over all ranks, those that ended too."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    if isinstance(model, DistributedDataParallel):
        [rank] = ranks
        with Join([model]):
            for step in range(BATCHES[rank]):
                optimizer.zero_grad()
                x, y = batch(rank, step)
                nn.functional.mse_loss(model(x), y).backward()
                optimizer.step()
        return {"model": flat(model)}
    most = torch.tensor(max(BATCHES[rank] for rank in ranks))
    if is_shared(model):
        dist.all_reduce(most, dist.ReduceOp.MAX)
    for step in range(int(most)):
        optimizer.zero_grad()
        for rank in ranks:
            if step < BATCHES[rank]:
                x, y = batch(rank, step)
                (nn.functional.mse_loss(model(x), y) / len(ranks)).backward()
        average(model)
        optimizer.step()
    return {"model": flat(model)}


def evaluate(model: nn.Module, ranks: range) -> Found:
    """Count what the model finds in held-out samples, of which each rank looks at some."""
    x, y = (torch.cat(each) for each in zip(*(batch(9, step) for step in range(25)), strict=True))
    assert len(x) == HELD_OUT  # which three ranks share unevenly
    mine = [i for i in range(HELD_OUT) if i % RANKS in ranks]
    with torch.no_grad():
        signs = model(x[mine]).sign()
    counts = torch.tensor([int((signs == y[mine].sign()).sum()), len(mine)])
    found: list[Any] = [(mine, signs.flatten().tolist())]
    if is_shared(model):
        dist.all_reduce(counts)
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, (mine, signs.flatten().tolist()))
    by_number = dict(pair for part in found for pair in zip(*part, strict=True))
    signs = torch.tensor([by_number[i] for i in range(HELD_OUT)])
    return {"counts": counts, "signs": signs}


LOOPS: dict[str, Callable[[nn.Module, range], Found]] = {
    "accumulate": accumulate,
    "clip": clip,
    "schedule": schedule,
    "scale": scale,
    "uneven": uneven,
    "evaluate": evaluate,
    "compiled": compiled,
}


def alone(name: str) -> Found:
    """Return what one process finds that has all ranks' samples."""
    return LOOPS[name](net(), range(RANKS))


def at_a_rank(ways: list[str], names: list[str]) -> dict[tuple[str, str], Found]:
    """Return what this rank finds in each loop.

    One rank after the other has a thread that computes in pure Python beside its loop: all at once
    would wait for cores, and not for the interpreter's lock.

    Args:
        ways: how gradients are averaged, of ``WRAPPERS``.
        names: of loops.
    """
    rank = dist.get_rank()
    found = {}
    for turn, (way, name) in enumerate(product(ways, names)):
        # Tracing is pure Python itself.
        is_busy = rank == turn % RANKS and name != "compiled"
        with busy() if is_busy else nullcontext():
            found[way, name] = LOOPS[name](WRAPPERS[way](net()), range(rank, rank + 1))
    return found
