"""Residual networks for small images; `anabranch_lab.tasks.models` describes each."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from anabranch_lab.tasks._norm import group_norm


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters, the paper's option A."""

    def __init__(self, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, channels, 3, stride=stride, padding=1, bias=False)
        self.first_norm = group_norm(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = group_norm(channels)
        self._stride = stride
        self._new_channels = channels - inputs

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (N, inputs, H, W) to (N, channels, ceil(H / stride), ceil(W / stride))."""
        shortcut = inputs[:, :, :: self._stride, :: self._stride]
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self._new_channels))
        found = functional.relu(self.first_norm(self.first(inputs)))
        return functional.relu(self.second_norm(self.second(found)) + shortcut)


def resnet(
    shape: tuple[int, int, int], classes: int, layers: int, channels: int = 16, stride: int = 1
) -> nn.Module:
    """Return a network of 6 n + 2 layers, n blocks in each of three stages.

    Args:
        shape: of an image.
        classes: how many there are.
        layers: how many there are.
        channels: of the first stage; each other has twice as many as the one before.
        stride: of the first convolution.
    """
    first = nn.Conv2d(shape[0], channels, 3, stride=stride, padding=1, bias=False)
    stem = [first, group_norm(channels), nn.ReLU()]
    blocks = []
    inputs = channels
    for channels in (inputs, 2 * inputs, 4 * inputs):
        for _ in range((layers - 2) // 6):
            blocks.append(Block(inputs, channels, stride=channels // inputs))
            inputs = channels
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(*stem, *blocks, *head)
