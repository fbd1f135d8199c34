"""A scenario's ``[compute]``, and the model made from it.

Every draw depends on the seed, the site and the step alone. So it is the same in any order of the
sites' steps, and in a simulation as in a real run.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from anabranch._typed_toml import Table, listed, nearest
from anabranch.fleet._distributions import Distribution, NotNegative, drawn_share
from anabranch.fleet._errors import ComputeError
from anabranch.fleet._slowdowns import STEADY, Slowdowns
from anabranch.fleet._speeds import uneven_samples_per_s

_Speed = Annotated[float, Meta(gt=0, le=sys.float_info.max)]


class SiteCompute(Table, frozen=True, kw_only=True):
    """A site that differs from the others; a key that is None takes the value of ``[compute]``.

    Args:
        samples_per_s: samples that this site processes in a second.
        fixed_s: seconds of work in each step, beside its samples'.
        jitter: a random factor of its work.
        added_delay: a wait after each step.
        slowdowns: how its speed changes during the run.
    """

    samples_per_s: _Speed | None = None
    fixed_s: NotNegative | None = None
    jitter: Distribution | None = None
    added_delay: Distribution | None = None
    slowdowns: Slowdowns | None = None


class Compute(Table, frozen=True, kw_only=True):
    """A scenario's ``[compute]``: how long a step takes at each site.

    Args:
        samples_per_s: samples that each site processes in a second; the mean of all sites where
            ``gini`` > 0. None where a step takes ``fixed_s`` alone, whatever its samples.
        gini: the Gini coefficient of the sites' speeds, and of their seconds for a sample; see
            `uneven_samples_per_s`. 0: all sites are equally fast.
        fixed_s: seconds of work in each step, beside its samples'.
        jitter: how a step's work varies around its mean; None for no variation.
        added_delay: a wait after each step; None for no wait.
        sites: the sites that differ, by name.
    """

    samples_per_s: _Speed | None = None
    gini: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    fixed_s: NotNegative = 0.0
    jitter: Distribution | None = None
    added_delay: Distribution | None = None
    sites: dict[str, SiteCompute] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Site:
    """One site's values, with the defaults filled in."""

    samples_per_s: float
    fixed_s: float
    jitter: Distribution | None
    added_delay: Distribution | None
    slowdowns: Slowdowns


class ComputeModel:
    """How long each step takes at each site.

    Args:
        table: the scenario's ``[compute]``.
        sites: the names of all sites, in order of index.
        seed: of the fleet's speeds and of every draw.

    Raises:
        ComputeError: the table's ``sites`` name an unknown site, the Gini coefficient is impossible
            for so few sites, or a site gives its own speed beside a Gini coefficient.

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
        speeds: Sequence[float] = [math.inf] * len(sites)
        if table.samples_per_s is not None:
            try:
                speeds = uneven_samples_per_s(len(sites), table.samples_per_s, table.gini, seed)
            except ComputeError as error:
                raise ComputeError(f"compute.gini: {error}") from None
        self._seed = seed
        self._sites = tuple(
            _resolve(table, table.sites.get(name), speed)
            for name, speed in zip(sites, speeds, strict=True)
        )

    def work_s(self, site: int, step: int, samples: int) -> float:
        """Return a step's work, seconds at nominal speed, jitter included.

        Args:
            site: its index.
            step: counted from 0; with the seed and the site it fixes the jitter, which is thus the
                same for any batch.
            samples: the step's batch.
        """
        own = self._sites[site]
        work_s = own.fixed_s + samples / own.samples_per_s
        if own.jitter is None:
            return work_s
        return work_s * own.jitter.quantile(drawn_share("jitter", self._seed, site, step))

    def mean_s(self, site: int, samples: int) -> float:
        """Return the seconds of a step at a site, without jitter, delay and slowdowns."""
        own = self._sites[site]
        return own.fixed_s + samples / own.samples_per_s

    def added_s(self, site: int, step: int) -> float:
        """Return the delay added after a step's work, s, which no slowdown stretches."""
        delay = self._sites[site].added_delay
        if delay is None:
            return 0.0
        return delay.quantile(drawn_share("delay", self._seed, site, step))

    def slowdowns(self, site: int) -> Slowdowns:
        """Return how a site's speed changes during the run."""
        return self._sites[site].slowdowns

    def step_s(self, site: int, step: int, samples: int, start_s: float) -> float:
        """Return the seconds of a step: its work, stretched from ``start_s`` on, and its delay.

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
