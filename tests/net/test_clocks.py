"""Clock offsets through asymmetric load, against clocks whose offset is known at every moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from anabranch.net.clocks import ClockSample, OffsetFilter
from tests.seeds import slow_after

from ..every import every

Queue = Callable[[float], float]


@dataclass
class Way:
    """A peer, the links to it and back, and the own clock = true * (1 + drift) - offset.

    Every message is up to about a millisecond late because processors are busy.
    """

    latency_s: float
    queue_there: Queue
    queue_back: Queue
    offset_s: float = 0.0
    drift: float = 0.0
    busy: np.random.Generator | None = None

    def late_s(self) -> float:
        return 0.0 if self.busy is None else float(self.busy.exponential(3e-4))

    def clock_s(self, true_s: float) -> float:
        return true_s * (1 + self.drift) - self.offset_s

    def exchange(self, true_s: float, peer: tuple[Callable[[float], float], float]) -> ClockSample:
        """Ask at a true moment a peer that knows the reference by (its estimate, its error)."""
        asked_s = true_s + self.latency_s + self.queue_there(true_s) + self.late_s()
        answered_s = asked_s + 0.001
        back_s = answered_s + self.latency_s + self.queue_back(answered_s) + self.late_s()
        estimate, error_s = peer
        times_s = estimate(asked_s), estimate(answered_s)
        return ClockSample(self.clock_s(true_s), *times_s, self.clock_s(back_s), error_s)


EXACT = (lambda true_s: true_s), 0.0


def rounds(rng: np.random.Generator, most_s: float, idle: float) -> Queue:
    """Return a queue that holds 0 to ``most_s``, except in a share of each round when it is empty.

    Rounds last 3 to 12 s; within one the queue grows and shrinks as it will.
    """
    ends_s = np.cumsum(rng.uniform(3, 12, 500))
    levels = rng.uniform(0.1, 1.0, 20_000)

    def queue_s(true_s: float) -> float:
        k = int(np.searchsorted(ends_s, true_s))
        begin_s, end_s = ends_s[k - 1] if k else 0.0, ends_s[k]
        if true_s > end_s - idle * (end_s - begin_s):
            return 0.0
        return most_s * float(levels[int(true_s * 7) % 20_000])

    return queue_s


def empty(true_s: float) -> float:
    return 0.0


def asked(way: Way, filter: OffsetFilter, until_s: float) -> Iterator[tuple[float, bool]]:
    """Ask whenever the filter says so.

    Yields the true moment before each new question, when the last answer has aged most, and
    whether both directions have been found idle twice.
    """
    true_s, idle = 1.0, [0, 0]
    while true_s < until_s:
        sample = way.exchange(true_s, EXACT)
        filter.sample(sample)
        idle[0] += way.queue_there(true_s) == 0
        idle[1] += way.queue_back(sample.peer_sent_s) == 0
        next_s = filter.next_s(sample.received_s)
        true_s = (next_s + way.offset_s) / (1 + way.drift)
        yield true_s, min(idle) >= 2


def error_s(way: Way, filter: OffsetFilter, true_s: float) -> float:
    now_s = way.clock_s(true_s)
    return abs(filter.offset_s(now_s) - (true_s - now_s))


@pytest.mark.parametrize("seed", slow_after(1, range(8)))
@pytest.mark.parametrize("loaded", ["there", "back", "both"])
def test_the_error_stays_below_a_quarter_of_the_latency_under_asymmetric_load(
    loaded: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    latency_s = float(rng.uniform(0.005, 0.1))
    busy = rounds(rng, float(rng.uniform(2, 6)) * latency_s, idle=0.1)
    other = rounds(rng, 0.5 * latency_s, idle=0.1) if loaded == "both" else empty
    way = Way(
        latency_s,
        other if loaded == "back" else busy,
        busy if loaded == "back" else other,
        offset_s=float(rng.uniform(-5, 5)),
        drift=float(rng.uniform(-1e-4, 1e-4)),
        busy=rng,
    )
    filter = OffsetFilter()
    worst_s = 0.0
    for true_s, seen_idle in asked(way, filter, 1200.0):
        assert error_s(way, filter, true_s) <= filter.error_s(way.clock_s(true_s))
        if seen_idle:
            worst_s = max(worst_s, error_s(way, filter, true_s))
    assert worst_s < latency_s / 4


def test_a_chain_of_peers_adds_up_its_bounds() -> None:
    """Each site takes the time from the one before it, whose own estimate is off."""
    rng = np.random.default_rng(5)
    ways = [
        Way(
            latency_s,
            rounds(rng, 5 * latency_s, idle=0.2),
            rounds(rng, latency_s, idle=0.2),
            offset_s=float(rng.uniform(-5, 5)),
            drift=float(rng.uniform(-1e-4, 1e-4)),
            busy=rng,
        )
        for latency_s in (0.01, 0.05, 0.03)
    ]
    filters = [OffsetFilter() for _ in ways]
    for k in range(260):
        true_s = 1.0 + 4.0 * k
        peer = EXACT
        bounds_s = []
        for way, filter in zip(ways, filters, strict=True):
            sample = way.exchange(true_s, peer)
            filter.sample(sample)
            estimate, now_s = estimate_of(way, filter), sample.received_s
            bounds_s.append(filter.error_s(now_s))
            assert error_s(way, filter, true_s + 1.0) <= filter.error_s(way.clock_s(true_s + 1.0))
            peer = estimate, filter.error_s(way.clock_s(true_s + 1.0))
        if k > 200:  # what the first had wrong at the start is remembered for 128 exchanges
            assert bounds_s == sorted(bounds_s)
            assert error_s(ways[2], filters[2], true_s) < (0.01 + 0.05 + 0.03) / 4


def estimate_of(way: Way, filter: OffsetFilter) -> Callable[[float], float]:
    def reference_s(true_s: float) -> float:
        now_s = way.clock_s(true_s)
        return now_s + filter.offset_s(now_s)

    return reference_s


def test_one_exchange_halves_the_round_trip() -> None:
    filter = OffsetFilter()
    filter.sample(ClockSample(10.0, 15.5, 15.5, 11.0))
    assert filter.offset_s(11.0) == pytest.approx(5.0)
    assert filter.error_s(11.0) == pytest.approx(0.5, rel=1e-3)
    assert filter.error_s(111.0) == pytest.approx(0.5 + 100 * 5e-4, rel=1e-2)


def test_an_offset_is_carried_along_the_drift() -> None:
    way = Way(0.02, empty, empty, offset_s=3.0, drift=8e-5)
    filter = OffsetFilter()
    for k in range(10):
        filter.sample(way.exchange(float(k), EXACT))
    assert error_s(way, filter, 100.0) < 1e-4  # 7 ms without the drift


def test_a_clock_that_was_set_is_noticed_and_followed() -> None:
    before, after = Way(0.02, empty, empty), Way(0.02, empty, empty, offset_s=-2.0)
    filter = OffsetFilter()
    assert {filter.sample(before.exchange(float(k), EXACT)) for k in range(10)} == {True}
    assert not filter.sample(after.exchange(10.0, EXACT))
    assert filter.sample(after.exchange(11.0, EXACT))
    assert error_s(after, filter, 12.0) < 1e-3


def test_questions_are_frequent_at_first_and_seldom_later() -> None:
    way = Way(0.02, empty, empty)
    filter = OffsetFilter()
    assert filter.next_s(7.0) == 7.25
    moments_s = [true_s for true_s, _ in asked(way, filter, 600.0)]
    gaps_s = np.diff(moments_s)
    assert sum(moment_s < 31 for moment_s in moments_s) < 30
    assert len(moments_s) < 180
    assert gaps_s[-1] == pytest.approx(4.0, abs=0.1)
    assert every(np.diff(gaps_s) > -1e-6)


def test_nothing_is_known_before_the_first_exchange() -> None:
    assert OffsetFilter().error_s(1.0) == math.inf
    assert not OffsetFilter().is_known
    with pytest.raises(ValueError, match="take a sample first"):
        OffsetFilter().offset_s(1.0)


@pytest.mark.parametrize(
    "times_s", [(1.0, 5.0, 5.0, 0.5), (1.0, 5.0, 4.0, 2.0), (1.0, 5.0, 6.5, 2.0)]
)
def test_an_exchange_in_whose_midst_a_clock_was_set_is_passed_over(
    times_s: tuple[float, float, float, float],
) -> None:
    filter = OffsetFilter()
    assert filter.sample(ClockSample(0.0, 5.0, 5.0, 1.0))
    assert not filter.sample(ClockSample(*times_s))
    assert filter.offset_s(1.0) == pytest.approx(4.5)


@pytest.mark.parametrize("broken", [(1.0, math.nan, 5.0, 2.0), (1.0, 5.0, 5.0, 2.0, -1.0)])
def test_an_exchange_that_is_no_exchange_is_refused(broken: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="finite seconds"):
        ClockSample(*broken)
