"""A model's buffers beside the averages of its parameters: plain values, no group."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from anabranch.group._buffers import Buffers

from ..every import every


def held(*tensors: Any) -> Buffers:
    return Buffers(lambda: tensors)


def exchange(sites: list[Buffers], weights: list[float] | None = None) -> None:
    """Put the weighted mean of what sites contribute in its place, and the first one's words."""
    contributed = [each.contribute() for each in sites]
    for parts in zip(*contributed, strict=True):
        mean = np.average(parts, axis=0, weights=weights)
        for part in parts:
            part[:] = mean
    words = [each.words() for each in sites]
    for parts in zip(*words, strict=True):
        for part in parts[1:]:
            part.copy_(parts[0])


def take(sites: list[Buffers]) -> None:
    for each in sites:
        each.take()
        each.take_words()


def test_floating_point_buffers_become_the_weighted_mean() -> None:
    for kind in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        tensors = [torch.zeros(2, 2, dtype=kind) for _ in range(2)]
        sites = [held(each) for each in tensors]
        for number, each in enumerate(tensors):
            each.fill_(float(4 * number))
        exchange(sites, [1.0, 3.0])
        take(sites)
        assert [each.unique().tolist() for each in tensors] == [[3.0], [3.0]]


def test_a_variance_of_equal_values_stays_that_value() -> None:
    """As where it is taken for a parameter, and an outer optimiser steps beyond the mean."""
    tensors = [torch.ones(3) for _ in range(4)]
    sites = [held(each) for each in tensors]
    for _ in range(5):
        for each in tensors:
            each.fill_(0.125)
        exchange(sites)
        take(sites)
    assert every(each.tolist() == [0.125] * 3 for each in tensors)


def test_other_buffers_become_the_first_member_s() -> None:
    tensors = [
        (
            torch.tensor(5 + site),
            torch.tensor([True, site > 0, False]),
            torch.tensor([200 + site], dtype=torch.uint8),
            torch.full((2, 3), 2**60 + site).t(),
        )
        for site in range(2)
    ]
    sites = [held(*each) for each in tensors]
    exchange(sites)
    take(sites)
    for site in tensors:
        assert site[0].item() == 5
        assert site[1].tolist() == [True, False, False]
        assert site[2].item() == 200
        assert site[3].unique().tolist() == [2**60]


def test_what_no_site_has_changed_keeps_its_bits() -> None:
    third = torch.tensor([1 / 3, -np.inf, np.nan, 1e30], dtype=torch.float64)
    tensors = [(third.clone(), torch.zeros(1)) for _ in range(3)]
    sites = [held(*each) for each in tensors]
    tensors[1][1].fill_(3.0)
    for each in sites:
        (numbers,) = each.contribute()
        numbers[:5] = 7.0  # as rounded on the way
        numbers[5:] = [0.0, 1 / 3]  # the second one has changed at one of three sites
        each.take()
    for constant, other in tensors:
        assert constant.view(torch.int64).tolist() == third.view(torch.int64).tolist()
        assert other.tolist() == [7.0]


@pytest.mark.parametrize(
    ("sent", "now", "mean", "kept"),
    [
        (1.0, 1.0, 4.0, 4.0),  # nothing has changed meanwhile
        (2.0, 3.0, 2.0, 3.0),  # this site has, and alone
        (10.0, 1.0, 2.0, 1.0),  # 2 + (1 - 10) would be a negative variance
        (10.0, 8.0, 4.0, 4.0),
        (5.0, 6.0, 7.0, 7.0),
    ],
)
def test_what_steps_change_meanwhile_is_kept_between_the_mean_and_the_own_value(
    sent: float, now: float, mean: float, kept: float
) -> None:
    tensor = torch.zeros(1)
    site = held(tensor)
    tensor.fill_(sent)
    (numbers,) = site.contribute()
    numbers[:] = mean, 1.0
    tensor.fill_(now)
    site.take()
    assert tensor.item() == kept


@pytest.mark.parametrize(
    ("kind", "sent", "now", "copied", "kept"),
    [
        (torch.int64, 2, 6, 2, 6),  # four steps since, as the first member has made
        (torch.int64, 2, 2, 9, 9),
        (torch.uint8, 5, 6, 3, 4),
        (torch.bool, True, True, False, False),
        (torch.bool, True, False, True, False),
        (torch.uint16, 2, 2, 9, 9),
    ],
)
def test_other_buffers_keep_what_steps_change_meanwhile(
    kind: torch.dtype, sent: int, now: int, copied: int, kept: int
) -> None:
    tensor = torch.tensor([sent] * 4, dtype=kind)
    site = held(tensor)
    (words,) = site.words()
    words.copy_(_words_of(torch.tensor([copied] * 4, dtype=kind)))
    tensor.copy_(torch.tensor([now] * 4, dtype=kind))
    site.take_words()
    assert tensor.tolist() == [kept] * 4


def _words_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8).view(torch.float32)


def test_a_buffer_that_a_module_replaces_is_followed() -> None:
    model = torch.nn.Module()
    model.register_buffer("running", torch.zeros(2))
    site = Buffers(lambda: model.buffers())
    model.running = model.running + 1.0
    (numbers,) = site.contribute()
    assert numbers.tolist() == [1.0, 1.0, 1.0]
    numbers[:2] = 5.0
    site.take()
    assert model.running.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("change", [torch.zeros(3), torch.zeros(2, dtype=torch.float64), None])
def test_other_buffers_than_before_are_an_error(change: torch.Tensor | None) -> None:
    tensors = [torch.zeros(2)]
    site = Buffers(lambda: tensors)
    tensors[:] = [] if change is None else [change]
    with pytest.raises(ValueError, match="the model had 1 buffers when averages began"):
        site.contribute()


@pytest.mark.parametrize("given", [3, None, torch.eye(2).to_sparse()], ids=str)
def test_what_is_no_buffer_is_named(given: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f"buffer 0 is a {type(given).__name__}")):
        held(given)


def test_complex_buffers_and_arrays_are_averaged_and_bytes_copied() -> None:
    wave = torch.zeros(2, dtype=torch.complex64)
    array, narrow = np.zeros(2, np.float32), torch.zeros(4, dtype=torch.float8_e4m3fn)
    site = held(wave, array, narrow)
    wave.fill_(1 + 2j)
    array[:] = 3.0
    (numbers,) = site.contribute()
    assert numbers.tolist() == [1.0, 2.0, 1.0, 2.0, 3.0, 3.0, 1.0, 1.0]
    numbers[:6] *= 2
    site.take()
    assert (wave.tolist(), array.tolist()) == ([2 + 4j, 2 + 4j], [6.0, 6.0])
    (words,) = site.words()
    words.view(torch.float8_e4m3fn)[0] = 0.5
    site.take_words()
    assert narrow.float().tolist() == [0.5, 0.0, 0.0, 0.0]


def test_a_state_goes_on_while_an_average_is_on_its_way() -> None:
    tensors = torch.zeros(3), torch.tensor(1)
    site = held(*tensors)
    tensors[0].fill_(2.0)
    tensors[1].fill_(9)
    exchange([site])
    state = site.state_dict()
    again = torch.full((3,), 2.0), torch.tensor(9)
    other = held(*again)
    other.load_state_dict(state)
    again[0].fill_(3.0)  # a step after the average began
    take([other])
    assert (again[0].tolist(), again[1].item()) == ([3.0] * 3, 9)
    with pytest.raises(ValueError, match="the state of an average has 1 floating-point buffers"):
        held(torch.zeros(4)).load_state_dict(state)
