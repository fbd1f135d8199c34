"""How accurate a model is for each site: by class, weighed as the site's own samples have it. Pure.

A site's accuracy is what held-out samples would give that had the labels of the site's training
samples. It takes a class to be as hard at one site as at another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import pvariance


def accuracy_of(samples: Sequence[int], by_class: Sequence[float | None]) -> float | None:
    """Return a model's accuracy for a site.

    Args:
        samples: how many of each class the site trains on.
        by_class: the model's accuracy on held-out samples of each class, in [0, 1]; None for a
            class without any.

    Returns:
        In [0, 1]; None where the site has no sample, or one of a class whose accuracy is not known.

    >>> accuracy_of([30, 10, 0], [0.5, 0.9, None])
    0.6
    """
    if len(samples) != len(by_class) or not sum(samples):
        return None
    right = 0.0
    for count, accuracy in zip(samples, by_class, strict=True):
        if count and accuracy is None:
            return None
        right += count * (accuracy or 0.0)
    return right / sum(samples)


@dataclass(frozen=True, slots=True)
class Spread:
    """How far apart the accuracies of sites are.

    Args:
        variance: in percentage points squared, over the sites, each counting once; HAAF's fairness.
        least, most: in [0, 1].
    """

    variance: float
    least: float
    most: float


def spread_of(accuracies: Iterable[float]) -> Spread | None:
    """Return how far apart the accuracies of sites are, in [0, 1]; None where there is none.

    >>> spread_of([0.5, 0.7])
    Spread(variance=100.0, least=0.5, most=0.7)
    """
    found = list(accuracies)
    if not found:
        return None
    return Spread(pvariance([100 * each for each in found]), min(found), max(found))
