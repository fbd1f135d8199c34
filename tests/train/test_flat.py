import numpy as np
import pytest
import torch
from torch import nn

from anabranch_lab.tasks._flat import FlatModel
from anabranch_lab.tasks.models import build_model

from ..every import every


@pytest.fixture
def lenet():
    return build_model("lenet-5", (1, 28, 28), 10, seed=0)


def test_parameters_keep_their_values_and_share_the_buffer(lenet):
    before = torch.cat([p.detach().flatten() for p in lenet.parameters()]).numpy().copy()
    flat = FlatModel(lenet)
    np.testing.assert_array_equal(flat.parameters, before)
    flat.parameters[:] = 3.0
    assert every(bool((p == 3.0).all()) for p in lenet.parameters())


def test_gradients_stay_views_of_the_buffer_over_many_steps(lenet):
    flat = FlatModel(lenet)
    homes = [p.grad.data_ptr() for p in lenet.parameters()]
    for _ in range(3):
        flat.zero_gradients()
        lenet(torch.ones(2, 1, 28, 28)).square().sum().backward()
        assert [p.grad.data_ptr() for p in lenet.parameters()] == homes
        assert flat.gradients.any()
        np.testing.assert_array_equal(
            flat.gradients, torch.cat([p.grad.flatten() for p in lenet.parameters()]).numpy()
        )
    flat.zero_gradients()
    assert not any(bool(p.grad.any()) for p in lenet.parameters())


def test_frozen_parameters_stay_out_of_the_buffers(lenet):
    lenet[0].weight.requires_grad_(False)
    assert FlatModel(lenet).parameters.size == 61_706 - 6 * 25


def test_a_parameter_that_two_layers_share_is_held_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    flat = FlatModel(model)
    assert flat.parameters.size == 16 + 4 + 4
    assert model[1].weight is model[0].weight


def test_other_types_are_refused_by_name():
    with pytest.raises(ValueError, match=r"parameter 0\.weight is torch.float64"):
        FlatModel(nn.Sequential(nn.Linear(2, 2, dtype=torch.float64)))


def test_a_model_with_nothing_to_learn_is_refused():
    with pytest.raises(ValueError, match="no trainable parameter"):
        FlatModel(nn.ReLU())
