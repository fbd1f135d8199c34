"""Initial values, drawn with NumPy so that every site begins with the same bits."""

from __future__ import annotations

import numpy as np
import torch


def draw_uniform(values: torch.Tensor, bound: float, generator: np.random.Generator) -> None:
    """Fill a tensor, in place, with draws from [-bound, bound)."""
    drawn = generator.random(values.numel(), dtype=np.float32)
    drawn -= 0.5
    drawn *= 2.0 * bound
    with torch.no_grad():
        values.copy_(torch.from_numpy(drawn).view(values.shape))
