"""The tensors of a device give the same as those in memory, and the same bits at all ranks."""

from __future__ import annotations

import pytest
import torch

from tests.every import every
from tests.torch import gpu
from tests.torch.ranks import run_ranks

RANKS = {gpu.collectives: 3, gpu.ddp: 2, gpu.hsdp: 4, gpu.group_calls: 3, gpu.local_steps: 2}
ROUNDING = 1e-3  # a GPU adds a matrix product's terms in another order


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.xdist_group("ranks")
@pytest.mark.parametrize("what", RANKS, ids=lambda what: what.__name__)
def test_ranks_that_share_one_gpu_train_as_ranks_in_memory_do(what):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    found = run_ranks(what, RANKS[what], "cuda:0")
    assert every(torch.equal(found[0], other) for other in found[1:])
    in_memory = run_ranks(what, RANKS[what], "cpu")[0]
    assert found[0].shape == in_memory.shape
    assert float((found[0] - in_memory).abs().max()) < ROUNDING
