"""The state of training as bytes: what goes in comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anabranch.learn.handed_state import MOST_DESCRIBED_BYTES, Packed, Unpacked
from anabranch.scheduler.channels import MOST_GATHERED_BYTES


def through(state: Any) -> Any:
    packed = Packed(state)
    unpacked = Unpacked(packed.skeleton)
    assert [len(each) for each in unpacked.arrays] == [len(each) for each in packed.arrays]
    for target, source in zip(unpacked.arrays, packed.arrays, strict=True):
        target[:] = source
    return unpacked.state()


def test_a_model_and_its_optimiser_come_through_bit_for_bit() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)).to(torch.bfloat16)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(4, 3, dtype=torch.bfloat16)).sum().backward()
    optimiser.step()
    given = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": 7}
    found = through(given)
    assert found["step"] == 7
    for name, tensor in model.state_dict().items():
        assert found["model"][name].dtype == tensor.dtype
        assert torch.equal(found["model"][name], tensor)
    other = torch.optim.AdamW(model.parameters(), lr=0.5)
    other.load_state_dict(found["optimiser"])
    assert other.param_groups[0]["lr"] == 0.1
    assert other.param_groups[0]["betas"] == (0.9, 0.999)
    for mine, theirs in zip(other.state.values(), optimiser.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])
        assert torch.equal(mine["step"], theirs["step"])


@pytest.mark.parametrize("name", ["float64", "float16", "int64", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (3, 5)])
def test_arrays_and_tensors_of_any_type_and_shape_come_through(
    name: str, shape: tuple[int, ...]
) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(name)
    found = through([array, torch.from_numpy(array.copy()), (array[..., ::-1] if shape else array)])
    np.testing.assert_array_equal(found[0], array)
    assert found[0].dtype == array.dtype
    assert torch.equal(found[1], torch.from_numpy(array))
    np.testing.assert_array_equal(found[2], array[..., ::-1] if shape else array)


def test_tensors_are_sent_from_where_they_lie_and_shared_ones_are_copied() -> None:
    tensor = torch.arange(8, dtype=torch.float32)
    packed = Packed([tensor, tensor, tensor[1:]])
    assert packed.arrays[0].ctypes.data == tensor.data_ptr()
    assert len({each.ctypes.data for each in packed.arrays}) == 3
    assert through([tensor, tensor[1:]])[1].tolist() == tensor[1:].tolist()


def test_nan_patterns_come_through() -> None:
    bits = np.array([0x7FC00001, 0x7F800001, 0xFFFFFFFF], np.uint32)
    assert through({"x": bits.view(np.float32)})["x"].view(np.uint32).tolist() == bits.tolist()


def test_what_cannot_be_handed_on_is_named() -> None:
    with pytest.raises(ValueError, match=r"state\['a'\]\[1\] is a object; tensors"):
        Packed({"a": [1, object()]})
    with pytest.raises(ValueError, match=r"state has key \(1, 2\)"):
        Packed({(1, 2): 3})
    with pytest.raises(ValueError, match="of type str"):
        Packed(np.array(["text"]))
    with pytest.raises(ValueError, match=r"state\['x'\] is a tensor that cannot be handed on"):
        Packed({"x": torch.eye(3).to_sparse()})
    with pytest.raises(ValueError, match="make tensors of long lists"):
        Packed({"history": [0.5] * 200_000})
    endless: list[Any] = []
    endless.append(endless)
    for each in (endless, "\ud800"):
        with pytest.raises(ValueError, match="the state cannot be handed on"):
            Packed(each)


def test_numbers_of_any_kind_come_through() -> None:
    found = through({"best": np.float64(0.25), "n": np.int32(7), "huge": -(1 << 90), "b": True})
    assert found == {"best": 0.25, "n": 7, "huge": -(1 << 90), "b": True}
    assert isinstance(found["best"], np.float64)
    assert found["b"] is True
    generator = np.random.default_rng(3)
    state = generator.bit_generator.state
    assert through(state) == state


def test_other_byte_orders_and_conjugates_come_through_by_value() -> None:
    assert through(np.arange(3, dtype=">f4")).tolist() == [0.0, 1.0, 2.0]
    given = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert torch.equal(through(given), given)


def test_views_of_one_memory_are_copied() -> None:
    flat = torch.arange(12, dtype=torch.float32)
    found = through([flat[4:8], flat, flat[:4], flat[6:]])
    assert [each.tolist() for each in found] == [
        flat[4:8].tolist(),
        flat.tolist(),
        flat[:4].tolist(),
        flat[6:].tolist(),
    ]


def test_only_tensors_count_where_states_are_compared() -> None:
    one = Packed({"w": np.zeros(3), "loss": 0.5})
    assert one.shape == Packed({"w": np.ones(3), "loss": 0.7}).shape
    assert one.shape != Packed({"w": np.zeros(4), "loss": 0.5}).shape
    assert one.shape != Packed({"v": np.zeros(3), "loss": 0.5}).shape
    assert one.shape == Packed({"w": np.zeros(3), "loss": [0.5, 0.7], "times": {"a": 1}}).shape


@pytest.mark.parametrize("skeleton", [b"", b"\xc1", b"\x92\xa1#\x93\xa5numpy\xa3abc\x90"])
def test_a_description_that_is_none_is_refused(skeleton: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        Unpacked(skeleton)


def test_the_largest_description_can_be_gathered() -> None:
    assert MOST_DESCRIBED_BYTES < MOST_GATHERED_BYTES
