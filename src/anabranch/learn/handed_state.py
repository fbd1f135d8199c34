"""The state of training as bytes: what ``state_dict()`` returns, or anything like it; no pickle.

Sites hand it to others that join: a description, which is small and gathered, and the memory of its
tensors, of which each site that has the state sends a part.
"""

from __future__ import annotations

import hashlib
from bisect import bisect
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

MOST_DESCRIBED_BYTES = (1 << 20) - 256
"""The largest description: with what goes along with it, sites gather so much at most."""
_UNIT_BYTES = 4  # tensors travel as elements of so many bytes, whatever their own type is
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
    """A state as a description, which is small, and the memory of its tensors.

    Args:
        state: dictionaries, lists and tuples of tensors, arrays, numbers, strings and bytes.

    Attributes:
        skeleton: the description.
        shape: a digest of which tensors there are, and where; the same wherever states fit.
        arrays: the tensors' elements, as float32 bit for bit; without a copy where that can be.

    Raises:
        ValueError: something else is in it; says what, and where.
    """

    def __init__(self, state: Any) -> None:
        self.arrays: list[npt.NDArray[np.float32]] = []
        self._spans: list[tuple[int, int]] = []  # addresses that are in ``arrays``, in order
        try:
            described = self._describe(state, "state")
            self.skeleton = msgspec.msgpack.encode(described)
        except (RecursionError, UnicodeEncodeError, OverflowError) as error:
            raise ValueError(f"the state cannot be handed on: {error}") from None
        if len(self.skeleton) > MOST_DESCRIBED_BYTES:
            raise ValueError(
                f"what describes the state, and all in it that is no tensor, has "
                f"{len(self.skeleton)} bytes, at most {MOST_DESCRIBED_BYTES} are handed on; make "
                "tensors of long lists"
            )
        tensors = msgspec.msgpack.encode([*_tensors_of(described, ())])
        self.shape = hashlib.blake2b(tensors, digest_size=16).digest()

    def _describe(self, value: Any, where: str) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and not _fits(value):
            return ["n", str(value)]
        if isinstance(value, _PLAIN) and not isinstance(value, np.generic):
            return ["=", value]
        if isinstance(value, Mapping):
            parts = []
            for key, each in value.items():
                if not isinstance(key, str | int):
                    raise ValueError(f"{where} has key {key!r}; keys are strings or numbers")
                parts.append([key, self._describe(each, f"{where}[{key!r}]")])
            return ["{", parts]
        if isinstance(value, list | tuple):
            items = [self._describe(each, f"{where}[{i}]") for i, each in enumerate(value)]
            return ["(" if isinstance(value, tuple) else "[", items]
        return self._describe_tensor(value, where)

    def _describe_tensor(self, value: Any, where: str) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            kind, array = value.dtype.name, np.asarray(value)
            if not array.dtype.isnative:
                array = array.astype(array.dtype.newbyteorder("="))
            whose = "numpy" if isinstance(value, np.ndarray) else "scalar"
        elif type(value).__module__.startswith("torch") and hasattr(value, "detach"):
            kind, array = str(value.dtype).removeprefix("torch."), _bytes_of(value, where)
            whose = "torch"
        else:
            raise ValueError(
                f"{where} is a {type(value).__name__}; tensors, arrays, numbers, strings and bytes "
                "can be handed on, and dictionaries, lists and tuples of them"
            )
        if kind not in _TYPES:
            raise ValueError(f"{where} is of type {kind}, which cannot be handed on")
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
    """Return a tensor's elements as bytes in the CPU's memory, without a copy where they are."""
    import torch

    try:
        plain = tensor.detach().resolve_conj().resolve_neg()
        flat = plain.to("cpu").contiguous().view(-1)
        found: npt.NDArray[np.uint8]
        found = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return found
    except (RuntimeError, NotImplementedError, TypeError) as error:
        raise ValueError(f"{where} is a tensor that cannot be handed on: {error}") from None


def _tensors_of(described: Any, path: tuple[Any, ...]) -> Iterator[Any]:
    """Yield each tensor of a description: where it is, and its type and shape."""
    mark, value = described
    if mark == "{":
        for key, each in value:
            yield from _tensors_of(each, (*path, key))
    elif mark in "([":
        for index, each in enumerate(value):
            yield from _tensors_of(each, (*path, index))
    elif mark == "#":
        yield path, value


class Unpacked:
    """Memory for a state that comes from others.

    Args:
        skeleton: the description of it.

    Attributes:
        arrays: what its tensors' elements come into.

    Raises:
        ValueError: it is none.
    """

    def __init__(self, skeleton: bytes) -> None:
        self.arrays: list[npt.NDArray[np.float32]] = []
        try:
            self._described = msgspec.msgpack.decode(skeleton)
            self._prepare(self._described)
        except (msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"another site's state cannot be read: {error}") from None

    def _prepare(self, described: Any) -> None:
        mark, value = described
        if mark == "{":
            for _, each in value:
                self._prepare(each)
        elif mark in "([":
            for each in value:
                self._prepare(each)
        elif mark == "#" and (size := _size_bytes(value)):
            self.arrays.append(np.empty(-(-size // _UNIT_BYTES), np.float32))

    def state(self) -> Any:
        """Return the state, once all has come."""
        return self._make(self._described, iter(self.arrays))

    def _make(self, described: Any, arrays: Any) -> Any:
        mark, value = described
        if mark == "{":
            return {key: self._make(each, arrays) for key, each in value}
        if mark == "[":
            return [self._make(each, arrays) for each in value]
        if mark == "(":
            return tuple(self._make(each, arrays) for each in value)
        if mark == "=":
            return value
        if mark == "n":
            return int(value)
        whose, kind, shape = value
        size = _size_bytes(value)
        raw = next(arrays).view(np.uint8)[:size] if size else np.empty(0, np.uint8)
        if whose == "numpy":
            return raw.view(kind).reshape(shape)
        if whose == "scalar":
            return raw.view(kind)[0]
        import torch

        dtype = getattr(torch, kind)
        return (
            torch.from_numpy(raw).view(dtype).view(shape)
            if size
            else torch.empty(shape, dtype=dtype)
        )


def _size_bytes(value: Any) -> int:
    whose, kind, shape = value
    if kind not in _TYPES or whose not in ("numpy", "scalar", "torch"):
        raise ValueError(f"tensors of type {kind}")
    count = int(np.prod([int(length) for length in shape], dtype=np.int64))
    item = 2 if kind == "bfloat16" else 1 if kind.startswith("float8") else np.dtype(kind).itemsize
    return count * item
