"""Tensors of any type as words of the same bits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import torch

from anabranch.exchange.terms import Op
from anabranch.group.tensors import Tensors
from anabranch.group.writing import overwrite
from anabranch.train.sharded import check_whole


def described(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return one word: a checksum of the tensors' types and numbers of elements."""
    said = ", ".join(f"{each.numel()} {each.dtype}" for each in tensors)
    return torch.frombuffer(bytearray(crc32(said.encode()).to_bytes(4)), dtype=torch.float32)


class Words:
    """A tensor of any type as float32 words of the same bits, which a broadcast carries.

    Args:
        tensor: a strided tensor. It is used in place if its memory is contiguous whole words.

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


class Moved(Tensors):
    """Tensors of any types, which a broadcast overwrites by the source's bits.

    The last word describes the tensors, so that a receiver with tensors of other types or lengths
    notices.

    Args:
        given: PyTorch tensors on any device, or writable NumPy arrays; all dense.

    Raises:
        ValueError: a value is none of these; names it.
    """

    def __init__(self, given: Iterable[Any]) -> None:
        tensors = [_dense(index, each) for index, each in enumerate(given)]
        self._described, self._came = described(tensors), described(tensors)
        self._words = [Words(each) for each in tensors if each.numel()]
        if not self._words:
            none = "the tensors are all empty" if tensors else "there are no tensors to exchange"
            raise ValueError(f"{none}; give one element at least")
        super().__init__([*(each.words for each in self._words), self._came], Op.COPY)

    def finish(self) -> None:
        """Write the bits into the tensors.

        Raises:
            ValueError: the source's tensors are of other types or lengths.
        """
        super().finish()
        if not torch.equal(self._came.view(torch.int32), self._described.view(torch.int32)):
            raise ValueError(
                "the source broadcasts tensors of other types or lengths; give the same at every "
                "member, in the same order"
            )
        for words in self._words:
            words.finish()


def _dense(index: int, given: Any) -> torch.Tensor:
    """Return a writable tensor of the same memory."""
    if isinstance(given, np.ndarray):
        if not given.flags.writeable:
            raise ValueError(
                f"array {index} is read-only, and takes the result; pass a writable copy"
            )
        try:
            return torch.from_numpy(given)
        except (TypeError, ValueError) as error:
            raise ValueError(f"array {index} cannot be broadcast: {error}") from None
    if not isinstance(given, torch.Tensor):
        raise ValueError(
            f"tensor {index} is a {type(given).__name__}; give PyTorch tensors or NumPy arrays"
        )
    check_whole(given, f"tensor {index}")
    if given.layout != torch.strided or given.is_meta:
        where = "on the meta device" if given.is_meta else "sparse"
        raise ValueError(f"tensor {index} is {where}; broadcast dense tensors that hold elements")
    return given.detach()
