"""DDP and HSDP beside one process that trains on all ranks' samples: the same model, step by step.

Each trains beside a thread that computes in pure Python; `benchmarks/torch_parity.py` repeats them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SAMPLES = 4  # of each rank in a step
WIDE = 64
RATE = 0.05
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "small buckets": {"bucket_cap_mb": 0.01},
    "unused parameters": {"find_unused_parameters": True},
    "buckets as gradients": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.01},
    "static graph": {"static_graph": True},
    "no_sync": {"bucket_cap_mb": 0.01},
    "compiled": {},
}


class Net(nn.Module):
    """Layers, the last of which is used every other step where asked."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE), nn.Tanh())
        self.last = nn.Linear(WIDE, 1)
        self.other = nn.Linear(WIDE, 1)

    def forward(self, x: torch.Tensor, uses_other: bool) -> torch.Tensor:
        hidden = self.layers(x)
        found: torch.Tensor = self.last(hidden) + (self.other(hidden) if uses_other else 0.0)
        return found


def net() -> Net:
    """Return the model that all begin with."""
    torch.manual_seed(1)
    return Net()


def samples(step: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all ranks' samples of a step, and what is to be found."""
    x = torch.randn(ranks * SAMPLES, 8, generator=torch.Generator().manual_seed(step))
    return x, x.sum(1, keepdim=True).sin()


def flat(model: nn.Module) -> torch.Tensor:
    """Return a copy of a model's parameters, one after the other."""
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()])


def alone(way: str, ranks: int, steps: int) -> torch.Tensor:
    """Return the model after one process has trained on all samples."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(steps):
        x, y = samples(step, ranks)
        nn.functional.mse_loss(model(x, _uses_other(way, step)), y).backward()
        if way != "no_sync" or step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


def _uses_other(way: str, step: int) -> bool:
    return way != "unused parameters" or step % 2 == 0


@contextmanager
def busy() -> Iterator[None]:
    """Let a thread compute in pure Python meanwhile."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(i * i for i in range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ddp(way: str, steps: int) -> torch.Tensor:
    """Return the model after DDP has trained, at this rank."""
    model = DistributedDataParallel(net(), **WAYS[way])
    called = torch.compile(model) if way == "compiled" else model
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = slice(rank * SAMPLES, (rank + 1) * SAMPLES)
    for step in range(steps):
        x, y = samples(step, size)
        is_held = way == "no_sync" and not step % 2
        with model.no_sync() if is_held else nullcontext():
            loss = nn.functional.mse_loss(called(x[mine], _uses_other(way, step)), y[mine])
            loss.backward()
        if not is_held:
            optimizer.step()
            optimizer.zero_grad()
    return flat(model)


def ddp_ways(ways: list[str], steps: int) -> dict[str, torch.Tensor]:
    """Return the model after each way of training, beside a busy thread."""
    with busy():
        return {way: ddp(way, steps) for way in ways}


def hsdp(steps: int, hooked: bool) -> torch.Tensor:
    """Return the model after HSDP of two sites of two ranks has trained, at this rank.

    Args:
        steps: how many.
        hooked: whether FSDP is over a site's ranks alone, and a hook averages between sites;
            otherwise FSDP has a mesh of both, of which one is the backend's.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(
        "cpu",
        (2, 2),
        mesh_dim_names=("inter", "intra"),
        backend_override={"inter": "anabranch"},
    )
    model = net()
    used = mesh["intra"] if hooked else mesh
    for layer in [*model.layers, model.last, model.other]:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=used)
    fully_shard(model, mesh=used)
    if hooked:
        between = mesh["inter"].get_group()

        def mean(gradient: torch.Tensor) -> None:
            dist.all_reduce(gradient, dist.ReduceOp.AVG, group=between)

        for module in model.modules():
            if hasattr(module, "set_all_reduce_hook"):
                module.set_all_reduce_hook(mean)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = slice(rank * SAMPLES, (rank + 1) * SAMPLES)
    with busy():
        for step in range(steps):
            x, y = samples(step, size)
            nn.functional.mse_loss(model(x[mine], True), y[mine]).backward()
            optimizer.step()
            optimizer.zero_grad()
        whole = [each.full_tensor().detach().reshape(-1) for each in model.parameters()]
    return torch.cat(whole)


def compare(found: list[torch.Tensor], wanted: torch.Tensor) -> float:
    """Return how far ranks' models are from the reference at most; they are alike to the bit."""
    for each in found[1:]:
        assert torch.equal(each, found[0])
    return float((found[0] - wanted).abs().max())
