"""Classifiers of images, sequences and tokens, equal at every site that builds them alike.

Initial values are drawn with NumPy. The last bits of torch's draws depend on the CPU, and sites
must begin with the same model. Torch's generator is not changed.

All that a model learns is in its parameters, since sites exchange only these. Where the published
network has batch normalisation, ours has group normalisation, which keeps no running statistics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from anabranch_lab.tasks import _plain_models as plain
from anabranch_lab.tasks._initial import draw_uniform
from anabranch_lab.tasks._names import unknown
from anabranch_lab.tasks._recurrent import initialise_lstm, lstm
from anabranch_lab.tasks._resnet import Block, resnet
from anabranch_lab.tasks._text_models import TEXT_MODELS, build_text_model

_Image = tuple[int, int, int]
_Builder = Callable[[_Image, int], nn.Module]

_IMAGE_MODELS: Mapping[str, _Builder] = {
    "softmax": partial(plain.mlp, hidden=()),
    "mlp": partial(plain.mlp, hidden=(128,)),
    "cnn": plain.cnn,
    "cnn-6": plain.cnn_6,
    "lenet-5": plain.lenet_5,
    "alexnet": plain.alexnet,
    "vgg-16": plain.vgg_16,
    "resnet-20": partial(resnet, layers=20),
    "resnet-32": partial(resnet, layers=32),
    "resnet-20-wide": partial(resnet, layers=20, channels=32, stride=2),
    "lstm": lstm,
}
_HIDDEN: Mapping[str, Callable[..., nn.Module]] = {"mlp": plain.mlp, "cnn": plain.cnn}
_SMALLEST = {"cnn": 4, "cnn-6": 4, "lenet-5": 12, "alexnet": 7, "vgg-16": 32}

MODELS = (*_IMAGE_MODELS, *TEXT_MODELS)
"""The names `build_model` knows."""


def build_model(
    name: str,
    shape: tuple[int, ...],
    classes: int,
    seed: int,
    *,
    hidden: Sequence[int] | None = None,
    vocabulary: int | None = None,
) -> nn.Module:
    """Build a model that maps a task's inputs to logits, whose last dimension is the outputs.

    From images (N, C, H, W) to logits (N, outputs):

    - ``softmax``: one linear layer (multinomial logistic regression).
    - ``mlp``: fully connected layers with ReLU between them.
    - ``cnn``: two 5 x 5 convolutions of 32 and 64 channels with max pooling, and two linear layers
      with 512 units between them by default; 1,663,370 parameters for 28 x 28 grey images in 10
      classes, 2,156,490 for 32 x 32 colour images. Images of at least 4 x 4.
      Source: McMahan et al., AISTATS 2017.
    - ``cnn-6``: four convolutions of 3 x 3, two of 32 and two of 64 channels, with max pooling
      after each two, and two linear layers, 512 units between them; no normalisation, no dropout;
      2,168,362 parameters for 32 x 32 colour images in 10 classes. Images of at least 4 x 4.
      HAAF trains "a customized CNN-6 model" on CIFAR-10 and says no more: these layers are ours.
    - ``lenet-5``: two convolutions and three linear layers with tanh and average pooling; 61,706
      parameters for 28 x 28 grey images in 10 classes. Images of at least 12 x 12.
      Source: LeCun et al., Proceedings of the IEEE, 1998, without its sparse connections.
    - ``alexnet``: five convolutions and three linear layers with every parameter of the classic
      (61,100,840 with three channels, 61,085,352 with one). Only its strides are adapted to small
      images: the first convolution moves by 1, not 4, and the last pooling averages the rest to
      6 x 6. It keeps 1000 outputs for up to 1000 classes, since its size makes it a workload;
      training drives the unused outputs down. Images of at least 7 x 7.
      Source: see `anabranch_lab.tasks.profiles.ALEXNET`.
    - ``vgg-16``: 13 convolutions of 3 x 3, each with group normalisation, and one linear layer, as
      is usual for small images; 14,728,266 parameters for colour images in 10 classes. Images of
      at least 32 x 32.
      Source: Simonyan and Zisserman, ICLR 2015. Their three linear layers and input size make 138
      million parameters; that network is `anabranch_lab.tasks.profiles.VGG_16`.
    - ``resnet-20``, ``resnet-32``: residual networks of 16, 32 and 64 channels whose shortcuts have
      no parameters (option A), with group normalisation; 269,722 and 464,154 parameters for colour
      images in 10 classes.
      Source: He et al., CVPR 2016, section 4.2, where normalisation is over the batch.
    - ``resnet-20-wide``: ``resnet-20`` with twice the channels in each stage, and half the pixels
      each way, as its first convolution moves by 2; 1,073,962 parameters for about the computing
      of ``resnet-20``. Ours: for figures whose network should have a million parameters.
    - ``lstm``: two LSTM layers of 128 units that read an image row by row, or a spectrogram frame
      by frame. A linear layer reads the mean of the second's outputs over rows. It has 220,426
      parameters for frames of 40 bands in 10 classes, for any number of frames.
      R²SP trains "a LSTM model" to spot key words and says no more: these sizes are ours.

    From token ids, with ``pip install 'anabranch[text]'``; initial values are drawn, none fetched:

    - ``bert``: BERT's base size, (N, L) to (N, classes), L up to 512; 109,483,778 parameters for
      two classes, with its own vocabulary of 30,522 for any task.
      Source: Devlin et al., NAACL 2019.
    - ``bert-tiny``: the same in two layers of width 128, with the task's vocabulary and length.
    - ``t5-small``: (N, 2, L), the encoder's and the decoder's input tokens, to (N, L, vocabulary);
      60,506,624 parameters, with its own vocabulary of 32,128.
      Source: Raffel et al., JMLR 2020.
    - ``t5-tiny``: the same in two layers of width 128 each way, with the task's vocabulary.

    Args:
        name: one of `MODELS`.
        shape: of one input: channels, height and width of an image.
        classes: how many there are, >= 2; there are as many outputs, except of ``alexnet`` and T5.
        seed: of the initial values, >= 0. Weights are uniform with variance 2 / fan-in, biases
            zero (He et al., ICCV 2015). Normalisation begins with scale one and shift zero, except
            that a residual block's last scale is zero (Goyal et al., 2017). An LSTM's weights are
            uniform within 1 / sqrt(units), and its forget gates begin with a bias of one
            (Jozefowicz et al., ICML 2015). BERT's and T5's weights have the variances of their
            papers.
        hidden: sizes of the hidden linear layers of ``mlp`` and ``cnn``; (128,) and (512,) when
            None.
        vocabulary: how many different tokens inputs have; None for images.

    Raises:
        ValueError: there is no such model; it does not take such inputs, or hidden layers; there
            are fewer than two classes; or a package that it needs is missing.
    """
    if name not in MODELS:
        raise ValueError(unknown("model", name, MODELS))
    if hidden is not None and name not in _HIDDEN:
        raise ValueError(
            f"model {name!r} has no choice of hidden layers; only {' and '.join(_HIDDEN)} take them"
        )
    if classes < 2 or min(shape) < 1:
        raise ValueError(
            f"cannot build {name!r} for inputs of shape {shape} in {classes} classes: give sizes "
            "of at least 1, and at least 2 classes"
        )
    if name in TEXT_MODELS:
        if vocabulary is None:
            raise ValueError(f"model {name!r} reads tokens, and the task has none; take 'pairs'")
        return build_text_model(name, shape, classes, vocabulary, seed)
    image = _image(name, shape, vocabulary)
    build = _IMAGE_MODELS[name] if hidden is None else partial(_HIDDEN[name], hidden=hidden)
    with torch.device("meta"):  # shapes only; the values are drawn below
        model = build(image, classes)
    # `to_empty` would import SymPy, which takes 0.4 s at each site.
    memory = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in model.state_dict().items()}
    model.load_state_dict(memory, assign=True)
    _initialise(model, seed)
    return model


def _image(name: str, shape: tuple[int, ...], vocabulary: int | None) -> _Image:
    """Return the shape of an image that a model takes."""
    if vocabulary is not None or len(shape) != 3:
        raise ValueError(
            f"model {name!r} takes images of shape (C, H, W), not "
            f"{'tokens' if vocabulary is not None else 'inputs'} of shape {shape}; take one of "
            f"{', '.join(TEXT_MODELS)} for tokens"
        )
    channels, height, width = shape
    smallest = _SMALLEST.get(name, 1)
    if min(height, width) < smallest:
        raise ValueError(
            f"model {name!r} needs images of at least {smallest} x {smallest} pixels, not "
            f"{height} x {width}; take 'mlp', or a task with larger images"
        )
    return channels, height, width


def _initialise(model: nn.Module, seed: int) -> None:
    generator = np.random.default_rng(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            draw_uniform(layer.weight, math.sqrt(6.0 / layer.weight[0].numel()), generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.LSTM):
            initialise_lstm(layer, generator)
        elif isinstance(layer, nn.GroupNorm):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)
        else:  # a parameter without initial values would begin with the memory's content
            assert not list(layer.parameters(recurse=False)), f"{layer} has no initial values"
    for layer in model.modules():
        if isinstance(layer, Block):  # it begins as its shortcut
            nn.init.zeros_(layer.second_norm.weight)
