"""Copy a tensor into the CPU's memory for an exchange, and write the result back.

The threads that write results are not in the PyTorch modes in which a tensor was made.
"""

from __future__ import annotations

import torch


def overwrite(tensor: torch.Tensor, values: torch.Tensor, non_blocking: bool = False) -> None:
    """Overwrite a tensor's elements; autograd does not record it.

    A tensor made in ``torch.inference_mode()`` can be written only in that mode, which each thread
    enters separately.

    Args:
        tensor: of any device; it may require a gradient.
        values: of the same shape.
        non_blocking: as for ``Tensor.copy_``.
    """
    with torch.inference_mode(tensor.is_inference()):
        tensor.detach().copy_(values, non_blocking=non_blocking)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy in the CPU's memory, pinned if the tensor is on a GPU.

    A GPU copies to and from pinned memory several times as fast.

    Args:
        tensor: of any device and layout in memory.
    """
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor)
