"""A list of tensors or arrays as one buffer, without a copy where their memory is in one piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from anabranch.site.arithmetic import Floats, arithmetic
from anabranch.site.terms import Op, Wire

WIRES = {"float32": Wire.FLOAT32, "float16": Wire.FLOAT16, "bfloat16": Wire.BFLOAT16}


class Tensors:
    """Tensors or arrays, one after the other, as an exchange reads and overwrites them.

    Args:
        tensors: float32, float16 or bfloat16, all of one type, of any shapes; PyTorch tensors on
            any device, or writable NumPy arrays. The memory of contiguous ones on the CPU is used
            as it is; of others a copy is made, and written back by ``finish``.

    Attributes:
        wire: the tensors' own type.

    Raises:
        ValueError: no tensors, of different types or another type; names which.
    """

    def __init__(self, tensors: Iterable[Any]) -> None:
        given = list(tensors)
        if not given:
            raise ValueError("there are no tensors to exchange; give one at least")
        self._copies: list[tuple[Any, Any]] = []  # (what was given, its contiguous copy)
        kinds = [_kind(index, each) for index, each in enumerate(given)]
        for index, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise ValueError(
                    f"tensor {index} is {kind} and tensor 0 is {kinds[0]}; exchange each type in a "
                    "call of its own"
                )
        self.wire = WIRES[kinds[0]]
        self._arithmetic = arithmetic(Op.SUM, self.wire)
        self._parts = [self._flat(each) for each in given]
        self._starts = [0, *accumulate(len(part) for part in self._parts)]
        _check_apart(self._parts)
        if not self.elements:
            raise ValueError("the tensors are all empty; give one element at least")

    def _flat(self, given: Any) -> npt.NDArray[Any]:
        """Return a tensor's elements as a flat array: float32, or int16 for halves."""
        if isinstance(given, np.ndarray):
            array = given
            if not given.flags.c_contiguous:
                array = np.ascontiguousarray(given)
                self._copies.append((given, array))
            flat = array.reshape(-1)
            return flat if self.wire == Wire.FLOAT32 else flat.view(np.int16)
        import torch

        tensor = given.detach()
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            tensor = tensor.to("cpu", copy=True).contiguous()
            self._copies.append((given, tensor))
        tensor = tensor.view(-1)
        if self.wire != Wire.FLOAT32:
            tensor = tensor.view(torch.int16)
        return cast("npt.NDArray[Any]", tensor.numpy())

    @property
    def elements(self) -> int:
        """How many elements there are in all."""
        return self._starts[-1]

    def _pieces(self, start: int, stop: int) -> list[npt.NDArray[Any]]:
        pieces = []
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[index], self._starts[index + 1]
            upto = min(stop, end)
            if upto > start:
                pieces.append(self._parts[index][start - begin : upto - begin])
            start, index = upto, index + 1
        return pieces

    def read(self, start: int, stop: int) -> Floats:
        """See :class:`anabranch.site.arithmetic.Buffer`."""
        pieces = self._pieces(start, stop)
        raw = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if self.wire == Wire.FLOAT32:
            return cast(Floats, raw)
        return self._arithmetic.values(raw.data.cast("B"))

    def write(self, start: int, values: Floats) -> None:
        """See :class:`anabranch.site.arithmetic.Buffer`."""
        raw: npt.NDArray[Any] = values
        if self.wire != Wire.FLOAT32:
            raw = np.frombuffer(self._arithmetic.encode(values), np.int16)
        done = 0
        for piece in self._pieces(start, start + len(values)):
            piece[:] = raw[done : done + len(piece)]
            done += len(piece)

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`anabranch.site.arithmetic.Buffer`."""
        if wire != self.wire:
            return None
        pieces = self._pieces(start, stop)
        return pieces[0].data.cast("B") if len(pieces) == 1 else None

    def finish(self) -> None:
        """Write results back to tensors whose memory could not be used."""
        for given, copy in self._copies:
            if isinstance(given, np.ndarray):
                given[...] = copy
            else:
                given.detach().copy_(copy.view(given.shape))


def _check_apart(parts: Sequence[npt.NDArray[Any]]) -> None:
    """Check that no element is given twice: its result would be read as a contribution."""
    spans = sorted(
        (part.ctypes.data, part.ctypes.data + part.nbytes, index)
        for index, part in enumerate(parts)
        if part.nbytes
    )
    for (_, end, one), (begin, _, other) in pairwise(spans):
        if begin < end:
            first, second = sorted((one, other))
            raise ValueError(f"tensors {first} and {second} share memory; give each element once")


def _kind(index: int, given: Any) -> str:
    """Return the name of a tensor's type."""
    if given is None:
        raise ValueError(
            f"tensor {index} is None; a parameter without a gradient has none to exchange: leave "
            "it out at every site, or zero it"
        )
    if isinstance(given, np.ndarray):
        kind: str = given.dtype.name
        if not given.flags.writeable:
            raise ValueError(f"array {index} is read-only; the result is written into it")
        if not given.dtype.isnative:
            raise ValueError(
                f"array {index} is {kind} in another byte order than this machine's; convert it"
            )
    elif _is_tensor(given):
        kind = str(given.dtype).removeprefix("torch.")
        if str(given.layout) != "torch.strided":
            raise ValueError(f"tensor {index} is sparse; exchange its dense form")
        steps = zip(given.stride(), given.shape, strict=True)
        if any(step == 0 and size > 1 for step, size in steps):
            raise ValueError(
                f"tensor {index} is expanded: several of its elements share memory, so the result "
                "cannot be written into it; clone it"
            )
    else:
        raise ValueError(
            f"tensor {index} is a {type(given).__name__}; give PyTorch tensors or NumPy arrays"
        )
    if kind not in WIRES:
        raise ValueError(f"tensor {index} is {kind}; {', '.join(WIRES)} can be exchanged")
    return kind


def _is_tensor(given: Any) -> bool:
    import sys

    torch_module = sys.modules.get("torch")  # a tensor exists only once torch is imported
    return torch_module is not None and isinstance(given, torch_module.Tensor)
