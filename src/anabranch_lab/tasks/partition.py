"""Which training samples each site holds. Pure: labels and a seed in, indices out.

A partition is a frozen value as a scenario spells it, with a method that deals samples to sites.
Every site that deals the same labels with one seed gets the same answer.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import Meta

from anabranch._typed_toml import Positive, Table

Indices = npt.NDArray[np.int64]
# From a class at one site alone to a class dealt evenly.
_Concentration = Annotated[float, Meta(gt=0, le=1e9)]
_MOST_DRAWS = 1000
_OUTLIERS = 0x6F75746C  # keeps the draw of outliers apart from other draws with the same seed


class Partition(Protocol):
    """How samples are dealt to sites: the parameters, a frozen value.

    Attributes:
        by_label: whether it needs one label for each sample.
    """

    by_label: ClassVar[bool]

    def deal(self, labels: Indices, sites: int, seed: int, least: int = 1) -> tuple[Indices, ...]:
        """Deal samples to sites.

        Args:
            labels: of the samples, whose indices are ``[0, len(labels))``; shape (samples,), or
                further axes where ``by_label`` is false.
            sites: how many to deal to, >= 1.
            seed: of every draw, >= 0.
            least: samples that each site must get, >= 1; drawn sizes are drawn again until all
                sites have so many.

        Returns:
            For each site its indices, none of them twice. Together they are every index once,
            except with `MixedDirichlet`.

        Raises:
            ValueError: it cannot deal by such labels, or a site gets fewer than ``least``.
        """


class Even(Table, frozen=True, kw_only=True, tag_field="kind", tag="even"):
    """Shuffled samples, as many for each site as for any other."""

    by_label: ClassVar[bool] = False

    def deal(self, labels: Indices, sites: int, seed: int, least: int = 1) -> tuple[Indices, ...]:
        """See :class:`Partition`; numbers of samples differ by at most one."""
        return _checked(partition_evenly(len(labels), sites, seed), least)


class Dirichlet(Table, frozen=True, kw_only=True, tag_field="kind", tag="dirichlet"):
    """Each class is dealt in drawn shares: sites differ in labels and in size.

    The shares of a class are drawn from a symmetric Dirichlet distribution, anew for each class
    (HAAF, section 6.1). Hsu et al., 2019, draw a vector for each site instead.

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
    """Samples sorted by label are cut into shards, and each site gets a few, so few labels.

    Args:
        per_site: shards of a site; a site with two has two labels, or few more.
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
    """Shuffled samples are dealt in drawn shares: sites differ in size alone.

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


class MixedDirichlet(Table, frozen=True, kw_only=True, tag_field="kind", tag="mixed-dirichlet"):
    """Each site draws its mix of classes; most from one distribution, some as outliers.

    All sites have equally many samples. A site's mix is drawn from a symmetric Dirichlet
    distribution with the site's concentration, and its labels are drawn from the mix. Samples are
    taken class by class from a shuffled circle. Where sites want more of a class than there is,
    some of its samples are at several sites, as evenly as possible. Where they want less, samples
    are left over. So every mix is as drawn. The exception is a site that alone wants more of a
    class than there is: it gets samples of other classes.

    Args:
        alpha: concentration of most sites, > 0.
        outlier_alpha: concentration of the outliers, > 0.
        outliers: the outliers' share of the sites, in [0, 1], rounded to whole sites.
        samples_per_site: how many each site has, at most all samples; None: an even share, rounded
            down.
    Source: Chen et al., "R²SP", VI-B, with these values. It says that one class is over 97 % of an
        outlier's samples. Of ten classes the largest has 66 % in the mean at 0.1, and 94 % at 0.01.
    """

    alpha: _Concentration = 10.0
    outlier_alpha: _Concentration = 0.1
    outliers: Annotated[float, Meta(ge=0, le=1)] = 0.25
    samples_per_site: Positive | None = None
    by_label: ClassVar[bool] = True

    def deal(self, labels: Indices, sites: int, seed: int, least: int = 1) -> tuple[Indices, ...]:
        """See :class:`Partition`; a sample may be at several sites, or at none."""
        size = self.samples_per_site
        if size is None:
            _check_labels(labels, sites, 1)
            size = len(labels) // sites
        else:
            _check_labels(labels, 1, 1)
            if size > len(labels):
                raise ValueError(
                    f"samples_per_site is {size}, and there are {len(labels)}; give that at most"
                )
            _check_room(len(labels) * max(sites, 0), sites, 1)
        generator = np.random.default_rng(seed)
        _, totals = np.unique(labels, return_counts=True)
        counts = self._counts(generator, totals, self.outlier_sites(sites, seed), sites, size)
        circles = _by_label(labels, generator)
        # Find where each site begins in each class's circle, then the place of each sample.
        begins = (np.cumsum(counts, axis=0) - counts).ravel()
        flat = counts.ravel()
        within = np.arange(flat.sum()) - np.repeat(np.cumsum(flat) - flat, flat)
        place = (np.repeat(begins, flat) + within) % np.repeat(np.tile(totals, sites), flat)
        first = np.repeat(np.tile(np.cumsum(totals) - totals, sites), flat)
        dealt = np.split(circles[first + place], size * np.arange(1, sites))
        return _checked(tuple(dealt), least)

    def outlier_sites(self, sites: int, seed: int) -> Indices:
        """Return the outliers among `sites` sites with this seed, ascending."""
        generator = np.random.default_rng((_OUTLIERS, seed))
        chosen = generator.permutation(sites)[: round(self.outliers * sites)]
        return np.sort(chosen).astype(np.int64)

    def _counts(
        self,
        generator: np.random.Generator,
        totals: Indices,
        outlier_sites: Indices,
        sites: int,
        size: int,
    ) -> Indices:
        """Return how many of each class each site gets, shape (sites, classes)."""
        classes = len(totals)
        mixes = generator.dirichlet(np.full(classes, self.alpha), size=sites)
        mixes[outlier_sites] = generator.dirichlet(
            np.full(classes, self.outlier_alpha), size=len(outlier_sites)
        )
        wanted = generator.multinomial(size, mixes)
        counts = np.minimum(wanted, totals)
        for site in np.flatnonzero(counts.sum(axis=1) < size):
            left, more = totals - counts[site], size - counts[site].sum()
            counts[site] += generator.multivariate_hypergeometric(left, more)
        return counts


AnyPartition = Even | Dirichlet | Shards | Quantity | MixedDirichlet


def partition_evenly(samples: int, sites: int, seed: int) -> tuple[Indices, ...]:
    """Deal shuffled samples to sites, as evenly as possible.

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
        sites, alpha, least: see `Dirichlet.deal`.

    Returns:
        Shape (classes, sites); each row adds up to its total.
    """
    for _ in range(_MOST_DRAWS):
        shares = generator.dirichlet(np.full(sites, alpha), size=len(totals))
        # Round the ends of the parts, so that the parts add up.
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
    """Return all indices, grouped by label and shuffled within each label."""
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
