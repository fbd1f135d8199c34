"""Tensors as one buffer: read, written and sent without a copy where their memory allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anabranch.exchange.terms import Wire
from anabranch.group.tensors import Tensors

TYPES = [torch.float32, torch.float16, torch.bfloat16]


def counted(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return tensors whose elements count from 0 on, over all of them."""
    tensors, begin = [], 0
    for shape in shapes:
        tensor = torch.empty(shape)
        tensors.append(
            torch.arange(begin, begin + tensor.numel()).to(dtype).reshape(shape).contiguous()
        )
        begin += tensor.numel()
    return tensors


@pytest.mark.parametrize("dtype", TYPES)
def test_chunks_that_span_tensors_are_read_and_written(dtype: torch.dtype) -> None:
    tensors = counted((2, 3), (0,), (), (4,), (0, 5), (1, 1, 2), dtype=dtype)
    buffer = Tensors(tensors)
    assert buffer.elements == 13
    for start in range(13):
        for stop in range(start + 1, 14):
            assert buffer.read(start, stop).tolist() == list(range(start, stop))
            assert buffer.read(start, stop).dtype == np.float32
    for start, stop in [(0, 5), (5, 8), (8, 13)]:
        buffer.write(start, np.arange(start, stop, dtype=np.float32) + 100)
    buffer.finish()
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    assert flat.dtype == dtype
    assert flat.tolist() == list(range(100, 113))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_are_as_good_as_tensors(dtype: Any) -> None:
    arrays = [np.arange(6, dtype=dtype).reshape(2, 3), np.arange(6, 8, dtype=dtype)]
    buffer = Tensors(arrays)
    assert buffer.read(4, 8).tolist() == [4, 5, 6, 7]
    buffer.write(5, np.float32([50, 60]))
    buffer.finish()
    assert arrays[0].tolist() == [[0, 1, 2], [3, 4, 50]]
    assert arrays[1].tolist() == [60, 7]


def test_the_memory_of_contiguous_tensors_is_used_as_it_is() -> None:
    (tensor,) = counted((4,))
    buffer = Tensors([tensor])
    tensor[2] = 7.0
    assert buffer.read(0, 4).tolist() == [0, 1, 7, 3]
    buffer.write(0, np.float32([9]))
    assert tensor[0] == 9.0


def test_memory_is_handed_out_only_in_one_piece_and_in_the_wire_s_format() -> None:
    first, second = counted((4,), (4,))
    buffer = Tensors([first, second])
    piece = buffer.memory(1, 4, Wire.FLOAT32)
    assert piece is not None
    assert np.frombuffer(piece, np.float32).tolist() == [1, 2, 3]
    assert buffer.memory(3, 5, Wire.FLOAT32) is None
    assert buffer.memory(1, 4, Wire.FLOAT16) is None
    halves = Tensors([torch.tensor([1.5, -2.0], dtype=torch.bfloat16)])
    piece = halves.memory(0, 2, Wire.BFLOAT16)
    assert piece is not None
    assert bytes(piece) == (np.float32([1.5, -2.0]).view(np.uint32) >> 16).astype("<u2").tobytes()


@pytest.mark.parametrize("dtype", TYPES)
def test_results_come_back_to_tensors_that_are_not_contiguous(dtype: torch.dtype) -> None:
    base = torch.arange(12).to(dtype).reshape(3, 4)
    buffer = Tensors([base.t(), base[0, ::2].clone()])
    assert buffer.read(0, 3).tolist() == [0, 4, 8]
    buffer.write(0, np.arange(12, dtype=np.float32) * 10)
    assert base[0].tolist() == [0, 1, 2, 3]  # not before it is finished
    buffer.finish()
    assert base.t().reshape(-1).tolist() == [10.0 * each for each in range(12)]


def test_results_come_back_to_arrays_that_are_not_contiguous() -> None:
    base = np.zeros((4, 3), np.float32)
    buffer = Tensors([base[::2, 1:]])
    buffer.write(0, np.float32([1, 2, 3, 4]))
    buffer.finish()
    assert base.tolist() == [[0, 1, 2], [0, 0, 0], [0, 3, 4], [0, 0, 0]]


def test_parameters_that_need_gradients_are_written_into() -> None:
    layer = torch.nn.Linear(2, 2)
    buffer = Tensors(layer.parameters())
    buffer.write(0, np.arange(6, dtype=np.float32))
    buffer.finish()
    assert layer.bias.tolist() == [4, 5]
    assert layer.bias.requires_grad


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ([], "there are no tensors"),
        ([torch.empty(0)], "all empty"),
        ([torch.ones(2), None], "tensor 1 is None"),
        ([torch.ones(2), torch.ones(2).half()], "tensor 1 is float16 and tensor 0 is float32"),
        ([torch.ones(2), torch.ones(2).double()], "tensor 1 is float64"),
        ([np.ones(2, np.int64)], "tensor 0 is int64"),
        ([torch.ones(2), [1.0, 2.0]], "tensor 1 is a list"),
        ([3.0], "tensor 0 is a float"),
        ([np.ones(2, np.float32), np.broadcast_to(np.float32(1), 3)], "array 1 is read-only"),
        ([np.ones(2, ">f4")], "array 0 is float32 in another byte order"),
        ([torch.ones(3).expand(2, 3)], "several elements of tensor 0 share memory"),
        ([torch.arange(5.0).unfold(0, 3, 1)], "several elements of tensor 0 share memory"),
        ([torch.ones(4).as_strided((2, 3), (1, 1))], "several elements of tensor 0 share memory"),
        ([torch.empty(2, device="meta")], "tensor 0 is on the meta device"),
        ([np.ma.masked_equal(np.ones(2, np.float32), 0)], "array 0 is masked"),
        ([torch.ones(4, dtype=torch.complex64)], "tensor 0 is complex64"),
        ([torch.eye(3).to_sparse()], "tensor 0"),
    ],
)
def test_what_cannot_be_exchanged_is_named(tensors: list[Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Tensors(tensors)


SQUARE = torch.arange(16.0).view(4, 4)
HALVES = SQUARE.to(torch.float16)
ARRAY = np.zeros(8, np.float32)


@pytest.mark.parametrize(
    "tensors",
    [
        [SQUARE, SQUARE.t()],
        [SQUARE[:, ::2], SQUARE[1]],
        [SQUARE[0], SQUARE[3], SQUARE[:, 1]],
        [HALVES[::2], HALVES[2:]],
        [ARRAY[::2], ARRAY[::2]],
        [ARRAY[::-1], ARRAY[7:]],
        [ARRAY, torch.from_numpy(ARRAY)[1::3]],
    ],
)
def test_no_element_is_given_twice_whatever_the_view(tensors: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"tensors \d and \d share memory"):
        Tensors(tensors)


@pytest.mark.parametrize(
    "tensors",
    [
        [SQUARE[:, ::2], SQUARE[:, 1::2]],
        [SQUARE.t()[1:], SQUARE[:, 0]],
        [SQUARE[:2], SQUARE[2:], torch.empty(0), torch.empty(0)],
        [HALVES[:, 0], HALVES[:, 3], HALVES[:, 1]],
        [ARRAY[::2], ARRAY[1::2][::-1]],
        [torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)],
        [torch.tensor(1.0), np.zeros((), np.float32)],
    ],
)
def test_views_of_one_memory_may_be_given_where_no_element_is_in_two(tensors: list[Any]) -> None:
    buffer = Tensors(tensors)
    buffer.write(0, np.arange(buffer.elements, dtype=np.float32))
    buffer.finish()
    flat = np.concatenate([np.asarray(each, np.float32).reshape(-1) for each in tensors])
    assert flat.tolist() == [*range(buffer.elements)]


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_a_matrix_of_numpy_is_exchanged_whole() -> None:
    matrix = np.asmatrix(np.zeros((2, 3), np.float32))
    buffer = Tensors([matrix, matrix[:, :0]])
    buffer.write(0, np.arange(6, dtype=np.float32))
    buffer.finish()
    assert matrix.tolist() == [[0, 1, 2], [3, 4, 5]]
