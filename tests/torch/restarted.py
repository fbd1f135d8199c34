"""A script for torchrun: rank 0 fails the first time, and all ranks are started again."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("anabranch")
total = torch.ones(1000)
dist.all_reduce(total)
if attempt == 0 and dist.get_rank() == 0:
    raise SystemExit("rank 0 fails the first time")
dist.barrier()
print(f"attempt {attempt}, rank {dist.get_rank()}: {total[0]:g}", flush=True)
dist.destroy_process_group()
