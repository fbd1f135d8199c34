"""Accelerate: a network learns digits at three ranks.

    torchrun --nproc-per-node 3 examples/interop/accelerate_digits.py

The one changed line makes the process group before `Accelerator` is made, which then uses it.
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4


def main() -> None:
    """Train, and compare what the ranks hold."""
    dist.init_process_group("anabranch")  # the changed line
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(1)

    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    model, optimizer, scheduler, loader = accelerator.prepare(
        model, optimizer, scheduler, DataLoader(data, batch_size=16, shuffle=True)
    )

    losses = []
    for epoch in range(EPOCHS):
        total = torch.zeros(())
        for inputs, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            total += loss.detach()
        losses.append(accelerator.reduce(total / len(loader), "mean").item())
        accelerator.print(f"epoch {epoch}: loss {losses[-1]:.4f}")

    mine = torch.cat([each.detach().flatten() for each in model.parameters()])
    held = accelerator.gather(mine[None])
    same = all(torch.equal(each, held[0]) for each in held)
    accelerator.print(f"{len(held)} ranks, the same bits: {same}")
    accelerator.end_training()
    assert same
    assert losses[-1] < losses[0]


if __name__ == "__main__":
    main()
