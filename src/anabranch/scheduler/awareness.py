"""The scheduler's belief about the network during a run, and the plans that follow. Pure.

Measurements become plans in four steps. Each step keeps one state::

    Measured ─▶ Collector ──belief──▶ RateForecast ──expectation──▶ Policy ──▶ a better plan
                what each link        what will hold for            compares it with
                is believed to carry  the length of a round         the plan in force

- Sites report rates of the links that their chunks crossed (:meth:`Awareness.measured`).
- The **belief** is of this moment. A measurement fades as it ages (`_collector`).
- The **expectation** is the average of the next round. It moves each rate towards the typical one,
  further the less past deviations lasted (`_rate_forecast`). A steady network is expected as it is.
- The **policy** makes a plan for the expectation, if a link has changed enough. The plan is taken
  if it makes a round shorter by enough (`_policy`), or in a forest, updates more frequent
  (`reforming`).

`_replan_loop` chooses the times of this. After a loss, :meth:`Awareness.go_on` gives the policy the
plan for the rest, and keeps the measurements.

`Passive` and `Oracle` are the parameters, as scenario files spell them. An oracle has no collector:
it knows the overlay's rates and traces at every moment, but not what faults do to them.

What must never happen:

- one outlier moves a plan, or a link that was slow once is never tried again (`_collector`);
- plans alternate because of noise (``least_gain``).

Times are arguments, in seconds since the run began.
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
_REPORTS_AN_UPDATE = 4  # reports of a site for each look at plans
_SAMPLE_S = 5.0  # least distance of the looks from which the forecast learns


class Awareness:
    """The belief of one run's network, and the comparison of its plans.

    Args:
        update_time_s: how often to look (UPDATE_TIME).
        policy: holds the plan in force, and decides when to replace it.
        search: finds auxiliary paths.
        chunk_elements_of: returns the most elements of a chunk, for the elements of a buffer.
        collector: keeps the measurements; a `Latest` is used without a forecast. None for an
            oracle.
        truth: the overlay, with its traces: the belief of an oracle.
        begins_with_bursts: whether bursts measure links as the run begins.

    Attributes:
        begins_with_bursts: see above.
    """

    def __init__(
        self,
        update_time_s: float,
        policy: Policy | Reforming,
        search: PathSearch,
        chunk_elements_of: Callable[[int], int],
        collector: Collector | Latest | None,
        truth: Overlay,
        begins_with_bursts: bool = False,
    ) -> None:
        self.begins_with_bursts = begins_with_bursts
        self.update_time_s = update_time_s
        self._policy = policy
        self._search = self._whole_search = search
        self._chunk_elements_of = chunk_elements_of
        self._collector = collector
        self._truth = truth
        self._forecast = RateForecast(len(truth.links))
        self._looked_s = 0.0

    def go_on(self, losses: Losses, plan: Plan, planner: losing.Planner) -> None:
        """Compare plans without lost sites and links from now on.

        Args:
            losses: the lost sites and links.
            plan: the plan in force from now on.
            planner: plans for the network without them.
        """
        assert isinstance(self._policy, Policy)  # the pace tells a Reforming of losses
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

    def rebase(self, now_s: float) -> None:
        """Compare later beliefs with the present one; the next plan is made for it."""
        if isinstance(self._policy, Policy):
            self._policy.rebase(self.belief(now_s))

    def measured(self, source: int, target: int, rate: LinkRate, now_s: float) -> None:
        """Take a measurement of a link."""
        if self._collector is not None:
            estimate = Estimate(rate.rate_bps, rate.latency_s, rate.chunks)
            self._collector.measured(source, target, estimate, now_s)

    def belief(self, now_s: float) -> Overlay:
        """Return the network as believed at a moment."""
        if self._collector is None:
            return self._truth.at(now_s)
        return self._collector.belief(now_s)

    @property
    def measured_links(self) -> frozenset[tuple[int, int]]:
        """The links that were measured, as (source, target)."""
        return frozenset() if self._collector is None else self._collector.measured_links

    def expectation(self, size_bytes: int, now_s: float) -> Overlay:
        """Return the network as expected on average during the next round.

        An oracle expects the overlay's rates at this moment. A `Latest` expects the last
        measurements. A `Collector`'s belief is moved towards the typical rate. Each deviation keeps
        the part that usually lasts from its measurement to the end of the round. See
        :mod:`anabranch.scheduler._rate_forecast`.

        Args:
            size_bytes: of the flat buffer, from which the length of a round follows.
            now_s: the time.
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

        # Two digits of the time ahead are enough, so that links of similar age share one result.
        @cache
        def kept(ahead_s: float) -> float:
            return self._forecast.kept(ahead_s)

        return self._collector.belief(now_s, lambda age_s: kept(float(f"{age_s + round_s:.2g}")))

    def consider(self, expected: Overlay, size_bytes: int) -> Replan | None:
        """Return a better plan than the one in force, and why; None if there is none.

        Args:
            expected: what ``expectation`` returned.
            size_bytes: of the flat buffer.
        """
        chunk_bytes = _ELEMENT_BYTES * self._chunk_elements_of(size_bytes // _ELEMENT_BYTES)
        return self._policy.consider(expected, size_bytes, chunk_bytes)

    def auxiliary(self, expected: Overlay) -> tuple[tuple[int, ...], ...]:
        """Return the best auxiliary paths of the plan in force on the expected network."""
        found = self._search(expected, self._policy.plan)
        return tuple(path for paths in found.values() for path in paths)


class _Looks(Table, frozen=True, kw_only=True):
    """How often plans are compared, and which change counts."""

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

    With ``start="burst"``, links carry filler as well, but only as the group begins.

    Args:
        update_time_s: how often plans are compared, seconds (UPDATE_TIME; the paper's is 5). If a
            look takes long, the pause after it is at least twenty times that. The forecast learns
            from looks at least 5 s apart.
        update_rate: the least relative change of a link's rate that counts (UPDATE_RATE). In a
            forest it holds for a site's compute time, too. Default 0, and 0.1 in a forest.
        least_gain: how much shorter a new plan must make a round, relative. With ``none``, every
            plan that differs from the one in force is taken, as in the paper (NetStorm, VIII-B).
            In a forest: how many more updates a second its workers must make, relative, while eq.
            14 of HAAF does not grow. Default 0.02, and 0.1 in a forest.
        start: the belief of links before they are measured: the ``overlay``'s rates, or ``equal``
            rates. With ``burst``, rates are equal until a burst over each link has measured it,
            before the first exchange, see :mod:`anabranch.site._bursts`.
        burst_bytes: the most bytes of such a burst; it also ends after a second.
        belief: the belief of links after that. A ``forecast`` for the next round, see
            :mod:`anabranch.scheduler._collector` and :mod:`anabranch.scheduler._rate_forecast`. Or
            the ``latest`` measurement of each, and the start's rate for a link without one, as in
            the paper (NetStorm, Algorithm 2, line 1).
        estimator: ``busy-period`` tells the rate from latency and queueing; ``chunk-mean`` is the
            paper's (NetStorm, eq. 14).
        probe_chunk_elements: for ``chunk-mean``: smaller chunks are not measured
            (PROBE_CHUNK_SIZE). None is a quarter of the largest chunk, of a scenario's buffer or of
            a group's served model. In other groups it is a quarter of the chunks' least size.
        probe_chunks: for ``chunk-mean``: the number of chunks for an estimate (PROBE_CHUNK_NUM).
    """

    start: Literal["overlay", "equal", "burst"] = "overlay"
    burst_bytes: Positive = 8_000_000
    belief: Literal["forecast", "latest"] = "forecast"
    estimator: Literal["busy-period", "chunk-mean"] = "busy-period"
    probe_chunk_elements: Positive | None = None
    probe_chunks: Positive = 4

    def believed(self, overlay: Overlay) -> Overlay:
        """Return the belief of the network before a run."""
        return overlay if self.start == "overlay" else equal_rates(overlay)

    def measuring(self) -> Measuring:
        """Return how each site measures its links."""
        return Measuring(
            estimator=self.estimator,
            probe_elements=self.probe_chunk_elements,
            probe_chunks=self.probe_chunks,
            report_interval_s=self.update_time_s / _REPORTS_AN_UPDATE,
            burst_bytes=self.burst_bytes if self.start == "burst" else 0,
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
        """Return the awareness of one run.

        Args:
            plan: the first plan, made for the belief before the run.
            planner: makes further plans.
            search: finds a plan's auxiliary paths.
            chunk_elements_of: returns the most elements of a chunk, for the elements of a buffer.
            overlay: the network; traced links have their rate of time 0 before the run.
            reforming: makes further plans instead, where sites form a forest.
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
            self.start == "burst",
        )


class Oracle(_Looks, frozen=True, kw_only=True, tag_field="kind", tag="oracle"):
    """Know every link's true rate at every moment: the reference for passive awareness.

    Args:
        update_time_s, update_rate, least_gain: as for ``passive``.
    """

    def believed(self, overlay: Overlay) -> Overlay:
        """Return the belief of the network before a run."""
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
        """Return the awareness of one run.

        Args:
            plan: the first plan, made for the belief before the run.
            planner: makes further plans.
            search: finds a plan's auxiliary paths.
            chunk_elements_of: returns the most elements of a chunk, for the elements of a buffer.
            overlay: the network; traced links have their rate of time 0 before the run.
            reforming: makes further plans instead, where sites form a forest.
        """
        policy = reforming or self._policy(plan, overlay.at(0.0), planner)
        return Awareness(self.update_time_s, policy, search, chunk_elements_of, None, overlay)


AnyAwareness = Passive | Oracle
