"""A list of tensors or arrays as one buffer; only tensors that need it are copied."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from anabranch.exchange.arithmetic import Floats, arithmetic
from anabranch.exchange.terms import Op, Wire
from anabranch.train.sharded import check_whole

_OVERLAP_WORK = 100_000  # for numpy, of two views of one piece of memory
WIRES = {"float32": Wire.FLOAT32, "float16": Wire.FLOAT16, "bfloat16": Wire.BFLOAT16}


def several(given: Any) -> Iterable[Any]:
    """Return one tensor or array, or an iterable of such, as an iterable of them."""
    if isinstance(given, np.ndarray) or hasattr(given, "detach"):
        return [given]
    return given if isinstance(given, Iterable) else [given]


def is_module(given: Any) -> bool:
    """Return whether this is a ``torch.nn.Module``, or like one."""
    return hasattr(given, "named_parameters") and hasattr(given, "named_buffers")


def named(given: Any) -> dict[str, Any]:
    """Return a model's parameters and ``state_dict`` buffers, or tensors or arrays, by name."""
    if is_module(given):
        kept = {id(each) for each in buffers_of(given)}
        buffers = [(name, each) for name, each in given.named_buffers() if id(each) in kept]
        return dict([*given.named_parameters(), *buffers])
    return {f"tensor {index}": each for index, each in enumerate(several(given))}


def buffers_of(model: Any) -> list[Any]:
    """Return a model's buffers in its ``state_dict``: others, as caches, may be of any shape."""
    kept = {id(each) for each in model.state_dict(keep_vars=True).values()}
    return [each for each in model.buffers() if id(each) in kept]


class Tensors:
    """Tensors or arrays, one after the other, as an exchange reads and overwrites them.

    Args:
        tensors: float32, float16 or bfloat16, all of one type, of any shapes; PyTorch tensors on
            any device, or writable NumPy arrays. Contiguous ones on the CPU are used in place.
            Others are copied, and ``finish`` writes the copy back.
        op: the exchange's operation.

    Attributes:
        wire: the tensors' own type.

    Raises:
        ValueError: there are no tensors, or one is unsuitable, or of another type; names it.
    """

    def __init__(self, tensors: Iterable[Any], op: Op = Op.MEAN) -> None:
        given = self._given = list(tensors)
        if not given:
            raise ValueError("there are no tensors to exchange; give one at least")
        self._copies: list[tuple[Any, Any]] = []  # (tensor or array, its contiguous copy)
        kinds = [_kind(index, each) for index, each in enumerate(given)]
        for index, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise ValueError(
                    f"tensor {index} is {kind} and tensor 0 is {kinds[0]}; exchange each type in a "
                    "separate call"
                )
        self.wire = WIRES[kinds[0]]
        self._arithmetic = arithmetic(op, self.wire)
        _check_apart(given)
        self._parts = [self._flat(each) for each in given]
        self._places = [_address_of(each) for each in given]
        self._starts = [0, *accumulate(len(part) for part in self._parts)]
        if not self.elements:
            raise ValueError("the tensors are all empty; give one element at least")

    def _flat(self, given: Any) -> npt.NDArray[Any]:
        """Return a tensor's elements as a flat array: float32, or int16 for halves."""
        if isinstance(given, np.ndarray):
            array = np.asarray(given)  # np.matrix would stay two-dimensional in reshape(-1)
            if not given.flags.c_contiguous:
                array = np.ascontiguousarray(array)
                self._copies.append((given, array))
            flat = array.reshape(-1)
            return flat if self.wire == Wire.FLOAT32 else flat.view(np.int16)
        import torch

        tensor = given.detach()
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            from anabranch.group.writing import in_memory

            tensor = in_memory(tensor)
            self._copies.append((given, tensor))
        tensor = tensor.view(-1)
        if self.wire != Wire.FLOAT32:
            tensor = tensor.view(torch.int16)
        return cast("npt.NDArray[Any]", tensor.numpy())

    @property
    def given(self) -> list[Any]:
        """The tensors or arrays."""
        return self._given

    @property
    def parts(self) -> list[npt.NDArray[Any]]:
        """Each tensor's elements, flat: its own memory, or its copy's."""
        return self._parts

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
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        pieces = self._pieces(start, stop)
        raw = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if self.wire == Wire.FLOAT32:
            return cast(Floats, raw)
        return self._arithmetic.values(raw.data.cast("B"))

    def write(self, start: int, values: Floats) -> None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        raw: npt.NDArray[Any] = values
        if self.wire != Wire.FLOAT32:
            raw = np.frombuffer(self._arithmetic.encode(values), np.int16)
        done = 0
        for piece in self._pieces(start, start + len(values)):
            piece[:] = raw[done : done + len(piece)]
            done += len(piece)

    def memory(self, start: int, stop: int, wire: Wire) -> memoryview | None:
        """See :class:`anabranch.exchange.arithmetic.Buffer`."""
        if wire != self.wire:
            return None
        pieces = self._pieces(start, stop)
        return pieces[0].data.cast("B") if len(pieces) == 1 else None

    def refresh(self) -> None:
        """Copy again the tensors that are not used in place.

        Raises:
            ValueError: a tensor has other memory than before; names it.
        """
        for index, (given, place) in enumerate(zip(self._given, self._places, strict=True)):
            if _address_of(given) != place:
                raise ValueError(
                    f"tensor {index} has other memory than before, as after model.to(...); move "
                    "the model first, and change it in place afterwards"
                )
        for given, copy in self._copies:
            if isinstance(given, np.ndarray):
                copy[...] = given
            else:
                from anabranch.group.writing import overwrite

                overwrite(copy, given.detach())

    def finish(self) -> None:
        """Write results back to the tensors that are not used in place."""
        for given, copy in self._copies:
            if isinstance(given, np.ndarray):
                given[...] = copy
            else:
                from anabranch.group.writing import overwrite

                overwrite(given, copy.view(given.shape))


def find_not_finite(parts: Sequence[npt.NDArray[Any]], wire: Wire) -> tuple[int, int] | None:
    """Return the index of the first part with NaN or infinite elements, and their number.

    Args:
        parts: as :attr:`Tensors.parts`.
        wire: the parts' type.

    Returns:
        (index, count); None if all elements are finite.
    """
    exponent = {Wire.FLOAT16: 0x7C00, Wire.BFLOAT16: 0x7F80}.get(wire)
    for index, part in enumerate(parts):
        if exponent is None:
            with np.errstate(all="ignore"):
                # The sum of squares takes one pass, and is finite only if all elements are. It may
                # overflow for finite elements; then each element is checked.
                if np.isfinite(np.dot(part, part)):
                    continue
            count = int(np.count_nonzero(~np.isfinite(part)))
        else:
            count = int(np.count_nonzero((part & exponent) == exponent))
        if count:
            return index, count
    return None


def _check_apart(given: Sequence[Any]) -> None:
    """Check that no element is given twice: its result would be read as a contribution."""
    places = [_place_of(each) for each in given]
    for index, (place, each) in enumerate(zip(places, given, strict=True)):
        if not _is_spread(place):
            raise ValueError(
                f"several elements of tensor {index} share memory, as in an expanded one, so the "
                f"result cannot be written into it; give a copy of {type(each).__name__} {index}"
            )
    reach: list[tuple[int, int]] = []  # (end, index) of earlier tensors that end after `begin`
    for begin, end, index in sorted((*_span(each), i) for i, each in enumerate(places)):
        reach = [(upto, other) for upto, other in reach if upto > begin]
        for _, other in reach:
            if _overlap(places[other], places[index]):
                first, second = sorted((other, index))
                raise ValueError(
                    f"tensors {first} and {second} share memory; give each element once"
                )
        reach.append((end, index))


class _Place:
    """The addresses of a tensor's elements; never read, since they may be of another device."""

    def __init__(self, address: int, shape: Sequence[int], steps: Sequence[int], item: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"<i{item}",
            "data": (address, True),
            "shape": tuple(shape),
            "strides": tuple(item * step for step in steps),
        }


def _place_of(given: Any) -> npt.NDArray[Any]:
    """Return an array with the addresses of a tensor's elements; its values must not be read."""
    if isinstance(given, np.ndarray):
        return np.asarray(given)
    item = given.element_size()
    return np.asarray(_Place(given.data_ptr(), given.shape, given.stride(), item))


def _address_of(given: Any) -> int:
    """Return the address of a tensor's first element."""
    return int(given.ctypes.data if isinstance(given, np.ndarray) else given.data_ptr())


def _span(place: npt.NDArray[Any]) -> tuple[int, int]:
    """Return the addresses between which all elements lie."""
    begin = end = place.ctypes.data
    if place.size:
        for step, size in zip(place.strides, place.shape, strict=True):
            begin, end = begin + min(step, 0) * (size - 1), end + max(step, 0) * (size - 1)
        end += place.itemsize
    return begin, end


def _is_spread(place: npt.NDArray[Any]) -> bool:
    """Return whether no two elements share memory; False for odd views where that is unsure."""
    reach = place.itemsize
    for step, size in sorted((abs(s), n) for s, n in zip(place.strides, place.shape, strict=True)):
        if size > 1 and step < reach and place.size:
            return False
        reach += step * (size - 1)
    return True


def _overlap(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _kind(index: int, given: Any) -> str:
    """Return the name of a tensor's type."""
    if given is None:
        raise ValueError(
            f"tensor {index} is None; a parameter without a gradient has none to exchange: leave "
            "it out at every site, or zero it"
        )
    if isinstance(given, np.ndarray):
        kind: str = given.dtype.name
        if isinstance(given, np.ma.MaskedArray):
            raise ValueError(f"array {index} is masked; exchange its filled form")
        if not given.flags.writeable:
            raise ValueError(f"array {index} is read-only; the result is written into it")
        if not given.dtype.isnative:
            raise ValueError(
                f"array {index} is {kind} in another byte order than this machine's; convert it"
            )
    elif _is_tensor(given):
        check_whole(given, f"tensor {index}")
        kind = str(given.dtype).removeprefix("torch.")
        if str(given.layout) != "torch.strided":
            raise ValueError(f"tensor {index} is sparse; exchange its dense form")
        if given.is_meta:
            raise ValueError(f"tensor {index} is on the meta device, and holds no elements")
    else:
        raise ValueError(
            f"tensor {index} is a {type(given).__name__}; give PyTorch tensors or NumPy arrays"
        )
    if kind not in WIRES:
        raise ValueError(f"tensor {index} is {kind}; {', '.join(WIRES)} can be exchanged")
    return kind


def are_of_one_type(given: Sequence[Any]) -> bool:
    """Return whether all tensors have one type, and an exchange supports it."""
    kinds = {str(getattr(each, "dtype", None)).removeprefix("torch.") for each in given}
    return len(kinds) == 1 and kinds <= {*WIRES}


def _is_tensor(given: Any) -> bool:
    import sys

    torch_module = sys.modules.get("torch")  # a tensor exists only once torch is imported
    return torch_module is not None and isinstance(given, torch_module.Tensor)
