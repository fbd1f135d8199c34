"""Clients with wrong labels or contributions, to compare defences. Pure; no torch here.

Adversaries are a frozen value as a scenario spells it: a share of the sites, drawn from the seed,
and a change of their labels or of their contributions. The module is here and not in `merge` or
`fleet`, because it changes samples and updates, and these packages know neither.

>>> bad = Scaled(share=0.2, factor=-10.0)
>>> bad.who(sites=10, seed=0).size
2
>>> bad.contribution(np.float32([1, 2]), np.random.default_rng(0))
array([-10., -20.], dtype=float32)
"""

from __future__ import annotations

from typing import Annotated, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch._typed_toml import Table

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

_WHO = 0x77686F  # keeps the draw of sites apart from other draws with the same seed
_Share = Annotated[float, Meta(ge=0, le=1)]


class Adversaries(Protocol):
    """Some of the sites, and their attack: the parameters, a frozen value."""

    def who(self, sites: int, seed: int) -> Indices:
        """Return the adversaries among `sites` sites, ascending; one seed gives one answer.

        A larger share adds sites and keeps those of the smaller. The draw is independent of the
        sites that a partition makes outliers.
        """

    def labels(self, labels: Indices, classes: int) -> Indices:
        """Return the labels that an adversary trains on.

        Args:
            labels: the true ones, in [0, classes); any shape. Not changed.
            classes: how many there are.
        """

    def contribution(self, update: Floats, generator: np.random.Generator) -> Floats:
        """Return an adversary's contribution in place of an update.

        Args:
            update: a gradient or the change of a model, not a model. Shape (elements,); not
                changed.
            generator: of every draw; give each site its own.
        """


class _Honest(Table, frozen=True, kw_only=True):
    """The base of all adversaries: a share of the sites, honest where not overridden."""

    share: _Share

    def who(self, sites: int, seed: int) -> Indices:
        """See :class:`Adversaries`."""
        order = np.random.default_rng((_WHO, seed)).permutation(sites)
        return np.sort(order[: round(self.share * sites)]).astype(np.int64)

    def labels(self, labels: Indices, classes: int) -> Indices:
        """See :class:`Adversaries`."""
        return labels

    def contribution(self, update: Floats, generator: np.random.Generator) -> Floats:
        """See :class:`Adversaries`."""
        return update


class LabelFlip(_Honest, frozen=True, kw_only=True, tag_field="kind", tag="label-flip"):
    """They replace each label y by ``classes - 1 - y``, and train on it as others do.

    Args:
        share: of the sites, in [0, 1], rounded to whole ones.
    """

    def labels(self, labels: Indices, classes: int) -> Indices:
        """See :class:`Adversaries`."""
        return classes - 1 - labels


class Noise(_Honest, frozen=True, kw_only=True, tag_field="kind", tag="noise"):
    """They contribute Gaussian noise instead of their update.

    Args:
        share: of the sites, in [0, 1], rounded to whole ones.
        factor: the noise's norm over the update's, > 0; at 1 the norm does not betray it.
    """

    factor: Annotated[float, Meta(gt=0, le=1e9)] = 1.0

    def contribution(self, update: Floats, generator: np.random.Generator) -> Floats:
        """See :class:`Adversaries`."""
        noise = generator.standard_normal(len(update), dtype=np.float32)
        norm = float(np.linalg.norm(noise))
        if norm == 0.0:  # of no element at all
            return noise
        noise *= np.float32(self.factor * float(np.linalg.norm(update)) / norm)
        return noise


class Scaled(_Honest, frozen=True, kw_only=True, tag_field="kind", tag="scaled"):
    """They contribute a multiple of their update.

    Args:
        share: of the sites, in [0, 1], rounded to whole ones.
        factor: -1 reverses the update, 10 exaggerates it.
    """

    factor: Annotated[float, Meta(ge=-1e9, le=1e9)] = -10.0

    def contribution(self, update: Floats, generator: np.random.Generator) -> Floats:
        """See :class:`Adversaries`."""
        return update * np.float32(self.factor)


AnyAdversaries = LabelFlip | Noise | Scaled
