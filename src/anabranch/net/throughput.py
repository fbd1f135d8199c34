"""Estimates a link's rate and latency, from chunks that cross it anyway. Pure: times are passed in.

The receiving end of each directed link keeps one estimator, and passes it every arriving message.
A link is a queue that serves in order. Let R be its rate, and d its *base delay*: the latency plus
the difference of the two clocks. The i-th message is received completely at

    received_i = max(sent_i + d, received_(i-1)) + size_i / R        (Lindley 1952),

or later if the receiver was busy. It then catches up, because the kernel buffers arriving data.
``sent`` is when sending began. While the queue is not empty, ``sent`` runs ahead of the wire by all
data in the sender's kernel. So ``received - sent`` of such a message tells nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from statistics import median
from typing import Protocol

from anabranch.net._envelope import Point, lateness, least_late_slope


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message's passage over one link.

    Args:
        sent_s: when its sending began, on the sender's clock.
        received_s: when its last byte arrived, on the receiver's clock.
        size_bytes: its total size, > 0.
        backlogged: whether the sender's lane sent without a pause since the message before.
        offset_s: estimate of the receiver's clock minus the sender's; 0.0 if unknown.
        begun_s: when its head arrived, on the receiver's clock; None where messages arrive whole.
            The transmission time of a head is taken as 0.
    """

    sent_s: float
    received_s: float
    size_bytes: int
    backlogged: bool
    offset_s: float = 0.0
    begun_s: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate of a link's rate and latency.

    Args:
        rate_bps: payload rate, bit/s, of the link or of the lane's share of it.
        latency_s: one way, seconds, as accurate as the arrivals' ``offset_s``; None if unknown.
        chunks: the number of arrivals behind it.
    """

    rate_bps: float
    latency_s: float | None
    chunks: int


class Estimator(Protocol):
    """Watches one directed link."""

    def arrived(self, arrival: Arrival) -> Estimate | None:
        """Add a message, in order of arrival; return a new estimate, or None for none."""


def burst_rate_bps(arrivals: Sequence[tuple[float, int]]) -> float | None:
    """Return the rate of a burst's second half, since a TCP connection begins slowly.

    Args:
        arrivals: when each chunk had arrived, seconds, and its bytes; in order.

    Returns:
        None where the burst is too short to tell.

    >>> burst_rate_bps([(0.0, 10), (1.0, 10), (1.5, 10), (2.0, 10)])
    160.0
    """
    half = sum(size for _, size in arrivals) / 2
    before = 0
    for place, (at_s, size) in enumerate(arrivals):
        before += size
        if before >= half:
            took_s = arrivals[-1][0] - at_s
            later = sum(size for _, size in arrivals[place + 1 :])
            return 8 * later / took_s if later and took_s > 0 else None
    return None


class ChunkMeanEstimator:
    """The mean of size / (received - sent) over a few large chunks (NetStorm, eq. 14).

    Each estimate uses new chunks. Latency, queues and clock errors reduce the estimated rate
    (`docs/mechanisms/awareness.md`). A chunk that seems to arrive before it left is skipped, since
    eq. 14 is undefined for it.

    Args:
        probe_chunk_bytes: the least size of a chunk that counts (``PROBE_CHUNK_SIZE``), >= 0.
        probe_chunks: the number of chunks per estimate (``PROBE_CHUNK_NUM``), >= 1.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(self, probe_chunk_bytes: int, probe_chunks: int) -> None:
        if probe_chunk_bytes < 0 or probe_chunks < 1:
            raise ValueError(
                f"cannot average {probe_chunks} chunks of {probe_chunk_bytes} bytes or more; give "
                "probe_chunks >= 1 and probe_chunk_bytes >= 0"
            )
        self._probe_chunk_bytes = probe_chunk_bytes
        self._probe_chunks = probe_chunks
        self._rates_bps: list[float] = []

    def arrived(self, arrival: Arrival) -> Estimate | None:
        """See :class:`Estimator`."""
        took_s = arrival.received_s - arrival.sent_s - arrival.offset_s
        if arrival.size_bytes < self._probe_chunk_bytes or took_s <= 0:
            return None
        self._rates_bps.append(8 * arrival.size_bytes / took_s)
        if len(self._rates_bps) < self._probe_chunks:
            return None
        rates_bps, self._rates_bps = self._rates_bps, []
        return Estimate(sum(rates_bps) / len(rates_bps), None, len(rates_bps))


# The largest mean lateness of a window's chunks behind the estimated rate, as a fraction of the
# window's busy time. With more, the rate is changing or the receiver was busy.
_DOUBTFUL = 0.05
# The same for learning the base delay: stricter, because a wrong one would be remembered.
_CLEAN = 0.02
# The link was idle between two chunks if their gap is so many times a chunk's transfer time.
_RESTED = 1.05
# The least number of base delays before one is believed. More than half of them must agree within
# this fraction of a chunk's transfer time.
_LEAST_FINDINGS = 3
_WIDE = 0.05
# How late a process may notice a head, seconds.
_LATE_S = 1e-4
# The largest ratio of the slopes found without the smallest and without the largest chunk.
_LIKE = 1.1
# How long base delays are remembered, how many, and the largest relative drift of two clocks.
_REMEMBER_S = 60.0
_REMEMBERED = 16
_DRIFT = 2e-4


class BusyPeriodEstimator:
    """Estimates the rate from the spacing of chunks in busy periods, and d from how these begin.

    **Rate.** In a busy period the link is never idle. So receive times rise by size / R, whatever
    the clocks, the latency and the sender's kernel do. All busy periods in the window share the
    slope 1 / R. The estimate is the slope under which the chunks have the least total lateness
    (:mod:`anabranch.net._envelope`). So a pause of the receiver, once it has caught up, has no
    effect. A lane that shares its link measures its share while other lanes send.

    **Base delay.** A chunk sent on an idle link shows d + size / R. Busy periods, or such chunks of
    different sizes, give the rate, and the rest is d. Without a rate, the heads of chunks show d,
    if they go ahead of the payloads and are noticed in time. Values of d are remembered for a
    minute, and corrected for the drift of the clocks. A kernel that still drains makes a value too
    large, and a rate that just changed makes one too small. So d is the value on which most of at
    least three agree; a head that arrived even earlier overrides it. With d, an isolated chunk is a
    busy period. So a link with short busy periods is measured too, and so is one whose lane pauses
    while its kernel drains.

    ``offset_s`` affects ``latency_s`` only. An error of a few ms would spoil the rate of a fast
    link, and the base delay contains the true difference of the clocks anyway. The clocks must run
    evenly (monotonic clocks), but need not be right.

    **Window.** It has the last ``window_chunks`` arrivals, or all of the last ``window_s`` if these
    are more: on a fast link eight chunks arrive within one pause of the receiver. An estimate needs
    half a window of new chunks, and a quarter of ``window_s`` since the last attempt. While the
    chunks contradict each other there is no estimate, unless that lasts for several windows. So a
    changed rate is reported once the window contains no chunks of the old rate: mostly within
    ``window_chunks + 1`` chunks or ``window_s``, whichever is later.

    **Limits.** Chunks of one size that always arrive alone, and whole, show only d + size / R. Then
    there is no estimate, with two exceptions: ``latency_s`` and a right ``offset_s`` give d, or a
    message of at most half that size passes now and then.

    Args:
        window_chunks: the number of arrivals per estimate, >= 4.
        window_s: the least duration of a window with more arrivals, seconds, >= 0.
        latency_s: the link's latency if known for certain; None to learn it.

    Raises:
        ValueError: an argument outside its range.
    """

    def __init__(
        self, *, window_chunks: int = 8, window_s: float = 0.5, latency_s: float | None = None
    ) -> None:
        if window_chunks < 4 or not window_s >= 0:
            raise ValueError(
                f"a window of {window_chunks} chunks and {window_s:g} s measures nothing; give "
                "window_chunks >= 4 and window_s >= 0"
            )
        self._window_chunks = window_chunks
        self._window_s = window_s
        self._latency_s = latency_s
        self._window: deque[Arrival] = deque()
        self._before_s = -math.inf  # time of the latest arrival that is out of the window
        self._fresh = 0  # arrivals since the last estimate
        self._reported_s = 0.0  # time of the last estimate, or of the first arrival
        self._looked_s = -math.inf  # time of the last attempt to estimate
        self._bases: deque[Point] = deque(maxlen=_REMEMBERED)  # (received_s, base delay)
        self._transfer_s = 0.0  # a chunk's transfer time at the latest base delay

    def arrived(self, arrival: Arrival) -> Estimate | None:
        """See :class:`Estimator`."""
        now_s = arrival.received_s
        window = self._window
        if window and now_s < window[-1].received_s:  # the clock was set back
            window.clear()
            self._bases.clear()
            self._before_s, self._fresh = -math.inf, 0
        if not window:
            self._reported_s, self._looked_s = now_s, now_s
        window.append(arrival)
        self._fresh += 1
        while len(window) > self._window_chunks and window[0].received_s <= now_s - self._window_s:
            self._before_s = window.popleft().received_s
        soon = now_s < self._looked_s + self._window_s / 4
        few = len(window) < self._window_chunks or self._fresh < self._window_chunks // 2
        if soon or few:
            return None
        self._looked_s = now_s
        self._learn_base()
        base_s = self._base_s(now_s, arrival.offset_s)
        # Contradictions that last for several windows are noise: tolerate more of them then.
        windows = min(
            self._fresh / self._window_chunks,
            (now_s - self._reported_s) / self._window_s if self._window_s else math.inf,
        )
        slope = _slope_s_per_byte(self._busy_periods(base_s), _DOUBTFUL * max(1.0, windows))
        if slope is None:
            return None
        self._fresh = 0
        self._reported_s = now_s
        latency_s = None if base_s is None else base_s - arrival.offset_s
        if latency_s is not None and latency_s < 0:
            latency_s = None  # the clocks' offset is too inaccurate
        return Estimate(8 / slope, latency_s, len(window))

    def _busy_periods(self, base_s: float | None) -> list[list[Point]]:
        """Return the window's busy periods, each as points (bytes carried so far, time).

        Without a base delay two things are unknown: when a busy period began, and whether the link
        was still busy when the lane sent a chunk after a pause. Each such chunk then begins a new
        period.
        """
        periods: list[list[Point]] = []
        carried_bytes = 0.0
        last_s = self._before_s
        for arrival in self._window:
            idle = not arrival.backlogged
            begin_s = None if base_s is None else arrival.sent_s + base_s
            if begin_s is not None and arrival.begun_s is not None:
                begin_s = min(begin_s, arrival.begun_s)  # the remembered base delay is too large
            if idle and begin_s is not None:
                idle = begin_s > last_s
            if idle or not periods:
                periods.append([])
                if idle and begin_s is not None:
                    periods[-1].append((carried_bytes, begin_s))
            carried_bytes += arrival.size_bytes
            periods[-1].append((carried_bytes, arrival.received_s))
            last_s = arrival.received_s
        return periods

    def _learn_base(self) -> None:
        if self._latency_s is not None:
            return
        finding = self._from_rest() or self._from_heads()
        if finding is not None:
            at_s, base_s, self._transfer_s = finding
            if not self._bases or self._bases[-1][0] < at_s:
                self._bases.append((at_s, base_s))

    def _from_rest(self) -> tuple[float, float, float] | None:
        """Return (time, base delay, a chunk's transfer time) from chunks that met an idle link."""
        alone = _alone(self._rested(None))
        groups = self._busy_periods(None)
        slope = _slope_s_per_byte([*groups, alone] if alone else groups, _CLEAN)
        if slope is None:
            return None
        rested = self._rested(slope)
        # A chunk without a follower shows no rate, unless chunks differ in size.
        tell = bool(_alone(rested))
        findings = [
            (arrival.received_s - arrival.sent_s - slope * arrival.size_bytes, arrival.received_s)
            for arrival, followed in rested
            if followed or tell
        ]
        if not findings:
            return None
        base_s, at_s = min(findings)  # the least: jitter and a busy receiver only add
        return at_s, base_s, slope * median(arrival.size_bytes for arrival in self._window)

    def _from_heads(self) -> tuple[float, float, float] | None:
        """Return the same from the quickest heads, if three agree."""
        heads = sorted(
            (a.begun_s - a.sent_s, a.begun_s, a.received_s - a.begun_s)
            for a in self._window
            if a.begun_s is not None and not a.backlogged
        )
        if len(heads) < _LEAST_FINDINGS:
            return None
        transfer_s = median(taken_s for _, _, taken_s in heads)
        apart_s = heads[_LEAST_FINDINGS - 1][0] - heads[0][0]
        if apart_s + _LATE_S > _WIDE * transfer_s:
            return None
        base_s, at_s, _ = heads[0]
        return at_s, base_s, transfer_s

    def _rested(self, slope: float | None) -> list[tuple[Arrival, bool]]:
        """Return the chunks that found the link idle, and whether the next chunk queued behind.

        A chunk that arrived one transfer time after its predecessor may have queued behind it, in a
        kernel that still drained. The slope gives the transfer time; without one, the two closest
        chunks of the window do.
        """
        gaps_s, last_s = [], self._before_s
        for arrival in self._window:
            gaps_s.append(arrival.received_s - last_s)
            last_s = arrival.received_s
        if slope is None:
            slope = min(g / a.size_bytes for a, g in zip(self._window, gaps_s, strict=True))
        followed = [*(arrival.backlogged for arrival in islice(self._window, 1, None)), False]
        return [
            (arrival, goes_on)
            for arrival, gap_s, goes_on in zip(self._window, gaps_s, followed, strict=True)
            if not arrival.backlogged and gap_s > _RESTED * slope * arrival.size_bytes
        ]

    def _base_s(self, now_s: float, offset_s: float) -> float | None:
        """Return the base delay now; None while unknown."""
        if self._latency_s is not None:
            return self._latency_s + offset_s
        while self._bases and self._bases[0][0] < now_s - _REMEMBER_S:
            self._bases.popleft()
        if len(self._bases) < _LEAST_FINDINGS:
            return None
        drift, doubt_s = 0.0, _DRIFT * (now_s - self._bases[-1][0])
        if len(self._bases) >= 5 and self._bases[-1][0] > self._bases[0][0] + 5:
            drift = median(
                (y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in combinations(self._bases, 2)
            )
            drift, doubt_s = min(max(drift, -_DRIFT), _DRIFT), 0.0
        base_s, width_s = _shorth([base_s + drift * (now_s - at_s) for at_s, base_s in self._bases])
        return base_s if width_s + doubt_s <= _WIDE * self._transfer_s else None


def _alone(rested: Sequence[tuple[Arrival, bool]]) -> list[Point]:
    """Return chunks that met no queue as points (size, transfer time); none if in doubt.

    They share the unknown base delay, so their slope over different sizes is 1 / R. The slope must
    not depend on the smallest or the largest chunk alone.
    """
    points = sorted((float(a.size_bytes), a.received_s - a.sent_s) for a, _ in rested)
    if len(points) < 4 or points[-1][0] < 2 * points[0][0]:
        return []
    slopes = [least_late_slope([part]) for part in (points, points[1:], points[:-1])]
    known = [slope for slope in slopes if slope is not None and slope > 0]
    return points if len(known) == 3 and max(known) <= _LIKE * min(known) else []


def _slope_s_per_byte(groups: Sequence[Sequence[Point]], tolerance: float) -> float | None:
    """Return the slope of least lateness; None if points are too few or contradict each other."""
    if sum(len(points) - 1 for points in groups) < 3:
        return None
    slope = least_late_slope(groups)
    if slope is None or slope <= 0:
        return None
    busy_s = sum(len(g) * (max(g)[0] - min(g)[0]) * slope for g in groups)
    late_s = sum(len(g) * lateness(g, slope) for g in groups)
    return slope if late_s <= tolerance * busy_s else None


def _shorth(values: list[float]) -> tuple[float, float]:
    """Return the middle and the width of the narrowest interval with half of the values."""
    values = sorted(values)
    half = len(values) // 2 + 1
    first = min(range(len(values) - half + 1), key=lambda i: values[i + half - 1] - values[i])
    return values[first + (half - 1) // 2], values[first + half - 1] - values[first]
