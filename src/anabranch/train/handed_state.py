"""The state of training as bytes: a ``state_dict()`` or anything like it, without pickle.

Sites hand it to sites that join, in two parts: a small description, which all sites gather, and the
memory of its tensors. Each site that has the state sends a part of that memory.
"""

from __future__ import annotations

import hashlib
import math
import os
from bisect import bisect
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch.train.sharded import check_whole

MOST_DESCRIBED_BYTES = (1 << 20) - 256
"""The largest description: with its other fields, the most that sites gather."""
_MOST_DEEP = 200  # levels of nested dictionaries and lists
_MOST_DIMENSIONS = 32
_MOST_DIGITS = 4300  # of an integer: Python's limit
_UNIT_BYTES = 4  # tensors of any type travel as elements of this size
_PLAIN = (bool, int, float, str, bytes, type(None))
_TYPES = frozenset(
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
        "complex64",
        "complex128",
        "float8_e4m3fn",
        "float8_e5m2",
    ]
)


class Packed:
    """A state as a small description and the memory of its tensors.

    Args:
        state: dictionaries, lists and tuples of tensors, arrays, numbers, strings and bytes.

    Attributes:
        skeleton: the description.
        shape: a digest of the tensors' places, types and shapes; equal for states that fit.
        arrays: the tensors' elements, as float32 bit for bit; without a copy where possible.

    Raises:
        ValueError: the state contains anything else; says what, and where.
    """

    def __init__(self, state: Any) -> None:
        self.arrays: list[npt.NDArray[np.float32]] = []
        self._spans: list[tuple[int, int]] = []  # address ranges of views in ``arrays``, in order
        try:
            described = self._describe(state, "state", _MOST_DEEP)
            self.skeleton = msgspec.msgpack.encode(described)
        except (RecursionError, UnicodeEncodeError, OverflowError) as error:
            raise ValueError(f"the state cannot be handed on: {error}") from None
        if len(self.skeleton) > MOST_DESCRIBED_BYTES:
            raise ValueError(
                f"the state without its tensors has {len(self.skeleton)} bytes, and at most "
                f"{MOST_DESCRIBED_BYTES} can be handed on; make tensors of long lists"
            )
        self.shape = _digest(described)

    def _describe(self, value: Any, where: str, levels: int) -> Any:
        if not levels:
            raise ValueError(
                f"the state cannot be handed on: it is nested in more than {_MOST_DEEP} levels"
            )
        if isinstance(value, int) and not isinstance(value, bool) and not _fits(value):
            return ["n", str(value)]
        if isinstance(value, _PLAIN) and not isinstance(value, np.generic):
            return ["=", value]
        if isinstance(value, Mapping):
            parts = []
            for key, each in value.items():
                if not isinstance(key, str | int):
                    raise ValueError(f"{where} has key {key!r}; keys are strings or numbers")
                parts.append([key, self._describe(each, f"{where}[{key!r}]", levels - 1)])
            return ["{", parts]
        if isinstance(value, list | tuple):
            items = [
                self._describe(each, f"{where}[{i}]", levels - 1) for i, each in enumerate(value)
            ]
            return ["(" if isinstance(value, tuple) else "[", items]
        return self._describe_tensor(value, where)

    def _describe_tensor(self, value: Any, where: str) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            kind, array = value.dtype.name, np.asarray(value)
            if not array.dtype.isnative:
                array = array.astype(array.dtype.newbyteorder("="))
            whose = "numpy" if isinstance(value, np.ndarray) else "scalar"
        elif type(value).__module__.startswith("torch") and hasattr(value, "detach"):
            check_whole(value, where)
            kind, array = str(value.dtype).removeprefix("torch."), _bytes_of(value, where)
            whose = "torch"
        else:
            raise ValueError(
                f"{where} is a {type(value).__name__}; tensors, arrays, numbers, strings and bytes "
                "can be handed on, and dictionaries, lists and tuples of them"
            )
        if kind not in _TYPES:
            raise ValueError(f"{where} is of type {kind}, which cannot be handed on")
        if len(value.shape) > _MOST_DIMENSIONS:
            raise ValueError(
                f"{where} has {len(value.shape)} dimensions, at most {_MOST_DIMENSIONS} are handed "
                "on; give it flat"
            )
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if raw.size:
            self.arrays.append(self._units(raw))
        return ["#", [whose, kind, list(value.shape)]]

    def _units(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        start = raw.ctypes.data
        span = start, start + raw.size
        fits = raw.size % _UNIT_BYTES == 0 and start % _UNIT_BYTES == 0
        place = bisect(self._spans, span)
        near = self._spans[max(0, place - 1) : place + 1]
        is_apart = all(upto <= span[0] or span[1] <= begin for begin, upto in near)
        if fits and raw.flags.writeable and is_apart:
            self._spans.insert(place, span)
            return raw.view(np.float32)
        padded = np.zeros(-(-raw.size // _UNIT_BYTES) * _UNIT_BYTES, np.uint8)
        padded[: raw.size] = raw
        return padded.view(np.float32)


def _fits(number: int) -> bool:
    return -(1 << 63) <= number < 1 << 64


def _bytes_of(tensor: Any, where: str) -> npt.NDArray[np.uint8]:
    """Return a tensor's elements as bytes in CPU memory, without a copy if they are there."""
    import torch

    try:
        plain = tensor.detach().resolve_conj().resolve_neg()
        flat = plain.to("cpu").contiguous().view(-1)
        found: npt.NDArray[np.uint8]
        found = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return found
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise ValueError(f"{where} is a tensor that cannot be handed on: {error}") from None


def _digest(described: Any) -> bytes:
    """Return a digest of the tensors of a description."""
    tensors = msgspec.msgpack.encode([*_tensors_of(described, ())])
    return hashlib.blake2b(tensors, digest_size=16).digest()


def _tensors_of(described: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    """Yield each tensor of a description: its path, and its kind, type and shape."""
    mark, value = described
    if mark == "{":
        for key, each in value:
            yield from _tensors_of(each, (*path, key))
    elif mark in "([":
        for index, each in enumerate(value):
            yield from _tensors_of(each, (*path, index))
    elif mark == "#":
        yield path, value


class UnreadableState(ValueError):
    """Another site's description of its state is invalid, or too large for this machine."""


# The nested nodes of a description. Another site wrote it, so each value is checked before it is
# used, and ``Unpacked.state`` cannot fail.
class _Plain(msgspec.Struct, array_like=True, tag="=", frozen=True):
    value: Any  # one of _PLAIN


class _Number(msgspec.Struct, array_like=True, tag="n", frozen=True):
    digits: Annotated[str, Meta(pattern=rf"^-?[0-9]{{1,{_MOST_DIGITS}}}$")]


class _Tensor(msgspec.Struct, array_like=True, frozen=True):
    whose: Literal["numpy", "scalar", "torch"]
    kind: str
    shape: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=_MOST_DIMENSIONS)]


class _Described(msgspec.Struct, array_like=True, tag="#", frozen=True):
    tensor: _Tensor


class _Map(msgspec.Struct, array_like=True, tag="{", frozen=True):
    parts: list[tuple[bool | int | str, _Node]]


class _List(msgspec.Struct, array_like=True, tag="[", frozen=True):
    items: list[_Node]


class _Tuple(msgspec.Struct, array_like=True, tag="(", frozen=True):
    items: list[_Node]


_Node = _Plain | _Number | _Described | _Map | _List | _Tuple
_node_decoder: msgspec.msgpack.Decoder[_Node] = msgspec.msgpack.Decoder(_Node)


class StateDescription(msgspec.Struct, array_like=True, frozen=True):
    """A holder's description of its state, for the newcomers.

    Attributes:
        shape: see `Packed`.
        skeleton: see `Packed`; empty where another holder sends it.
        wrong: the reason why this holder cannot hand the state over; empty where it can.
    """

    shape: bytes
    skeleton: bytes
    wrong: str

    @property
    def may_need_torch(self) -> bool:
        """Whether the state may have tensors of PyTorch."""
        return b"torch" in self.skeleton


_description_decoder = msgspec.msgpack.Decoder(StateDescription)


def read_description(said: bytes) -> StateDescription:
    """Decode a description, which is msgpack.

    Raises:
        UnreadableState: the bytes are no description.
    """
    try:
        return _description_decoder.decode(said)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnreadableState(f"its description of its state cannot be read: {error}") from None


class Unpacked:
    """Memory for a state that comes from other sites.

    Args:
        told: the holder's description of the state.

    Attributes:
        arrays: receive its tensors' elements.

    Raises:
        UnreadableState: the description is invalid, contradicts its digest, or needs more memory
            than this machine has.
    """

    def __init__(self, told: StateDescription) -> None:
        self.arrays: list[npt.NDArray[np.float32]] = []
        self._left_bytes = _memory_bytes()
        if len(told.skeleton) > MOST_DESCRIBED_BYTES:
            raise UnreadableState(
                f"another site's state is described in {len(told.skeleton)} bytes, of at most "
                f"{MOST_DESCRIBED_BYTES}"
            )
        try:
            self._described = _node_decoder.decode(told.skeleton)
            if _digest(msgspec.msgpack.decode(told.skeleton)) != told.shape:
                raise ValueError("its tensors do not match its digest")
            self._prepare(self._described, _MOST_DEEP)
        except (msgspec.DecodeError, ValueError, RecursionError, MemoryError) as error:
            raise UnreadableState(f"another site's state cannot be read: {error}") from None

    def _prepare(self, node: _Node, levels: int) -> None:
        if not levels:
            raise ValueError(f"it is nested in more than {_MOST_DEEP} levels")
        match node:
            case _Map():
                for _, each in node.parts:
                    self._prepare(each, levels - 1)
            case _List() | _Tuple():
                for each in node.items:
                    self._prepare(each, levels - 1)
            case _Plain() if not isinstance(node.value, _PLAIN):
                raise ValueError(f"it has a {type(node.value).__name__} for a value")
            case _Described() if size := self._checked_bytes(node.tensor):
                self.arrays.append(np.empty(-(-size // _UNIT_BYTES), np.float32))

    def _checked_bytes(self, tensor: _Tensor) -> int:
        """Return the size of a tensor, after a check that it can be made and fits into memory."""
        if tensor.kind not in _TYPES or (tensor.whose == "scalar" and tensor.shape):
            raise ValueError(f"a {tensor.whose} of type {tensor.kind}, shape {tensor.shape}")
        if tensor.whose == "torch":
            import torch

            is_known = hasattr(torch, tensor.kind)
        else:
            is_known = tensor.kind in np.sctypeDict
        if not is_known:
            raise ValueError(f"{tensor.whose} has no type {tensor.kind} here")
        # Zero lengths count as 1: libraries refuse a shape whose other lengths are too large.
        bound = _item_bytes(tensor.kind) * math.prod(max(1, length) for length in tensor.shape)
        if bound > self._left_bytes:
            raise ValueError(
                f"its tensors have more than the {_memory_bytes()} bytes of this machine's memory"
            )
        size = _size_bytes(tensor)
        self._left_bytes -= size
        return size

    def state(self) -> Any:
        """Return the state; call it once ``arrays`` are filled."""
        return self._make(self._described, iter(self.arrays))

    def _make(self, node: _Node, arrays: Iterator[npt.NDArray[np.float32]]) -> Any:
        match node:
            case _Map():
                return {key: self._make(each, arrays) for key, each in node.parts}
            case _List():
                return [self._make(each, arrays) for each in node.items]
            case _Tuple():
                return tuple(self._make(each, arrays) for each in node.items)
            case _Plain():
                return node.value
            case _Number():
                return int(node.digits)
        return _tensor_of(node.tensor, arrays)


def _tensor_of(tensor: _Tensor, arrays: Iterator[npt.NDArray[np.float32]]) -> Any:
    size = _size_bytes(tensor)
    raw = next(arrays).view(np.uint8)[:size] if size else np.empty(0, np.uint8)
    if tensor.whose == "numpy":
        return raw.view(tensor.kind).reshape(tensor.shape)
    if tensor.whose == "scalar":
        return raw.view(tensor.kind)[0]
    import torch

    dtype = getattr(torch, tensor.kind)
    if not size:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.from_numpy(raw).view(dtype).view(tensor.shape)


def _size_bytes(tensor: _Tensor) -> int:
    return _item_bytes(tensor.kind) * math.prod(tensor.shape)


def _item_bytes(kind: str) -> int:
    return 2 if kind == "bfloat16" else 1 if kind.startswith("float8") else np.dtype(kind).itemsize


def _memory_bytes() -> int:
    """Return the size of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
