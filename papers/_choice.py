"""Find the learning rate that suits a scheme, on seeds that are not measured.

Rates are tried by powers of two from a first one on: upwards while that helps, else downwards. A
run ends once it takes a quarter longer than the best run of its seed so far, and its rate loses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.net.errors import RunAborted
from papers._lab import Lab, Outcome, Trial

FIRST = 0.2
_HIGHEST, _LOWEST = 8, 1 / 16  # times the first
_PATIENCE = 1.25

Make = Callable[[float, int, float], Trial]
"""Makes a run from a learning rate, a seed, and the time at which it ends without the target."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The best learning rate.

    Args:
        rate: the learning rate.
        times_s: time to the target with this rate, for each seed, seconds.
        tried: all rates that were tried, in order.
    """

    rate: float
    times_s: tuple[float, ...]
    tried: tuple[float, ...]


def best_rate(
    lab: Lab,
    make: Make,
    seeds: Sequence[int],
    most_s: float,
    log: list[Outcome],
    first: float = FIRST,
) -> Choice | None:
    """Return the rate with which runs reach the target soonest, in the mean over seeds.

    Args:
        lab: runs the trials.
        make: makes a run.
        seeds: of the runs.
        most_s: when a run ends in any case.
        log: the runs' outcomes are appended to it.
        first: the rate to begin with.

    Returns:
        None if no rate lets all runs reach the target.
    """
    best: Choice | None = None
    tried: list[float] = []

    def attempt(rate: float) -> None:
        nonlocal best
        tried.append(rate)
        limits_s = [math.inf] * len(seeds) if best is None else best.times_s
        limits_s = [min(most_s, _PATIENCE * limit_s) for limit_s in limits_s]
        try:
            runs = lab.measure([make(rate, *each) for each in zip(seeds, limits_s, strict=True)])
        except RunAborted:  # one diverged
            return
        log.extend(runs)
        times_s = tuple(run.reached_s for run in runs if run.reached_s is not None)
        if len(times_s) == len(runs) and (best is None or sum(times_s) < sum(best.times_s)):
            best = Choice(rate, times_s, ())

    attempt(first)
    attempt(2 * first)
    while best is not None and best.rate == max(tried) < _HIGHEST * first:
        attempt(2 * max(tried))
    while (best is None or best.rate == min(tried)) and min(tried) > _LOWEST * first:
        attempt(min(tried) / 2)
    return None if best is None else Choice(best.rate, best.times_s, tuple(tried))
