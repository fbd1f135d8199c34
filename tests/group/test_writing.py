"""Results come into tensors whatever modes they were made in."""

from __future__ import annotations

from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

import anabranch
from anabranch.group.words import Words
from anabranch.group.writing import overwrite
from anabranch.net.errors import RunAborted


def made(mode: str) -> torch.Tensor:
    with torch.inference_mode(mode == "inference"):
        return torch.zeros(3, 4, requires_grad=mode == "leaf").t()


@pytest.mark.parametrize("is_in_mode", [False, True])
@pytest.mark.parametrize("mode", ["inference", "leaf", "plain"])
def test_any_tensor_is_overwritten_in_any_mode(mode, is_in_mode):
    tensor = made(mode)
    with torch.inference_mode(is_in_mode):
        overwrite(tensor, torch.ones(4, 3))
    assert tensor.sum() == 12
    assert tensor.is_inference() == (mode == "inference")


def test_words_are_written_into_a_tensor_of_inference_mode():
    with torch.inference_mode():
        tensor = torch.zeros(5, dtype=torch.uint8)
        words = Words(tensor)
    words.words.view(torch.uint8)[:] = 7
    words.finish()
    assert tensor.tolist() == [7] * 5


@pytest.mark.parametrize("mode", ["inference", "leaf"])
def test_an_exchange_that_is_waited_for_elsewhere_writes_its_result(mode):
    with anabranch.local(2) as groups:

        def exchanges(group: anabranch.Group) -> torch.Tensor:
            tensor = made(mode)
            with torch.inference_mode(mode == "inference"):
                overwrite(tensor, torch.full((4, 3), group.rank + 1.0))
                handle = group.all_reduce(tensor, op="sum", async_op=True)
            handle.wait()
            return tensor

        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(exchanges, groups))
    assert [each.sum().item() for each in found] == [36, 36]


def test_a_group_that_ends_early_says_so_unasked():
    with suppress(RunAborted), anabranch.local(2) as groups:
        ended = groups[1].ended
        groups[0].__exit__(RuntimeError, RuntimeError("out of luck"), None)
        assert "out of luck" in str(ended.exception(30))


def test_a_group_that_is_left_has_not_ended_early():
    with anabranch.local(2) as groups:
        ended = [group.ended for group in groups]
    for each in ended:
        with pytest.raises(CancelledError):
            each.result(30)
