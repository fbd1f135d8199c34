"""What time it is on the reference clock, from messages that peers answer. Pure.

A site asks a peer for the time, as in NTP: it notes when it asked and when the answer came, the
peer when the question came and when it answered. With theta = reference minus own clock,

    question:  peer_received - sent  =  theta + latency there + queueing there
    answer:    received - peer_sent  = -theta + latency back  + queueing back

Queueing is never negative, so over time each of the two has a floor, a straight line: theta
drifts steadily, by up to some 100 millionths. The two floors rise and fall as mirror images. Half
their distance is theta, if the two latencies are equal; their sum is the round trip without load.

The two floors need not be met at the same time. A filter that keeps the exchanges of least round
trip, as NTP's does, waits until both directions are idle at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.net._envelope import Point, least_late_slope, lower_hull

_MAX_DRIFT = 5e-4  # what NTP takes for the worst clock that may still be called one
_REMEMBERED = 128
_SOONEST_S = 0.25
_SELDOM_S = 4.0


@dataclass(frozen=True, slots=True)
class ClockSample:
    """One question for the time, and its answer.

    Args:
        sent_s: when the question left, own clock.
        peer_received_s, peer_sent_s: when it came to the peer and when the answer left, by the
            peer's estimate of the reference clock.
        received_s: when the answer came, own clock.
        peer_error_s: how far off that estimate may be; 0.0 where the peer is the reference.

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
        """Whether the answering took no less than nothing and no more than the whole exchange.

        If not, a clock was set meanwhile.
        """
        answering_s = self.peer_sent_s - self.peer_received_s
        slack_s = _MAX_DRIFT * answering_s  # the peer's clock may be the faster one
        return 0 <= answering_s <= self.received_s - self.sent_s + slack_s


class OffsetFilter:
    """Follows the reference clock through loaded links and drifting clocks.

    Both floors are fitted with one drift, the one under which all exchanges are least late in
    total (:mod:`anabranch.net._envelope`). So if only one direction is loaded, the other tells the
    drift, and each direction needs but a few idle moments among the exchanges remembered, which
    are the last 128, about eight minutes.

    **Accuracy.** With equal latencies both ways, a load that queues several latencies' worth in
    one direction nine tenths of the time, and a drift of up to 100 millionths, `offset_s` is
    within a quarter of the one-way latency once each direction was twice found idle (one in ten
    exchanges at that load, so mostly within the first minute or two). Unequal
    latencies without any load are off by half their difference; no exchange of messages can tell.

    **Bound.** `error_s` needs no such assumption: it is how far any steady clock that agrees with
    every exchange, whatever the latencies, may lie from `offset_s`. That is half the least round
    trip at best, plus what the peer says of its own error. A peer that passes the time on (see
    NetStorm, V: parents align their children) states its own bound as ``peer_error_s``, so bounds
    add up from the reference outwards.
    """

    def __init__(self) -> None:
        self._samples: deque[ClockSample] = deque(maxlen=_REMEMBERED)
        self._began_s = 0.0  # own clock, first answer
        self._theta_s = 0.0  # offset at `_at_s`, the last answer
        self._at_s = 0.0
        self._drift = 0.0
        self._least_drift = self._most_drift = 0.0
        self._lower: list[Point] = []  # corners of what the offset cannot be less than
        self._upper: list[Point] = []

    def sample(self, sample: ClockSample) -> bool:
        """Take note of an exchange, in order of its answer.

        Returns:
            Whether a steady clock agrees with it and all before. If not, a clock was set: the
            filter has started anew from this exchange, or has passed over it if the clock was set
            in its midst. (A clock set by less than the round trip is not found out.)
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

        The clocks are taken to run evenly, apart by no more than 500 millionths.
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

        After a quarter of the time watched so far, so that an offset is never carried far beyond
        what its drift was learnt from: 0.25 s at first, 4 s in the end. A site that knows of an
        idle moment, as when it asks for a round, does well to ask then too.
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
            """Return the latitude a clock of a drift has; negative where none agrees. Concave."""
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
    """Return where the line of a slope that lies under the points crosses x = 0."""
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
    """Return the drift nearest to a limit that still has room, from one that has."""
    if room_s(limit) >= 0:
        return limit
    for _ in range(40):
        middle = (drift + limit) / 2
        if room_s(middle) >= 0:
            drift = middle
        else:
            limit = middle
    return limit  # just outside, so that a bound drawn from it holds
