"""A gloo collective as a value: its description for the other ranks, and its arguments for gloo.

Gloo treats all memory as contiguous, and knows few types. So tensors that are not contiguous are
copied, and a call that only moves data gets tensors of any type as bytes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from anabranch.group.writing import overwrite

_cuda: Any = torch.cuda
_LISTED = 4  # a description lists so many tensors; of more, it has the number and a checksum
_OPS = ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR")

# By the name of gloo's method: torch.distributed's name of the call, and the index of the argument
# with tensors that are alike at all ranks.
_MOVES = {
    "_allgather_base": ("all_gather_into_tensor", 1),
    "all_gather_single": ("all_gather_into_tensor", 1),
    "all_gather_single_coalesced": ("coalesced all_gather_into_tensor", 1),
    "all_to_all_single": ("all_to_all_single", 1),
    "allgather": ("all_gather", 1),
    "allgather_coalesced": ("coalesced all_gather", 1),
    "allgather_into_tensor_coalesced": ("coalesced all_gather_into_tensor", 1),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all_single", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
}
_REDUCES = {
    "_reduce_scatter_base": ("reduce_scatter_tensor", 1),
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("coalesced all_reduce", 0),
    "broadcast": ("broadcast", 0),  # of sparse tensors
    "reduce": ("reduce", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter_tensor", 1),
    "reduce_scatter_single_coalesced": ("coalesced reduce_scatter_tensor", 1),
    "reduce_scatter_tensor_coalesced": ("coalesced reduce_scatter_tensor", 1),
}
_TO_ALL = ("all_to_all_single", "alltoall", "alltoall_base")
COLLECTIVES = (*_MOVES, *_REDUCES)


class Call:
    """A collective.

    Args:
        name: the name of gloo's method.
        given, named: its arguments; it writes to the first.

    Attributes:
        what: the call in words, the same at every rank that makes the same call.
        devices: the devices of the tensors that are not on the CPU.

    Raises:
        ValueError: a mean of integers; gloo would fail in the midst of the call.
    """

    def __init__(self, name: str, given: Sequence[Any], named: dict[str, Any]) -> None:
        self._name, self._given, self._named = name, given, named
        self.what = _described(name, given, named)
        tensors = [each for argument in given for each in tensors_of(argument)]
        kinds = {each.device for each in tensors if each.device.type != "cpu"}
        self.devices = sorted(kinds, key=str)
        self._streams = [_cuda.current_stream(each) for each in self.devices]
        # Gloo's threads write in the PyTorch modes of the thread that calls gloo.
        self._is_inference = any(each.is_inference() for each in tensors)
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def begin(self, gloo: Any) -> Any:
        """Call gloo; return its work."""
        with self.streaming(), torch.inference_mode(self._is_inference):
            copies = self._copies
            first, *others = self._given
            arguments = [self._taken(first, copies), *(self._taken(each, []) for each in others)]
            return getattr(gloo, self._name)(*arguments, **self._named)

    def finish(self) -> list[Any]:
        """Write results back to copied tensors; return all tensors, as the work's result."""
        for tensor, copy in self._copies:
            overwrite(tensor, copy)
        self._copies = []
        written = self._given[0]
        return list(written) if isinstance(written, (list, tuple)) else [written]

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Enter the streams that the caller used, on devices that have streams."""
        with ExitStack() as stack:
            for stream in self._streams:
                stack.enter_context(_cuda.stream(stream))
            yield

    def _taken(self, given: Any, copies: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Return an argument as gloo takes it; append (tensor, copy) pairs to ``copies``."""
        if isinstance(given, (list, tuple)):
            return [self._taken(each, copies) for each in given]
        if not isinstance(given, torch.Tensor) or given.layout != torch.strided:
            return given
        tensor = given.detach()
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            copies.append((given, copy))
            tensor = copy.copy_(tensor)
        if self._name in _REDUCES:
            return tensor
        return _rows_of_bytes(tensor) if self._name in _TO_ALL else _flat_bytes(tensor)


def tensors_of(given: Any) -> list[torch.Tensor]:
    """Return the tensors of an argument, which may be lists of lists."""
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, (list, tuple)):
        return [tensor for each in given for tensor in tensors_of(each)]
    return []


def _rows_of_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return contiguous elements as bytes, in rows, since ranks split the exchange by rows."""
    rows, *columns = tensor.shape or (1,)
    return _flat_bytes(tensor).view(rows, math.prod(columns) * tensor.element_size())


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def described(
    words: str, tensors: Sequence[torch.Tensor], op: str = "", root: int | None = None
) -> str:
    """Return a call in words.

    Args:
        words: the call's name.
        tensors: the tensors that are alike at all ranks.
        op: the operation of a reduction.
        root: the root's rank, for calls that have one.

    >>> described("reduce", [torch.zeros(3), torch.zeros(2)], "MIN", root=1)
    'reduce of 3 and 2 elements of float32 by MIN, root 1'
    """
    kinds = [_kind(each) for each in tensors]
    if len({*kinds}) == 1 and len(tensors) <= _LISTED:
        counts = " and ".join(str(each.numel()) for each in tensors)
        text = f"{words} of {counts} elements of {kinds[0]}"
    else:
        exactly = ", ".join(f"{each.numel()} {_kind(each)}" for each in tensors)
        elements, checksum = sum(each.numel() for each in tensors), zlib.crc32(exactly.encode())
        text = f"{words} of {len(tensors)} tensors of {', '.join(sorted({*kinds}))}, {elements} "
        text += f"elements in all (sizes and types: {checksum:08x})"
    return text + (op and f" by {op}") + ("" if root is None else f", root {root}")


def _kind(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return kind if tensor.layout == torch.strided else f"{kind} ({tensor.layout})"


def _described(name: str, given: Sequence[Any], named: dict[str, Any]) -> str:
    words, alike = (_MOVES | _REDUCES)[name]
    opts = next((each for each in given[1:] if _op_of(each) or hasattr(each, "timeout")), None)
    opts = named.get("opts", opts)
    op = _op_of(named.get("op", opts)) if name in _REDUCES and name != "broadcast" else ""
    tensors = tensors_of(given[alike])
    if op == "AVG":
        for each in tensors:
            if not (each.is_floating_point() or each.is_complex()):
                raise ValueError(
                    f"{words} by AVG of {_kind(each)}, whose mean has a fraction in general; use "
                    "SUM and divide, or convert to float32"
                )
    if name in _TO_ALL and (name == "alltoall" or any(map(bool, given[2:4]))):
        # Ranks may give each other different numbers of elements.
        kinds = sorted({_kind(each) for each in tensors})
        return f"{words} of {', '.join(kinds)}, of sizes that are given"
    return described(words, tensors, op, named.get("root", getattr(opts, "rootRank", None)))


def _op_of(opts: Any) -> str:
    """Return the name of a reduction's operation; "" for other calls."""
    op = getattr(opts, "reduceOp", opts)
    if not isinstance(op, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
        return ""
    return next((name for name in _OPS if op == getattr(dist.ReduceOp, name)), "another operation")
