"""A model's accuracy for each site: by class, weighed by the site's own samples. Pure.

A site's accuracy is the accuracy on held-out samples with the label frequencies of the site's
training samples. It assumes that a class is equally hard at all sites.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import pvariance


def accuracy_of(samples: Sequence[int], by_class: Sequence[float | None]) -> float | None:
    """Return a model's accuracy for a site.

    Args:
        samples: how many samples of each class the site trains on.
        by_class: the model's accuracy on held-out samples of each class, in [0, 1]; None for a
            class without any.

    Returns:
        In [0, 1]; None where the site has no sample, or a sample of a class of unknown accuracy.

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
    """The spread of the sites' accuracies.

    Args:
        variance: over the sites, each counted once, in percentage points squared; HAAF's fairness.
        least, most: accuracies, in [0, 1].
    """

    variance: float
    least: float
    most: float


def spread_of(accuracies: Iterable[float]) -> Spread | None:
    """Return the spread of accuracies in [0, 1]; None where there is no accuracy.

    >>> spread_of([0.5, 0.7])
    Spread(variance=100.0, least=0.5, most=0.7)
    """
    found = list(accuracies)
    if not found:
        return None
    return Spread(pvariance([100 * each for each in found]), min(found), max(found))
