"""Recurrent networks; `anabranch_lab.tasks.models` describes each."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn

from anabranch_lab.tasks._initial import draw_uniform

_UNITS, _LAYERS = 128, 2


class Lstm(nn.Module):
    """LSTM layers that read an image row by row, and a linear layer of their mean output.

    The mean is over rows. The last row's output would not do: a spectrogram often ends in silence.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(features, _UNITS, _LAYERS, batch_first=True)
        self.head = nn.Linear(_UNITS, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (N, C, H, W), read as H rows of C x W features, to (N, classes)."""
        said, _ = self.layers(inputs.transpose(1, 2).flatten(2))
        logits: torch.Tensor = self.head(said.mean(dim=1))
        return logits


def lstm(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ``lstm``."""
    channels, _, width = shape
    return Lstm(channels * width, classes)


def initialise_lstm(layers: nn.LSTM, generator: np.random.Generator) -> None:
    """Draw the weights; forget gates begin with a bias of one, all other biases with zero."""
    units = layers.hidden_size
    for name, parameter in layers.named_parameters():
        if name.startswith("weight"):
            draw_uniform(parameter, 1.0 / math.sqrt(units), generator)
            continue
        nn.init.zeros_(parameter)
        if name.startswith("bias_ih"):  # the gates' order: input, forget, cell, output
            nn.init.ones_(parameter[units : 2 * units])
