"""States on disk: what is read is what was written, or an error."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from anabranch_lab.tasks.states import (
    StateError,
    check_state,
    load_state,
    read_about,
    save_state,
    save_weights,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor | np.ndarray):
        assert type(a) is type(b)
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        return bool((a == b).all())
    if isinstance(a, dict):
        assert list(a) == list(b)
        return all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        assert type(a) is type(b)
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def adam() -> dict[str, Any]:
    net = nn.Linear(3, 2)
    optimiser = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    return {"model": dict(net.state_dict()), "optimiser": optimiser.state_dict()}


STATES: dict[str, Any] = {
    "nothing": {},
    "plain": {"a": None, "b": [True, 1, -0.1, "x"], "c": (1, (2,)), "d": b"\x00\xff", "": {}},
    "numbers": {"large": 1 << 200, "small": 5e-324, "infinite": float("inf")},
    "keys": {
        "m": {0: "a", "1": "b", (2, 3): "c"},
        "t": {"$tensor": 1},
        "s": {"$map": {"$array": 2}},
    },
    "empty": {"velocity": np.zeros(0, np.float32), "rows": torch.zeros(0, 3), "a": np.ones(1)},
    "one name for two": {"a.b": np.ones(1), "a": {"b": np.zeros(2)}},
    "types": {
        str(dtype): torch.ones(2, 3, dtype=dtype)
        for dtype in (torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool)
    },
    "shapes": {
        "scalar": torch.tensor(1.5),
        "empty": np.zeros((0, 3)),
        "turned": torch.ones(2, 3).T,
    },
    "generators": {
        "python": random.Random(1).getstate(),
        "numpy": np.random.default_rng(1).bit_generator.state,
        "torch": torch.Generator().get_state(),
    },
    "an optimiser": adam(),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_read_as_it_was_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.safetensors"
    save_state(path, STATES[name], {"round": "7"})
    assert same(load_state(path), STATES[name])
    assert read_about(path)["round"] == "7"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_only_its_owner_may_read_a_state(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        save_state(tmp_path / "state", {"momentum": torch.ones(3)}, {})
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_written_is_named_with_its_place() -> None:
    with pytest.raises(StateError, match=r"a\.1\.b is set; give dicts"):
        check_state({"a": [1, {"b": {1, 2}}]})


def test_weights_are_found_under_their_names_by_any_reader_though_they_share_memory(
    tmp_path: Path,
) -> None:
    flat = torch.arange(6.0)
    weights = {"net.weight": flat[:4].view(2, 2), "net.bias": flat[4:], "tied": flat[:4].view(2, 2)}
    path = tmp_path / "weights.safetensors"
    save_weights(path, {**weights, "array": np.ones(2, np.float32)})
    read = load_file(path)
    assert same({name: read[name] for name in weights}, weights)
    assert read["array"].tolist() == [1, 1]
    with pytest.raises(StateError, match="weight 'a' is list, not a tensor or an array"):
        save_weights(path, {"a": [1.0]})


@pytest.mark.parametrize("part", [0.0, 0.001, 0.5, 0.999])
def test_a_file_that_is_cut_short_is_refused_by_name(part: float, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, STATES["an optimiser"], {})
    data = path.read_bytes()
    path.write_bytes(data[: int(part * len(data))])
    with pytest.raises(StateError, match=r"state\.safetensors cannot be read"):
        load_state(path)


def test_no_changed_byte_of_a_file_goes_unnoticed(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, {"a": np.arange(3.0), "b": 1}, {"round": "7"})
    data = path.read_bytes()
    whole = load_state(path)
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            read = load_state(path)
        except StateError as error:
            assert "state.safetensors" in str(error)  # noqa: PT017
        else:  # a blank of the header
            assert same(read, whole)


def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.safetensors"
    save_state(path, {"a": 1}, {})

    def fail(tensors: object, file: Path, metadata: object) -> None:
        file.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("anabranch_lab.tasks.states.save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        save_state(path, {"a": 2}, {})
    assert load_state(path) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
