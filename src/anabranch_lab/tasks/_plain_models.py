"""Image classifiers that are one chain of layers; `models` describes each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from anabranch_lab.tasks._norm import group_norm

_ALEXNET_OUTPUTS = 1000
_VGG_16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions


def mlp(shape: tuple[int, int, int], classes: int, hidden: Sequence[int]) -> nn.Module:
    """Return linear layers with ReLU between them; without hidden layers, one linear layer."""
    if any(size < 1 for size in hidden):
        raise ValueError(f"hidden layers {tuple(hidden)} must each have at least one unit")
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def cnn(shape: tuple[int, int, int], classes: int, hidden: Sequence[int] = (512,)) -> nn.Module:
    """Return ``cnn``, with these hidden linear layers."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        *mlp((64, height // 4, width // 4), classes, hidden).children(),
    )


def cnn_6(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ``cnn-6``."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


def lenet_5(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ``lenet-5``."""
    channels, height, width = shape
    # The first convolution keeps the size (28 x 28 grows to LeCun's 32 x 32); each pooling halves
    # it; the second convolution takes 4.
    left = ((height // 2 - 4) // 2) * ((width // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * left, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, classes),
    )


def alexnet(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ``alexnet``."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 64, 11, padding=5),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(256 * 6 * 6, 4096),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, max(classes, _ALEXNET_OUTPUTS)),
    )


def vgg_16(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ``vgg-16``."""
    layers: list[nn.Module] = []
    inputs = shape[0]
    for channels, convolutions in _VGG_16:
        for _ in range(convolutions):
            layers += [nn.Conv2d(inputs, channels, 3, padding=1), group_norm(channels), nn.ReLU()]
            inputs = channels
        layers.append(nn.MaxPool2d(2))
    pooled = nn.AdaptiveAvgPool2d(1)  # 32 x 32 are one pixel already
    return nn.Sequential(*layers, pooled, nn.Flatten(), nn.Linear(inputs, classes))
