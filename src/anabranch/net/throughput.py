"""What a link carries, told from the chunks that cross it anyway. Pure: times are handed in.

The receiving end of each directed link keeps one estimator and shows it every message that
arrives. A link is a queue that serves in order: with rate R and *base delay* d, which is latency
plus whatever the two clocks differ by, the i-th message is in at

    received_i = max(sent_i + d, received_(i-1)) + size_i / R        (Lindley 1952),

or later, where the receiver was busy; it then catches up, because the kernel kept what came.
``sent`` is when sending began. In a queue that is not empty it runs ahead of the wire by all that
the kernel has taken, so nothing may be told from ``received - sent`` of such a message.
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
        received_s: when its last byte was in, on the receiver's clock.
        size_bytes: all of it, > 0.
        backlogged: the sender's lane had been sending without a pause since the message before.
        offset_s: estimate of the receiver's clock minus the sender's; 0.0 where unknown.
        begun_s: when its head was in, which takes no time of its own to carry, on the receiver's
            clock; None where messages come as a whole.
    """

    sent_s: float
    received_s: float
    size_bytes: int
    backlogged: bool
    offset_s: float = 0.0
    begun_s: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a link was found to carry.

    Args:
        rate_bps: payload rate, bit/s, of the link or of the lane's share of it.
        latency_s: one way, seconds, as good as the arrivals' ``offset_s``; None where unknown.
        chunks: how many arrivals it rests on.
    """

    rate_bps: float
    latency_s: float | None
    chunks: int


class Estimator(Protocol):
    """Watches one directed link."""

    def arrived(self, arrival: Arrival) -> Estimate | None:
        """Take note of a message, in order of arrival; return an estimate where there is news."""


class ChunkMeanEstimator:
    """The mean of size / (received - sent) over a few large chunks, then anew (NetStorm, eq. 14).

    It takes latency, queues and clock errors for slowness (`docs/mechanisms/awareness.md`). Chunks
    that seem to arrive before they left are passed over, since eq. 14 has no meaning for them.

    Args:
        probe_chunk_bytes: the least size of a chunk that counts (``PROBE_CHUNK_SIZE``), >= 0.
        probe_chunks: how many make an estimate (``PROBE_CHUNK_NUM``), >= 1.

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


# Of the busy time that a window covers: how late its chunks may be, on average, behind the rate
# they are said to show. More, and the rate is changing or the receiver was not listening.
_DOUBTFUL = 0.05
# The same for learning the base delay, which is remembered and so must not be learnt amiss.
_CLEAN = 0.02
# How much longer than a transfer lies between two chunks, at least, if the link rested between.
_RESTED = 1.05
# How many base delays must have been found before one is believed, and how far apart those that
# agree, more than half of them, may lie, as a part of a chunk's transfer.
_LEAST_FINDINGS = 3
_WIDE = 0.05
# How late a process may take note of a head, seconds.
_LATE_S = 1e-4
# How much slopes may differ that are found without the smallest and without the largest chunk.
_LIKE = 1.1
# How long a base delay is remembered, how many are, and how fast two clocks may part at most.
_REMEMBER_S = 60.0
_REMEMBERED = 16
_DRIFT = 2e-4


class BusyPeriodEstimator:
    """Rate from how chunks follow each other in busy periods, base delay from how these begin.

    **Rate.** In a busy period the link never rests, so receive times rise by size / R, whatever
    the clocks, the latency and the sender's kernel do. All busy periods in the window share the
    slope 1 / R; of all slopes it is the one under which the chunks are least late in total
    (:mod:`anabranch.net._envelope`), so that a pause which the receiver caught up with costs
    nothing. A lane that shares its link measures what it gets: its share while others send.

    **Base delay.** A chunk sent on an idle link shows d + size / R. Where the window has a rate
    from busy periods, or from such chunks of different sizes, that leaves d. Where it has not, the
    heads of chunks show d, if they go ahead of the payloads and are noticed in time. Findings are
    remembered for a minute and followed along the drift of the clocks. Kernels that still drain
    make some too large, a rate that just changed some too small; so d is what most of at least
    three agree on, and a head that came earlier still is believed. With d, an isolated chunk is a
    busy period of its own, so a link that is never busy for long is measured too, and so is one
    whose lane pauses while its kernel still drains.

    ``offset_s`` enters ``latency_s`` only: an error of a few ms would spoil the rate of a fast
    link, and the base delay holds the true difference of the clocks anyway. They must run evenly
    (monotonic clocks), not be right.

    **Window.** The last ``window_chunks`` arrivals, and all of the last ``window_s`` where that is
    more: on a fast link eight chunks pass within one pause of the receiver. News come with every
    half window, and a quarter of ``window_s`` apart. While the chunks contradict each other there
    are none, unless that lasts for windows on end; so a changed rate is reported once the window
    has left the old one behind, mostly within ``window_chunks + 1`` chunks or ``window_s``,
    whichever is later.

    **What it cannot know.** Chunks of one size that always come alone, and as a whole, show
    d + size / R and nothing else. Then there is no estimate, unless ``latency_s`` says d (together
    with a right ``offset_s``) or a message of another size, at most half as long, passes now and
    then.

    Args:
        window_chunks: how many arrivals an estimate rests on, >= 4.
        window_s: the least time it covers where more have come, seconds, >= 0.
        latency_s: the link's latency where it is known for sure; None to learn it.

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
        self._before_s = -math.inf  # when the last arrival came that has left the window
        self._fresh = 0  # arrivals since the last estimate
        self._reported_s = 0.0  # when it came out, or the first arrival came
        self._looked_s = -math.inf  # when the window was last tried
        self._bases: deque[Point] = deque(maxlen=_REMEMBERED)  # (received_s, base delay)
        self._transfer_s = 0.0  # of a chunk, when the last was found

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
        # What contradicts itself for windows on end is noise, which an estimate must live with.
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
            latency_s = None  # the clocks' offset is not known well enough to tell
        return Estimate(8 / slope, latency_s, len(window))

    def _busy_periods(self, base_s: float | None) -> list[list[Point]]:
        """Return the window's busy periods, each as (bytes carried so far, when) points.

        Without a base delay it is not known when a busy period began, nor whether a chunk that
        the lane sent after a pause still found the link busy: each such chunk begins another.
        """
        periods: list[list[Point]] = []
        carried_bytes = 0.0
        last_s = self._before_s
        for arrival in self._window:
            idle = not arrival.backlogged
            begin_s = None if base_s is None else arrival.sent_s + base_s
            if begin_s is not None and arrival.begun_s is not None:
                begin_s = min(begin_s, arrival.begun_s)  # what is remembered is too large
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
        """Return (when, base delay, a chunk's transfer) from chunks that met an idle link."""
        alone = _alone(self._rested(None))
        groups = self._busy_periods(None)
        slope = _slope_s_per_byte([*groups, alone] if alone else groups, _CLEAN)
        if slope is None:
            return None
        rested = self._rested(slope)
        # One that none followed says nothing of the rate it had, unless sizes differ.
        tell = bool(_alone(rested))
        findings = [
            (arrival.received_s - arrival.sent_s - slope * arrival.size_bytes, arrival.received_s)
            for arrival, followed in rested
            if followed or tell
        ]
        if not findings:
            return None
        base_s, at_s = min(findings)  # jitter and a busy receiver make it too large
        return at_s, base_s, slope * median(arrival.size_bytes for arrival in self._window)

    def _from_heads(self) -> tuple[float, float, float] | None:
        """Return the same as the quickest heads show it, if three agree."""
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
        """Return the window's chunks that found the link idle, and whether the next waited for it.

        One that came as soon as the link could carry it after the one before may have waited for
        that, in a kernel that still drained. How soon that is, the slope says, or else the closest
        two of the window.
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
        """Return the base delay as of now, or None while unknown."""
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
    """Return chunks that met no queue as a group of (size, time taken); none where in doubt.

    They share the unknown base delay, so where sizes differ the slope is that of the rate. It must
    not hang on the smallest or the largest of them.
    """
    points = sorted((float(a.size_bytes), a.received_s - a.sent_s) for a, _ in rested)
    if len(points) < 4 or points[-1][0] < 2 * points[0][0]:
        return []
    slopes = [least_late_slope([part]) for part in (points, points[1:], points[:-1])]
    known = [slope for slope in slopes if slope is not None and slope > 0]
    return points if len(known) == 3 and max(known) <= _LIKE * min(known) else []


def _slope_s_per_byte(groups: Sequence[Sequence[Point]], tolerance: float) -> float | None:
    """Return the slope of least lateness; None where too little, or contradictory, is known."""
    if sum(len(points) - 1 for points in groups) < 3:
        return None
    slope = least_late_slope(groups)
    if slope is None or slope <= 0:
        return None
    busy_s = sum(len(g) * (max(g)[0] - min(g)[0]) * slope for g in groups)
    late_s = sum(len(g) * lateness(g, slope) for g in groups)
    return slope if late_s <= tolerance * busy_s else None


def _shorth(values: list[float]) -> tuple[float, float]:
    """Return the middle and the width of the narrowest half: what most agree on, and how well."""
    values = sorted(values)
    half = len(values) // 2 + 1
    first = min(range(len(values) - half + 1), key=lambda i: values[i + half - 1] - values[i])
    return values[first + (half - 1) // 2], values[first + half - 1] - values[first]
