"""What goes to another process whole, and what by its name."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anabranch.group import _by_value

TENSORS = {
    **{
        str(kind): torch.arange(6).reshape(2, 3).to(kind)
        for kind in (
            *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
            *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16),
            *(torch.bool, torch.complex64, torch.complex128),
        )
    },
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "turned": torch.arange(6.0).reshape(2, 3).t(),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "computed": torch.nn.Parameter(torch.ones(3)) * 2,
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "sparse": torch.eye(3).to_sparse(),
    "inference": torch.inference_mode()(torch.ones)(3),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_of_any_type_goes_by_value(kind: str) -> None:
    tensor = TENSORS[kind]
    found = pickle.loads(_by_value.dumps(tensor))
    assert type(found) is type(tensor)
    assert found.dtype == tensor.dtype
    assert found.requires_grad == tensor.requires_grad
    assert found.to_dense().tolist() == tensor.to_dense().tolist()


def test_large_tensors_and_arrays_are_whole_in_the_bytes() -> None:
    for large in (torch.arange(30_000_000.0), np.arange(30_000_000, dtype=np.float32)):
        sent = _by_value.dumps({"values": large})
        assert len(sent) > 120_000_000
        found = pickle.loads(sent)["values"]
        assert found[-1] == large[-1]
        found[0] = 7.0
        assert large[0] == 0.0  # no memory is shared


def test_a_model_and_its_state_go_by_value() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    found, state = pickle.loads(_by_value.dumps((model, model.state_dict())))
    for name, each in model.state_dict().items():
        assert torch.equal(found.state_dict()[name], each)
        assert torch.equal(state[name], each)


def main_with(monkeypatch: pytest.MonkeyPatch, **names: Any) -> types.ModuleType:
    """Put another module in the place of the main one."""
    main = types.ModuleType("__main__")
    vars(main).update(names)
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


def defined_in(main: types.ModuleType) -> tuple[Any, Any]:
    exec(
        "class Found:\n"
        "    class Inner: pass\n"
        "scale = 3\n"
        "def train(rank):\n"
        "    return Found, rank * scale\n",
        vars(main),
    )
    return vars(main)["train"], vars(main)["Found"]


@pytest.mark.parametrize("path", [None, "<stdin>", "/dev/fd/{}"])
def test_what_no_process_can_import_goes_by_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str | None
) -> None:
    with (tmp_path / "script.py").open("w") as script:  # which a descriptor of this process names
        given = {} if path is None else {"__file__": path.format(script.fileno())}
        main = main_with(monkeypatch, **given)
        train, made = defined_in(main)
        sent = _by_value.dumps((train, made.Inner()))
    main_with(monkeypatch)  # as in the other process
    called, _ = pickle.loads(sent)
    assert called(2)[1] == 6


def test_what_another_process_imports_goes_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "script.py"
    path.touch()
    train, made = defined_in(main_with(monkeypatch, __file__=str(path)))
    assert pickle.loads(_by_value.dumps((train, made, made.Inner))) == (train, made, made.Inner)
    assert len(_by_value.dumps(train)) < 100


def test_lambdas_and_closures_of_a_script_go_by_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "script.py"
    path.touch()
    main = main_with(monkeypatch, __file__=str(path))
    exec("def outer(by):\n    return lambda rank: rank * by", vars(main))
    assert pickle.loads(_by_value.dumps(main.outer(4)))(2) == 8


def test_an_object_of_a_notebook_s_class_comes_back_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = defined_in(main_with(monkeypatch))
    there = pickle.loads(_by_value.dumps(made))
    assert isinstance(pickle.loads(_by_value.dumps(there())), made)


@pytest.mark.parametrize(("name", "imported"), [("job", True), ("package.__main__", False)])
def test_a_module_that_was_run_is_imported_unless_it_is_a_package(
    monkeypatch: pytest.MonkeyPatch, name: str, imported: bool
) -> None:
    main = main_with(monkeypatch)
    main.__spec__ = types.SimpleNamespace(name=name)  # type: ignore[assignment]
    assert _by_value.is_main_imported() == imported


def test_a_file_that_is_none_is_hidden_while_a_process_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main = main_with(monkeypatch, __file__="<stdin>")
    with _by_value.hide_main_file():
        assert not hasattr(main, "__file__")
    assert main.__file__ == "<stdin>"
    path = tmp_path / "script.py"
    path.touch()
    main = main_with(monkeypatch, __file__=str(path))
    with _by_value.hide_main_file():
        assert main.__file__ == str(path)
