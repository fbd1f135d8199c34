"""Speeds of sites with a given Gini coefficient."""

from __future__ import annotations

import math
from collections.abc import Sequence

from anabranch.fleet._distributions import NORMAL, drawn_share
from anabranch.fleet._errors import ComputeError


def uneven_samples_per_s(sites: int, mean: float, gini: float, seed: int) -> tuple[float, ...]:
    """Return speeds with exactly this mean and Gini coefficient, in an order drawn from the seed.

    They are the evenly spaced quantiles of a log-normal distribution, which are symmetric about the
    median on a logarithmic axis. So the seconds of a sample have the same Gini coefficient as the
    samples of a second.

    Args:
        sites: number of sites.
        mean: of the speeds, samples/s.
        gini: in [0, (sites - 1) / sites); n values, all 0 but one, have (n - 1) / n.
        seed: of the order.

    Raises:
        ComputeError: so few sites cannot be so uneven.
    Source: HAAF, section 6.2, gives the Gini coefficient of its nodes' processing times of a
    sample.

    >>> [round(speed, 6) for speed in sorted(uneven_samples_per_s(2, 100.0, 0.25, seed=0))]
    [50.0, 150.0]
    """
    most = (sites - 1) / sites
    if not (gini == 0 or 0 < gini < most):
        raise ComputeError(
            f"{sites} sites cannot have Gini coefficient {gini:g}, which must be 0 or more and "
            f"less than {sites - 1}/{sites}; lower it or add sites"
        )
    spread = [NORMAL.inv_cdf((i + 0.5) / sites) for i in range(sites)]

    def weights(sigma: float) -> list[float]:
        return [math.exp(sigma * (each - spread[-1])) for each in spread]

    low, high = 0.0, 1.0 if gini else 0.0
    while _gini_of_rising(weights(high)) < gini:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        if _gini_of_rising(weights(middle)) < gini:
            low = middle
        else:
            high = middle
    found = weights(high)
    scale = mean * sites / math.fsum(found)
    order = sorted(range(sites), key=lambda site: drawn_share("fleet", seed, site, 0))
    speeds = [0.0] * sites
    for site, weight in zip(order, found, strict=True):
        speeds[site] = weight * scale
    if min(speeds) <= 0:
        raise ComputeError(
            f"a Gini coefficient of {gini:g} leaves some of {sites} sites with no speed at all; "
            "lower it or add sites"
        )
    return tuple(speeds)


def _gini_of_rising(values: Sequence[float]) -> float:
    n = len(values)
    return math.fsum((2 * i + 1 - n) * value for i, value in enumerate(values)) / (
        n * math.fsum(values)
    )
