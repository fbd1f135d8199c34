import numpy as np
import pytest
import torch

from anabranch_lab.tasks._resnet import Block
from anabranch_lab.tasks.models import build_model
from anabranch_lab.tasks.profiles import ALEXNET

from ..every import every

SHAPES = {
    "softmax": (1, 8, 8),
    "mlp": (1, 8, 8),
    "cnn": (1, 8, 8),
    "cnn-6": (3, 8, 8),
    "lenet-5": (1, 28, 28),
    "alexnet": (1, 8, 8),
    "vgg-16": (3, 32, 32),
    "resnet-20": (1, 8, 8),
    "resnet-32": (1, 8, 8),
    "resnet-20-wide": (1, 8, 8),
    "lstm": (1, 6, 5),
}
SMALL = [name for name in SHAPES if name != "alexnet"]  # whose building takes no second


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def flatten(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("softmax", (1, 8, 8), 64 * 10 + 10),
        ("mlp", (1, 8, 8), 64 * 128 + 128 + 128 * 10 + 10),
        ("cnn", (1, 28, 28), 1_663_370),
        ("cnn", (3, 32, 32), 2_156_490),
        ("cnn-6", (3, 32, 32), 896 + 9_248 + 18_496 + 36_928 + 2_097_664 + 5_130),
        ("lenet-5", (1, 28, 28), 61_706),
        ("vgg-16", (3, 32, 32), 14_728_266),
        ("resnet-20", (3, 32, 32), 269_722),
        ("resnet-32", (3, 32, 32), 464_154),
        ("resnet-20-wide", (3, 32, 32), 1_073_962),
        ("lstm", (1, 49, 40), 220_426),
        ("lstm", (3, 32, 32), 4 * 128 * (96 + 128 + 2) + 4 * 128 * (256 + 2) + 1_290),
        ("alexnet", (1, 28, 28), 61_100_840 - 64 * 2 * 11 * 11),
        ("alexnet", (1, 8, 8), 61_100_840 - 64 * 2 * 11 * 11),
    ],
)
def test_each_model_has_its_published_size_and_maps_images_to_logits(name, shape, parameters):
    model = build_model(name, shape, 10, seed=0)
    assert count(model) == parameters
    with torch.inference_mode():
        logits = model(torch.zeros(2, *shape))
    assert logits.shape == (2, 1000 if name == "alexnet" else 10)


def test_alexnet_on_colour_images_has_the_shapes_of_its_profile():
    model = build_model("alexnet", (3, 32, 32), 10, seed=0)
    shapes = [tuple(parameter.shape) for parameter in model.parameters()]
    assert shapes == [shape for _, shape in ALEXNET.shapes]


def test_hidden_sizes_shape_the_mlp():
    model = build_model("mlp", (1, 2, 2), 3, seed=0, hidden=(5, 6))
    assert count(model) == (4 * 5 + 5) + (5 * 6 + 6) + (6 * 3 + 3)


@pytest.mark.parametrize("name", SMALL)
def test_one_seed_builds_one_model_and_another_seed_another(name):
    first, again, other = (build_model(name, SHAPES[name], 10, seed) for seed in (1, 1, 2))
    assert torch.equal(flatten(first), flatten(again))
    assert not torch.equal(flatten(first), flatten(other))


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_keeps_nothing_that_sites_do_not_exchange(name):
    model = build_model(name, SHAPES[name], 10, seed=0)
    assert not list(model.buffers())
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    assert every(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("name", ["vgg-16", "resnet-20"])
def test_what_a_model_says_of_an_image_depends_on_no_other_image_and_no_mode(name):
    model = build_model(name, SHAPES[name], 10, seed=0)
    images = torch.from_numpy(np.random.default_rng(0).normal(size=(3, *SHAPES[name]))).float()
    with torch.inference_mode():
        together = model.train()(images)
        alone = model.eval()(images[1:2])
    torch.testing.assert_close(together[1:2], alone, rtol=1e-4, atol=1e-5)


def test_every_residual_block_begins_as_its_shortcut():
    model = build_model("resnet-20", (3, 8, 8), 10, seed=0)
    blocks = [layer for layer in model if isinstance(layer, Block)]
    assert len(blocks) == 9
    widening = blocks[3]
    inputs = torch.rand(2, 16, 8, 8)
    with torch.inference_mode():
        outputs = widening(inputs)
    assert outputs.shape == (2, 32, 4, 4)
    assert torch.equal(outputs[:, :16], inputs[:, :, ::2, ::2])
    assert not outputs[:, 16:].any()


def test_an_lstm_reads_rows_from_top_to_bottom():
    model = build_model("lstm", (2, 4, 3), 10, seed=0)
    image = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 2, 4, 3))).float()
    with torch.inference_mode():
        said, _ = model.layers(image[0].permute(1, 0, 2).reshape(1, 4, 6))
        torch.testing.assert_close(model(image), model.head(said.mean(dim=1)))
        assert not torch.allclose(model(image), model(image.flip(2)))


def test_an_lstm_begins_with_open_forget_gates():
    layers = build_model("lstm", (1, 4, 3), 10, seed=0).layers
    assert layers.weight_hh_l1.abs().max().item() == pytest.approx(128**-0.5, rel=0.01)
    for layer in (0, 1):
        gates = getattr(layers, f"bias_ih_l{layer}").view(4, 128)
        assert torch.equal(gates.mean(dim=1), torch.tensor([0.0, 1.0, 0.0, 0.0]))
        assert not getattr(layers, f"bias_hh_l{layer}").any()


def test_building_leaves_the_generators_of_torch_and_numpy_alone():
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    build_model("lenet-5", (1, 28, 28), 10, seed=0)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


def test_initial_weights_have_variance_two_over_fan_in_and_biases_are_zero():
    _, first, _, _ = build_model("mlp", (1, 32, 32), 10, seed=0, hidden=(512,))
    assert first.weight.var().item() == pytest.approx(2 / 1024, rel=0.01)
    assert first.weight.mean().item() == pytest.approx(0, abs=1e-3)
    assert not first.bias.any()


@pytest.mark.parametrize(
    ("name", "smallest"),
    [("cnn", 4), ("cnn-6", 4), ("lenet-5", 12), ("alexnet", 7), ("vgg-16", 32)],
)
def test_images_down_to_the_stated_size_work_and_smaller_ones_are_refused(name, smallest):
    model = build_model(name, (1, smallest, smallest), 10, seed=0)
    with torch.inference_mode():
        assert model(torch.zeros(1, 1, smallest, smallest)).isfinite().all()
    with pytest.raises(ValueError, match=f"{name}.* at least {smallest} x {smallest} .*'mlp'"):
        build_model(name, (1, smallest, smallest - 1), 10, seed=0)


def test_an_unknown_model_names_the_nearest():
    with pytest.raises(ValueError, match=r"no model 'lenet'; did you mean 'lenet-5'\?"):
        build_model("lenet", (1, 28, 28), 10, seed=0)


def test_hidden_layers_are_refused_where_there_is_no_choice():
    with pytest.raises(ValueError, match="only mlp and cnn take them"):
        build_model("softmax", (1, 8, 8), 10, seed=0, hidden=(3,))


@pytest.mark.parametrize("name", SHAPES)
def test_one_class_is_refused(name):
    with pytest.raises(ValueError, match="at least 2 classes"):
        build_model(name, SHAPES[name], 1, seed=0)


def test_a_cnn_has_the_linear_layers_that_it_is_given():
    model = build_model("cnn", (1, 28, 28), 10, seed=0, hidden=(1900,))
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_031_406
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    usual, same = (
        build_model("cnn", (1, 28, 28), 10, 3, hidden=hidden) for hidden in (None, [512])
    )
    for name, values in usual.state_dict().items():
        assert torch.equal(values, same.state_dict()[name])


def test_an_empty_hidden_layer_is_refused():
    with pytest.raises(ValueError, match=r"\(8, 0\) must each have at least one unit"):
        build_model("mlp", (1, 8, 8), 10, seed=0, hidden=(8, 0))
