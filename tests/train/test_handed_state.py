"""The state of training as bytes: what goes in comes out."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.net.messages import MOST_GATHERED_BYTES
from anabranch.train.handed_state import (
    MOST_DESCRIBED_BYTES,
    Packed,
    StateDescription,
    Unpacked,
    UnreadableState,
    read_description,
)


def through(state: Any) -> Any:
    packed = Packed(state)
    unpacked = Unpacked(StateDescription(packed.shape, packed.skeleton, ""))
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


def described(node: Any) -> StateDescription:
    """Return what a hostile site may say: a description of its own, and a digest that fits."""
    tensors: list[Any] = []

    def look(node: Any, path: tuple[Any, ...]) -> None:
        if isinstance(node, list) and len(node) == 2 and isinstance(node[1], list):
            if node[0] == "#":
                tensors.append([path, node[1]])
            for index, each in enumerate(node[1]):
                if node[0] == "{" and isinstance(each, list) and len(each) == 2:
                    look(each[1], (*path, each[0]))
                elif node[0] in ("(", "["):
                    look(each, (*path, index))

    look(node, ())
    digest = hashlib.blake2b(msgspec.msgpack.encode(tensors), digest_size=16).digest()
    return StateDescription(digest, msgspec.msgpack.encode(node), "")


def nested(levels: int) -> Any:
    node: Any = ["=", 1]
    for _ in range(levels):
        node = ["[", [node]]
    return node


HOSTILE = {
    "larger than any memory": ["#", ["torch", "float32", [1 << 60]]],
    "larger than this machine's memory": ["#", ["numpy", "float32", [1 << 48]]],
    "a negative length": ["#", ["torch", "float32", [-4]]],
    "two negative lengths": ["#", ["torch", "float32", [-4, -4]]],
    "a broken length": ["#", ["torch", "float32", [2.5]]],
    "a length that is no number": ["#", ["torch", "float32", [True, 3]]],
    "lengths whose product overflows": ["#", ["torch", "float32", [1 << 32, 1 << 32, 0]]],
    "too many dimensions": ["#", ["numpy", "float32", [1] * 33]],
    "objects": ["#", ["numpy", "object", [3]]],
    "another library": ["#", ["os", "float32", [3]]],
    "an attribute that is no type": ["#", ["torch", "__class__", [1]]],
    "a type that numpy lacks": ["#", ["numpy", "float8_e5m2", [1]]],
    "a scalar of three": ["#", ["scalar", "float32", [3]]],
    "a key that cannot be one": ["{", [[[1], ["=", 1]]]],
    "a mark that is none": ["?", 1],
    "too little": ["#", []],
    "too many digits": ["n", "9" * 5000],
    "digits that are none": ["n", "__import__('os')"],
    "nothing": None,
    "an object for a value": ["=", {"a": 1}],
    "201 levels": nested(201),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_description_is_refused_by_one_name(name: str) -> None:
    with pytest.raises(UnreadableState, match="cannot be read"):
        Unpacked(described(HOSTILE[name]))


NO_DESCRIPTIONS = {
    "nothing": b"",
    "an unused byte": b"\xc1",
    "3000 levels": b"\x92\xa1[\x91" * 3000 + b"\x92\xa1=\x01",
    "more behind it": b"\x92\xa1=\x01xx",
}


@pytest.mark.parametrize("skeleton", NO_DESCRIPTIONS.values(), ids=NO_DESCRIPTIONS)
def test_bytes_that_are_no_description_are_refused_by_the_same_name(skeleton: bytes) -> None:
    with pytest.raises(UnreadableState, match="cannot be read"):
        Unpacked(StateDescription(b"", skeleton, ""))


def test_a_description_of_other_tensors_than_the_sites_agree_on_is_refused() -> None:
    agreed = Packed({"w": np.zeros(3)}).shape
    with pytest.raises(UnreadableState, match="its tensors do not match its digest"):
        Unpacked(StateDescription(agreed, Packed({"w": np.zeros(4)}).skeleton, ""))


def test_a_description_that_is_too_long_is_refused() -> None:
    skeleton = msgspec.msgpack.encode(["=", b"x" * MOST_DESCRIBED_BYTES])
    with pytest.raises(UnreadableState, match="is described in"):
        Unpacked(StateDescription(b"", skeleton, ""))


@pytest.mark.parametrize("said", [None, [], [1, 2, 3], [b"", b""], {"shape": 1}])
def test_what_is_said_of_a_state_is_read_or_refused(said: Any) -> None:
    with pytest.raises(UnreadableState, match="its description of its state cannot be read"):
        read_description(msgspec.msgpack.encode(said))
    with pytest.raises(UnreadableState, match="its description of its state cannot be read"):
        read_description(b"")
    assert (
        read_description(msgspec.msgpack.encode([b"shape", b"skeleton", ""])).skeleton
        == b"skeleton"
    )


def test_nesting_is_bounded_where_a_state_is_handed_on_as_where_it_comes() -> None:
    state: Any = 1
    for _ in range(199):
        state = [state]
    assert through(state) == state
    with pytest.raises(ValueError, match="it is nested in more than 200 levels"):
        Packed([state])
    with pytest.raises(ValueError, match="33 dimensions, at most 32"):
        Packed(np.zeros((1,) * 33))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 64), 1 << 64)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4)
    | st.sampled_from(
        ["=", "n", "#", "{", "[", "(", "torch", "numpy", "scalar", "float32", "int8"]
    ),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
lengths = st.lists(st.integers(-2, 3) | st.sampled_from([1 << 31, 1 << 62]), max_size=4)
kinds = st.sampled_from(["float32", "bfloat16", "int8", "complex128", "bool", "float8_e5m2"])
nodes = st.recursive(
    st.tuples(st.just("="), values).map(list)
    | st.tuples(st.just("n"), st.text("0123456789-x", max_size=5)).map(list)
    | st.tuples(
        st.just("#"),
        st.tuples(st.sampled_from(["torch", "numpy", "scalar"]), kinds, lengths).map(list),
    ).map(list),
    lambda inner: (
        st.tuples(st.sampled_from("[("), st.lists(inner, max_size=3)).map(list)
        | st.tuples(
            st.just("{"),
            st.lists(st.tuples(st.integers(0, 2) | st.text(max_size=2), inner).map(list)),
        ).map(list)
    ),
    max_leaves=8,
)


@settings(max_examples=300)
@given(node=nodes | values)
def test_any_description_makes_a_state_or_is_refused(node: Any) -> None:
    try:
        told = described(node)
    except OverflowError:  # nor can a hostile site say that
        return
    try:
        unpacked = Unpacked(told)
    except UnreadableState:
        return
    Packed(unpacked.state())


@settings(max_examples=300)
@given(skeleton=st.binary(max_size=40))
def test_any_bytes_make_a_state_or_are_refused(skeleton: bytes) -> None:
    try:
        Unpacked(StateDescription(b"", skeleton, ""))
    except UnreadableState:
        return
    raise AssertionError("no description has an empty digest")


def test_the_largest_description_can_be_gathered() -> None:
    assert MOST_DESCRIBED_BYTES < MOST_GATHERED_BYTES
