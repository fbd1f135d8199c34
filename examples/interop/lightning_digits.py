"""Lightning: a network learns digits at three ranks.

    torchrun --nproc-per-node 3 examples/interop/lightning_digits.py

The one changed line names the backend to `DDPStrategy`.
"""

import os

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Digits(lightning.LightningModule):
    """A network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """Log the loss of held-out samples, of which each rank has some."""
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("held_out", loss, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        """Keep the mean of all ranks."""
        self.losses.append(float(self.trainer.callback_metrics["held_out"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    """Train, and compare what the ranks hold."""
    lightning.seed_everything(1)
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y))
    training, held_out = random_split(data, [1500, 297])
    model = Digits()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend="anabranch"),  # the changed line
        max_epochs=4,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        DataLoader(training, batch_size=16, shuffle=True),
        DataLoader(held_out, batch_size=32),
    )

    mine = torch.cat([each.detach().flatten() for each in model.parameters()])
    held = trainer.strategy.all_gather(mine)
    same = all(torch.equal(each, held[0]) for each in held)
    if trainer.is_global_zero:
        first, last = model.losses[0], model.losses[-1]
        print(f"held-out loss {first:.4f} after one epoch, {last:.4f} in the end")
        print(f"{len(held)} ranks, the same bits: {same}")
    assert same
    assert model.losses[-1] < model.losses[0]


if __name__ == "__main__":
    main()
