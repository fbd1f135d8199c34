"""The first code of the README, run by three processes, against one process that has all data."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from .every import every

ROOT = Path(__file__).parent.parent
SITES = ("paris", "austin", "tokyo")
STEPS, BATCH = 5, 4
# What a reader brings: a model, data of its own, a loss. Models begin differently at each site.
BEFORE = f"""
import os, sys
import torch
from torch import nn

rank = {SITES!r}.index(os.environ["ANABRANCH_SITE"])
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
data = torch.Generator().manual_seed(100 + rank)
loader = [
    (torch.randn({BATCH}, 6, generator=data), torch.randint(3, ({BATCH},), generator=data))
    for _ in range({STEPS})
]


def compute(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

"""
AFTER = "\ntorch.save(model.state_dict(), sys.argv[1])\n"


def first_code() -> str:
    text = (ROOT / "README.md").read_text("utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1]


def reference() -> nn.Module:
    """Train on all sites' batches at once, in one process."""
    torch.manual_seed(0)  # site paris, of rank 0, is whose model is broadcast
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    data = [torch.Generator().manual_seed(100 + rank) for rank in range(len(SITES))]
    for _ in range(STEPS):
        points, labels = zip(
            *(
                (torch.randn(BATCH, 6, generator=g), torch.randint(3, (BATCH,), generator=g))
                for g in data
            ),
            strict=True,
        )
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.cat(points)), torch.cat(labels))
        loss.backward()
        optimizer.step()
    return model


@pytest.mark.slow
def test_the_first_code_of_the_readme_trains_as_one_process_would(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    script = tmp_path / "train.py"
    script.write_text(BEFORE + first_code() + AFTER)
    environment = {**os.environ, "ANABRANCH_TOKEN": "secret"}
    environment["ANABRANCH_SCHEDULER"] = address
    commands = {site: [sys.executable, str(script), str(tmp_path / f"{site}.pt")] for site in SITES}
    commands["scheduler"] = [sys.executable, "-m", "anabranch", "scheduler"]
    commands["scheduler"] += ["--sites", ",".join(SITES), "--listen", address]
    processes = {
        name: subprocess.Popen(
            command, env={**environment, "ANABRANCH_SITE": name}, stderr=subprocess.PIPE, text=True
        )
        for name, command in commands.items()
    }
    try:
        for name, process in processes.items():
            _, said = process.communicate(timeout=90)
            assert process.returncode == 0, f"{name}: {said}"
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    trained = [torch.load(tmp_path / f"{site}.pt", weights_only=True) for site in SITES]
    for name, expected in reference().state_dict().items():
        torch.testing.assert_close(trained[0][name], expected, rtol=1e-5, atol=1e-6)
        assert every(torch.equal(each[name], trained[0][name]) for each in trained)
