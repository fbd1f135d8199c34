"""A model that gossips: each site steps on its own, and mixes its model with those of neighbours.

    python examples/groups/gossiping.py NAME

The address and the token come from the environment: $ANABRANCH_SCHEDULER, $ANABRANCH_TOKEN; and
how many steps to make, if it is not 400: $STEPS.
"""

import os
import sys

import torch

import anabranch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
loss = torch.zeros(())

with anabranch.join(site=sys.argv[1]) as group:
    data = torch.Generator().manual_seed(group.index)  # each site has data of its own
    gossip = group.gossip(model, every=2)  # all begin with the first site's model
    while gossip.steps < int(os.environ.get("STEPS", "400")):
        points = torch.randn(32, 8, generator=data)
        loss = (model(points) - points.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not gossip.step():
            break  # the run is to end by a rule of the scheduler's
    gossip.finish()  # all models become one, bit for bit
    group.verify(model)
    print(f"{group.site}: {gossip.steps} steps, one of {group.size} sites, loss {loss.item():.2g}")
