"""16-bit floats: NumPy makes of them what PyTorch does, bit for bit."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np
import pytest
import torch

from anabranch.exchange import _halves
from anabranch.exchange._halves import to_float32, to_halves
from anabranch.exchange.terms import Wire

HALVES = pytest.mark.parametrize("wire", [Wire.FLOAT16, Wire.BFLOAT16])
ALL = np.arange(1 << 16, dtype=np.uint16)
"""Each 16-bit float."""


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_halves, "loaded", lambda name: None)


@pytest.fixture(params=["PyTorch", "NumPy"])
def by_either(request: pytest.FixtureRequest) -> None:
    """Make a test with and without PyTorch."""
    if request.param == "NumPy":
        request.getfixturevalue("without_torch")


def by_torch(values: np.ndarray, wire: Wire) -> np.ndarray:
    kind = torch.float16 if wire == Wire.FLOAT16 else torch.bfloat16
    return torch.from_numpy(values).to(kind).view(torch.int16).numpy().view(np.uint16)


def near_all(wire: Wire) -> np.ndarray:
    """Return each value of 16 bits, the middles between neighbours, and those next to both."""
    kind = torch.float16 if wire == Wire.FLOAT16 else torch.bfloat16
    exact = torch.from_numpy(ALL.view(np.int16)).view(kind).float().numpy()
    exact = np.sort(exact[np.isfinite(exact)])
    middles = ((exact[:-1].astype(np.float64) + exact[1:]) / 2).astype(np.float32)
    found = np.concatenate([exact, middles, [np.inf, -np.inf, 3e38, -3e38, 65519.9, 65520.0]])
    found = found.astype(np.float32)
    return np.concatenate([found, np.nextafter(found, -np.inf), np.nextafter(found, np.inf)])


@HALVES
@pytest.mark.usefixtures("without_torch")
def test_floats_round_as_those_of_pytorch_do(wire: Wire) -> None:
    values = near_all(wire)
    halves = np.frombuffer(to_halves(values, wire), np.uint16)
    assert np.array_equal(halves, by_torch(values, wire))


@HALVES
@pytest.mark.usefixtures("without_torch")
def test_random_bits_round_as_those_of_pytorch_do(wire: Wire) -> None:
    bits = np.random.default_rng(7).integers(0, 1 << 32, 1 << 20, dtype=np.uint32)
    values = bits.view(np.float32)
    halves = np.frombuffer(to_halves(values, wire), np.uint16)
    is_number = ~np.isnan(values)
    assert np.array_equal(halves[is_number], by_torch(values, wire)[is_number])
    decoded = to_float32(memoryview(halves).cast("B"), wire)
    assert np.array_equal(np.isnan(decoded), np.isnan(values))


@HALVES
def test_each_number_is_decoded_as_by_pytorch(wire: Wire, request: pytest.FixtureRequest) -> None:
    theirs = to_float32(ALL.data.cast("B"), wire)
    request.getfixturevalue("without_torch")
    ours = to_float32(ALL.data.cast("B"), wire)
    assert np.array_equal(np.isnan(ours), np.isnan(theirs))
    is_number = ~np.isnan(theirs)
    assert np.array_equal(ours.view(np.uint32)[is_number], theirs.view(np.uint32)[is_number])


@HALVES
@pytest.mark.usefixtures("by_either")
def test_each_nan_becomes_one_and_the_same_wherever_it_is(wire: Wire) -> None:
    for length in range(1, 70):
        for bits in (0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF800001):
            values = np.full(length, bits, np.uint32).view(np.float32)
            sent = to_halves(values, wire)
            assert {*np.frombuffer(sent, np.uint16).tolist()} == {_halves._NAN[wire]}
            assert {*to_float32(sent, wire).view(np.uint32).tolist()} == {0x7FC00000}
    found = to_float32(ALL.data.cast("B"), wire)
    assert {*found[np.isnan(found)].view(np.uint32).tolist()} == {0x7FC00000}


@HALVES
@pytest.mark.usefixtures("by_either")
def test_no_value_warns_and_there_may_be_none(wire: Wire) -> None:
    values = np.array([np.inf, -np.inf, 3e38, 1e-45, np.nan, 65520.0], np.float32)
    with np.errstate(all="raise"):
        halves = to_halves(values, wire)
        assert to_float32(halves, wire)[:2].tolist() == [np.inf, -np.inf]
        assert len(to_halves(values[:0], wire)) == len(to_float32(halves[:0], wire)) == 0


@HALVES
def test_read_only_memory_is_decoded_in_silence(wire: Wire) -> None:
    assert to_float32(memoryview(bytes(4)), wire).tolist() == [0.0, 0.0]


@HALVES
def test_pytorch_is_not_used_while_another_thread_loads_it(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = ModuleType("torch")
    begun.__spec__ = ModuleSpec("torch", None)
    begun.__spec__._initializing = True  # as the import system does
    monkeypatch.setitem(sys.modules, "torch", begun)
    assert to_float32(to_halves(np.ones(3, np.float32), wire), wire).tolist() == [1.0] * 3
