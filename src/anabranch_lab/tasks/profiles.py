"""Sizes of models and speeds of machines, for runs that communicate without training. No torch.

A model is given by its parameters' shapes; the running statistics of batch normalisation are not
exchanged. A machine is given by its compute times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from anabranch_lab.tasks import _shapes
from anabranch_lab.tasks._names import unknown

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """A model's size for synchronisation.

    Args:
        name: for titles and logs.
        shapes: each parameter's name and shape, in the order of the flat buffer.
    """

    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def tensors(self) -> tuple[int, ...]:
        """The elements of each parameter, in the order of the flat buffer."""
        return tuple(math.prod(shape) for _, shape in self.shapes)

    @property
    def elements(self) -> int:
        """Length of the flat buffer."""
        return sum(self.tensors)

    @property
    def size_bytes(self) -> int:
        """Size of the flat buffer in float32."""
        return _FLOAT32_BYTES * self.elements


ALEXNET = Profile(
    "alexnet",
    (
        ("conv1.weight", (64, 3, 11, 11)),
        ("conv1.bias", (64,)),
        ("conv2.weight", (192, 64, 5, 5)),
        ("conv2.bias", (192,)),
        ("conv3.weight", (384, 192, 3, 3)),
        ("conv3.bias", (384,)),
        ("conv4.weight", (256, 384, 3, 3)),
        ("conv4.bias", (256,)),
        ("conv5.weight", (256, 256, 3, 3)),
        ("conv5.bias", (256,)),
        ("fc6.weight", (4096, 9216)),
        ("fc6.bias", (4096,)),
        ("fc7.weight", (4096, 4096)),
        ("fc7.bias", (4096,)),
        ("fc8.weight", (1000, 4096)),
        ("fc8.bias", (1000,)),
    ),
)
"""AlexNet for 1000 classes of colour images: 61,100,840 parameters, 244 MB.

Source: Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, the
one-column form that deep-learning libraries ship.

>>> ALEXNET.elements
61100840
"""

VGG_16 = Profile("vgg-16", tuple(_shapes.vgg_16()))
"""VGG-16 for 1000 classes of colour images, 224 x 224: 138,357,544 parameters, 553 MB.

It is not the ``vgg-16`` that `models` trains on small images, which has a tenth of its size.

Source: Simonyan and Zisserman, ICLR 2015, configuration D.

>>> VGG_16.elements
138357544
"""

MOBILENET = Profile("mobilenet", tuple(_shapes.mobilenet()))
"""MobileNet for 1000 classes of colour images: 4,231,976 parameters, 17 MB.

Source: Howard et al., 2017, Table 1, with width 1; convolutions have no bias.

>>> MOBILENET.elements
4231976
"""

LARGE_RESNETS = tuple(
    Profile(f"resnet-{layers}", tuple(_shapes.large_resnet(layers)))
    for layers in (18, 34, 50, 101, 152)
)
"""ResNets for 1000 classes of colour images, with 18 to 152 layers: 47 to 241 MB.

Source: He et al., CVPR 2016, Table 1, with shortcuts as option B has them. ``resnet-20`` and
``resnet-32`` are the small ones for images of 32 x 32.

>>> [profile.elements for profile in LARGE_RESNETS]
[11689512, 21797672, 25557032, 44549160, 60192808]
"""

RESNET_20 = Profile("resnet-20", tuple(_shapes.resnet(20)))
"""ResNet-20 for 10 classes of small colour images: 269,722 parameters, 1.1 MB.

Source: He et al., CVPR 2016, section 4.2, with shortcuts without parameters (option A).

>>> RESNET_20.elements
269722
"""

RESNET_32 = Profile("resnet-32", tuple(_shapes.resnet(32)))
"""ResNet-32, as `RESNET_20`: 464,154 parameters, 1.9 MB.

>>> RESNET_32.elements
464154
"""

CNN = Profile("cnn", tuple(_shapes.cnn()))
"""The ``cnn`` of `models` on colour images, 32 x 32: 2,156,490 parameters, 8.6 MB.

Source: McMahan et al., AISTATS 2017.

>>> CNN.elements
2156490
"""

LSTM = Profile("lstm", tuple(_shapes.lstm()))
"""The ``lstm`` of `models` on frames of 40 bands: 220,426 parameters, 0.9 MB.

>>> LSTM.elements
220426
"""

INCEPTION_V3 = Profile("inception-v3", tuple(_shapes.inception_v3()))
"""Inception-v3 for 1000 classes: 23,834,568 parameters, 95 MB, without the auxiliary classifier.

Source: Szegedy et al., CVPR 2016, in the form that deep-learning libraries ship: every convolution
is normalised over the batch and has no bias.

>>> INCEPTION_V3.elements
23834568
"""

BERT = Profile("bert", tuple(_shapes.bert()))
"""BERT's base size, with a classifier of two classes: 109,483,778 parameters, 438 MB.

Source: Devlin et al., NAACL 2019, with the 30,522 word pieces of the uncased English model.

>>> BERT.elements
109483778
"""

T5_SMALL = Profile("t5-small", tuple(_shapes.t5_small()))
"""T5-small: 60,506,624 parameters, 242 MB.

Source: Raffel et al., JMLR 2020; vocabulary padded to 32,128, embedding and last layer are one.

>>> T5_SMALL.elements
60506624
"""

_PROFILES = {
    profile.name: profile
    for profile in (
        *(ALEXNET, VGG_16, MOBILENET, *LARGE_RESNETS, CNN, RESNET_20, RESNET_32),
        *(LSTM, INCEPTION_V3, BERT, T5_SMALL),
    )
}

PROFILES = tuple(_PROFILES)
"""The names `load_profile` knows."""


def load_profile(name: str) -> Profile:
    """Return the profile of this name.

    Raises:
        ValueError: no profile has this name; the message names the nearest.
    """
    if name not in _PROFILES:
        raise ValueError(unknown("profile", name, PROFILES))
    return _PROFILES[name]


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine's compute times, in the keys of ``[compute.sites]``.

    Args:
        name: its provider's name for it.
        samples_per_s: samples that it processes a second, for any batch.
        fixed_s: seconds of each step that do not depend on the batch.
    """

    name: str
    samples_per_s: float
    fixed_s: float

    def step_s(self, samples: int) -> float:
        """Return how long a step of `samples` samples takes, seconds."""
        return self.fixed_s + samples / self.samples_per_s


RESNET_32_INSTANCES = (
    Instance("g2.2xlarge", 429.0, 0.24),
    Instance("p2.xlarge", 628.0, 0.0),
    Instance("g3.4xlarge", 917.0, 0.06),
)
"""The GPU instances of R²SP's cluster B training ResNet-32 on CIFAR-10, from Table III.

The speeds are the paper's. By the speeds alone, the fast instances would wait 0.38 and 0.64 s for
the g2.2xlarge with batches of 512. The paper has waits of 0.62 and 0.82 s. Its tuned batches, 901
and 1264, fit into these waits at these speeds. So a step has a part that does not grow with the
batch. The table gives only differences of that part between instances: ``fixed_s`` is how much
longer it is than on the p2.xlarge.
"""
