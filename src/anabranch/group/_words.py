"""Tensors of any type as words of the same bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from zlib import crc32

import torch

from anabranch.group._writing import overwrite


def described(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one word that is different for tensors of other types or numbers of elements."""
    said = ", ".join(f"{each.numel()} {each.dtype}" for each in tensors)
    return torch.frombuffer(bytearray(crc32(said.encode()).to_bytes(4)), dtype=torch.float32)


class Words:
    """A tensor of any type as float32 words of the same bits, which a broadcast carries.

    Args:
        tensor: with strides; its own memory is used where that is whole words in one piece.

    Attributes:
        words: shape (words,).
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        size_bytes = tensor.numel() * tensor.element_size()
        self._is_view = tensor.is_contiguous() and size_bytes % 4 == 0 and not tensor.is_complex()
        self._is_view &= not tensor.is_neg() and tensor.detach().reshape(-1).stride(0) == 1
        self._is_view &= tensor.storage_offset() * tensor.element_size() % 4 == 0
        if self._is_view:
            self.words = tensor.detach().view(-1).view(torch.float32)
        else:
            self.words = torch.zeros(math.ceil(size_bytes / 4), dtype=torch.float32)
            raw = raw_of(tensor)
            self.words.view(torch.uint8)[: len(raw)] = raw

    def finish(self) -> None:
        """Write the words into the tensor."""
        if not self._is_view:
            raw = raw_of(self._tensor)
            raw.copy_(self.words.view(torch.uint8)[: len(raw)])
            overwrite(self._tensor, raw.view(self._tensor.dtype).view(self._tensor.shape))


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor's elements as bytes."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)
    return flat.copy_(tensor.detach().reshape(-1)).view(torch.uint8)
