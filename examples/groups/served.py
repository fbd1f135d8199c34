"""A model that the group's servers hold: pull it, compute on a batch, push the gradients.

    python examples/groups/served.py NAME

The address and the token come from the environment: $ANABRANCH_SCHEDULER, $ANABRANCH_TOKEN. A
worker that dies and is started again makes what is left of its updates.
"""

import sys

import torch

import anabranch

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
updates, largest, loss = 0, 0, torch.zeros(())

with anabranch.join(site=sys.argv[1]) as group:
    data = torch.Generator().manual_seed(group.index)  # each site has data of its own
    group.serve(model.parameters(), learning_rate=0.05)
    while group.pull():
        samples = group.batch_size or 32
        points = torch.randn(samples, 8, generator=data)
        loss = (model(points) - points.sum(1, keepdim=True)).square().mean()
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        group.push(gradients, samples=samples, loss=loss.item())
        updates, largest = updates + 1, max(largest, samples)
    print(f"{group.site}: {updates} updates, largest batch {largest}, loss {loss.item():.2g}")
