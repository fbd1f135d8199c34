"""Random rates: drawn once for a file without rates, or again and again during a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from anabranch.overlay._model import Overlay, OverlayError, Trace


@dataclass(frozen=True, slots=True)
class UniformRates:
    """A rule that draws the rate of each direction of each link, independently and uniformly.

    Args:
        low_bps, high_bps: bounds of the draw, bit/s, ``0 < low_bps <= high_bps``.
        seed: equal seeds draw equal rates.

    Raises:
        OverlayError: bounds that are not positive, finite and in order.
    """

    low_bps: float
    high_bps: float
    seed: int

    def __post_init__(self) -> None:
        check_bounds(self.low_bps, self.high_bps)

    def draws_bps(self) -> Iterator[float]:
        """Yield endless rates, bit/s; each call starts the same sequence again."""
        rng = np.random.default_rng(self.seed)
        while True:
            yield float(rng.uniform(self.low_bps, self.high_bps))


def check_bounds(low_bps: float, high_bps: float) -> None:
    """Raise OverlayError unless rates can be drawn from ``[low_bps, high_bps]``."""
    if not (0 < low_bps <= high_bps and math.isfinite(high_bps)):
        raise OverlayError(
            f"cannot draw rates from {low_bps:g} to {high_bps:g} bit/s; give 0 < low_bps <= "
            "high_bps, both finite"
        )


def redraw(
    overlay: Overlay,
    *,
    period_s: float,
    low_bps: float,
    high_bps: float,
    duration_s: float,
    seed: int | np.random.Generator,
) -> Overlay:
    """Return the overlay with a trace on every link, with a new random rate every period.

    The overlay's own rates hold for the first period. At each later multiple of ``period_s`` below
    ``duration_s`` every link, and so each direction, gets a new rate, drawn independently and
    uniformly. The last rates stay for ever. New traces replace old ones. With the same seed, a
    longer duration leaves the earlier rates unchanged.

    Args:
        overlay: its sites, links, latencies and losses stay.
        period_s: time between draws, seconds, > 0.
        low_bps, high_bps: bounds of the draw, bit/s, ``0 < low_bps <= high_bps``.
        duration_s: how long the network keeps changing, seconds, > 0.
        seed: a seed, or a generator, which is advanced.

    Raises:
        OverlayError: a period, duration or bound outside its range.

    Source: NetStorm's evaluation redraws 20 to 155 Mbit/s every 180 s.

    >>> from anabranch.overlay import internet2_9
    >>> changing = redraw(
    ...     internet2_9(), period_s=180, low_bps=20e6, high_bps=155e6, duration_s=540, seed=0
    ... )
    >>> changing.links[0].trace.starts_s
    (0.0, 180.0, 360.0)
    """
    for name, value in (("period_s", period_s), ("duration_s", duration_s)):
        if not (value > 0 and math.isfinite(value)):
            raise OverlayError(f"{name} is {value:g} s, which must be finite and > 0")
    check_bounds(low_bps, high_bps)
    starts_s = [k * period_s for k in range(math.ceil(duration_s / period_s))]
    rng = np.random.default_rng(seed)
    # One row for each period: a longer duration then only appends rows.
    drawn_bps = rng.uniform(low_bps, high_bps, (len(starts_s) - 1, len(overlay.links)))
    shared_starts_s = tuple(map(float, starts_s))
    return replace(
        overlay,
        links=tuple(
            replace(link, trace=Trace(shared_starts_s, (link.rate_bps, *later_bps)))
            for link, later_bps in zip(overlay.links, drawn_bps.T.tolist(), strict=True)
        ),
    )
