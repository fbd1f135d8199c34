"""A model's parameter shapes alone, for runs that communicate and do not train. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass

from anabranch.learn._names import unknown

_FLOAT32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """What a model costs to synchronise.

    Args:
        name: for titles and logs.
        shapes: each parameter's name and shape, in the order they lie in the flat buffer.
    """

    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def elements(self) -> int:
        """Length of the flat buffer."""
        return sum(math.prod(shape) for _, shape in self.shapes)

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

_PROFILES = {profile.name: profile for profile in (ALEXNET,)}

PROFILES = tuple(_PROFILES)
"""The names `load_profile` knows."""


def load_profile(name: str) -> Profile:
    """Return the profile of this name.

    Raises:
        ValueError: none has it; the message names the nearest.
    """
    if name not in _PROFILES:
        raise ValueError(unknown("profile", name, PROFILES))
    return _PROFILES[name]
