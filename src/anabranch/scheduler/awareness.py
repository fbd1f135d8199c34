"""What the scheduler believes of the network while a run goes on, and the plan that follows.

Pure: time is handed in, seconds since the run began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from anabranch.net.messages import LinkRate
from anabranch.net.throughput import Estimate
from anabranch.overlay import Overlay
from anabranch.plan import Plan, steady_rate_bps
from anabranch.scheduler.collector import Collector
from anabranch.scheduler.policy import Policy, Replan
from anabranch.scheduler.rate_forecast import RateForecast

_ELEMENT_BYTES = 4
_SAMPLE_S = 5.0  # how far apart, at least, are the looks that persistence is learnt from

Search = Callable[[Overlay, Plan], Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]]
"""Finds a plan's auxiliary paths on an overlay."""


class Awareness:
    """Believes what is measured, and plans again when that makes rounds shorter.

    Args:
        update_time_s: how often to look (UPDATE_TIME).
        policy: decides whether to plan again.
        search: finds auxiliary paths.
        chunk_elements_of: the most elements of a chunk, by the elements of the buffer.
        collector: gathers what is measured; None for an oracle, which knows the truth.
        truth: the network as it really is, which an oracle goes by.
    """

    def __init__(
        self,
        update_time_s: float,
        policy: Policy,
        search: Search,
        chunk_elements_of: Callable[[int], int],
        collector: Collector | None,
        truth: Overlay,
    ) -> None:
        self.update_time_s = update_time_s
        self._policy = policy
        self._search = search
        self._chunk_elements_of = chunk_elements_of
        self._collector = collector
        self._truth = truth
        self._forecast = RateForecast(len(truth.links))
        self._looked_s = 0.0

    @property
    def made_for(self) -> Overlay:
        """The network that the plan in force was made for, as it was believed then."""
        return self._policy.made_for

    def measured(self, source: int, target: int, rate: LinkRate, now_s: float) -> None:
        """Take a measurement of a link."""
        if self._collector is not None:
            estimate = Estimate(rate.rate_bps, rate.latency_s, rate.chunks)
            self._collector.measured(source, target, estimate, now_s)

    def expectation(self, size_bytes: int, now_s: float) -> Overlay:
        """Return the network as it should be on average while the next round lasts.

        An oracle expects what it knows: the overlay's rates and their traces, but not what faults
        do to them. Whoever measures expects of each deviation from the typical rate what has been
        seen to last, from its measurement to the round: see
        :mod:`anabranch.scheduler.rate_forecast`.
        """
        if self._collector is None:
            return self._truth.at(now_s)
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
