"""Which training samples each site holds. Pure: labels and a seed in, indices out.

A partition is a frozen value as a scenario spells it, with a method that deals. Every site that
deals the same labels with one seed gets the same answer.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch._typed_toml import Positive, Table

Indices = npt.NDArray[np.int64]
# From all of a class at one site to as even as makes no difference.
_Concentration = Annotated[float, Meta(gt=0, le=1e9)]
_MOST_DRAWS = 1000


class Partition(Protocol):
    """How samples are dealt to sites: the parameters, a frozen value.

    Attributes:
        by_label: whether it asks for one label for each sample.
    """

    by_label: ClassVar[bool]

    def deal(self, labels: Indices, sites: int, seed: int, least: int = 1) -> tuple[Indices, ...]:
        """Deal samples to sites.

        Args:
            labels: of the samples, whose indices are ``[0, len(labels))``; shape (samples,), or
                further axes where ``by_label`` is false.
            sites: how many to deal to, >= 1.
            seed: of every draw, >= 0.
            least: samples that each site must get, >= 1; where sizes are drawn, they are drawn
                until all sites have so many.

        Returns:
            For each site its indices; together they are every index once.

        Raises:
            ValueError: labels that it cannot deal by, or a site that gets fewer than ``least``.
        """


class Even(Table, frozen=True, kw_only=True, tag_field="kind", tag="even"):
    """Shuffled samples, as many for each site as for any other."""

    by_label: ClassVar[bool] = False

    def deal(self, labels: Indices, sites: int, seed: int, least: int = 1) -> tuple[Indices, ...]:
        """See :class:`Partition`; numbers of samples differ by at most one."""
        return _checked(partition_evenly(len(labels), sites, seed), least)


class Dirichlet(Table, frozen=True, kw_only=True, tag_field="kind", tag="dirichlet"):
    """Of each class the sites get shares that are drawn: sites differ in labels, and in size.

    The shares of a class are drawn from a symmetric Dirichlet distribution, anew for each class
    (HAAF, section 6.1; Hsu et al., 2019, draw a vector for each site instead).

    Args:
        alpha: its concentration, > 0. With 0.1 most of a class is at one or two sites, with 100
            the classes are dealt almost evenly.
    """

    alpha: _Concentration
    by_label: ClassVar[bool] = True

    def deal(self, labels: Indices, sites: int, seed: int, least: int = 1) -> tuple[Indices, ...]:
        """See :class:`Partition`."""
        _check_labels(labels, sites, least)
        generator = np.random.default_rng(seed)
        _, totals = np.unique(labels, return_counts=True)
        counts = _drawn_counts(generator, totals, sites, self.alpha, least)
        shuffled = _by_label(labels, generator)
        # A part for each class and site, class by class.
        parts = np.split(shuffled, np.cumsum(counts)[:-1])
        return tuple(np.concatenate(parts[site::sites]) for site in range(sites))


class Shards(Table, frozen=True, kw_only=True, tag_field="kind", tag="shards"):
    """Samples sorted by label are cut into shards, and each site gets a few: it knows few labels.

    Args:
        per_site: shards of a site; a site with two has two labels, or little more.
    Source: McMahan et al., AISTATS 2017, section 3, with two shards for each of 100 clients.
    """

    per_site: Positive = 2
    by_label: ClassVar[bool] = True

    def deal(self, labels: Indices, sites: int, seed: int, least: int = 1) -> tuple[Indices, ...]:
        """See :class:`Partition`; numbers of samples differ by at most ``per_site``."""
        _check_labels(labels, sites, max(least, self.per_site))
        generator = np.random.default_rng(seed)
        shards = np.array_split(_by_label(labels, generator), sites * self.per_site)
        dealt = generator.permutation(len(shards)).reshape(sites, self.per_site)
        return _checked(
            tuple(np.concatenate([shards[each] for each in own]) for own in dealt), least
        )


class Quantity(Table, frozen=True, kw_only=True, tag_field="kind", tag="quantity"):
    """Shuffled samples, of which the sites get shares that are drawn: they differ in size alone.

    Args:
        alpha: concentration of the symmetric Dirichlet distribution that shares are drawn from,
            > 0; the smaller, the more sizes differ.
    Source: Li et al., "Federated learning on non-IID data silos", ICDE 2022, section 4.
    """

    alpha: _Concentration
    by_label: ClassVar[bool] = False

    def deal(self, labels: Indices, sites: int, seed: int, least: int = 1) -> tuple[Indices, ...]:
        """See :class:`Partition`."""
        samples = len(labels)
        _check_room(samples, sites, least)
        generator = np.random.default_rng(seed)
        [counts] = _drawn_counts(generator, np.array([samples]), sites, self.alpha, least)
        order = generator.permutation(samples).astype(np.int64)
        return tuple(np.split(order, np.cumsum(counts)[:-1]))


AnyPartition = Even | Dirichlet | Shards | Quantity


def partition_evenly(samples: int, sites: int, seed: int) -> tuple[Indices, ...]:
    """Deal shuffled samples to sites, as evenly as they go.

    Args:
        samples: how many there are; their indices are ``[0, samples)``.
        sites: how many to deal to, in [1, samples].
        seed: of the shuffle; every site that passes the same one gets the same answer.

    Returns:
        For each site its indices. Together they are every index once; their numbers differ by at
        most one.

    Raises:
        ValueError: no site, or more sites than samples.

    >>> [shard.size for shard in partition_evenly(5, 2, seed=0)]
    [3, 2]
    """
    _check_room(samples, sites, 1)
    order = np.random.default_rng(seed).permutation(samples).astype(np.int64)
    return tuple(np.array_split(order, sites))


def _drawn_counts(
    generator: np.random.Generator, totals: Indices, sites: int, alpha: float, least: int
) -> Indices:
    """Return how many of each class each site gets, drawn until no site has too few.

    Args:
        generator: of the draws.
        totals: samples of each class, shape (classes,).
        sites, alpha, least: as they are dealt.

    Returns:
        Shape (classes, sites); each row adds up to its total.
    """
    for _ in range(_MOST_DRAWS):
        shares = generator.dirichlet(np.full(sites, alpha), size=len(totals))
        # Rounded are the ends, not the parts, so that the parts add up.
        ends = np.rint(np.cumsum(shares, axis=1) * totals[:, np.newaxis]).astype(np.int64)
        ends[:, -1] = totals
        counts = np.diff(ends, axis=1, prepend=0)
        if counts.sum(axis=0).min() >= least:
            return counts
    raise ValueError(
        f"alpha is {alpha:g}, and {_MOST_DRAWS} draws left one of {sites} sites fewer than {least} "
        "samples each time; raise alpha, or lower batch_size"
    )


def _by_label(labels: Indices, generator: np.random.Generator) -> Indices:
    """Return all indices, those of a label together and shuffled."""
    order = generator.permutation(len(labels)).astype(np.int64)
    return order[np.argsort(labels[order], kind="stable")]


def _check_labels(labels: Indices, sites: int, least: int) -> None:
    if labels.ndim != 1:
        raise ValueError(
            f"cannot deal by label samples whose labels have shape {labels.shape}, not one for "
            "each; deal them evenly"
        )
    _check_room(len(labels), sites, least)


def _check_room(samples: int, sites: int, least: int) -> None:
    if sites < 1 or sites * least > samples:
        enough = "a sample" if least == 1 else f"{least} samples"
        raise ValueError(
            f"cannot deal {samples} samples to {sites} sites: give at least one site, and "
            f"{enough} for each"
        )


def _checked(dealt: tuple[Indices, ...], least: int) -> tuple[Indices, ...]:
    smallest = min(each.size for each in dealt)
    if smallest < least:
        raise ValueError(
            f"one of {len(dealt)} sites gets {smallest} samples, fewer than the {least} it must "
            "have; lower batch_size, or take fewer sites"
        )
    return dealt
