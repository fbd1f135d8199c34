"""Between a tensor and the CPU's memory: a copy to exchange, and a result to write back.

Results are written by threads that have none of the modes that a tensor was made in.
"""

from __future__ import annotations

import torch


def overwrite(tensor: torch.Tensor, values: torch.Tensor, non_blocking: bool = False) -> None:
    """Overwrite a tensor's elements, without a trace of it in autograd's graph.

    A tensor that was made in ``torch.inference_mode()`` can be written in that mode alone, which is
    of the thread that entered it.

    Args:
        tensor: of any device; it may require a gradient.
        values: of the same shape.
        non_blocking: as for ``Tensor.copy_``.
    """
    with torch.inference_mode(tensor.is_inference()):
        tensor.detach().copy_(values, non_blocking=non_blocking)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy in the CPU's memory, pinned if a GPU has the tensor.

    A GPU copies to and from pinned memory several times as fast.

    Args:
        tensor: of any device and layout in memory.
    """
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return copy.copy_(tensor)
