"""What a site with several GPUs runs: its ranks average first, then one of them with other sites.

torchrun starts a rank for each GPU of the site:

    torchrun --standalone --nproc-per-node 4 --max-restarts 3 train_gpus.py

DDP averages the ranks' gradients within the site, over NCCL, or over gloo where no GPU is. Rank 0
alone joins the group. It exchanges the site's gradients with the other sites, and hands the mean to
the site's other ranks. Where a rank dies, torchrun starts all ranks of the site again. Rank 0 then
joins again, and the other sites hand it the state of training.
"""

import os
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import anabranch

STEPS = int(os.environ.get("STEPS", "1000"))

device, backend = torch.device("cpu"), "gloo"
if torch.cuda.is_available():
    device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
    torch.cuda.set_device(device)
# Ranks that are started again must not find the addresses of those before them in torchrun's store.
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
dist.init_process_group(
    backend,
    store=dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store),
    rank=int(os.environ["RANK"]),
    world_size=int(os.environ["WORLD_SIZE"]),
    # Rank 0 may wait long for other sites, and the others for it. torchrun sees a rank's death.
    timeout=timedelta(days=1),
)
rank, ranks = dist.get_rank(), dist.get_world_size()

torch.manual_seed(0)
model = torch.nn.Linear(8, 1).to(device)
within_site = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step, loss = 0, torch.zeros(())


def training() -> dict[str, object]:
    """Return the state of training, for a site that joins."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


def from_rank_0(value: Any) -> Any:
    """Return rank 0's value at all ranks of this site."""
    values = [value]
    dist.broadcast_object_list(values, src=0, device=device)
    return values[0]


with anabranch.join() if rank == 0 else nullcontext() as group:
    # Each rank of each site has data of its own.
    index = from_rank_0(group and group.index)
    data = torch.Generator().manual_seed(index * ranks + rank)
    while step < STEPS:
        state = from_rank_0(group and group.admit(training))
        if state is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            step = state["step"]
        points = torch.randn(32, 8, generator=data).to(device)
        loss = (within_site(points) - points.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        gradients = [p.grad for p in model.parameters()]  # the same at all ranks of the site
        if group:
            group.all_reduce(gradients, weight=ranks)  # each sample counts alike
        for gradient in gradients:
            dist.broadcast(gradient, src=0)
        optimizer.step()
        step += 1
        if group and step % 10 == 0:
            group.report_loss(loss.item(), step)
    if group:
        print(
            f"{group.site}: {step} steps with {group.size} sites, this one of {ranks} ranks on "
            f"{device.type}, loss {loss.item():.2g}",
            flush=True,
        )
dist.destroy_process_group()
