"""Small image classifiers, the same at every site that builds them with one seed.

Initial values are drawn with NumPy, not with torch: torch's draws differ in their last bits with
what the CPU can do, and sites must begin with the same model. Torch's own generator is not touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from anabranch.learn._names import unknown

MODELS = ("softmax", "mlp", "lenet-5", "alexnet")
"""The names `build_model` knows."""

_MLP_HIDDEN = (128,)
_LENET_5_SMALLEST = 12
_ALEXNET_SMALLEST = 7
_ALEXNET_OUTPUTS = 1000


def build_model(
    name: str,
    shape: tuple[int, int, int],
    classes: int,
    seed: int,
    *,
    hidden: Sequence[int] | None = None,
) -> nn.Module:
    """Build a model that maps inputs (N, C, H, W) to logits (N, outputs).

    - ``softmax``: one linear layer, that is, multinomial logistic regression.
    - ``mlp``: fully connected layers with ReLU between them.
    - ``lenet-5``: two convolutions and three linear layers with tanh and average pooling; 61,706
      parameters for 28 x 28 grey images in 10 classes. Images of at least 12 x 12.
      Source: LeCun et al., Proceedings of the IEEE, 1998, without its sparse connections.
    - ``alexnet``: five convolutions and three linear layers with every parameter of the classic
      (61,100,840 with three channels, 61,085,352 with one), adapted to small images in its strides
      alone: the first convolution moves by 1, not 4, and the last pooling averages whatever is
      left to 6 x 6. It keeps 1000 outputs for up to 1000 classes, because its size is what makes
      it a workload; training drives the unused ones down. Images of at least 7 x 7.
      Source: see `anabranch.learn.profiles.ALEXNET`.

    Args:
        name: one of `MODELS`.
        shape: channels, height and width of one input.
        classes: how many there are, >= 2; outputs are as many, save for ``alexnet``.
        seed: of the initial values, >= 0. Weights are uniform with variance 2 / fan-in, biases
            zero (He et al., ICCV 2015).
        hidden: sizes of the hidden layers of ``mlp``; (128,) when None.

    Raises:
        ValueError: no such model, images too small for it, fewer than two classes, or hidden
            layers for a model that has no choice of them.
    """
    if name not in MODELS:
        raise ValueError(unknown("model", name, MODELS))
    if hidden is not None and name != "mlp":
        raise ValueError(f"model {name!r} has no choice of hidden layers; only 'mlp' takes them")
    if classes < 2 or min(shape) < 1:
        raise ValueError(
            f"cannot build {name!r} for inputs of shape {shape} in {classes} classes: give sizes "
            "of at least 1, and at least 2 classes"
        )
    with torch.device("meta"):  # shapes only: the values come below
        if name == "softmax":
            model = _mlp(shape, classes, ())
        elif name == "mlp":
            model = _mlp(shape, classes, _MLP_HIDDEN if hidden is None else hidden)
        elif name == "lenet-5":
            model = _lenet_5(shape, classes)
        else:
            model = _alexnet(shape, classes)
    model.to_empty(device="cpu")
    _initialise(model, seed)
    return model


def _mlp(shape: tuple[int, int, int], classes: int, hidden: Sequence[int]) -> nn.Sequential:
    if any(size < 1 for size in hidden):
        raise ValueError(f"hidden layers {tuple(hidden)} must each have at least one unit")
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def _lenet_5(shape: tuple[int, int, int], classes: int) -> nn.Sequential:
    _check_size("lenet-5", shape, _LENET_5_SMALLEST)
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


def _alexnet(shape: tuple[int, int, int], classes: int) -> nn.Sequential:
    _check_size("alexnet", shape, _ALEXNET_SMALLEST)
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


def _check_size(name: str, shape: tuple[int, int, int], smallest: int) -> None:
    _, height, width = shape
    if min(height, width) < smallest:
        raise ValueError(
            f"model {name!r} needs images of at least {smallest} x {smallest} pixels, not "
            f"{height} x {width}; take 'mlp', or a task with larger images"
        )


def _initialise(model: nn.Module, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fan_in = layer.weight[0].numel()
            values = generator.random(layer.weight.numel(), dtype=np.float32)
            values -= 0.5
            values *= 2.0 * math.sqrt(6.0 / fan_in)
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(values).view(layer.weight.shape))
                if layer.bias is not None:
                    layer.bias.zero_()
