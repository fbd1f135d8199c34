"""Synchronous training at one site, between two exchanges with the others.

A step has three parts. A `Trainer` computes the gradients of its next batch into a flat buffer. Its
caller replaces the buffer, in place, by the mean over sites. The trainer updates the model. Sites
with the same initial model, exact exchanges and the same optimiser end every step with the same
model, bit for bit; `anabranch.train.checksum` can check it. Before the update, model and optimiser
are unchanged. So if an exchange failed, the step may be made again, on another batch.

The caller owns the loop, the clock and the threads. `torch.set_num_threads` is a setting of the
process, best made before the first step. Dropout uses torch's generator, seeded for each step and
restored after it. So trainers may take turns in one thread. Trainers in several threads of one
process may draw each other's dropout masks.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from anabranch.train.optimisers import Optimiser
from anabranch.train.work import DivergedError, State
from anabranch_lab.tasks._flat import FlatModel
from anabranch_lab.tasks.kinds import Task
from anabranch_lab.tasks.sampling import Sampling, Shuffled

Counts = npt.NDArray[np.int64]

_EVALUATION_BATCH = 256
_SHUFFLED = Shuffled()


class Trainer:
    """One site's part of a synchronous training run.

    Args:
        task: the data to learn.
        model: built alike at every site (`build_model` with one seed); changed in place.
        shard: indices of the training samples this site holds, shape (n,).
        optimiser: the same at every site.
        batch_size: samples a step, in [1, n]. It must be equal at every site: otherwise the plain
            mean of gradients is not the gradient of all samples.
        seed: of this site's draws and dropout, >= 0; give each site its own.
        sampling: how the shard's samples are drawn.

    Attributes:
        flat: the model and its buffers.
        steps: how many are done.

    Raises:
        ValueError: the shard has indices that the task lacks, the batch is larger than the shard,
            or the sampling cannot draw by such labels.
    """

    flat: FlatModel
    steps: int

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        shard: npt.NDArray[np.int64],
        optimiser: Optimiser,
        batch_size: int,
        seed: int,
        sampling: Sampling = _SHUFFLED,
    ) -> None:
        known = len(task.train_labels)
        if shard.ndim != 1 or not shard.size or shard.min() < 0 or shard.max() >= known:
            raise ValueError(
                f"a shard of shape {shard.shape} does not fit task {task.name!r}: give one or more "
                f"indices in 0..{known - 1}"
            )
        if not 1 <= batch_size <= shard.size:
            raise ValueError(
                f"batch_size is {batch_size}, which must be in 1..{shard.size}, the samples of "
                "this shard"
            )
        drawing, self._dropout = np.random.default_rng(seed).spawn(2)
        self.flat = FlatModel(model)
        self.steps = 0
        self._task = task
        self._sampling = sampling
        self._labels = task.train_labels
        self._draws = sampling.start(shard, task.train_labels[shard].numpy(), drawing)
        self._batch_size = batch_size
        self._update = optimiser.start(self.flat.parameters.size)

    def train_on(
        self, shard: npt.NDArray[np.int64], seed: int, labels: torch.Tensor | None = None
    ) -> None:
        """Draw from another shard from now on.

        Args:
            shard: indices of its training samples, shape (n,), n >= 1.
            seed: of its draws, and of dropout.
            labels: of all training samples, in place of the task's; None: the task's.
        """
        self._labels = self._task.train_labels if labels is None else labels
        drawing, self._dropout = np.random.default_rng(seed).spawn(2)
        self._draws = self._sampling.start(shard, self._task.train_labels[shard].numpy(), drawing)

    def compute_gradients(self, batch_size: int | None = None) -> float:
        """Fill ``flat.gradients`` from the next batch and return its mean loss.

        Args:
            batch_size: samples of this batch, >= 1, possibly more than the shard has; None: the
                trainer's `batch_size`.

        Raises:
            DivergedError: the loss is not finite, so the gradients must not be exchanged.
        """
        chosen = torch.from_numpy(self._draws.draw(batch_size or self._batch_size))
        if not self.flat.module.training:  # `train` takes a tenth of a small model's step
            self.flat.module.train()
        self.flat.zero_gradients()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(self._dropout.integers(2**63)))
            logits = self.flat.module(self._task.train_inputs[chosen])
            labels = self._labels[chosen]
            mean_loss = functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
            loss = mean_loss.item()
            if not math.isfinite(loss):
                raise DivergedError(
                    f"the loss is {loss} at step {self.steps}; lower the learning rate"
                )
            torch.autograd.backward(mean_loss)
        return loss

    def update(self) -> None:
        """Apply ``flat.gradients`` to ``flat.parameters`` and count the step."""
        self._update(self.flat.parameters, self.flat.gradients)
        self.steps += 1

    def state_dict(self) -> State:
        """Return the state of model, optimiser and draws, without copies."""
        return {
            "model": self.flat.module.state_dict(),
            "optimiser": self._update.state_dict(),
            "steps": self.steps,
            **self._draws.state_dict(),
            "dropout": self._dropout.bit_generator.state,
        }

    def load_state_dict(self, state: State) -> None:
        """Load the state of a trainer with the same arguments; the next steps are equal to the bit.

        Raises:
            ValueError: the state is of another model, optimiser or sampling.
        """
        try:
            self.flat.module.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ValueError(f"the state is of another model: {error}") from None
        self._update.load_state_dict(state["optimiser"])
        self._draws.load_state_dict(state)
        self.steps = state["steps"]
        self._dropout.bit_generator.state = state["dropout"]

    def accuracy(self, samples: int | None = None) -> float:
        """Return the share of held-out labels that the model predicts rightly.

        Args:
            samples: how many to use, the first ones; None: all.
        """
        right, there = self.right_of_class(samples)
        return int(right.sum()) / int(there.sum())

    def right_of_class(self, samples: int | None = None) -> tuple[Counts, Counts]:
        """Return for each class how many held-out labels the model predicts rightly, and how many.

        Where a sample has a label for each token, each token counts, given the right ones before.

        Args:
            samples: how many to use, the first ones; None: all.

        Returns:
            Two arrays of shape (classes,).
        """
        if samples is not None and samples < 1:
            raise ValueError(f"samples is {samples}, which must be at least 1")
        inputs, labels = self._task.held_out_inputs[:samples], self._task.held_out_labels[:samples]
        right = torch.zeros(self._task.classes, dtype=torch.int64)
        self.flat.module.eval()
        with torch.inference_mode():
            for start in range(0, len(labels), _EVALUATION_BATCH):
                batch = slice(start, start + _EVALUATION_BATCH)
                found = self.flat.module(inputs[batch]).argmax(dim=-1)
                given_rightly = labels[batch][found == labels[batch]]
                right += given_rightly.bincount(minlength=self._task.classes)
        there = labels.flatten().bincount(minlength=self._task.classes)
        return right.numpy(), there.numpy()
