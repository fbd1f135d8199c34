"""Distributions of jitter factors and of added delays, and the uniform draws behind them."""

from __future__ import annotations

import math
import sys
from hashlib import blake2b
from statistics import NormalDist
from typing import Annotated

from msgspec import Meta

from anabranch._typed_toml import Table
from anabranch.fleet._errors import ComputeError

NORMAL = NormalDist()

# TOML has inf and nan; a bound keeps both out.
NotNegative = Annotated[float, Meta(ge=0, le=sys.float_info.max)]


class Constant(Table, frozen=True, kw_only=True, tag_field="kind", tag="constant"):
    """A constant (R²SP, section VI, adds 0, 0.5 or 1 s).

    Args:
        delay_s: its value. At a site, an added delay of 0 cancels the one of ``[compute]``.
    """

    delay_s: NotNegative

    def quantile(self, share: float) -> float:
        """Return what this share of all draws stays below; ``share`` is in (0, 1)."""
        return self.delay_s


class Lognormal(Table, frozen=True, kw_only=True, tag_field="kind", tag="lognormal"):
    """Log-normal: most draws are alike, a few far larger.

    In R²SP, section VI, federated clients wait this long before they return updates: mu -2,
    sigma 1, mean 0.22 s.

    Args:
        cv: coefficient of variation, standard deviation over mean; the mean is 1. Or
        mu, sigma: mean and standard deviation of the draw's natural logarithm.

    Raises:
        ComputeError: neither is given, or both are.
    """

    cv: Annotated[float, Meta(ge=0, le=100)] | None = None
    mu: Annotated[float, Meta(ge=-50, le=50)] | None = None
    sigma: Annotated[float, Meta(ge=0, le=10)] | None = None

    def __post_init__(self) -> None:
        _check_keys(self, ("cv",), ("mu", "sigma"))

    def quantile(self, share: float) -> float:
        """Return what this share of all draws stays below; ``share`` is in (0, 1)."""
        mu, sigma = self.mu, self.sigma
        if self.cv is not None:
            variance = math.log1p(self.cv * self.cv)
            mu, sigma = -variance / 2, math.sqrt(variance)
        assert mu is not None
        assert sigma is not None
        return math.exp(mu + sigma * NORMAL.inv_cdf(share))


class Exponential(Table, frozen=True, kw_only=True, tag_field="kind", tag="exponential"):
    """Exponential.

    Args:
        cv: coefficient of variation, standard deviation over mean; the mean is 1, and no draw is
            below ``1 - cv``. Or
        mean_s: the mean of draws from 0 on.

    Raises:
        ComputeError: neither is given, or both are.
    """

    cv: Annotated[float, Meta(ge=0, le=1)] | None = None
    mean_s: NotNegative | None = None

    def __post_init__(self) -> None:
        _check_keys(self, ("cv",), ("mean_s",))

    def quantile(self, share: float) -> float:
        """Return what this share of all draws stays below; ``share`` is in (0, 1)."""
        low, mean = (0.0, self.mean_s) if self.cv is None else (1 - self.cv, self.cv)
        assert mean is not None
        return low - mean * math.log1p(-share)


class Uniform(Table, frozen=True, kw_only=True, tag_field="kind", tag="uniform"):
    """Drawn evenly from a range.

    Args:
        spread: the range is ``1 - spread`` to ``1 + spread``; 0.2 is plus or minus 20 %. Or
        low_s, high_s: the range.

    Raises:
        ComputeError: neither is given, or both are, or low_s is above high_s.
    """

    spread: Annotated[float, Meta(ge=0, le=1)] | None = None
    low_s: NotNegative | None = None
    high_s: NotNegative | None = None

    def __post_init__(self) -> None:
        _check_keys(self, ("spread",), ("low_s", "high_s"))
        low_s, high_s = self._range
        if low_s > high_s:
            raise ComputeError(
                f"cannot draw a delay from {low_s:g} to {high_s:g} s; give low_s <= high_s"
            )

    @property
    def _range(self) -> tuple[float, float]:
        if self.spread is not None:
            return 1 - self.spread, 1 + self.spread
        assert self.low_s is not None
        assert self.high_s is not None
        return self.low_s, self.high_s

    def quantile(self, share: float) -> float:
        """Return what this share of all draws stays below; ``share`` is in (0, 1)."""
        low, high = self._range
        return low + share * (high - low)


Distribution = Constant | Lognormal | Exponential | Uniform


def _check_keys(table: Table, *alternatives: tuple[str, ...]) -> None:
    """Check that the given keys are exactly those of one alternative."""
    given = tuple(key for key in table.__struct_fields__ if getattr(table, key) is not None)
    if given not in alternatives:
        either = ", or ".join(" and ".join(keys) for keys in alternatives)
        raise ComputeError(f"give {either}, and nothing else")


def drawn_share(what: str, seed: int, site: int, step: int) -> float:
    """Return a number drawn evenly from the open interval (0, 1), fixed by the arguments.

    A hash is a generator without state. It is cheaper to set up than numpy's generators, and does
    not change with numpy's version.
    """
    text = b"%s %d %d %d" % (what.encode(), seed, site, step)
    bits = int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 12
    return (bits + 0.5) * 2.0**-52  # 52 bits and a half are exact, so never 0 and never 1
