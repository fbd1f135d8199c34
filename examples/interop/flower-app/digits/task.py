"""What is trained: a perceptron on 8 x 8 digits, of which each client has some labels more."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from anabranch_lab.tasks.kinds import Task, load_task
from anabranch_lab.tasks.partition import Dirichlet


@cache
def data() -> Task:
    """Return the digits that come with scikit-learn."""
    return load_task("digits", None)


def model() -> nn.Module:
    """Return the model as it is at first."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def train(net: nn.Module, client: int, clients: int, steps: int, seed: int) -> tuple[float, int]:
    """Make some steps on a client's samples; return the last loss, and how many samples it has."""
    deal = Dirichlet(alpha=5.0).deal(data().train_labels.numpy(), clients, seed=0, least=4)
    shard = torch.from_numpy(deal[client])
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        chosen = shard[torch.randint(len(shard), (8,), generator=generator)]
        optimizer.zero_grad()
        logits = net(data().train_inputs[chosen])
        loss = nn.functional.cross_entropy(logits, data().train_labels[chosen])
        loss.backward()
        optimizer.step()
    return loss.item(), len(shard)


def accuracy(net: nn.Module) -> float:
    """Return the share of held-out digits that a model gets right."""
    with torch.inference_mode():
        found = net(data().held_out_inputs).argmax(dim=1)
    return float((found == data().held_out_labels).float().mean())
