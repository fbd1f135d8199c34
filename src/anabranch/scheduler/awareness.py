"""What the scheduler believes of the network while a run goes on, and the plan that follows.

Pure: time is handed in, seconds since the run began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anabranch.net.messages import LinkRate
from anabranch.net.throughput import Estimate
from anabranch.overlay import Overlay
from anabranch.plan import Plan
from anabranch.scheduler.collector import Collector
from anabranch.scheduler.policy import Policy, Replan

Search = Callable[[Overlay, Plan], Mapping[tuple[int, int], tuple[tuple[int, ...], ...]]]
"""Finds a plan's auxiliary paths on an overlay."""


class Awareness:
    """Believes what is measured, and plans again when that makes rounds shorter.

    Args:
        update_time_s: how often to look (UPDATE_TIME).
        policy: decides whether to plan again.
        search: finds auxiliary paths.
        chunk_bytes: the most bytes of a chunk.
        collector: gathers what is measured; None for an oracle, which knows the truth.
        truth: the network as it really is, which an oracle goes by.
    """

    def __init__(
        self,
        update_time_s: float,
        policy: Policy,
        search: Search,
        chunk_bytes: int,
        collector: Collector | None,
        truth: Overlay,
    ) -> None:
        self.update_time_s = update_time_s
        self._policy = policy
        self._search = search
        self._chunk_bytes = chunk_bytes
        self._collector = collector
        self._truth = truth

    def measured(self, source: int, target: int, rate: LinkRate, now_s: float) -> None:
        """Take a measurement of a link."""
        if self._collector is not None:
            estimate = Estimate(rate.rate_bps, rate.latency_s, rate.chunks)
            self._collector.measured(source, target, estimate, now_s)

    def belief(self, now_s: float) -> Overlay:
        """Return the network as it is believed to be."""
        if self._collector is None:
            return self._truth.at(now_s)
        return self._collector.belief(now_s)

    def consider(self, size_bytes: int, now_s: float) -> Replan | None:
        """Return a better plan than the one in force, and why; None where there is none."""
        return self._policy.consider(self.belief(now_s), size_bytes, self._chunk_bytes)

    def auxiliary(self, now_s: float) -> tuple[tuple[int, ...], ...]:
        """Return the auxiliary paths of the plan in force, as things are now."""
        found = self._search(self.belief(now_s), self._policy.plan)
        return tuple(path for paths in found.values() for path in paths)
