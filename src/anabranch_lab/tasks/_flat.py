"""A model as two flat buffers, parameters and gradients.

Every parameter and its gradient is a view of the buffers. So backward writes into the array that
the site exchanges, and an update writes into the array that forward reads: no step copies them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import nn


class FlatModel:
    """A model whose trainable parameters and their gradients lie in two flat buffers.

    The model is changed in place: its parameters keep their values and move into the buffer. From
    then on do not call `zero_grad` on it, which unties the gradients; call `zero_gradients`. Do not
    move or cast it. Buffers that are not parameters, such as running means, stay outside.

    Args:
        module: at least one trainable parameter, all of them float32 on the CPU.

    Attributes:
        module: the model.
        parameters: shape (elements,), float32, in the order of ``module.parameters()``.
        gradients: shape (elements,), float32, in the same order.

    Raises:
        ValueError: no trainable parameter, or one of another type or device.
    """

    module: nn.Module
    parameters: npt.NDArray[np.float32]
    gradients: npt.NDArray[np.float32]

    def __init__(self, module: nn.Module) -> None:
        trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        if not trainable:
            raise ValueError("the model has no trainable parameter; there is nothing to learn")
        for name, parameter in trainable:
            if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                raise ValueError(
                    f"parameter {name} is {parameter.dtype} on {parameter.device}; the flat "
                    "buffers are torch.float32 on the CPU: convert the model first"
                )
        elements = sum(parameter.numel() for _, parameter in trainable)
        parameters, gradients = torch.empty(elements), torch.zeros(elements)
        start = 0
        for _, parameter in trainable:
            stop = start + parameter.numel()
            home = parameters[start:stop].view(parameter.shape)
            home.copy_(parameter.detach())
            parameter.data = home
            parameter.grad = gradients[start:stop].view(parameter.shape)
            start = stop
        self.module = module
        self.parameters = parameters.numpy()
        self.gradients = gradients.numpy()

    def zero_gradients(self) -> None:
        """Set the gradients to zero in place, since backward adds to them."""
        self.gradients.fill(0.0)
