"""Estimates the time on the reference clock, from exchanges of messages with peers. Pure.

A site asks a peer for the time, as in NTP. It records when it asked and when the answer arrived.
The peer records when the question arrived and when it answered. With theta = reference minus own
clock,

    question:  peer_received - sent  =  theta + latency there + queueing there
    answer:    received - peer_sent  = -theta + latency back  + queueing back

Queueing is never negative. So over time each of the two has a floor, which is a straight line,
because theta drifts steadily, by up to some 100 ppm. The slopes of the two floors are opposite.
With equal latencies, half the difference of the floors is theta. The sum of the floors is the round
trip without load.

The two directions need not be idle at the same time. NTP's filter keeps the exchanges of least
round trip, and so waits until both are idle at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.net._envelope import Point, least_late_slope, lower_hull

_MAX_DRIFT = 5e-4  # the worst clock that NTP tolerates
_REMEMBERED = 128
_SOONEST_S = 0.25
_SELDOM_S = 4.0


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One question for the time, and its answer.

    Args:
        sent_s: when the question left, own clock.
        peer_received_s, peer_sent_s: when the question reached the peer and when the answer left,
            by the peer's estimate of the reference clock.
        received_s: when the answer arrived, own clock.
        peer_error_s: bound on the error of that estimate; 0.0 if the peer is the reference.

    Raises:
        ValueError: a time that is not finite, or an error that is not finite and >= 0.
    """

    sent_s: float
    peer_received_s: float
    peer_sent_s: float
    received_s: float
    peer_error_s: float = 0.0

    def __post_init__(self) -> None:
        times_s = self.sent_s, self.peer_received_s, self.peer_sent_s, self.received_s
        if not (all(map(math.isfinite, times_s)) and 0 <= self.peer_error_s < math.inf):
            raise ValueError(
                f"an exchange has times {times_s} and peer_error_s {self.peer_error_s}; give "
                "finite seconds, and leave out answers of peers that do not know the time"
            )

    @property
    def is_possible(self) -> bool:
        """Whether the peer took >= 0 s to answer, and no longer than the whole exchange.

        If not, a clock was set during the exchange.
        """
        answering_s = self.peer_sent_s - self.peer_received_s
        slack_s = _MAX_DRIFT * answering_s  # the peer's clock may be the faster one
        return 0 <= answering_s <= self.received_s - self.sent_s + slack_s


class OffsetFilter:
    """Estimates the offset to the reference clock, despite loaded links and drifting clocks.

    One drift fits both floors: the one under which all exchanges have the least total lateness
    (:mod:`anabranch.net._envelope`). So if only one direction is loaded, the other shows the drift.
    Each direction needs only a few idle moments among the last 128 exchanges, about eight minutes.

    **Accuracy.** Take equal latencies both ways, a drift of up to 100 ppm, and a load that queues
    several latencies' worth in one direction nine tenths of the time. Then `offset_s` is within a
    quarter of the one-way latency once each direction was twice found idle. At that load one in ten
    exchanges finds it so, so this mostly takes a minute or two. With unequal latencies and no load,
    `offset_s` is off by half their difference. No exchange of messages can reveal that.

    **Bound.** `error_s` does not assume equal latencies. It is the largest distance from `offset_s`
    of any steady clock that agrees with every exchange. At best that is half the least round trip,
    plus the peer's own error. A peer that passes the time on (see NetStorm, V: parents align their
    children) states its own bound as ``peer_error_s``. So bounds add up from the reference
    outwards.
    """

    def __init__(self) -> None:
        self._samples: deque[ClockSample] = deque(maxlen=_REMEMBERED)
        self._began_s = 0.0  # own clock, first answer
        self._theta_s = 0.0  # offset at `_at_s`, the last answer
        self._at_s = 0.0
        self._drift = 0.0
        self._least_drift = self._most_drift = 0.0
        self._lower: list[Point] = []  # corners of the offset's lower bound
        self._upper: list[Point] = []

    def sample(self, sample: ClockSample) -> bool:
        """Add an exchange, in order of its answer.

        Returns:
            Whether a steady clock agrees with this exchange and all before. If not, a clock was
            set. The filter then starts anew from this exchange, or skips it if the clock was set
            during it. A clock set by less than the round trip goes unnoticed.
        """
        if not sample.is_possible:
            return False
        self._samples.append(sample)
        agrees = self._fit()
        if not agrees:
            self._samples.clear()
            self._samples.append(sample)
            if not self._fit():  # not even with itself
                self._samples.clear()
                return False
        if len(self._samples) == 1:
            self._began_s = sample.received_s
        return agrees

    @property
    def is_known(self) -> bool:
        """Whether there has been an exchange, so that the offset has a finite error."""
        return bool(self._samples)

    def offset_s(self, now_s: float) -> float:
        """Return reference clock minus own clock, seconds, when the own clock shows ``now_s``.

        Raises:
            ValueError: there has been no exchange yet.
        """
        if not self._samples:
            raise ValueError("no exchange yet, so the offset is unknown; take a sample first")
        return self._theta_s + self._drift * (now_s - self._at_s)

    def error_s(self, now_s: float) -> float:
        """Return how far `offset_s` may be off at most, seconds; infinite before any exchange.

        It assumes that the clocks run evenly, and drift by at most 500 ppm.
        """
        if not self._samples:
            return math.inf
        ago_s = now_s - self._at_s
        highest_s = min(y + self._most_drift * (ago_s - x) for x, y in self._upper)
        lowest_s = max(y + self._least_drift * (ago_s - x) for x, y in self._lower)
        offset_s = self.offset_s(now_s)
        return max(highest_s - offset_s, offset_s - lowest_s, 0.0)

    def next_s(self, now_s: float) -> float:
        """Return when to ask next, having asked at ``now_s``, own clock.

        The interval is a quarter of the time observed so far, between 0.25 s and 4 s. So the drift
        is never extrapolated far. A site should also ask at moments when its links are idle, as
        when it requests a round.
        """
        watched_s = now_s - self._began_s if self._samples else 0.0
        return now_s + min(max(_SOONEST_S, watched_s / 4), _SELDOM_S)

    def _fit(self) -> bool:
        """Fit both floors; return whether any steady clock agrees with all exchanges."""
        self._at_s = self._samples[-1].received_s
        there = [(s.sent_s - self._at_s, s.peer_received_s - s.sent_s) for s in self._samples]
        back = [(s.received_s - self._at_s, s.received_s - s.peer_sent_s) for s in self._samples]
        mirrored = [(-x, y) for x, y in back]
        drift = least_late_slope([there, mirrored]) or 0.0
        drift = min(max(drift, -_MAX_DRIFT), _MAX_DRIFT)
        errors_s = [s.peer_error_s for s in self._samples]
        above = lower_hull((x, y + e) for (x, y), e in zip(there, errors_s, strict=True))
        below = lower_hull((x, y + e) for (x, y), e in zip(back, errors_s, strict=True))

        def room_s(drift: float) -> float:
            """Return the width of the offsets that agree with a drift; negative if none does.

            It is concave.
            """
            return _floor_s(above, drift) + _floor_s(below, -drift)

        if room_s(drift) < 0:
            drift = _roomiest(room_s)
            if room_s(drift) < 0:
                return False
        self._drift = drift
        self._theta_s = (_floor_s(there, drift) - _floor_s(back, -drift)) / 2
        self._upper, self._lower = above, [(x, -y) for x, y in below]
        self._least_drift = _last_with_room(room_s, drift, -_MAX_DRIFT)
        self._most_drift = _last_with_room(room_s, drift, _MAX_DRIFT)
        return True


def _floor_s(points: Sequence[Point], drift: float) -> float:
    """Return where the highest line of slope ``drift`` under the points crosses x = 0."""
    return min(y - drift * x for x, y in points)


def _roomiest(room_s: Callable[[float], float]) -> float:
    low, high = -_MAX_DRIFT, _MAX_DRIFT
    for _ in range(60):
        third = (high - low) / 3
        if room_s(low + third) < room_s(high - third):
            low += third
        else:
            high -= third
    return (low + high) / 2


def _last_with_room(room_s: Callable[[float], float], drift: float, limit: float) -> float:
    """Return the drift nearest to ``limit`` with room >= 0; the given drift has room."""
    if room_s(limit) >= 0:
        return limit
    for _ in range(40):
        middle = (drift + limit) / 2
        if room_s(middle) >= 0:
            drift = middle
        else:
            limit = middle
    return limit  # just outside, so that a bound drawn from it holds
