"""States and weights on disk: tensors as safetensors, the rest as JSON in the file's header.

Nothing is pickled, so reading a file runs no code. A file appears whole or not at all: it is
written under another name and renamed. A checksum over its content shows whether it has changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from anabranch.train.work import State

_STATE, _DIGEST = "state", "sha256"


class StateError(ValueError):
    """A state cannot be written, or a file cannot be read or has changed since."""


def save_weights(path: Path, weights: Mapping[str, Any]) -> None:
    """Write weights under their names, for any reader of safetensors.

    Args:
        path: the file; replaced if it exists.
        weights: tensors or arrays, by name. Tensors that share memory are written once for each
            name.

    Raises:
        StateError: a weight is neither a tensor nor an array.
    """
    tensors = {}
    for name, value in weights.items():
        if not isinstance(value, np.ndarray | torch.Tensor):
            raise StateError(f"weight {name!r} is {type(value).__name__}, not a tensor or an array")
        tensors[name] = value
    _write(path, tensors, {"format": "pt"})


def save_state(path: Path, state: State, about: Mapping[str, str]) -> None:
    """Write a state.

    Args:
        path: the file; replaced if it exists.
        state: see `anabranch.train.work.State`.
        about: further texts, by name.

    Raises:
        StateError: the state holds a value of another type; says where.
    """
    tensors: dict[str, np.ndarray | torch.Tensor] = {}
    texts = {**about, _STATE: json.dumps(_plain(state, "", tensors))}
    _write(path, tensors, texts)


def check_state(state: State) -> None:
    """Check that a state can be written.

    Raises:
        StateError: it holds a value of another type; says where.
    """
    json.dumps(_plain(state, "", {}))


def read_about(path: Path) -> dict[str, str]:
    """Return the texts that were written with a state.

    Raises:
        StateError: the file cannot be read, or is cut short.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path} cannot be read: {error}") from None


def load_state(path: Path) -> State:
    """Read a state.

    Raises:
        StateError: the file cannot be read, or has changed since it was written.
    """
    texts = read_about(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StateError(f"{path} cannot be read: {error}") from None
    if texts.pop(_DIGEST, None) != _digest(tensors, texts):
        raise StateError(f"{path} is not as it was written: its checksum differs")
    state = _whole(json.loads(texts[_STATE]), tensors)
    assert isinstance(state, dict)
    return state


def _write(
    path: Path, values: Mapping[str, np.ndarray | torch.Tensor], texts: dict[str, str]
) -> None:
    tensors: dict[str, torch.Tensor] = {}
    places = set()
    for name, value in values.items():
        tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.data_ptr(), tensor.nbytes
        tensors[name] = tensor.clone() if place in places else tensor
        places.add(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(tensors, partial, {**texts, _DIGEST: _digest(tensors, texts)})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _digest(tensors: Mapping[str, torch.Tensor], texts: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        if tensor.numel():  # torch refuses to view an empty tensor as bytes
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# JSON lacks these types: a value is an object whose only key is one of these.
_TENSOR, _ARRAY, _TUPLE, _BYTES, _MAP = "$tensor", "$array", "$tuple", "$bytes", "$map"


def _plain(value: Any, where: str, tensors: dict[str, np.ndarray | torch.Tensor]) -> Any:
    """Return a value as JSON types, and move its tensors into `tensors`."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {_BYTES: base64.b64encode(value).decode()}
        case np.ndarray() | torch.Tensor():
            name = where
            while name in tensors:
                name += "'"
            tensors[name] = value
            return {_ARRAY if isinstance(value, np.ndarray) else _TENSOR: name}
        case list() | tuple():
            items = [_plain(item, f"{where}.{i}", tensors) for i, item in enumerate(value)]
            return items if isinstance(value, list) else {_TUPLE: items}
        case dict():
            pairs = [
                (key, _plain(item, f"{where}.{key}" if where else str(key), tensors))
                for key, item in value.items()
            ]
            if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
                return dict(pairs)
            return {_MAP: [[_plain(key, where, tensors), item] for key, item in pairs]}
    raise StateError(
        f"{where or 'the state'} is {type(value).__name__}; give dicts, lists, tuples, numbers, "
        "strings, bytes, None, arrays or tensors"
    )


def _whole(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the value that `_plain` was given."""
    match value:
        case list():
            return [_whole(item, tensors) for item in value]
        case {"$tensor": name}:
            return tensors[name]
        case {"$array": name}:
            return tensors[name].numpy()
        case {"$tuple": items}:
            return tuple(_whole(item, tensors) for item in items)
        case {"$bytes": text}:
            return base64.b64decode(text)
        case {"$map": pairs}:
            return {_whole(key, tensors): _whole(item, tensors) for key, item in pairs}
        case dict():
            return {key: _whole(item, tensors) for key, item in value.items()}
    return value
