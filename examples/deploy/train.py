"""What every site of the examples beside this file runs: it fits a small model with the others.

It names no address, site or token: `anabranch.join()` has them from the environment, which the
systemd unit, Slurm or Kubernetes sets. A site that dies and is started again gets the state of
training from the others, and goes on with them.
"""

import os

import torch

import anabranch

STEPS = int(os.environ.get("STEPS", "1000"))

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
step, loss = 0, torch.zeros(())


def training() -> dict[str, object]:
    """Return the state of training, for a site that joins."""
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}


with anabranch.join() as group:
    # Each site has data of its own. A site that was started again has no rank before `admit`.
    data = torch.Generator().manual_seed(group.index)
    while step < STEPS:
        state = group.admit(training)
        if state is not None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            step = state["step"]
        points = torch.randn(32, 8, generator=data)
        loss = (model(points) - points.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        group.all_reduce(p.grad for p in model.parameters())
        optimizer.step()
        step += 1
        if step % 10 == 0:
            group.report_loss(loss.item(), step)
    print(f"{group.site}: {step} steps with {group.size} sites, loss {loss.item():.2g}", flush=True)
