"""What the scheduler believes of the network while a run goes on, and the plan that follows.

Pure: time is handed in, seconds since the run began. `Passive` and `Oracle` are the two ways to
learn of it: parameters, as scenario files spell them, that make the `Awareness` of one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Annotated, Literal

from msgspec import Meta

from anabranch._typed_toml import Positive, Seconds, Table
from anabranch.net.messages import LinkRate
from anabranch.net.throughput import Estimate
from anabranch.overlay import Overlay
from anabranch.plan import PathSearch, Plan, steady_rate_bps
from anabranch.scheduler import losses as losing
from anabranch.scheduler._collector import Collector, Latest, equal_rates
from anabranch.scheduler._policy import Planner, Policy, Replan
from anabranch.scheduler._rate_forecast import RateForecast
from anabranch.scheduler.losses import Losses
from anabranch.scheduler.reforming import Reforming
from anabranch.site.meter import Measuring

_ELEMENT_BYTES = 4
_REPORTS_AN_UPDATE = 4  # how often sites report measurements while plans are looked at once
_SAMPLE_S = 5.0  # how far apart, at least, are the looks that the forecast is learnt from


class Awareness:
    """Believes what is measured, and plans again when that makes rounds shorter.

    Args:
        update_time_s: how often to look (UPDATE_TIME).
        policy: decides whether to plan again.
        search: finds auxiliary paths.
        chunk_elements_of: the most elements of a chunk, by the elements of the buffer.
        collector: gathers what is measured, and is taken at its word if it is a `Latest`; None for
            an oracle, which knows the truth.
        truth: the network as it really is, which an oracle goes by.
    """

    def __init__(
        self,
        update_time_s: float,
        policy: Policy | Reforming,
        search: PathSearch,
        chunk_elements_of: Callable[[int], int],
        collector: Collector | Latest | None,
        truth: Overlay,
    ) -> None:
        self.update_time_s = update_time_s
        self._policy = policy
        self._search = self._whole_search = search
        self._chunk_elements_of = chunk_elements_of
        self._collector = collector
        self._truth = truth
        self._forecast = RateForecast(len(truth.links))
        self._looked_s = 0.0

    def go_on(self, losses: Losses, plan: Plan, planner: losing.Planner) -> None:
        """Plan for what is left of the network from now on.

        Args:
            losses: what is not.
            plan: the one in force from now on.
            planner: plans for what is left alone.
        """
        assert isinstance(self._policy, Policy)  # a forest's follows losses by itself
        search = self._whole_search
        self._search = lambda overlay, plan: losses.search(overlay, plan, search)
        self._policy = self._policy.go_on(
            plan,
            lambda overlay, version, previous: losses.plan(overlay, version, planner, previous),
        )

    @property
    def made_for(self) -> Overlay:
        """The network that the plan in force was made for, as it was believed then."""
        return self._policy.made_for

    def measured(self, source: int, target: int, rate: LinkRate, now_s: float) -> None:
        """Take a measurement of a link."""
        if self._collector is not None:
            estimate = Estimate(rate.rate_bps, rate.latency_s, rate.chunks)
            self._collector.measured(source, target, estimate, now_s)

    def belief(self, now_s: float) -> Overlay:
        """Return the network as it is believed to be at a moment."""
        if self._collector is None:
            return self._truth.at(now_s)
        return self._collector.belief(now_s)

    @property
    def measured_links(self) -> frozenset[tuple[int, int]]:
        """The links that were measured, as (source, target)."""
        return frozenset() if self._collector is None else self._collector.measured_links

    def expectation(self, size_bytes: int, now_s: float) -> Overlay:
        """Return the network as it should be on average while the next round lasts.

        An oracle expects what it knows: the overlay's rates and their traces, but not what faults
        do to them. A scheduler that measures expects of each deviation from the typical rate what
        has been seen to last, from its measurement to the round: see
        :mod:`anabranch.scheduler._rate_forecast`. A `Latest` expects what was measured to stay.
        """
        if self._collector is None:
            return self._truth.at(now_s)
        if isinstance(self._collector, Latest):
            return self._collector.belief(now_s)
        if now_s >= self._looked_s + _SAMPLE_S:
            self._forecast.look(self._collector.measured_since(self._looked_s), now_s)
            self._looked_s = now_s
        believed = self._collector.belief(now_s)
        round_s = 8 * size_bytes / steady_rate_bps(self._policy.plan, believed)

        @cache
        def kept(ahead_s: float) -> float:
            return self._forecast.kept(ahead_s)

        return self._collector.belief(now_s, lambda age_s: kept(float(f"{age_s + round_s:.2g}")))

    def consider(self, expected: Overlay, size_bytes: int) -> Replan | None:
        """Return a better plan for what is expected than the one in force, and why.

        Args:
            expected: see ``expectation``.
            size_bytes: of the flat buffer.

        Returns:
            None where there is none.
        """
        chunk_bytes = _ELEMENT_BYTES * self._chunk_elements_of(size_bytes // _ELEMENT_BYTES)
        return self._policy.consider(expected, size_bytes, chunk_bytes)

    def auxiliary(self, expected: Overlay) -> tuple[tuple[int, ...], ...]:
        """Return the auxiliary paths of the plan in force, for what is expected."""
        found = self._search(expected, self._policy.plan)
        return tuple(path for paths in found.values() for path in paths)


class _Looks(Table, frozen=True, kw_only=True):
    """How often plans are looked at, and which change counts."""

    update_time_s: Seconds = 1.0
    update_rate: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    least_gain: Annotated[float, Meta(ge=0, lt=1)] | Literal["none"] | None = None

    def _policy(self, plan: Plan, made_for: Overlay, planner: Planner) -> Policy:
        update_rate = 0.0 if self.update_rate is None else self.update_rate
        least_gain = 0.02 if self.least_gain is None else self.least_gain
        if least_gain == "none":
            least_gain = -math.inf
        return Policy(plan, made_for, planner, update_rate=update_rate, least_gain=least_gain)


class Passive(_Looks, frozen=True, kw_only=True, tag_field="kind", tag="passive"):
    """Measure links by the chunks that cross them anyway, and plan again as they change.

    Args:
        update_time_s: how often plans are looked at, seconds (UPDATE_TIME; the paper's is 5).
            Where a look takes long, the pause after it is at least twenty times that. How long
            rates last is learnt from looks at least 5 s apart.
        update_rate: how much a link's rate must have changed to count, relative (UPDATE_RATE); in a
            forest, or a site's time to compute. If not given 0, and in a forest 0.1.
        least_gain: how much shorter a round must get, relative, for a new plan to be taken; with
            ``none`` every plan is that differs from the one in force, as in the paper (NetStorm,
            VIII-B). In a forest, how many more updates a second its workers must make, relative,
            with eq. 14 of HAAF no more. If not given 0.02, and in a forest 0.1.
        start: what is believed of links before they are measured: what the overlay says, or that
            all are ``equal``.
        belief: what is believed of links once they are: a ``forecast`` for the next round, see
            :mod:`anabranch.scheduler._collector` and :mod:`anabranch.scheduler._rate_forecast`; or
            the ``latest`` measurement of each, as in the paper (NetStorm, Algorithm 2, line 1),
            and the start's rate for a link that has none.
        estimator: ``busy-period`` tells the rate from latency and queueing; ``chunk-mean`` is the
            paper's (NetStorm, eq. 14).
        probe_chunk_elements: for ``chunk-mean``: smaller chunks are not measured
            (PROBE_CHUNK_SIZE); None for a quarter of the largest chunk: of a scenario's buffer, or
            of the model that a group serves; in other groups of what chunks have at least.
        probe_chunks: for ``chunk-mean``: how many chunks an estimate is made of (PROBE_CHUNK_NUM).
    """

    start: Literal["overlay", "equal"] = "overlay"
    belief: Literal["forecast", "latest"] = "forecast"
    estimator: Literal["busy-period", "chunk-mean"] = "busy-period"
    probe_chunk_elements: Positive | None = None
    probe_chunks: Positive = 4

    def believed(self, overlay: Overlay) -> Overlay:
        """Return what is believed of the network before a run."""
        return equal_rates(overlay) if self.start == "equal" else overlay

    def measuring(self) -> Measuring:
        """Return how each site measures its links."""
        return Measuring(
            estimator=self.estimator,
            probe_elements=self.probe_chunk_elements,
            probe_chunks=self.probe_chunks,
            report_interval_s=self.update_time_s / _REPORTS_AN_UPDATE,
        )

    def awareness(
        self,
        plan: Plan,
        planner: Planner,
        search: PathSearch,
        chunk_elements_of: Callable[[int], int],
        overlay: Overlay,
        reforming: Reforming | None = None,
    ) -> Awareness:
        """Return what follows one run.

        Args:
            plan: that the run begins with, made for what is believed before it.
            planner: plans again.
            search: finds a plan's auxiliary paths.
            chunk_elements_of: the most elements of a chunk, by the elements of the buffer.
            overlay: the network; traced links have their rate of time 0 before the run.
            reforming: plans again instead, where sites form a forest.
        """
        believed = self.believed(overlay).at(0.0)
        collector: Collector | Latest
        if self.belief == "latest":
            collector = Latest(believed)
        else:
            since_s = 0.0 if self.start == "overlay" else -math.inf
            collector = Collector(believed, since_s=since_s)
        return Awareness(
            self.update_time_s,
            reforming or self._policy(plan, believed, planner),
            search,
            chunk_elements_of,
            collector,
            overlay,
        )


class Oracle(_Looks, frozen=True, kw_only=True, tag_field="kind", tag="oracle"):
    """Know every link's true rate at every moment: what awareness can be compared with.

    Args:
        update_time_s, update_rate, least_gain: as for ``passive``.
    """

    def believed(self, overlay: Overlay) -> Overlay:
        """Return what is believed of the network before a run."""
        return overlay

    def awareness(
        self,
        plan: Plan,
        planner: Planner,
        search: PathSearch,
        chunk_elements_of: Callable[[int], int],
        overlay: Overlay,
        reforming: Reforming | None = None,
    ) -> Awareness:
        """Return what follows one run.

        Args:
            plan: that the run begins with, made for what is believed before it.
            planner: plans again.
            search: finds a plan's auxiliary paths.
            chunk_elements_of: the most elements of a chunk, by the elements of the buffer.
            overlay: the network; traced links have their rate of time 0 before the run.
            reforming: plans again instead, where sites form a forest.
        """
        policy = reforming or self._policy(plan, overlay.at(0.0), planner)
        return Awareness(self.update_time_s, policy, search, chunk_elements_of, None, overlay)


AnyAwareness = Passive | Oracle
