"""Estimates the rates of a site's incoming links, from the chunks that arrive over them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from anabranch.net.messages import LinkRate
from anabranch.net.throughput import (
    Arrival,
    BusyPeriodEstimator,
    ChunkMeanEstimator,
    Estimator,
)

_ELEMENT_BYTES = 4


class Measuring(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings by which a site measures its links; the scheduler sends them.

    Attributes:
        estimator: see :class:`anabranch.scheduler.awareness.Passive`.
        probe_elements: for ``chunk-mean``: smaller chunks are not measured; None for a quarter of
            the largest chunk.
        probe_chunks: for ``chunk-mean``: the number of chunks per estimate.
        report_interval_s: the least interval between reports, seconds.
        burst_bytes: the most bytes of a burst over each link as the group begins; 0 for no bursts.
    """

    estimator: Literal["busy-period", "chunk-mean"]
    probe_elements: int | None
    probe_chunks: int
    report_interval_s: float
    burst_bytes: int = 0

    def meter(self, chunk_elements: int) -> Meter:
        """Return a meter for the links of one site.

        Args:
            chunk_elements: the elements of the largest chunk.
        """
        probe_bytes = _ELEMENT_BYTES * (self.probe_elements or max(1, chunk_elements // 4))
        return Meter(
            BusyPeriodEstimator
            if self.estimator == "busy-period"
            else partial(ChunkMeanEstimator, probe_bytes, self.probe_chunks),
            self.report_interval_s,
            self.burst_bytes,
        )


class Meter:
    """Estimates each link's rate, and collects new estimates for the next report.

    Args:
        make_estimator: makes the estimator of one link.
        interval_s: the least interval between reports, seconds.
        burst_bytes: see :class:`Measuring`.

    Attributes:
        burst_bytes: see above.
        latest: the latest estimate of each link, by its source.
    """

    def __init__(
        self, make_estimator: Callable[[], Estimator], interval_s: float, burst_bytes: int = 0
    ) -> None:
        self.burst_bytes = burst_bytes
        self._round_trips_s: dict[int, float] = {}  # by neighbour
        self._make_estimator = make_estimator
        self._interval_s = interval_s
        self._estimators: dict[int, Estimator] = {}
        self._new: dict[int, LinkRate] = {}
        self.latest: dict[int, LinkRate] = {}
        self._reported_s: float | None = None

    def arrived(self, source: int, arrival: Arrival) -> tuple[LinkRate, ...]:
        """Add a chunk's arrival; return the estimates to report now, often none.

        Args:
            source: the neighbour that sent the chunk.
            arrival: when the chunk left and arrived.
        """
        if source not in self._estimators:
            self._estimators[source] = self._make_estimator()
        estimate = self._estimators[source].arrived(arrival)
        if estimate is None:
            return ()
        latency_s = estimate.latency_s
        if latency_s is None and source in self._round_trips_s:
            latency_s = self._round_trips_s[source] / 2
        rate = LinkRate(source, estimate.rate_bps, latency_s, estimate.chunks)
        self._new[source] = self.latest[source] = rate
        now_s = arrival.received_s
        if self._reported_s is not None and 0 <= now_s - self._reported_s < self._interval_s:
            return ()
        self._reported_s = now_s
        new, self._new = self._new, {}
        return tuple(new.values())

    def hear_burst(self, rate: LinkRate, round_trip_s: float) -> None:
        """Take what a burst shows of a link, and the round trip over it."""
        self._round_trips_s[rate.source] = round_trip_s
        self.latest[rate.source] = rate
