"""How long computing takes, as data: a scenario's ``[compute]``, and the model made from it.

Pure, and the same for a simulation in virtual time and for real processes, which wait out what
is left of a step. A step's time has three parts: *work*, which is seconds at nominal speed and
may be jittered; *slowdowns*, which stretch the work while they last; and an *added delay* after
it, which nothing stretches.

Every draw depends on the seed, the site and the step alone, so it is the same in whatever order
sites take their steps and in whichever world they do.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from statistics import NormalDist
from typing import Annotated

import msgspec
from msgspec import Meta

from anabranch._typed_toml import Table, listed, nearest


class ComputeError(ValueError):
    """Computing that cannot be modelled; the message names the key and the fix."""


# TOML has inf and nan; a bound keeps both out.
_Speed = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
_Seconds = Annotated[float, Meta(ge=0, le=sys.float_info.max)]
_NORMAL = NormalDist()


class LognormalJitter(Table, frozen=True, kw_only=True, tag_field="kind", tag="lognormal"):
    """Multiply the work by a log-normal factor of mean 1: most steps alike, a few far longer.

    Args:
        cv: coefficient of variation of the factor, its standard deviation over its mean.
    """

    cv: Annotated[float, Meta(ge=0, le=100)]

    def quantile(self, share: float) -> float:
        """Return the factor that this share of all draws stays below; ``share`` is in (0, 1)."""
        variance = math.log1p(self.cv * self.cv)
        return math.exp(math.sqrt(variance) * _NORMAL.inv_cdf(share) - variance / 2)


class ExponentialJitter(Table, frozen=True, kw_only=True, tag_field="kind", tag="exponential"):
    """Multiply the work by a shifted exponential factor of mean 1: never below ``1 - cv``.

    Args:
        cv: coefficient of variation of the factor; 1 is the plain exponential.
    """

    cv: Annotated[float, Meta(ge=0, le=1)]

    def quantile(self, share: float) -> float:
        """Return the factor that this share of all draws stays below; ``share`` is in (0, 1)."""
        return 1 - self.cv - self.cv * math.log1p(-share)


class UniformJitter(Table, frozen=True, kw_only=True, tag_field="kind", tag="uniform"):
    """Multiply the work by a factor drawn evenly from ``1 - spread`` to ``1 + spread``.

    Args:
        spread: the most that the factor differs from 1; 0.2 is plus or minus 20 %.
    """

    spread: Annotated[float, Meta(ge=0, le=1)]

    def quantile(self, share: float) -> float:
        """Return the factor that this share of all draws stays below; ``share`` is in (0, 1)."""
        return 1 + self.spread * (2 * share - 1)


Jitter = LognormalJitter | ExponentialJitter | UniformJitter


class ConstantDelay(Table, frozen=True, kw_only=True, tag_field="kind", tag="constant"):
    """Add the same delay after every step (R²SP, section VI: 0, 0.5 or 1 s).

    Args:
        delay_s: seconds; 0 lifts a delay that ``[compute]`` adds everywhere.
    """

    delay_s: _Seconds

    def quantile(self, share: float) -> float:
        """Return the delay, s."""
        return self.delay_s


class LognormalDelay(Table, frozen=True, kw_only=True, tag_field="kind", tag="lognormal"):
    """Add a log-normal delay after every step, of mean ``exp(mu + sigma**2 / 2)`` seconds.

    R²SP, section VI, has federated clients wait so before they return updates: mu -2, sigma 1,
    mean 0.22 s.

    Args:
        mu: mean of the natural logarithm of the delay in seconds.
        sigma: standard deviation of that logarithm.
    """

    mu: Annotated[float, Meta(ge=-50, le=50)]
    sigma: Annotated[float, Meta(ge=0, le=10)]

    def quantile(self, share: float) -> float:
        """Return the delay that this share of all draws stays below, s; ``share`` in (0, 1)."""
        return math.exp(self.mu + self.sigma * _NORMAL.inv_cdf(share))


class ExponentialDelay(Table, frozen=True, kw_only=True, tag_field="kind", tag="exponential"):
    """Add an exponential delay after every step.

    Args:
        mean_s: its mean, seconds.
    """

    mean_s: _Seconds

    def quantile(self, share: float) -> float:
        """Return the delay that this share of all draws stays below, s; ``share`` in (0, 1)."""
        return -self.mean_s * math.log1p(-share)


class UniformDelay(Table, frozen=True, kw_only=True, tag_field="kind", tag="uniform"):
    """Add a delay drawn evenly from a range after every step.

    Args:
        low_s, high_s: the range, seconds.

    Raises:
        ComputeError: the range is upside down.
    """

    low_s: _Seconds
    high_s: _Seconds

    def __post_init__(self) -> None:
        if self.low_s > self.high_s:
            raise ComputeError(
                f"cannot draw a delay from {self.low_s:g} to {self.high_s:g} s; give low_s <= "
                "high_s"
            )

    def quantile(self, share: float) -> float:
        """Return the delay that this share of all draws stays below, s; ``share`` in (0, 1)."""
        return self.low_s + share * (self.high_s - self.low_s)


Delay = ConstantDelay | LognormalDelay | ExponentialDelay | UniformDelay


class Slowdowns(Table, frozen=True, kw_only=True):
    """How much longer than nominal work takes over time: piecewise constant.

    While the factor is 4, a second of work takes 4 seconds: it proceeds at speed 1/4.

    Args:
        starts_s: when each piece begins, seconds since the run began, rising, first one 0.
        factors: the factor of each piece, positive; the last lasts for ever. Below 1 is faster.

    Raises:
        ComputeError: no piece, not one factor for each start, starts that do not rise from 0, or
            a factor that is not finite and positive.

    >>> Slowdowns(starts_s=(0.0, 60.0, 120.0), factors=(1.0, 4.0, 1.0)).finish_s(50.0, 12.0)
    68.0
    """

    starts_s: tuple[float, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts_s or len(self.starts_s) != len(self.factors):
            raise ComputeError(
                f"slowdowns have {len(self.starts_s)} start times and {len(self.factors)} "
                "factors; give the same number of each, at least one"
            )
        if self.starts_s[0] != 0:
            raise ComputeError(
                f"slowdowns start at {self.starts_s[0]:g} s; say the factor from 0 s on"
            )
        for before_s, start_s in pairwise(self.starts_s):
            if not before_s < start_s < math.inf:
                raise ComputeError(
                    f"slowdowns have start {start_s:g} s after {before_s:g} s; give finite start "
                    "times that rise"
                )
        for factor in self.factors:
            if not 0 < factor < math.inf:
                raise ComputeError(
                    f"slowdowns hold factor {factor:g}, which must be finite and > 0; model a "
                    "site that stands still as a pause fault"
                )

    def factor(self, at_s: float) -> float:
        """Return how many times as long as nominal work takes at this moment."""
        return self.factors[self._piece(at_s)]

    def takes_s(self, start_s: float, work_s: float) -> float:
        """Return how long work takes from this moment on, s, integrated exactly.

        Args:
            start_s: when it begins, seconds since the run began.
            work_s: seconds of work at nominal speed. A factor from elsewhere, such as a fault's,
                that holds throughout is multiplied into it; where that factor changes at a
                moment in between, take off the ``work_s(start_s, moment)`` done and plan again.
        """
        passed_s, left_s = 0.0, work_s
        for piece in range(self._piece(start_s), len(self.factors) - 1):
            span_s = self.starts_s[piece + 1] - start_s
            if passed_s + left_s * self.factors[piece] <= span_s:
                return passed_s + left_s * self.factors[piece]
            left_s = max(0.0, left_s - (span_s - passed_s) / self.factors[piece])
            passed_s = span_s
        return passed_s + left_s * self.factors[-1]

    def finish_s(self, start_s: float, work_s: float) -> float:
        """Return when work begun at ``start_s`` is done, seconds since the run began."""
        return start_s + self.takes_s(start_s, work_s)

    def work_s(self, start_s: float, end_s: float) -> float:
        """Return how much work is done between two moments, s at nominal speed.

        The inverse of ``finish_s``: ``work_s(start_s, finish_s(start_s, w))`` is ``w``.
        """
        done_s = 0.0
        for piece in range(self._piece(start_s), self._piece(end_s) + 1):
            last = piece + 1 == len(self.factors)
            until_s = end_s if last else min(end_s, self.starts_s[piece + 1])
            done_s += (until_s - start_s) / self.factors[piece]
            start_s = until_s
        return done_s

    def _piece(self, at_s: float) -> int:
        return max(0, bisect_right(self.starts_s, at_s) - 1)


STEADY = Slowdowns(starts_s=(0.0,), factors=(1.0,))


class SiteCompute(Table, frozen=True, kw_only=True):
    """A site that differs from the others; what is None is as ``[compute]`` has it.

    Args:
        samples_per_s: samples this site takes a second.
        fixed_s: seconds of work in each step, whatever the batch.
        jitter: of its work.
        added_delay: after each step.
        slowdowns: how its speed changes during the run.
    """

    samples_per_s: _Speed | None = None
    fixed_s: _Seconds | None = None
    jitter: Jitter | None = None
    added_delay: Delay | None = None
    slowdowns: Slowdowns | None = None


class Compute(Table, frozen=True, kw_only=True):
    """A scenario's ``[compute]``: how long a step takes at each site.

    Args:
        samples_per_s: samples each site takes a second; the mean of all sites where ``gini`` > 0.
        gini: how uneven the sites' speeds are, see `fleet_samples_per_s`; 0 is all alike.
        fixed_s: seconds of work in each step, whatever the batch.
        jitter: how a step's work varies around its mean; None for not at all.
        added_delay: a wait after each step; None for none.
        sites: those that differ, by name.
    """

    samples_per_s: _Speed
    gini: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    fixed_s: _Seconds = 0.0
    jitter: Jitter | None = None
    added_delay: Delay | None = None
    sites: dict[str, SiteCompute] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Site:
    """One site's answers, all of them given."""

    samples_per_s: float
    fixed_s: float
    jitter: Jitter | None
    added_delay: Delay | None
    slowdowns: Slowdowns


class ComputeModel:
    """How long each step takes at each site.

    Args:
        table: the scenario's ``[compute]``.
        sites: the names of all sites, in order of index.
        seed: of the fleet's speeds and of every draw.

    Raises:
        ComputeError: ``sites`` of the table names no site, the Gini coefficient cannot be had
            with so few sites, or a site gives its own speed beside a Gini coefficient.

    >>> table = Compute(samples_per_s=500.0, fixed_s=0.25, sites={"b": SiteCompute(fixed_s=1.0)})
    >>> model = ComputeModel(table, ["a", "b"], seed=0)
    >>> model.step_s(site=0, step=7, samples=1000, start_s=60.0)
    2.25
    >>> model.step_s(site=1, step=7, samples=1000, start_s=60.0)
    3.0
    """

    def __init__(self, table: Compute, sites: Sequence[str], seed: int) -> None:
        for name, own in table.sites.items():
            if name not in sites:
                near = nearest(name, sites) or f"the sites are {listed(sites)}"
                raise ComputeError(f"compute.sites.{name}: no site {name!r}; {near}")
            if own.samples_per_s is not None and table.gini > 0:
                raise ComputeError(
                    f"compute.sites.{name}.samples_per_s: compute.gini already says how every "
                    "site's speed differs; remove one of the two"
                )
        try:
            speeds = fleet_samples_per_s(len(sites), table.samples_per_s, table.gini, seed)
        except ComputeError as error:
            raise ComputeError(f"compute.gini: {error}") from None
        self._seed = seed
        self._sites = tuple(
            _resolve(table, table.sites.get(name), speed)
            for name, speed in zip(sites, speeds, strict=True)
        )

    @property
    def samples_per_s(self) -> tuple[float, ...]:
        """Samples each site takes a second at nominal speed, in order of index."""
        return tuple(site.samples_per_s for site in self._sites)

    def work_s(self, site: int, step: int, samples: int) -> float:
        """Return a step's work, seconds at nominal speed, jitter included.

        Args:
            site: its index.
            step: counted from 0; with the seed and the site it fixes the jitter, which is thus
                the same whatever the batch.
            samples: the step's batch.
        """
        own = self._sites[site]
        work_s = own.fixed_s + samples / own.samples_per_s
        if own.jitter is None:
            return work_s
        return work_s * own.jitter.quantile(_share("jitter", self._seed, site, step))

    def added_s(self, site: int, step: int) -> float:
        """Return the delay added after a step's work, s, which no slowdown stretches."""
        delay = self._sites[site].added_delay
        if delay is None:
            return 0.0
        return delay.quantile(_share("delay", self._seed, site, step))

    def slowdowns(self, site: int) -> Slowdowns:
        """Return how a site's speed changes during the run."""
        return self._sites[site].slowdowns

    def step_s(self, site: int, step: int, samples: int, start_s: float) -> float:
        """Return how long a step takes, s: its work, as stretched from ``start_s`` on, and delay.

        Args:
            site, step, samples: as for ``work_s``.
            start_s: when the step begins, seconds since the run began.
        """
        work_s = self.work_s(site, step, samples)
        return self._sites[site].slowdowns.takes_s(start_s, work_s) + self.added_s(site, step)


def _resolve(table: Compute, own: SiteCompute | None, samples_per_s: float) -> _Site:
    own = own or SiteCompute()
    return _Site(
        samples_per_s if own.samples_per_s is None else own.samples_per_s,
        table.fixed_s if own.fixed_s is None else own.fixed_s,
        own.jitter or table.jitter,
        own.added_delay or table.added_delay,
        own.slowdowns or STEADY,
    )


def _share(what: str, seed: int, site: int, step: int) -> float:
    """Return a number drawn evenly from the open interval (0, 1), fixed by the arguments.

    A hash is a generator without state: cheaper to set up than any of numpy's, and the same with
    every version of numpy.
    """
    text = b"%s %d %d %d" % (what.encode(), seed, site, step)
    bits = int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 12
    return (bits + 0.5) * 2.0**-52  # 52 bits and a half are exact, so never 0 and never 1


def gini(values: Sequence[float]) -> float:
    """Return the Gini coefficient: mean absolute difference over twice the mean.

    That is ``sum(abs(a - b) for a in values for b in values) / (2 * n**2 * mean)``: 0 where all
    are alike, ``(n - 1) / n`` where one has everything.

    Args:
        values: at least one, none negative, not all 0.

    Raises:
        ComputeError: the values have no Gini coefficient.
    Source: the measure of how uneven sites are in HAAF, section 6.2.

    >>> gini([1.0, 3.0])
    0.25
    """
    if not values or not all(0 <= value < math.inf for value in values) or not any(values):
        raise ComputeError(
            "a Gini coefficient needs finite values, none below 0 and not all 0; give the "
            "sites' speeds"
        )
    return _gini_of_rising(sorted(values))


def _gini_of_rising(values: Sequence[float]) -> float:
    n = len(values)
    return math.fsum((2 * i + 1 - n) * value for i, value in enumerate(values)) / (
        n * math.fsum(values)
    )


def fleet_samples_per_s(sites: int, mean: float, gini: float, seed: int) -> tuple[float, ...]:
    """Return speeds with exactly this mean and Gini coefficient, in an order drawn from the seed.

    They are the evenly spaced quantiles of a log-normal distribution, which are symmetric about
    the median on a logarithmic axis: the seconds that a sample takes have the same Gini
    coefficient as the samples a second, so it does not matter which of them is meant.

    Args:
        sites: how many.
        mean: of the speeds, samples/s.
        gini: in [0, (sites - 1) / sites): n values, one of them everything, have (n - 1) / n.
        seed: of the order.

    Raises:
        ComputeError: so few sites cannot be so uneven.
    Source: HAAF, section 6.2, sets how uneven its nodes are by the Gini coefficient of their
    processing times of a sample.

    >>> [round(speed, 6) for speed in sorted(fleet_samples_per_s(2, 100.0, 0.25, seed=0))]
    [50.0, 150.0]
    """
    most = (sites - 1) / sites
    if not (gini == 0 or 0 < gini < most):
        raise ComputeError(
            f"{sites} sites cannot have Gini coefficient {gini:g}, which must be 0 or more and "
            f"less than {sites - 1}/{sites}; lower it or add sites"
        )
    spread = [_NORMAL.inv_cdf((i + 0.5) / sites) for i in range(sites)]

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
    order = sorted(range(sites), key=lambda site: _share("fleet", seed, site, 0))
    speeds = [0.0] * sites
    for site, weight in zip(order, found, strict=True):
        speeds[site] = weight * scale
    if min(speeds) <= 0:
        raise ComputeError(
            f"a Gini coefficient of {gini:g} leaves some of {sites} sites with no speed at all; "
            "lower it or add sites"
        )
    return tuple(speeds)
