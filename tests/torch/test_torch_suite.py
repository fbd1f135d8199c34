"""PyTorch's own tests of its backends pass over ours where they pass over gloo."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Those that gloo passes with torch 2.13, of three ranks and of four. The others, 195, it skips.
NAMES = (HERE / "passes_on_gloo.txt").read_text().split()
# They are about gloo: its name, and a barrier that torch.distributed allows no other backend.
OF_GLOO = {
    "test_get_backend",
    "test_monitored_barrier_gloo",
    "test_monitored_barrier_gloo_rank_0_timeout",
    "test_monitored_barrier_gloo_subgroup",
}
SHARDS = 2  # each imports PyTorch and its tests anew


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_distributed_tests_of_pytorch_pass(shard):
    pytest.importorskip("expecttest", reason="PyTorch's tests need it: pip install expecttest")
    names = [name for name in NAMES if name not in OF_GLOO][shard::SHARDS]
    ranks = 3 + shard  # to have all of both is a command: see torch_suite.py
    command = [sys.executable, str(HERE / "torch_suite.py"), "anabranch", str(ranks)]
    done = subprocess.run(
        [*command, *(f"TestOverAGroup.{name}" for name in names)],
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    ended = re.findall(r"^(?:ERROR|FAIL): (test_\w+)", done.stderr, re.M)
    assert not ended, done.stderr[-20_000:]
    assert f"Ran {len(names)} tests" in done.stderr, done.stderr[-2000:]
    assert done.stderr.rstrip().endswith("OK"), done.stderr[-2000:]
