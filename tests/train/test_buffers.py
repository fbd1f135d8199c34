"""Buffers are mixed as estimates: between what was there, and never beyond."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from anabranch.train.buffers import buffers_of, mixed


def test_the_names_of_normalisation_layers_are_known() -> None:
    module = nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3), nn.InstanceNorm1d(3))
    module[2] = nn.InstanceNorm1d(3, track_running_stats=True)
    state = {name: each.numpy() for name, each in module.state_dict().items()}
    assert buffers_of(state) == {name for name, _ in module.named_buffers()}
    assert len(buffers_of(state)) == 6


def test_a_mean_is_between_what_was_given() -> None:
    before, came = np.float32([1.0]), [np.float32([0.1]), np.float32([0.3])]
    assert mixed(before, came, [0.5, 0.5], 0.5) == pytest.approx(0.6)
    assert mixed(before, came, [0.5, 0.5], 3.0) == pytest.approx(0.2)  # no further than their mean
    assert mixed(before, came, [0.5, 0.5], 0.0) == pytest.approx(1.0)


def test_of_integers_the_largest_counts() -> None:
    found = mixed(np.array(4), [np.array(9), np.array(7)], [0.5, 0.5], 0.1)
    assert found.dtype == np.int64
    assert found == 9
    flags = mixed(np.array([False, False]), [np.array([True, False])], [1.0], 1.0)
    assert flags.tolist() == [True, False]


def test_a_batch_norm_that_saw_all_data_is_near_what_sites_are_mixed_to() -> None:
    torch.manual_seed(0)
    data = torch.randn(4, 50, 3) * 2.0 + 5.0
    layers = [nn.BatchNorm1d(3, momentum=None) for _ in data]
    for layer, part in zip(layers, data, strict=True):
        layer(part)
    means = [layer.state_dict()["running_mean"].numpy() for layer in layers]
    found = mixed(np.zeros(3, np.float32), means, [0.25] * 4, 1.0)
    assert np.allclose(found, data.mean((0, 1)), atol=1e-5)
