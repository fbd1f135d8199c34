"""What ranks that share one GPU run."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train_on(device: str) -> torch.Tensor:
    """Check sums and broadcasts of a device's tensors, and return a model that DDP has trained."""
    rank, size = dist.get_rank(), dist.get_world_size()
    works, tensors = [], [torch.full((1000,), float(rank + i), device=device) for i in range(5)]
    for tensor in tensors:
        tensor.mul_(2.0)  # the copy to memory waits for this
        works.append(dist.all_reduce(tensor, async_op=True))
    for number, (work, tensor) in enumerate(zip(works, tensors, strict=True)):
        work.wait()
        wanted = 2.0 * (size * number + sum(range(size)))
        assert bool((tensor == wanted).all()), (number, tensor[0], wanted)
    whole = torch.arange(7, device=device) * rank
    dist.broadcast(whole, 1)
    assert whole.tolist() == [*range(7)]
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(10):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        parallel(x.to(device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([each.detach().reshape(-1) for each in model.parameters()]).cpu()
